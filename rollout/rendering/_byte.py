"""A small tokenizer and chat template without downloads or dependencies."""

from __future__ import annotations

import json
import marshal
import re
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np

from trajgym.rollout.rendering._image_spans import find_images
from trajgym.rollout.rendering._parsing import Markers
from trajgym.rollout.rendering._prepare import IMAGE
from trajgym.rollout.rendering._text import ChatCodec, TextRenderer
from trajgym.rollout.rendering._tool_text import write_call, write_values
from trajgym.trajectory import blob_hashes

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

    from trajgym.trajectory import ImageRef, IntArray, Message, ToolSchema

__all__ = ["ByteRenderer"]

_SPECIALS = (
    "<|system|>",
    "<|user|>",
    "<|assistant|>",
    "<|tool|>",
    "<|end|>",
    "<think>",
    "</think>",
    "<tool_call>",
    "</tool_call>",
    "<|image|>",
)
_FIRST = 256
_IDS = {text: _FIRST + i for i, text in enumerate(_SPECIALS)}
_write = json.JSONEncoder(ensure_ascii=False).encode
_SPECIAL_ARRAYS = {text: np.array([identity], dtype=np.int32) for text, identity in _IDS.items()}
_MARKED = f"{IMAGE}[^{IMAGE}]*{IMAGE}"
_SPLIT = re.compile("(" + "|".join([*(re.escape(text) for text in _SPECIALS), _MARKED]) + ")")


class _ByteCodec(ChatCodec):
    specials = _SPECIALS
    eos_ids = (_IDS["<|end|>"],)

    def __init__(self, *, strip_reasoning: bool) -> None:
        self._strip = strip_reasoning

    def encode(self, text: str) -> list[int]:
        ids: list[int] = self.encode_array(text).tolist()
        return ids

    def encode_array(self, text: str) -> IntArray:
        parts: list[npt.NDArray[np.generic]] = []
        for part in _SPLIT.split(text):
            if not part:
                continue
            if part in _SPECIAL_ARRAYS:
                parts.append(_SPECIAL_ARRAYS[part])
            elif part.startswith(IMAGE):
                parts.append(np.array(_image_ids(part.strip(IMAGE))))
            else:
                parts.append(np.frombuffer(part.encode("utf-8", "replace"), dtype=np.uint8))
        if not parts:
            return np.zeros(0, dtype=np.int32)
        return np.concatenate(parts, dtype=np.int32, casting="same_kind")

    def decode(self, ids: list[int]) -> str:
        try:
            return bytes(ids).decode("utf-8", "replace")
        except ValueError:  # some are special
            pieces: list[str] = []
        start = 0
        for at in [i for i, identity in enumerate(ids) if identity >= _FIRST]:
            special = ids[at] - _FIRST
            pieces.append(bytes(ids[start:at]).decode("utf-8", "replace"))
            pieces.append(_SPECIALS[special] if special < len(_SPECIALS) else "\ufffd")
            start = at + 1
        return "".join([*pieces, bytes(ids[start:]).decode("utf-8", "replace")])

    def template(
        self, messages: Sequence[Message], tools: Sequence[ToolSchema], *, open_turn: bool
    ) -> str:
        users = [i for i, m in enumerate(messages) if m["role"] == "user"]
        keep_from = users[-1] if users and self._strip else -1
        pieces = [_system(tools)] if tools else []
        for i, message in enumerate(messages):
            body = _speech(message, think=i > keep_from)
            pieces.append(f"<|{message['role']}|>{body}<|end|>")
        return "".join([*pieces, "<|assistant|>" if open_turn else ""])


def _image_ids(blob: str) -> list[int]:
    """Return the placeholders of an image: four to seven, depending on its hash."""
    return [_IDS["<|image|>"]] * (4 + sum(blob.encode()) % 4)


# A conversation's tools and calls are written again in every turn, so their texts are kept, by what
# marshal makes of them: version 2 depends on nothing but values and their order.
_BY_VALUE = 2


def _system(tools: Sequence[ToolSchema]) -> str:
    try:
        return _tools_text(marshal.dumps(list(tools), _BY_VALUE))
    except ValueError:  # not only plain values
        return _schemas(tools)


@lru_cache(maxsize=64)
def _tools_text(tools: bytes) -> str:
    return _schemas(marshal.loads(tools))  # noqa: S302 - made by the caller


def _schemas(tools: Sequence[ToolSchema]) -> str:
    schemas = "\n".join(map(_write, tools))
    return f"<|system|>Tools:\n{schemas}<|end|>"


def _speech(message: Message, *, think: bool) -> str:
    thought = message.get("reasoning_content")
    lead = f"<think>{thought}</think>" if thought and think else ""
    calls = []
    for call in message.get("tool_calls") or []:
        function = call["function"]
        if isinstance(function["arguments"], str):  # malformed
            calls.append(write_call(call))
        else:
            arguments = marshal.dumps(function["arguments"], _BY_VALUE)
            calls.append(_call_text(function["name"], arguments))
    return "".join([lead, message["content"], *calls])


@lru_cache(maxsize=1024)
def _call_text(name: str, arguments: bytes) -> str:
    return write_values(name, marshal.loads(arguments))  # noqa: S302 - made by the caller


class ByteRenderer(TextRenderer):
    """Renders UTF-8 bytes (ids 0-255) and ten special ids (256-265).

    It supports roles, tools, tool calls and reasoning, so that environments, adapters and policies
    can be tested without a model. Each message is ``<|role|>content<|end|>``; calls are written in
    the hermes dialect, reasoning between ``<think>`` and ``</think>``. An image is represented by
    four to seven placeholders, depending on its hash.

    Args:
        strip_reasoning: omit the reasoning of turns before the last user message, as the templates
            of many models do; extending such a conversation is then a rewrite.
    """

    vocab_size = _FIRST + len(_SPECIALS)
    placeholder_ids = frozenset({_IDS["<|image|>"]})

    def __init__(self, *, strip_reasoning: bool = False) -> None:
        super().__init__(
            _ByteCodec(strip_reasoning=strip_reasoning),
            markers=Markers("<think>", "</think>"),
            reasoning_close="</think>",
            images=True,
        )

    def images_in(
        self, prompt_ids: IntArray | Sequence[int], messages: Sequence[Message]
    ) -> tuple[ImageRef, ...]:
        """See :meth:`Renderer.images_in`."""
        return find_images(
            prompt_ids,  # type: ignore[arg-type]
            blob_hashes(messages),
            ids_of=_image_ids,
            placeholder_ids=self.placeholder_ids,
            processor="bytes",
        )
