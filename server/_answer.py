"""An engine's answer, assembled from a whole body or from the chunks of a stream."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from trajgym.trajectory import Segment

if TYPE_CHECKING:
    from trajgym.trajectory import Message

__all__ = ["Answer", "Choice"]


class Choice:
    """One of the n choices of an answer, accumulated chunk by chunk."""

    __slots__ = ("calls", "content", "extra", "finish", "ids", "logprobs", "reasoning", "segments")

    def __init__(self) -> None:
        self.content: list[str] = []
        self.reasoning: list[str] = []
        self.calls: dict[int, dict[str, Any]] = {}
        self.extra: dict[str, Any] = {}
        self.finish: str | None = None
        self.ids: list[int] = []
        self.logprobs: list[float] = []
        self.segments: list[Segment] = []

    @property
    def message(self) -> Message:
        """The assistant message, in chat form."""
        message: Message = {"role": "assistant", "content": "".join(self.content)}
        if self.reasoning:
            message["reasoning_content"] = "".join(self.reasoning)
        if self.calls:
            message["tool_calls"] = [self.calls[i] for i in sorted(self.calls)]
        return message

    def feed(self, said: dict[str, Any]) -> None:
        """Add a delta or a whole message."""
        if text := said.get("content") or said.get("refusal"):
            self.content.append(text)
        if text := said.get("reasoning_content") or said.get("reasoning"):
            self.reasoning.append(text)
        for i, part in enumerate(said.get("tool_calls") or ()):
            self._feed_call(part, i)

    def _feed_call(self, part: dict[str, Any], position: int) -> None:
        index = part.get("index")
        function = part.get("function") or {}
        call = self.calls.setdefault(
            position if index is None else index,
            {"id": "", "type": "function", "function": {"name": "", "arguments": ""}},
        )
        call["id"] = part.get("id") or call["id"]
        call["function"]["name"] += function.get("name") or ""
        call["function"]["arguments"] += function.get("arguments") or ""

    def sampled(self, ids: list[int], low: int, high: int) -> None:
        """Add ids that were sampled under a range of policy versions."""
        if not ids:
            return
        self.ids += ids
        last = self.segments[-1] if self.segments else None
        if last is not None and (last.version_low, last.version_high) == (low, high):
            self.segments[-1] = last._replace(length=last.length + len(ids))
        else:
            self.segments.append(Segment(len(ids), low, high))


class Answer:
    """An engine's answer to one request."""

    __slots__ = ("choices", "created", "identity", "model", "prompt_ids", "usage")

    def __init__(self) -> None:
        self.choices: dict[int, Choice] = {}
        self.usage: dict[str, Any] | None = None
        self.prompt_ids: list[int] | None = None
        self.identity = ""
        self.model = ""
        self.created = 0

    def feed(self, body: dict[str, Any], versions: tuple[int, int]) -> None:
        """Add a chunk or a whole answer; ``versions`` is the range that can have sampled it."""
        self.usage = body.get("usage") or self.usage
        self.identity = self.identity or str(body.get("id") or "")
        self.model = self.model or str(body.get("model") or "")
        self.created = self.created or int(body.get("created") or 0)
        if body.get("prompt_token_ids") is not None:
            self.prompt_ids = body["prompt_token_ids"]
        for said in body.get("choices") or ():
            choice = self.choices.setdefault(said.get("index") or 0, Choice())
            if said.get("prompt_token_ids") is not None:
                self.prompt_ids = said["prompt_token_ids"]
            choice.feed(said.get("delta") or said.get("message") or {})
            if said.get("text"):
                choice.content.append(said["text"])
            choice.finish = said.get("finish_reason") or choice.finish
            choice.sampled(list(said.get("token_ids") or ()), *versions)
            choice.logprobs += _logprobs(said.get("logprobs"))
            if spans := said.get("weight_versions"):
                _take_spans(choice, spans)
        if extension := body.get("sglext"):
            self._take_sglang(extension, versions)

    def _take_sglang(self, extension: dict[str, Any], versions: tuple[int, int]) -> None:
        """Take the ids that SGLang sends at the end of a stream."""
        if extension.get("input_ids") is not None:
            self.prompt_ids = extension["input_ids"]
        for index, ids in enumerate(extension.get("output_ids") or ()):
            choice = self.choices.setdefault(index, Choice())
            if not choice.ids:
                choice.sampled(list(ids), *versions)

    def inexact(self, choice: Choice) -> str:
        """Return why the choice can't be an exact turn; an empty string if it can."""
        if self.prompt_ids is None:
            return "the engine returned no prompt ids"
        if not choice.ids:
            return "the engine returned no token ids"
        if len(choice.logprobs) != len(choice.ids):
            return f"{len(choice.ids)} token ids but {len(choice.logprobs)} log-probs"
        if not all(map(math.isfinite, choice.logprobs)):
            return "a log-prob is missing or not finite"
        return self._uncounted()

    def _uncounted(self) -> str:
        if self.usage is None:
            return ""
        counted = self.usage.get("completion_tokens")
        total = sum(len(choice.ids) for choice in self.choices.values())
        if counted is not None and counted != total:
            return f"{total} token ids but the engine counted {counted}"
        prompt = self.usage.get("prompt_tokens")
        if prompt is not None and prompt != len(self.prompt_ids or ()):
            return f"{len(self.prompt_ids or ())} prompt ids but the engine counted {prompt}"
        return ""


def _logprobs(found: Any) -> list[float]:
    if not found:
        return []
    if (entries := found.get("content")) is not None:
        try:
            values = [entry["logprob"] for entry in entries]
        except KeyError:
            values = [entry.get("logprob") for entry in entries]
    else:
        values = list(found.get("token_logprobs") or ())
    return values if set(map(type, values)) == {float} else [_number(value) for value in values]


def _number(value: Any) -> float:
    return float(value) if isinstance(value, (int, float)) else math.nan


def _take_spans(choice: Choice, spans: list[dict[str, Any]]) -> None:
    """Replace version ranges inferred from chunk order with the engine's own spans."""
    try:
        segments = [
            Segment(int(s["end"]) - int(s["start"]), int(s["version"]), int(s["version"]))
            for s in spans
        ]
    except (KeyError, TypeError, ValueError):
        return  # versions that are not integers: keep the ranges
    if sum(s.length for s in segments) == len(choice.ids) and all(s.length > 0 for s in segments):
        choice.segments = segments
