"""From a foreign file to a session: the parts that all readers share."""

from __future__ import annotations

import base64
import binascii
import json
import mimetypes
import re
from collections import Counter
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from trajgym.trajectory import (
    CallResult,
    InvalidInput,
    Outcome,
    Segment,
    Status,
    Turn,
    check_message,
    image_part,
    tool_calls_of,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping
    from pathlib import Path

    import numpy.typing as npt

    from trajgym.trajectory import Message

__all__ = [
    "Draft",
    "ImportedMessage",
    "Source",
    "call_of",
    "need",
    "outcome_of",
    "segments_of",
    "tools_of",
    "turns_of",
]

_DATA_URL = re.compile(r"data:([\w.+/-]+);base64,(.*)", re.DOTALL)


@dataclass(slots=True)
class ImportedMessage:
    """A message; if it is a response of the policy, with the fields of its turn that are known."""

    message: Message
    turn: dict[str, Any] | None = None


@dataclass(slots=True, kw_only=True)
class Draft:
    """A session as a reader found it; :func:`import_run` gives it an id and a group.

    Args:
        task: id of the task.
        turns: the turns, from :func:`turns_of`.
        prompt: of the task.
        data: of the task.
        session: id, if the file has one.
        group: what tells groups of one task apart.
        env: the environment's spec, if the file has one.
        status: how the attempt ended.
        cause: what went wrong or which limit ended it.
        error: traceback.
        outcome: only for a status that is scored.
        tools: schemas of the offered tools.
        labels: for the session's record.
        seed: the environment's seed.
        budgets: for the session's record.
        started: Unix time (s).
        ended: Unix time (s).
    """

    task: str
    turns: list[Turn]
    prompt: str | None = None
    data: dict[str, Any] = field(default_factory=dict)
    session: str = ""
    group: str = ""
    env: dict[str, Any] | None = None
    status: Status = field(default_factory=lambda: Status("completed"))
    cause: str = ""
    error: str = ""
    outcome: Outcome | None = None
    tools: list[dict[str, Any]] = field(default_factory=list)
    labels: dict[str, str] = field(default_factory=dict)
    seed: int | None = None
    budgets: dict[str, Any] = field(default_factory=dict)
    started: float = 0.0
    ended: float | None = None


class Source:
    """Files to read, where their images go, and a count of what is not kept.

    ``where`` is the file, or the line of it, that is being read.

    Args:
        paths: the files.
        put_image: stores bytes of a media type and returns their hash.
        drops: what the format's import does not keep; other names are errors of the reader.
    """

    def __init__(
        self,
        paths: Iterable[Path],
        put_image: Callable[[bytes, str], str],
        drops: Mapping[str, str],
    ) -> None:
        self.paths = list(paths)
        self.lost: Counter[str] = Counter()
        self.where = ""
        self._put_image = put_image
        self._drops = drops

    def lose(self, what: str, count: int = 1) -> None:
        """Count something that is not kept."""
        assert what in self._drops, f"{what!r} is not listed in the format's drops"
        if count:
            self.lost[what] += count

    def lose_keys(self, what: str, value: Mapping[str, Any], kept: Iterable[str]) -> None:
        """Count something that is not kept if an object has values under other keys."""
        known = set(kept)
        if any(item not in (None, "", [], {}) for key, item in value.items() if key not in known):
            self.lose(what)

    def json(self) -> Iterator[tuple[Path, dict[str, Any]]]:
        """Yield each file's JSON object.

        Raises:
            InvalidInput: a file is not a JSON object.
        """
        for path in self.paths:
            self.where = str(path)
            yield path, _object(path.read_bytes(), self.where)

    def lines(self) -> Iterator[tuple[str, dict[str, Any]]]:
        """Yield each line's JSON object, with where it is.

        Raises:
            InvalidInput: a line is not a JSON object.
        """
        for path in self.paths:
            with path.open("rb") as file:
                for number, line in enumerate(file, 1):
                    if line.strip():
                        self.where = f"{path}:{number}"
                        yield self.where, _object(line, self.where)

    def message(self, message: Mapping[str, Any], where: str) -> Message:
        """Return a chat message with its images stored, without empty fields.

        Raises:
            InvalidInput: it is not a chat message.
        """
        kept = {key: value for key, value in message.items() if value not in (None, [])}
        kept.setdefault("content", "")
        if isinstance(kept.get("content"), list):
            kept["content"] = [self._part(part, where) for part in kept["content"]]
        return check_message(kept, where)

    def _part(self, part: Any, where: str) -> Any:
        if not isinstance(part, dict) or part.get("type") != "image_url":
            return part
        image = part.get("image_url")
        url = image.get("url", "") if isinstance(image, dict) else image
        return self.image_url(str(url), where)

    def image_url(self, url: str, where: str) -> dict[str, Any]:
        """Return the content part of an image; one in a ``data:`` URL is stored."""
        if not (found := _DATA_URL.match(url)):
            return {"type": "image_url", "image_url": {"url": url}}
        try:
            data = base64.b64decode(found[2], validate=True)
        except binascii.Error as error:
            raise InvalidInput(f"{where}: an image's data URL is not base64: {error}") from error
        return image_part(self._put_image(data, found[1]))

    def image_file(self, path: Path, media_type: str | None = None) -> dict[str, Any]:
        """Return the content part of an image file.

        Raises:
            InvalidInput: it can't be read.
        """
        kind = media_type or mimetypes.guess_type(path.name)[0] or "application/octet-stream"
        try:
            return image_part(self._put_image(path.read_bytes(), kind))
        except OSError as error:
            raise InvalidInput(f"{path}: image can't be read: {error}") from error


def _object(data: bytes, where: str) -> dict[str, Any]:
    try:
        found = json.loads(data)
    except ValueError as error:
        raise InvalidInput(f"{where}: not JSON: {error}") from error
    if not isinstance(found, dict):
        raise InvalidInput(f"{where}: expected a JSON object, got {type(found).__name__}")
    return found


def need(value: Mapping[str, Any], key: str, kind: type, where: str) -> Any:
    """Return ``value[key]`` if it has a type.

    Raises:
        InvalidInput: it is missing or of another type.
    """
    found = value.get(key)
    if not isinstance(found, kind):
        what = "missing" if key not in value else f"{type(found).__name__}"
        raise InvalidInput(f"{where}: {key!r} is {what}; expected {kind.__name__}")
    return found


def call_of(name: str, arguments: Any, call_id: str) -> dict[str, Any]:
    """Return a tool call in chat form; arguments that are not text become JSON."""
    text = arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": text}}


def tools_of(tools: Iterable[Mapping[str, Any]] | None, where: str) -> list[dict[str, Any]]:
    """Return tool schemas in chat form; a bare function is wrapped.

    Raises:
        InvalidInput: one has no name.
    """
    found = []
    for tool in tools or ():
        function = tool.get("function") if isinstance(tool, dict) and "function" in tool else tool
        if not isinstance(function, dict) or not isinstance(function.get("name"), str):
            raise InvalidInput(f"{where}: a tool schema without a name: {tool!r:.80}")
        found.append({"type": "function", "function": dict(function)})
    return found


def outcome_of(score: Any, where: str, details: dict[str, Any] | None = None) -> Outcome:
    """Return the outcome of a score; it counts as solved at 1.0 or more.

    Raises:
        InvalidInput: the score is not a finite number.
    """
    number = float(score) if isinstance(score, bool | int | float) else float("nan")
    if not float("-inf") < number < float("inf"):
        raise InvalidInput(f"{where}: the score is {score!r}; expected a finite number")
    return Outcome(score=number, passed=number >= 1.0, details=details or {})


def segments_of(sampled: npt.NDArray[np.bool_], low: int, high: int) -> tuple[Segment, ...]:
    """Return the segments of a response, given which of its ids were sampled and by what."""
    edges = [0, *(np.flatnonzero(np.diff(sampled)) + 1).tolist(), sampled.size]
    return tuple(
        Segment(end - start, low, high)
        if sampled[start]
        else Segment(end - start, -1, -1, sampled=False)
        for start, end in pairwise(edges)
    )


def turns_of(
    messages: Iterable[ImportedMessage], *, start: int = 0, parent: int | None = None, **fixed: Any
) -> list[Turn]:
    """Return the turns of a conversation: each message of the policy and what answered it.

    Messages before the first turn are its context; messages after a turn are its observation.

    Args:
        messages: the conversation.
        start: index of the first turn.
        parent: of the first turn.
        **fixed: fields that all turns have.
    """
    turns: list[Turn] = []
    opening: list[Message] = []
    for one in messages:
        if one.turn is not None:
            index = start + len(turns)
            before = parent if not turns else index - 1
            usual = "tool_calls" if tool_calls_of(one.message) else "stop"
            fields = {"finish": usual} | fixed | one.turn
            turns.append(Turn(index=index, parent=before, message=one.message, **fields))
            if opening:
                turns[-1].context = opening
                opening = []
        elif turns:
            turns[-1].observation.append(one.message)
        else:
            opening.append(one.message)
    for turn in turns:
        turn.calls = turn.calls or _calls(turn)
    return turns


def _calls(turn: Turn) -> list[CallResult]:
    answered = {message.get("tool_call_id") for message in turn.observation}
    return [
        CallResult(
            call_id=call["id"],
            name=call["function"]["name"],
            status="ok" if call["id"] in answered else "not_executed",
        )
        for call in tool_calls_of(turn.message)
    ]
