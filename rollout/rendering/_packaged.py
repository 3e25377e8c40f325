"""Renderers from the package ``renderers``, for the models that it supports."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from trajgym.rollout._ids import as_list
from trajgym.rollout._policy import PolicyRejected
from trajgym.rollout.rendering._base import Parsed, Renderer
from trajgym.rollout.rendering._parsing import Markers, call_id, tool_call
from trajgym.rollout.rendering._prepare import SEAM, Preparer
from trajgym.rollout.rendering._template import TemplateRenderer
from trajgym.rollout.rendering._tool_text import MALFORMED
from trajgym.trajectory import Span
from trajgym.trajectory._internal import MissingExtra

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from trajgym.trajectory import IntArray, Message, ToolSchema

__all__ = ["PackagedRenderer", "renderer_for"]

_THINK = Markers("<think>", "</think>")


def renderer_for(tokenizer: Any, **options: Any) -> Renderer:
    """Return the renderer for a tokenizer.

    It is a :class:`PackagedRenderer` if ``renderers`` is installed and supports exactly this model,
    by name, and a :class:`TemplateRenderer` otherwise.

    Args:
        tokenizer: a transformers tokenizer.
        options: arguments of :class:`TemplateRenderer`; passing any selects it.
    """
    if not options and _is_known(getattr(tokenizer, "name_or_path", "")):
        return PackagedRenderer(tokenizer)
    return TemplateRenderer(tokenizer, **options)


def _is_known(model: str) -> bool:
    try:
        from renderers.base import MODEL_RENDERER_MAP
    except ImportError:
        return False
    return model in MODEL_RENDERER_MAP


class _SeamTokenizer:
    """A tokenizer that encodes the text on each side of a seam separately."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer

    def __getattr__(self, name: str) -> Any:
        return getattr(self._tokenizer, name)

    def encode(self, text: str, *args: Any, **kwargs: Any) -> list[int]:
        """Return ids."""
        encode = self._tokenizer.encode
        return [i for part in text.split(SEAM) if part for i in encode(part, *args, **kwargs)]

    def __call__(self, *_: Any, **__: Any) -> Any:
        """Refuse to return offsets: they refer to the whole text, in which seams are lost."""
        raise NotImplementedError


class PackagedRenderer(Renderer):
    """Renders with a renderer of the package ``renderers`` (extra ``local``).

    These renderers parse dialects that :class:`TemplateRenderer` does not support (Harmony, GLM,
    DeepSeek, Kimi, XML calls). They are stricter about extending: if a model's template may strip
    reasoning, the conversation is rendered from scratch after each user message.

    Args:
        tokenizer: a transformers tokenizer.
        config: a config of ``renderers``; None selects one by the tokenizer's name.

    Raises:
        MissingExtra: ``renderers`` (or ``httpx``, which it needs) is not installed.
        PolicyRejected: ``renderers`` has no specific renderer for this model.
    """

    def __init__(self, tokenizer: Any, config: Any = None) -> None:
        self._tokenizer = tokenizer
        self._inner = _create(_SeamTokenizer(tokenizer), config)
        added = [str(token) for token in tokenizer.added_tokens_decoder.values()]
        self._prepare = Preparer(
            specials=tuple(sorted((t for t in added if len(t) > 1), key=len, reverse=True)),
            markers=_THINK,
            native_tools=True,
            native_reasoning=True,
        )
        self.stop_ids = frozenset(int(i) for i in self._inner.get_stop_token_ids())
        user = [{"role": "user", "content": "a"}]
        closed, opened = self._ids(user, (), opened=False), self._ids(user, (), opened=True)
        self.opening_ids = tuple(opened[len(closed) :])
        self._think_end = _single_id(tokenizer, _THINK.close)
        thinks = self._think_end is not None
        self.reasoning_open_ids = tuple(self._encode(_THINK.open)) if thinks else ()
        self.reasoning_close_ids = tuple(self._encode(f"\n{_THINK.close}\n\n")) if thinks else ()

    def render(self, messages: Sequence[Message], tools: Sequence[ToolSchema] = ()) -> list[int]:
        """See :meth:`Renderer.render`."""
        return self._ids(messages, tools, opened=True)

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
        new = self._prepare(messages[held:], ())
        start = self._response_start(prefix)
        if not new or start is None:
            return None
        rendered = _called(
            lambda: self._inner.bridge_to_next_turn(
                prefix[:start], prefix[start:], new, tools=list(tools) or None
            )
        )
        if rendered is None:
            return None
        ids = [int(i) for i in rendered.token_ids]
        return ids if ids[: len(prefix)] == prefix else None

    def parse(
        self,
        response_ids: IntArray | Sequence[int],
        prompt_ids: IntArray | Sequence[int] = (),
        tools: Sequence[ToolSchema] = (),
    ) -> Parsed:
        """See :meth:`Renderer.parse`."""
        ids = as_list(response_ids)
        found = self._parsed(ids, prompt_ids, tools)
        message: Message = {"role": "assistant", "content": found.content or ""}
        spans: list[Span] = []
        if found.reasoning_content:
            message["reasoning_content"] = found.reasoning_content
        if end := self._reasoning_end(ids, found):
            spans.append(Span("reasoning", 0, end))
        for index, call in enumerate(found.tool_calls):
            named = _call(call, call_id(ids, index, len(prompt_ids)))
            message.setdefault("tool_calls", []).append(named)
            start, end = call.token_span or (0, 0)
            if start < end:
                spans.append(Span("tool_call", start, end, named["id"]))
        if not ids or ids[-1] not in self.stop_ids:
            return Parsed(message, tuple(spans), "length")
        return Parsed(message, tuple(spans), "tool_calls" if found.tool_calls else "stop")

    def reasoning_is_open(
        self,
        response_ids: IntArray | Sequence[int],
        prompt_ids: IntArray | Sequence[int] = (),
    ) -> bool:
        """See :meth:`Renderer.reasoning_is_open`."""
        found = self._parsed(as_list(response_ids), prompt_ids, ())
        return found.reasoning_complete is False

    def shown(
        self, messages: Sequence[Message], tools: Sequence[ToolSchema] = ()
    ) -> list[Message] | None:
        """See :meth:`Renderer.shown`."""
        whole = self.render(messages, tools)
        out, changed = list(messages), False
        for i, message in enumerate(messages):
            if not message.get("reasoning_content"):
                continue
            bare = {k: v for k, v in message.items() if k != "reasoning_content"}
            if self.render([*out[:i], bare, *out[i + 1 :]], tools) == whole:
                out[i], changed = bare, True
        return out if changed else None

    def encode_response(self, message: Message | str) -> list[int]:
        """See :meth:`Renderer.encode_response`."""
        if isinstance(message, str):
            return [*self._encode(message), min(self.stop_ids)]
        before = [{"role": "user", "content": "a"}]
        start = len(self._ids(before, (), opened=True))
        ids = self._ids([*before, message], (), opened=False)[start:]
        ends = [i for i, identity in enumerate(ids) if identity in self.stop_ids]
        return ids[: ends[-1] + 1] if ends else [*ids, min(self.stop_ids)]

    def _ids(
        self, messages: Sequence[Message], tools: Sequence[ToolSchema], *, opened: bool
    ) -> list[int]:
        ready = self._prepare(messages, tools)
        rendered = _called(
            lambda: self._inner.render_ids(
                ready, tools=list(tools) or None, add_generation_prompt=opened
            )
        )
        return as_list(rendered)

    def _parsed(
        self, ids: list[int], prompt_ids: IntArray | Sequence[int], tools: Sequence[ToolSchema]
    ) -> Any:
        prompt = as_list(prompt_ids)
        return self._inner.parse_response(ids, tools=list(tools) or None, prompt_ids=prompt or None)

    def _encode(self, text: str) -> list[int]:
        return list(self._tokenizer.encode(text, add_special_tokens=False))

    def _response_start(self, prefix: list[int]) -> int | None:
        opening, size = list(self.opening_ids), len(self.opening_ids)
        for start in range(len(prefix) - size, -1, -1) if size else ():
            if prefix[start : start + size] == opening:
                return start + size
        return None

    def _reasoning_end(self, ids: list[int], found: Any) -> int:
        if not found.reasoning_content and found.reasoning_complete is not False:
            return 0
        if self._think_end is not None and self._think_end in ids:
            return ids.index(self._think_end) + 1
        if found.reasoning_complete is False:
            return len(ids) - (bool(ids) and ids[-1] in self.stop_ids)
        return 0


def _create(tokenizer: Any, config: Any) -> Any:
    try:
        from renderers import create_renderer
        from renderers.default import DefaultRenderer
    except ImportError as error:
        raise MissingExtra(error.name or "renderers", "local") from error
    if config is None and not _is_known(getattr(tokenizer, "name_or_path", "")):
        raise PolicyRejected(
            f"'renderers' does not support {getattr(tokenizer, 'name_or_path', '')!r}: pass one of "
            "its configs, or use TemplateRenderer",
        )
    inner = _called(lambda: create_renderer(tokenizer, config))
    if isinstance(inner, DefaultRenderer):
        raise PolicyRejected("the default of 'renderers' never extends: use TemplateRenderer")
    return inner


def _called(act: Callable[[], Any]) -> Any:
    try:
        return act()
    except Exception as error:  # boundary: foreign template code, any error of it is a refusal
        raise PolicyRejected(
            f"'renderers' refuses the messages: {type(error).__name__}: {error}",
        ) from error


def _single_id(tokenizer: Any, text: str) -> int | None:
    found = tokenizer.convert_tokens_to_ids(text)
    return found if isinstance(found, int) and found != tokenizer.unk_token_id else None


def _call(call: Any, identity: str) -> dict[str, Any]:
    arguments: Mapping[str, Any] | str | None = call.arguments
    if str(call.status) not in {"ok", "unknown_tool"} or not call.name:
        return tool_call(identity, call.name or MALFORMED, call.raw)
    if isinstance(arguments, str):
        return tool_call(identity, call.name, arguments)
    return tool_call(identity, call.name, json.dumps(arguments or {}))
