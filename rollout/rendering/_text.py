"""A renderer for templates that produce text, in which the text to append is searched."""

from __future__ import annotations

from abc import ABC, abstractmethod
from operator import is_not
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from trajgym.rollout._ids import as_list, end_of_last
from trajgym.rollout._policy import PolicyRejected
from trajgym.rollout.rendering._base import Parsed, Renderer
from trajgym.rollout.rendering._parsing import Markers, open_reasoning, parse_response
from trajgym.rollout.rendering._prepare import SEAM, Preparer
from trajgym.rollout.rendering._text_cache import Rendered, TextCache, place_of, tools_key

if TYPE_CHECKING:
    from collections.abc import Hashable, Sequence

    from trajgym.rollout.rendering._tool_text import ToolFormat
    from trajgym.trajectory import IntArray, Message, ToolSchema

__all__ = ["ChatCodec", "TextRenderer"]

_PROBE = "QZX7"
_LOOK_BACK = 48
"""Number of ids at the end of a prompt in which an opened reasoning block is searched."""
_HEAD = 16
"""Number of ids at the start of a response that are decoded to see whether it opens reasoning."""
_SPLIT = 4
"""Largest number of characters at the end of a decoded text that may stand for a part of one."""


class ChatCodec(ABC):
    """The interface of a tokenizer with a chat template, as renderers need it."""

    specials: tuple[str, ...]
    """Texts, of two characters or more, that ``encode`` converts to one special id."""
    eos_ids: tuple[int, ...]

    @abstractmethod
    def encode(self, text: str) -> list[int]:
        """Return ids; the texts of special tokens become special ids."""

    def encode_array(self, text: str) -> IntArray:
        """Return the ids of :meth:`encode` as an int32 array."""
        return np.array(self.encode(text), dtype=np.int32)

    @abstractmethod
    def decode(self, ids: list[int]) -> str:
        """Return the text, including special tokens."""

    @abstractmethod
    def template(
        self, messages: Sequence[Message], tools: Sequence[ToolSchema], *, open_turn: bool
    ) -> str:
        """Return the text of a conversation, optionally with the assistant's next turn opened.

        Raises:
            PolicyRejected: the template refuses these messages.
        """


class _Texts(NamedTuple):
    """A conversation's text: up to the last response, with it, and as the next prompt."""

    prompt: str
    closed: str
    full: str


class TextRenderer(Renderer):
    """Renders with a template that produces text.

    Three texts decide whether a prefix can be extended: the conversation up to the last response
    with the turn opened, the same with the response, and the whole conversation as the next prompt.
    If the third does not start with each of the first two, the template rewrites earlier text, and
    there is no extension. Otherwise, what the third adds after the response is encoded and appended
    to the prefix.

    Args:
        codec: tokenizer and template.
        tool_format: the dialect of tool calls.
        native_tools: the template writes tools; if False, the system prompt describes them.
        markers: the markers of reasoning; None if the model does not reason.
        native_reasoning: the template uses ``reasoning_content``.
        system_role: the template accepts a system message.
        stop_tokens: texts of further special tokens that end a response.
        reasoning_close: text that closes reasoning that ran out of budget.
        images: the codec shows stored images, see :class:`Preparer`.
    """

    def __init__(
        self,
        codec: ChatCodec,
        *,
        tool_format: ToolFormat = "hermes",
        native_tools: bool = True,
        markers: Markers | None = None,
        native_reasoning: bool = True,
        system_role: bool = True,
        stop_tokens: Sequence[str] = (),
        reasoning_close: str | None = None,
        images: bool = False,
    ) -> None:
        self._codec = codec
        self._tool_format = tool_format
        self._markers = markers
        self._prepare = Preparer(
            specials=codec.specials,
            markers=markers,
            native_tools=native_tools,
            native_reasoning=native_reasoning,
            system_role=system_role,
            images=images,
        )
        self._prompts = TextCache()
        self.opening_ids = tuple(self._encode_list(self._opening_text()))
        self._unopened = self._unopened_ids()
        self._lead = self._find_lead()
        self._stops = self._find_stops(stop_tokens)
        self.stop_ids = frozenset(self._stops)
        self.reasoning_open_ids = ()
        self.reasoning_close_ids = ()
        if markers:
            close = f"\n{markers.close}\n\n" if reasoning_close is None else reasoning_close
            self.reasoning_open_ids = tuple(codec.encode(markers.open))
            self.reasoning_close_ids = tuple(codec.encode(close))

    def render(self, messages: Sequence[Message], tools: Sequence[ToolSchema] = ()) -> list[int]:
        """See :meth:`Renderer.render`."""
        return self._encode_list(self._prompt(list(messages), tools).text)

    def text(self, messages: Sequence[Message], tools: Sequence[ToolSchema] = ()) -> str:
        """Return the text that :meth:`render` encodes."""
        return self._prompt(list(messages), tools).text.replace(SEAM, "")

    def extend(
        self,
        prefix_ids: IntArray | Sequence[int],
        messages: Sequence[Message],
        tools: Sequence[ToolSchema] = (),
        *,
        held: int,
    ) -> list[int] | None:
        """See :meth:`Renderer.extend`."""
        added = self.extension(prefix_ids, messages, tools, held=held)
        return None if added is None else [*as_list(prefix_ids), *added.tolist()]

    def extension(
        self,
        prefix_ids: IntArray | Sequence[int],
        messages: Sequence[Message],
        tools: Sequence[ToolSchema] = (),
        *,
        held: int,
    ) -> IntArray | None:
        """See :meth:`Renderer.extension`; of the prefix, only the last response is read."""
        if not len(prefix_ids) or not 0 < held <= len(messages):
            return None
        if messages[held - 1]["role"] != "assistant":
            return None
        texts = self._stable_texts(list(messages), tools, held)
        return None if texts is None else self._glue(np.asarray(prefix_ids), texts)

    def decode(self, ids: IntArray | Sequence[int]) -> str:
        """Return the text of ids, special ones included."""
        return self._codec.decode(as_list(ids))

    def parse(
        self,
        response_ids: IntArray | Sequence[int],
        prompt_ids: IntArray | Sequence[int] = (),
        tools: Sequence[ToolSchema] = (),
    ) -> Parsed:
        """See :meth:`Renderer.parse`."""
        # A JSON answer without markers is a call only if there are tools.
        reads_calls = bool(tools) or self._tool_format != "llama"
        return parse_response(
            response_ids,
            decode=self._codec.decode,
            stop_ids=self.stop_ids,
            markers=self._markers,
            opened=self._opened(prompt_ids),
            tool_format=self._tool_format if reads_calls else None,
            prompt_size=len(prompt_ids),
            lead=self._lead,
        )

    def reasoning_is_open(
        self,
        response_ids: IntArray | Sequence[int],
        prompt_ids: IntArray | Sequence[int] = (),
    ) -> bool:
        """See :meth:`Renderer.reasoning_is_open`."""
        if self._markers is None:
            return False
        text = self._codec.decode(as_list(response_ids))
        inner = open_reasoning(text, self._markers, opened=self._opened(prompt_ids))
        return inner is not None and self._markers.close not in text[inner:]

    def shown(
        self, messages: Sequence[Message], tools: Sequence[ToolSchema] = ()
    ) -> list[Message] | None:
        """See :meth:`Renderer.shown`."""
        if not any(message.get("reasoning_content") for message in messages):
            return None
        whole = self._prompt(list(messages), tools)
        ready, out = list(whole.prepared), list(messages)

        def strip(places: list[int]) -> None:
            """Omit the reasoning at those places where the text does not show it.

            Templates mostly show none of the earlier reasoning, so halves are tried before single
            messages: each try renders the whole conversation.
            """
            bare = {i: _without_reasoning(messages[i]) for i in places}
            trial = list(ready)
            for i, message in bare.items():
                trial[i] = self._prepare.one(message, i)
            if self._written(trial, tools, open_turn=True) == whole.text:
                ready[:] = trial
                for i, message in bare.items():
                    out[i] = message
            elif len(places) > 1:
                strip(places[: len(places) // 2])
                strip(places[len(places) // 2 :])

        strip([i for i, message in enumerate(messages) if message.get("reasoning_content")])
        return out if any(map(is_not, out, messages)) else None

    def encode_response(self, message: Message | str) -> list[int]:
        """See :meth:`Renderer.encode_response`."""
        if isinstance(message, str):
            text = message
        else:
            before = [{"role": "user", "content": _PROBE}]
            opened = self._text(before, (), open_turn=True)
            text = self._text([*before, message], (), open_turn=False)[len(opened) :]
            stop = self._stop_at_end(text)
            text = text.rstrip().removesuffix(stop) if stop else text
        return [*self._encode_list(text), *list(self._stops)[:1]]

    def _text(
        self, messages: Sequence[Message], tools: Sequence[ToolSchema], *, open_turn: bool
    ) -> str:
        ready = [self._prepare.one(message, i) for i, message in enumerate(messages)]
        return self._written(ready, tools, open_turn=open_turn)

    def _written(
        self, prepared: list[Message], tools: Sequence[ToolSchema], *, open_turn: bool
    ) -> str:
        ready = self._prepare.joined(prepared, tools)
        shown = tools if self._prepare.native_tools else ()
        return self._codec.template(ready, shown, open_turn=open_turn)

    def _prompt(self, messages: list[Message], tools: Sequence[ToolSchema]) -> Rendered:
        """Return the next prompt; cached, because the next turn needs it."""
        place = place_of(messages, tools_key(tools))
        found = self._prompts.get(place, messages)
        return found or self._render(place, messages, tools)

    def _render(
        self,
        place: Hashable,
        messages: list[Message],
        tools: Sequence[ToolSchema],
        start: Rendered | None = None,
    ) -> Rendered:
        """Render a prompt and keep it; ``start`` is one that the messages start with."""
        ready = self._ready(messages, start)
        text = self._written(ready, tools, open_turn=True)
        made = Rendered(messages, ready, text, start)
        self._prompts.put(place, made)
        return made

    def _ready(self, messages: list[Message], start: Rendered | None) -> list[Message]:
        known = [] if start is None else start.prepared
        new = enumerate(messages[len(known) :], len(known))
        return [*known, *(self._prepare.one(message, i) for i, message in new)]

    def _encode_list(self, text: str) -> list[int]:
        if SEAM not in text:
            return self._codec.encode(text)
        return [i for part in text.split(SEAM) for i in self._codec.encode(part)]

    def _encode(self, text: str) -> IntArray:
        if SEAM not in text:
            return self._codec.encode_array(text)
        return np.concatenate([self._codec.encode_array(part) for part in text.split(SEAM)])

    def _opened(self, prompt_ids: IntArray | Sequence[int]) -> bool:
        if self._markers is None or not len(prompt_ids):
            return False
        plain = self._unopened
        if plain and as_list(prompt_ids[-len(plain) :]) == plain:
            return False
        tail = self._codec.decode(as_list(prompt_ids[-_LOOK_BACK:]))
        return tail.rstrip().endswith(self._markers.open)

    def _stable_texts(
        self, messages: list[Message], tools: Sequence[ToolSchema], held: int
    ) -> _Texts | None:
        """Return the three texts, or None if the template changes the text of the prefix."""
        asked, key = messages[: held - 1], tools_key(tools)
        place, next_place = place_of(asked, key), place_of(messages, key)
        start = self._prompts.get(place, asked)
        whole = self._prompts.get(next_place, messages)
        whole = whole or self._render(next_place, messages, tools, start)
        closed = self._written(whole.prepared[:held], tools, open_turn=False)
        if not whole.text.startswith(closed):
            return None
        prompt = (start or self._render(place, asked, tools)).text
        if not closed.startswith(prompt):
            return None
        self._prompts.expect_less(place)
        # A template that strips reasoning from every turn strips it from both texts.
        reasoning = (messages[held - 1].get("reasoning_content") or "").strip()
        if reasoning:
            thought = whole.prepared[held - 1]
            if self._lost(reasoning, thought, closed[len(prompt) :]):
                return None
        return _Texts(prompt, closed, whole.text)

    def _lost(self, reasoning: str, prepared: Message, text: str) -> bool:
        known = (prepared.get("reasoning_content") or reasoning).strip()
        return known not in text and reasoning not in text.replace(SEAM, "")

    def _glue(self, prefix: IntArray, texts: _Texts) -> IntArray | None:
        """Return the ids between the response and the next one."""
        response = texts.closed[len(texts.prompt) :]
        template_stop = self._stop_at_end(response)
        end = len(texts.closed.rstrip()) if template_stop else len(texts.closed)
        tail = texts.full[end:]
        last = int(prefix[-1])
        stop = self._stops.get(last)
        if stop is None:
            return self._close_turn(prefix, f"{template_stop or ''}{tail}")
        if self._ends_in_reasoning(prefix):
            return None  # the template closes reasoning; this response stopped inside it
        if template_stop is None:
            # Some templates close a turn only when the next one begins.
            if not tail.startswith(stop):
                return None
            tail = tail[len(stop) :]
        elif template_stop != stop:
            return None
        anchored = self._encode(stop + tail)
        # Some tokenizers insert a space before a text's first word, so an anchor is put before it.
        return anchored[1:] if anchored.size and anchored[0] == last else self._encode(tail)

    def _close_turn(self, prefix: IntArray, rest: str) -> IntArray:
        """Return ids that close a truncated response, and the ids that follow it."""
        close = self.reasoning_close_ids if self._ends_in_reasoning(prefix) else ()
        return np.concatenate([np.array(close, dtype=np.int32), self._encode(rest)])

    def _ends_in_reasoning(self, prefix: IntArray) -> bool:
        if self._markers is None:
            return False
        start = end_of_last(prefix, self.opening_ids)
        head = self._codec.decode(as_list(prefix[start : start + _HEAD])).lstrip()
        opening = self._markers.open
        # A character may be split at the end of the head, but not at its beginning.
        if len(head) >= len(opening) + _SPLIT and not head.startswith(opening):
            return False
        text = self._codec.decode(as_list(prefix[start:]))
        opened = open_reasoning(text, self._markers, opened=False)
        return opened is not None and self._markers.close not in text[opened:]

    def _stop_at_end(self, text: str) -> str | None:
        text = text.rstrip()
        found = [stop for stop in self._stops.values() if text.endswith(stop)]
        return max(found, key=len, default=None)

    def _unopened_ids(self) -> list[int]:
        """Return the ids at the end of most prompts, if they show that no reasoning is open."""
        ids = list(self.opening_ids)
        text = self._codec.decode(ids).rstrip()
        marker = "" if self._markers is None else self._markers.open
        # A shorter text could be the end of a marker that other ids begin.
        shows = len(text) >= len(marker) and not text.endswith(marker)
        return ids if shows else []

    def _opening_text(self) -> str:
        before = [{"role": "user", "content": _PROBE}]
        opened = self._text(before, (), open_turn=True)
        closed = self._text(before, (), open_turn=False)
        text = opened[len(closed) :] if opened.startswith(closed) else ""
        if self._markers and self._markers.open in text:
            text = text[: text.index(self._markers.open)]
        return text

    def _find_lead(self) -> str:
        """Return the space that the template inserts before an assistant's content."""
        before = [{"role": "user", "content": "a"}]
        opened = self._text(before, (), open_turn=True)
        text = self._text([*before, {"role": "assistant", "content": _PROBE}], (), open_turn=False)
        lead = text[len(opened) :].partition(_PROBE)[0] if text.startswith(opened) else ""
        return "" if lead.strip() else lead

    def _find_stops(self, stop_tokens: Sequence[str]) -> dict[int, str]:
        """Return stop ids and their texts, starting with the one that the template writes."""
        user = {"role": "user", "content": "a"}
        said = {"role": "assistant", "content": _PROBE}
        text = self._text([user, said, user], (), open_turn=False)
        after = text[text.rindex(_PROBE) + len(_PROBE) :] if _PROBE in text else ""
        places = {at: s for s in self._codec.specials if (at := after.find(s)) >= 0}
        first = [places[min(places)]] if places else []
        stops: dict[int, str] = {}
        for token in [*first, *stop_tokens]:
            ids = self._codec.encode(token)
            if len(ids) == 1:
                stops[ids[0]] = token
        for identity in self._codec.eos_ids:
            stops.setdefault(identity, self._codec.decode([identity]))
        if not stops:
            raise PolicyRejected(
                "the chat template closes a response with no special token and the tokenizer has "
                "no end-of-sequence id: pass stop_tokens",
            )
        return stops


def _without_reasoning(message: Message) -> Message:
    return {name: value for name, value in message.items() if name != "reasoning_content"}
