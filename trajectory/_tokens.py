"""The token ledger: the exact ids that an engine received and sampled.

Everything is unshifted: index ``t`` of every array describes the token at ``t``.
"""

from __future__ import annotations

import json
import math
import struct
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt

from trajgym.trajectory._errors import InvalidInput

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

__all__ = [
    "FloatArray",
    "ImageRef",
    "IntArray",
    "Segment",
    "Span",
    "TurnTokens",
    "pack_tokens",
    "unpack_tokens",
]

_Number = TypeVar("_Number", np.int32, np.float32)
IntArray: TypeAlias = npt.NDArray[np.int32]
FloatArray: TypeAlias = npt.NDArray[np.float32]


class Segment(NamedTuple):
    """A run of response tokens with the same origin.

    A response is one segment unless the policy weights were updated while it was sampled, or ids
    were inserted (to close a reasoning block that ran out of budget).
    """

    length: int
    """Number of tokens, at least 1."""
    version_low: int
    """Oldest policy version that can have sampled these tokens; -1 if not sampled."""
    version_high: int
    """Newest such version; equal to ``version_low`` if the engine reported the boundary."""
    sampled: bool = True
    """False for inserted ids, which are never trained."""


class Span(NamedTuple):
    """A part ``[start, end)`` of a turn's response ids, such as a tool call or reasoning."""

    kind: Literal["tool_call", "reasoning", "fold", "answer"]
    start: int
    end: int
    call_id: str | None = None
    """Id of the tool call, if ``kind`` is ``tool_call``."""


class ImageRef(NamedTuple):
    """An image whose placeholders are the ids ``[start, end)`` of a prompt or a row."""

    start: int
    end: int
    blob: str
    """sha256 (hex) of the encoded image."""
    processor: str
    """Name of the processor that made the placeholders; it depends on the settings."""

    def moved(self, by: int) -> ImageRef:
        """Return the same image shifted by ``by`` ids."""
        return self._replace(start=self.start + by, end=self.end + by)


@dataclass(slots=True, kw_only=True, eq=False)
class TurnTokens:
    """The ids of one exact turn, as a delta to the turn that it continues.

    Arrays that are views, such as the end of a whole prompt, are copied: a recorded turn would
    otherwise keep everything alive that was there before it.

    Args:
        prompt_kept: how many leading ids of the base turn's sequence (prompt and response) this
            prompt starts with; 0 for a fresh prompt.
        prompt_ids: int32 ``[P]``, the ids of the prompt after those.
        response_ids: int32 ``[N]``, sampled and inserted ids in order; never empty.
        logprobs: float32 ``[N]``, log-probability (nats) under the behaviour policy as the
            engine reported it; 0.0 on inserted ids.
        segments: runs over the response; their lengths sum to N.
        spans: tool calls, reasoning and other spans of ``response_ids``.
        images: the images in ``prompt_ids``, in order; images in the kept ids belong to the turns
            that first showed them.

    Raises:
        InvalidInput: lengths disagree, a sampled token has no finite log-prob or no version, or
            images are outside the prompt or overlap.
    """

    prompt_kept: int
    prompt_ids: IntArray
    response_ids: IntArray
    logprobs: FloatArray
    segments: tuple[Segment, ...]
    spans: tuple[Span, ...] = ()
    images: tuple[ImageRef, ...] = ()

    def __post_init__(self) -> None:
        self.prompt_ids = _ids(self.prompt_ids, "prompt_ids")
        self.response_ids = _ids(self.response_ids, "response_ids")
        self.logprobs = _owned(np.ascontiguousarray(self.logprobs, dtype=np.float32))
        n = self.response_ids.size
        if self.prompt_kept < 0:
            raise InvalidInput(f"tokens: prompt_kept is {self.prompt_kept}; it can't be negative")
        if n == 0:
            raise InvalidInput("tokens: an exact turn has at least one response id")
        if self.logprobs.shape != (n,):
            raise InvalidInput(
                f"tokens: {n} response ids but logprobs of shape {self.logprobs.shape}",
            )
        _check_segments(self.segments, n)
        if not -math.inf < _smallest(self.logprobs) <= _largest(self.logprobs) <= _LOGPROB_SLACK:
            raise InvalidInput("tokens: log-probs must be finite and not positive")
        for span in self.spans:
            if not 0 <= span.start < span.end <= n:
                raise InvalidInput(f"tokens: span {span} lies outside the {n} response ids")
        _check_images(self.images, self.prompt_ids.size)

    @property
    def end(self) -> int:
        """Length of the turn's whole sequence: kept ids, new prompt ids and response."""
        return self.prompt_kept + self.prompt_ids.size + self.response_ids.size

    @property
    def sampled_mask(self) -> npt.NDArray[np.bool_]:
        """Bool ``[N]``: True where the engine sampled the token."""
        return np.repeat(
            np.array([s.sampled for s in self.segments], dtype=np.bool_),
            [s.length for s in self.segments],
        )

    @property
    def version_low(self) -> IntArray:
        """int32 ``[N]``: oldest version that can have sampled each token, -1 if inserted."""
        return self._runs(1)

    @property
    def version_high(self) -> IntArray:
        """int32 ``[N]``: newest version that can have sampled each token, -1 if inserted."""
        return self._runs(2)

    def _runs(self, column: int) -> IntArray:
        values = np.array([s[column] for s in self.segments], dtype=np.int32)
        return np.repeat(values, [s.length for s in self.segments])

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> TurnTokens:
        """Read the form that :meth:`to_json` returns."""
        known = {*_FIELDS, "spans", "images"}
        if unknown := sorted(set(data) - known):
            raise InvalidInput(f"tokens: unknown fields {unknown}")
        try:
            return cls(
                prompt_kept=data["prompt_kept"],
                prompt_ids=data["prompt_ids"],
                response_ids=data["response_ids"],
                logprobs=data["logprobs"],
                segments=tuple(Segment(*s) for s in data["segments"]),
                spans=tuple(Span(*s) for s in data.get("spans", ())),
                images=tuple(ImageRef(*s) for s in data.get("images", ())),
            )
        except (KeyError, TypeError) as error:
            raise InvalidInput(f"tokens: missing or malformed field: {error}") from error

    def to_json(self) -> dict[str, Any]:
        """Return plain lists and numbers; log-probs keep their exact float32 value."""
        images = {"images": [list(s) for s in self.images]} if self.images else {}
        return {
            "prompt_kept": self.prompt_kept,
            "prompt_ids": self.prompt_ids.tolist(),
            "response_ids": self.response_ids.tolist(),
            "logprobs": self.logprobs.tolist(),
            "segments": [list(s) for s in self.segments],
            "spans": [list(s) for s in self.spans],
            **images,
        }


_FIELDS = ("prompt_kept", "prompt_ids", "response_ids", "logprobs", "segments")
_LOGPROB_SLACK = 1e-3
"""Rounding in the engine can give a token of probability 1 a log-prob slightly above zero."""


_LARGEST_ID = 2**31 - 1
_INT32 = np.dtype(np.int32)
_LITTLE = sys.byteorder == "little"
# Reductions without numpy's Python layer: they run several times a turn, over short arrays.
_smallest, _largest = np.minimum.reduce, np.maximum.reduce


def _ids(values: IntArray | Sequence[int], name: str) -> IntArray:
    array = np.ascontiguousarray(values)
    if array.size == 0:
        return np.zeros(0, dtype=np.int32)
    if array.dtype == _INT32 and array.ndim == 1 and _smallest(array) >= 0:
        return _owned(array)
    if array.ndim != 1 or array.dtype.kind not in "iu":
        raise InvalidInput(f"tokens: {name} must be one-dimensional integers, got {array.dtype}")
    if int(_smallest(array)) < 0 or (
        array.dtype != np.int32 and int(_largest(array)) > _LARGEST_ID
    ):
        raise InvalidInput(f"tokens: {name} holds ids outside 0..2**31-1")
    return _owned(array.astype(np.int32, copy=False))


def _owned(array: npt.NDArray[_Number]) -> npt.NDArray[_Number]:
    """Return an array with memory of its own, which is no larger than its content."""
    return array if array.base is None else array.copy()


def _check_segments(segments: Iterable[Segment], n: int) -> None:
    total = 0
    for segment in segments:
        total += segment.length
        if segment.length < 1:
            raise InvalidInput(f"tokens: empty segment {segment}")
        if segment.sampled and not 0 <= segment.version_low <= segment.version_high:
            raise InvalidInput(
                f"tokens: {segment}: sampled tokens need a version range 0 <= low <= high",
            )
        if not segment.sampled and (segment.version_low, segment.version_high) != (-1, -1):
            raise InvalidInput(f"tokens: {segment}: inserted ids have no version; use -1, -1")
    if total != n:
        raise InvalidInput(f"tokens: segments cover {total} of {n} response ids")


def _check_images(images: Iterable[ImageRef], size: int) -> None:
    end = 0
    for image in images:
        if not end <= image.start < image.end <= size:
            raise InvalidInput(
                f"tokens: image {image.blob[:12]} at [{image.start}, {image.end}) lies outside the "
                f"{size} new prompt ids, or overlaps the image before it",
            )
        end = image.end


# The packed form: a header, the segments, the arrays as little-endian bytes, and JSON: the spans
# or, in the second format, a pair of spans and images.
_HEADER = struct.Struct("<BIIIHI")
_SEGMENT = struct.Struct("<IiiB")
_ID, _LOGPROB = np.dtype("<i4"), np.dtype("<f4")
_TEXT, _WITH_IMAGES = 1, 2
_write = json.JSONEncoder(ensure_ascii=False).encode  # json.dumps would make an encoder each time


def pack_tokens(tokens: TurnTokens) -> bytes:
    """Return the form that is stored; :func:`unpack_tokens` reverses it exactly."""
    form = _WITH_IMAGES if tokens.images else _TEXT
    noted = (tokens.spans, tokens.images) if tokens.images else tokens.spans
    spans = _write(noted).encode() if noted else b""
    sizes = (tokens.prompt_ids.size, tokens.response_ids.size, len(tokens.segments), len(spans))
    arrays = (tokens.prompt_ids, tokens.response_ids, tokens.logprobs)
    return b"".join(
        [
            _HEADER.pack(form, tokens.prompt_kept, *sizes),
            *[_SEGMENT.pack(*s) for s in tokens.segments],
            *[(a if _LITTLE else a.astype(a.dtype.newbyteorder("<"))).tobytes() for a in arrays],
            spans,
        ],
    )


def unpack_tokens(data: bytes) -> TurnTokens:
    """Rebuild the tokens that :func:`pack_tokens` packed; its arrays are read-only views.

    Raises:
        InvalidInput: the bytes are damaged or of an unknown format.
    """
    try:
        version, kept, n_prompt, n_response, n_segments, n_spans = _HEADER.unpack_from(data)
    except struct.error as error:
        raise InvalidInput(f"tokens: packed turn is damaged: {error}") from error
    if version not in {_TEXT, _WITH_IMAGES}:
        raise InvalidInput(f"tokens: packed format {version}; this library reads {_WITH_IMAGES}")
    ids = _HEADER.size + n_segments * _SEGMENT.size
    spans = ids + 4 * n_prompt + 8 * n_response
    if len(data) != spans + n_spans:
        raise InvalidInput(f"tokens: packed turn has {len(data)} bytes, not {spans + n_spans}")
    # The content was checked when it was packed, so the constructor's checks are skipped.
    tokens = TurnTokens.__new__(TurnTokens)
    tokens.prompt_kept = kept
    arrays = np.frombuffer(data, _ID, n_prompt + 2 * n_response, ids)
    tokens.prompt_ids = arrays[:n_prompt]
    tokens.response_ids = arrays[n_prompt : n_prompt + n_response]
    tokens.logprobs = arrays[n_prompt + n_response :].view(_LOGPROB)
    tokens.segments = tuple(
        [
            Segment(length, low, high, sampled != 0)
            for length, low, high, sampled in _SEGMENT.iter_unpack(data[_HEADER.size : ids])
        ]
    )
    noted: list[Any] = json.loads(data[spans:]) if n_spans else []
    named, images = noted if version == _WITH_IMAGES else (noted, [])
    tokens.spans = tuple(Span(*s) for s in named)
    tokens.images = tuple(ImageRef(*s) for s in images)
    return tokens
