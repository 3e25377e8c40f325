"""Responses that an engine receives in pieces, with the policy versions of each."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, NamedTuple

from trajgym.trajectory import Segment

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["Piece", "Pieces", "ended"]

_FINISH: Mapping[str | None, Literal["stop", "length", "abort"]] = {
    "length": "length",
    "abort": "abort",
    "error": "abort",
    None: "abort",
}


class Piece(NamedTuple):
    """A part of a response, as received; ``finish`` is the server's word in the last one."""

    ids: list[int]
    logprobs: list[float]
    finish: str | None


class Pieces:
    """The ids that a call has sampled so far."""

    __slots__ = ("ids", "logprobs", "segments")

    def __init__(self) -> None:
        self.ids: list[int] = []
        self.logprobs: list[float] = []
        self.segments: list[Segment] = []

    def add(self, piece: Piece, low: int, high: int) -> None:
        """Append a piece that versions ``low`` to ``high`` can have sampled."""
        size = len(piece.ids)
        if not size:
            return
        self.ids += piece.ids
        self.logprobs += piece.logprobs
        last = self.segments[-1] if self.segments else None
        if last is not None and low == high == last.version_low == last.version_high:
            self.segments[-1] = last._replace(length=last.length + size)
        else:
            self.segments.append(Segment(size, low, high))


def ended(finish: str | None) -> Literal["stop", "length", "abort"]:
    """Return why a response ended, from the server's word for it."""
    return _FINISH.get(finish, "stop")
