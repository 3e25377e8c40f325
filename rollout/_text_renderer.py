"""A renderer over any template that writes text: what to append is found in the text it writes."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, NamedTuple

from trajgym.rollout._ids import as_list
from trajgym.rollout._parsing import Markers, open_reasoning, parse_response
from trajgym.rollout._policy import PolicyRejected
from trajgym.rollout._prepare import SEAM, Preparer
from trajgym.rollout._renderer import Parsed, Renderer
from trajgym.rollout._text_cache import TextCache, conversation_key

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trajgym.rollout._tool_text import ToolFormat
    from trajgym.trajectory import IntArray, Message, ToolSchema

__all__ = ["ChatCodec", "TextRenderer"]

_PROBE = "QZX7"
_LOOK_BACK = 48
"""Ids at the end of a prompt among which an opened reasoning block would stand."""


class ChatCodec(ABC):
    """A tokenizer and its chat template, as a renderer needs them."""

    specials: tuple[str, ...]
    """Texts, of two characters or more, that ``encode`` reads as one special id."""
    eos_ids: tuple[int, ...]

    @abstractmethod
    def encode(self, text: str) -> list[int]:
        """Return ids; special tokens spelled out in the text become special ids."""

    @abstractmethod
    def decode(self, ids: Sequence[int]) -> str:
        """Return text, special ids spelled out."""

    @abstractmethod
    def template(
        self, messages: Sequence[Message], tools: Sequence[ToolSchema], *, open_turn: bool
    ) -> str:
        """Return the text of a conversation, with the assistant's next turn opened or not.

        Raises:
            PolicyRejected: the template refuses these messages.
        """


class _Texts(NamedTuple):
    """A conversation's text: up to the last response, with it, and as the next prompt."""

    prompt: str
    closed: str
    full: str


class TextRenderer(Renderer):
    """Renders through a template that writes text.

    Three texts decide whether a prefix can be extended: the conversation up to the last response
    with the turn opened, the same with the response, and the whole as the next prompt. If the first
    two don't start the third, the template rewrites what was, and there is no extension. If they
    do, what the third adds after the response is encoded and appended to the prefix.

    Args:
        codec: tokenizer and template.
        tool_format: how the model writes calls.
        native_tools: the template writes tools itself; else the system prompt describes them.
        markers: around reasoning; None if the model does not reason.
        native_reasoning: the template reads ``reasoning_content``.
        system_role: the template takes a system message.
        stop_tokens: texts of further special tokens that end a response.
        reasoning_close: text that closes reasoning which ran out of budget.
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
        self.opening_ids = tuple(self._encode(self._opening_text()))
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
        return self._encode(self._prompt(messages, tools))

    def text(self, messages: Sequence[Message], tools: Sequence[ToolSchema] = ()) -> str:
        """Return the text that :meth:`render` encodes."""
        return self._prompt(messages, tools).replace(SEAM, "")

    def extend(
        self,
        prefix_ids: IntArray | Sequence[int],
        messages: Sequence[Message],
        tools: Sequence[ToolSchema] = (),
        *,
        held: int,
    ) -> list[int] | None:
        """See :meth:`Renderer.extend`."""
        prefix = as_list(prefix_ids)
        if not prefix or not 0 < held <= len(messages):
            return None
        if messages[held - 1]["role"] != "assistant":
            return None
        texts = self._stable_texts(messages, tools, held)
        if texts is None:
            return None
        glue = self._glue(prefix, texts)
        return None if glue is None else prefix + glue

    def parse(
        self,
        response_ids: IntArray | Sequence[int],
        prompt_ids: IntArray | Sequence[int] = (),
        tools: Sequence[ToolSchema] = (),
    ) -> Parsed:
        """See :meth:`Renderer.parse`."""
        # A bare JSON answer is a call only where there is something to call.
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
        whole = self._prompt(messages, tools)
        out, changed = list(messages), False
        for i, message in enumerate(messages):
            if not message.get("reasoning_content"):
                continue
            bare = {k: v for k, v in message.items() if k != "reasoning_content"}
            if self._text([*out[:i], bare, *out[i + 1 :]], tools, open_turn=True) == whole:
                out[i], changed = bare, True
        return out if changed else None

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
        return [*self._encode(text), *list(self._stops)[:1]]

    def _text(
        self, messages: Sequence[Message], tools: Sequence[ToolSchema], *, open_turn: bool
    ) -> str:
        ready = self._prepare(messages, tools)
        shown = tools if self._prepare.native_tools else ()
        return self._codec.template(ready, shown, open_turn=open_turn)

    def _prompt(self, messages: Sequence[Message], tools: Sequence[ToolSchema]) -> str:
        """Return the text of the next prompt, which is asked for again one turn later."""
        key = conversation_key(messages, tools)
        text = self._prompts.get(key)
        if text is None:
            text = self._text(messages, tools, open_turn=True)
            self._prompts.put(key, text)
        return text

    def _encode(self, text: str) -> list[int]:
        if SEAM not in text:
            return self._codec.encode(text)
        return [i for part in text.split(SEAM) for i in self._codec.encode(part)]

    def _opened(self, prompt_ids: IntArray | Sequence[int]) -> bool:
        if self._markers is None or not len(prompt_ids):
            return False
        tail = self._codec.decode(as_list(prompt_ids[-_LOOK_BACK:]))
        return tail.rstrip().endswith(self._markers.open)

    def _stable_texts(
        self, messages: Sequence[Message], tools: Sequence[ToolSchema], held: int
    ) -> _Texts | None:
        """Return the three texts, or None if the template changes what the prefix holds."""
        full = self._prompt(messages, tools)
        closed = self._text(messages[:held], tools, open_turn=False)
        if not full.startswith(closed):
            return None
        prompt = self._prompt(messages[: held - 1], tools)
        if not closed.startswith(prompt):
            return None
        # A template that drops reasoning from every turn drops it from both texts.
        reasoning = (messages[held - 1].get("reasoning_content") or "").strip()
        if reasoning:
            thought = self._prepare(messages[held - 1 : held], ())[0]
            if self._lost(reasoning, thought, closed[len(prompt) :]):
                return None
        return _Texts(prompt, closed, full)

    def _lost(self, reasoning: str, prepared: Message, text: str) -> bool:
        known = (prepared.get("reasoning_content") or reasoning).strip()
        return known not in text and reasoning not in text.replace(SEAM, "")

    def _glue(self, prefix: list[int], texts: _Texts) -> list[int] | None:
        """Return the ids between the response and the next one."""
        response = texts.closed[len(texts.prompt) :]
        template_stop = self._stop_at_end(response)
        end = len(texts.closed.rstrip()) if template_stop else len(texts.closed)
        tail = texts.full[end:]
        stop = self._stops.get(prefix[-1])
        if stop is None:
            return self._close_turn(prefix, f"{template_stop or ''}{tail}")
        if self._ends_in_reasoning(prefix):
            return None  # the template closes reasoning; this response stopped inside it
        if template_stop is None:
            # Templates that close a turn only when the next one begins.
            if not tail.startswith(stop):
                return None
            tail = tail[len(stop) :]
        elif template_stop != stop:
            return None
        anchored = self._encode(stop + tail)
        # Some tokenizers put a space before a text's first word: keep the anchor before it.
        return anchored[1:] if anchored[:1] == prefix[-1:] else self._encode(tail)

    def _close_turn(self, prefix: list[int], rest: str) -> list[int]:
        """Return ids that close a response which was cut, and what follows it."""
        close = self.reasoning_close_ids if self._ends_in_reasoning(prefix) else ()
        return [*close, *self._encode(rest)]

    def _ends_in_reasoning(self, prefix: Sequence[int]) -> bool:
        if self._markers is None:
            return False
        start = _last_position(prefix, self.opening_ids)
        text = self._codec.decode(prefix[start:])
        opened = open_reasoning(text, self._markers, opened=False)
        return opened is not None and self._markers.close not in text[opened:]

    def _stop_at_end(self, text: str) -> str | None:
        text = text.rstrip()
        found = [stop for stop in self._stops.values() if text.endswith(stop)]
        return max(found, key=len, default=None)

    def _opening_text(self) -> str:
        before = [{"role": "user", "content": _PROBE}]
        opened = self._text(before, (), open_turn=True)
        closed = self._text(before, (), open_turn=False)
        text = opened[len(closed) :] if opened.startswith(closed) else ""
        if self._markers and self._markers.open in text:
            text = text[: text.index(self._markers.open)]
        return text

    def _find_lead(self) -> str:
        """Return the space that the template puts before what the assistant says."""
        before = [{"role": "user", "content": "a"}]
        opened = self._text(before, (), open_turn=True)
        text = self._text([*before, {"role": "assistant", "content": _PROBE}], (), open_turn=False)
        lead = text[len(opened) :].partition(_PROBE)[0] if text.startswith(opened) else ""
        return "" if lead.strip() else lead

    def _find_stops(self, stop_tokens: Sequence[str]) -> dict[int, str]:
        """Return stop ids and their texts; the one that the template writes comes first."""
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


def _last_position(ids: Sequence[int], part: Sequence[int]) -> int:
    """Return where the text after the last ``part`` begins; 0 if it is not there."""
    size = len(part)
    for start in range(len(ids) - size, -1, -1) if size else ():
        if tuple(ids[start : start + size]) == tuple(part):
            return start + size
    return 0
