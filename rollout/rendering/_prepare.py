"""Preparing messages for a chat template."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from trajgym.rollout._policy import PolicyRejected
from trajgym.rollout.rendering._tool_text import fold_calls
from trajgym.trajectory import blob_hashes

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from trajgym.rollout.rendering._parsing import Markers
    from trajgym.trajectory import Message, ToolSchema

__all__ = ["IMAGE", "SEAM", "Preparer", "describe_tools"]

SEAM = "\ufdd0"
"""Inserted into a special token's text where that text is data; each side is encoded separately.

Otherwise a tool's output that contains ``<|im_end|>`` would end the turn. (A noncharacter of
Unicode.)
"""

IMAGE = "\ufdd1"
"""Encloses a stored image's hash at the place in the text where the image is shown."""


def describe_tools(tools: Sequence[ToolSchema]) -> str:
    """Return the tools as text for a system prompt (hermes), for templates without tools."""
    lines = "\n".join(json.dumps(tool, ensure_ascii=False) for tool in tools)
    return (
        "# Tools\n\n"
        "These functions can be called; each line is the JSON schema of one:\n"
        f"<tools>\n{lines}\n</tools>\n\n"
        "To call one, write its name and arguments as a JSON object between these tags, "
        "with a pair of tags for each call:\n"
        '<tool_call>\n{"name": "NAME", "arguments": {"ARGUMENT": "VALUE"}}\n</tool_call>\n'
        "The result comes back between <tool_response> and </tool_response>."
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Preparer:
    """Transforms messages into a form that the template supports.

    Args:
        specials: texts, of two characters or more, that the tokenizer encodes as one special id.
        markers: the markers of reasoning, if the model reasons.
        native_tools: the template writes tools, calls and results; if False, the system prompt
            describes them, and results become user messages.
        native_reasoning: the template uses ``reasoning_content``; if False, it is inserted into the
            content, between the markers.
        system_role: the template accepts a system message; if False, its text is prepended to the
            first user message.
        images: stored images are replaced by their hash between two ``IMAGE``; if False, they are
            refused.
    """

    specials: tuple[str, ...]
    markers: Markers | None
    native_tools: bool
    native_reasoning: bool
    system_role: bool = True
    images: bool = False
    _firsts: frozenset[str] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_firsts", frozenset(text[0] for text in self.specials))

    def __call__(self, messages: Sequence[Message], tools: Sequence[ToolSchema]) -> list[Message]:
        """Return new messages; the given ones are not changed.

        Raises:
            PolicyRejected: a message contains something that is neither text nor, if ``images``
                is set, a stored image.
        """
        return self.joined([self.one(message, i) for i, message in enumerate(messages)], tools)

    def joined(self, ready: list[Message], tools: Sequence[ToolSchema]) -> list[Message]:
        """Return messages that :meth:`one` has prepared, changed where that depends on others."""
        if not self.native_tools:
            ready = _fold_results(ready)
            if tools:
                ready = _lead(ready, describe_tools(tools))
        if not self.system_role and ready and ready[0]["role"] == "system":
            ready = _into_user(ready)
        return ready

    def one(self, message: Message, index: int) -> Message:
        """Return a new message; the part of the preparation that does not depend on others.

        Raises:
            PolicyRejected: as for a call.
        """
        out = dict(message)
        role = out["role"] = "system" if message["role"] == "developer" else message["role"]
        if role != "assistant":
            out["content"] = self._text(message, index, self._defuse)
            return out
        out["content"] = self._text(message, index, self._defuse_speech)
        if calls := message.get("tool_calls"):
            out["tool_calls"] = [self._call(call) for call in calls]
        else:
            out.pop("tool_calls", None)
        return self._fold(out)

    def _fold(self, out: Message) -> Message:
        if not self.native_tools:
            out["content"] = fold_calls(out)
            out.pop("tool_calls", None)
        elif "tool_calls" in out:
            out["tool_calls"] = [_with_values(call) for call in out["tool_calls"]]
        thought = out.get("reasoning_content")
        if not thought:
            out.pop("reasoning_content", None)
        elif self.markers and not self.native_reasoning:
            del out["reasoning_content"]
            opened, closed = self.markers
            out["content"] = f"{opened}\n{thought}\n{closed}\n\n{out['content']}"
        return out

    def _call(self, call: dict[str, Any]) -> dict[str, Any]:
        function = call["function"]
        return {
            **call,
            "function": {**function, "arguments": self._defuse_speech(function["arguments"])},
        }

    def _text(self, message: Message, index: int, defuse: Callable[[str], str]) -> str:
        content = message.get("content")
        if content is None or isinstance(content, str):
            return defuse(content or "")
        pieces: list[str] = []
        for part in content:
            blobs = list(blob_hashes([{"content": [part]}])) if self.images else []
            if part.get("type") == "text":
                pieces.append(defuse(str(part.get("text", ""))))
            elif blobs:
                pieces.append(f"{IMAGE}{blobs[0]}{IMAGE}")
            else:
                raise PolicyRejected(_unreadable(message, index, part, images=self.images))
        return "".join(pieces)

    def _defuse(self, text: str, keep: tuple[str, ...] = ()) -> str:
        text = text.replace(SEAM, "\ufffd").replace(IMAGE, "\ufffd")
        if not any(first in text for first in self._firsts):
            return text
        for special in self.specials:
            if special in text and special not in keep:
                text = text.replace(special, special[0] + SEAM + special[1:])
        return text

    def _defuse_speech(self, text: str) -> str:
        """Defuse an assistant's content, in which reasoning markers are allowed."""
        return self._defuse(text, keep=self.markers or ())


def _unreadable(message: Message, index: int, part: dict[str, Any], *, images: bool) -> str:
    what = "stored images (blob:<sha256>)" if images else "text only"
    return (
        f"message {index} ({message['role']}) has a part of type {part.get('type')!r}: "
        f"this renderer supports {what}; use a policy that supports it"
    )


def _with_values(call: dict[str, Any]) -> dict[str, Any]:
    """Return a call with decoded arguments, because templates would escape a string again."""
    function = call["function"]
    try:
        arguments = json.loads(function["arguments"])
    except (ValueError, RecursionError):
        arguments = None
    if not isinstance(arguments, dict):
        return call
    return {**call, "function": {**function, "arguments": arguments}}


def _fold_results(messages: list[Message]) -> list[Message]:
    """Convert tool results into user messages, and consecutive ones into a single message."""
    out: list[Message] = []
    after_result = False
    for message in messages:
        if message["role"] != "tool":
            out.append(message)
            after_result = False
            continue
        text = f"<tool_response>\n{message['content']}\n</tool_response>"
        if after_result:
            out[-1]["content"] += "\n" + text
        else:
            out.append({"role": "user", "content": text})
        after_result = True
    return out


def _lead(messages: list[Message], text: str) -> list[Message]:
    if messages and messages[0]["role"] == "system":
        first = {**messages[0], "content": f"{messages[0]['content']}\n\n{text}"}
        return [first, *messages[1:]]
    return [{"role": "system", "content": text}, *messages]


def _into_user(messages: list[Message]) -> list[Message]:
    lead = messages[0]["content"]
    if len(messages) > 1 and messages[1]["role"] == "user":
        first = {**messages[1], "content": f"{lead}\n\n{messages[1]['content']}"}
        return [first, *messages[2:]]
    return [{"role": "user", "content": lead}, *messages[1:]]
