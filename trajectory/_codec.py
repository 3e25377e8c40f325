"""Records to and from JSON; pydantic validates at this border and nowhere else."""

from __future__ import annotations

import json
import math
import sys
from dataclasses import MISSING, fields, is_dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
from pydantic import BaseModel, TypeAdapter, ValidationError
from pydantic_core import PydanticSerializationError, to_json

from trajgym.trajectory._errors import InvalidInput
from trajgym.trajectory._records import CallResult, Sampling, Turn, Usage, Wire
from trajgym.trajectory._tokens import TurnTokens, pack_tokens, unpack_tokens

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = [
    "check_finite",
    "decode",
    "decode_turn",
    "encode",
    "encode_turn",
    "replace_surrogates",
    "to_jsonable",
]

T = TypeVar("T")
_Bytes = TypeVar("_Bytes", bytes, tuple[bytes, "bytes | None"])
_REPLACED = "\ufffd".encode()
"""Either a character of the record, or what pydantic writes for a key with lone surrogates."""
_HIGH, _LOW = 0xD800 >> 10, 0xDC00 >> 10
"""The upper bits of the first and of the second surrogate of a pair."""
_UTF_32 = "utf-32-le" if sys.byteorder == "little" else "utf-32-be"
_Unwritable = (PydanticSerializationError, UnicodeEncodeError)

_ADAPTERS: dict[type, TypeAdapter[Any]] = {}


def _adapter(kind: type[T]) -> TypeAdapter[T]:
    found = _ADAPTERS.get(kind)
    if found is None:
        found = _ADAPTERS[kind] = TypeAdapter(kind)
    return found


def encode(value: object, *, exclude: set[str] | None = None) -> bytes:
    """Return the compact JSON of a record; fields at their default are left out.

    Lone surrogates in its texts are replaced, also in the record, so that memory and store agree.

    Raises:
        InvalidInput: the record contains a value that is not JSON.
    """
    adapter = _adapter(type(value))

    def write(record: object) -> bytes:
        return adapter.dump_json(record, exclude=exclude, exclude_defaults=True)

    return _written(value, write)


def _written(record: T, write: Callable[[T], _Bytes]) -> _Bytes:
    """Return ``write(record)``; if its texts can't be encoded, clean them first."""
    try:
        written = write(record)
        if _REPLACED not in (written if isinstance(written, bytes) else written[0]):
            return written
    except _Unwritable:
        pass
    record = _cleaned(record)
    try:
        return write(record)
    except _Unwritable as error:
        name = type(record).__name__
        raise InvalidInput(f"{name}: not representable as JSON: {error}") from error


def decode(kind: type[T], data: bytes | str) -> T:
    """Read a record written by :func:`encode`, or JSON of the same form.

    Raises:
        InvalidInput: a field is missing or malformed; the message names it.
    """
    try:
        return _adapter(kind).validate_json(data)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(str(part) for part in first["loc"]) or "(root)"
        raise InvalidInput(f"{kind.__name__}: {where}: {first['msg']}") from error


def to_jsonable(value: object) -> Any:
    """Return a record as JSON values (dicts, lists, strings, numbers)."""
    return json.loads(encode(value))


def encode_turn(turn: Turn) -> tuple[bytes, bytes | None]:
    """Return a turn's JSON (without tokens) and its packed tokens; see :func:`encode`.

    Raises:
        InvalidInput: a reward or a signal is not finite, or a value is not JSON.
    """
    if turn.reward is not None:
        check_finite(turn.reward, f"turn {turn.index}: reward")
    for call in turn.calls:
        if call.reward is not None:
            check_finite(call.reward, f"turn {turn.index}: reward of call {call.name!r}")
    if turn.signals:
        check_finite(turn.signals, f"turn {turn.index}: signals")
    try:
        written = _turn_bytes(turn)
        if _REPLACED not in written[0]:
            return written
    except _Unwritable:
        pass
    return _written(turn, _turn_bytes)


def check_finite(value: object, where: str) -> None:
    """Raise an error if JSON values contain NaN or an infinity, which JSON can't represent.

    Raises:
        InvalidInput: they do; the message names the place.
    """
    if isinstance(value, float):
        if not math.isfinite(value):
            raise InvalidInput(f"{where} is {value}; it must be finite")
    elif isinstance(value, dict):
        for key, one in value.items():
            check_finite(one, f"{where}[{key!r:.100}]")
    elif isinstance(value, (list, tuple)):
        for position, one in enumerate(value):
            check_finite(one, f"{where}[{position}]")


def _turn_bytes(turn: Turn) -> tuple[bytes, bytes | None]:
    packed = None if turn.tokens is None else pack_tokens(turn.tokens)
    return to_json(_turn_fields(turn), inf_nan_mode="null"), packed


def _turn_fields(turn: Turn) -> dict[str, Any]:
    """Return the fields of a turn that :func:`encode` would write, without its tokens.

    Spelled out because it runs once per turn while sessions wait, and takes a third of the time
    of the general encoder.
    """
    written: dict[str, Any] = {"index": turn.index, "parent": turn.parent, "message": turn.message}
    if turn.edge != "continue":
        written["edge"] = turn.edge
    if turn.attempt:
        written["attempt"] = turn.attempt
    if turn.agent != "main":
        written["agent"] = turn.agent
    if turn.kept is not None:
        written["kept"] = turn.kept
    if turn.context:
        written["context"] = turn.context
    if turn.observation:
        written["observation"] = turn.observation
    if turn.calls:
        written["calls"] = [_call_fields(call) for call in turn.calls]
    if turn.reward is not None:
        written["reward"] = turn.reward
    if turn.done:
        written["done"] = True
    if turn.signals:
        written["signals"] = turn.signals
    if turn.finish != "stop":
        written["finish"] = turn.finish
    for name, kind, defaults in _PARTS:
        part = getattr(turn, name)
        if type(part) is kind:
            written[name] = {
                field: value
                for field, default in defaults
                if (value := getattr(part, field)) != default
            }
        elif part is not None:  # written if it can be: an environment may note anything
            written[name] = _adapter(type(part)).dump_python(part, exclude_defaults=True)
    if turn.policy:
        written["policy"] = turn.policy
    if turn.synthetic:
        written["synthetic"] = True
    if turn.snapshot is not None:
        written["snapshot"] = turn.snapshot
    for name in ("started_at", "policy_seconds", "env_seconds"):
        if seconds := getattr(turn, name):
            written[name] = seconds
    if turn.returns:
        written["returns"] = turn.returns
    if turn.delivery != "delivered":
        written["delivery"] = turn.delivery
    if turn.role != "main":
        written["role"] = turn.role
    if turn.role_reason:
        written["role_reason"] = turn.role_reason
    return written


def _defaults(kind: type) -> list[tuple[str, Any]]:
    """Return the names and defaults of fields; nothing equals that of a required one."""
    return [
        (one.name, one.default if one.default_factory is MISSING else one.default_factory())
        for one in fields(kind)
    ]


_PARTS = [
    (name, kind, _defaults(kind))
    for name, kind in (("usage", Usage), ("sampling", Sampling), ("wire", Wire))
]


def _call_fields(call: CallResult) -> dict[str, Any]:
    fields: dict[str, Any] = {"call_id": call.call_id, "name": call.name, "status": call.status}
    if call.reward is not None:
        fields["reward"] = call.reward
    if call.seconds:
        fields["seconds"] = call.seconds
    return fields


def decode_turn(body: bytes, packed: bytes | None) -> Turn:
    """Rebuild the turn that :func:`encode_turn` wrote."""
    turn = decode(Turn, body)
    if packed is not None:
        turn.tokens = unpack_tokens(packed)
    return turn


def replace_surrogates(value: T) -> T:
    r"""Return JSON values with lone surrogates (invalid Unicode) replaced by U+FFFD.

    Models produce them with ``\\ud800`` escapes, and ``os.fsdecode`` from bytes that are not UTF-8.
    They can't be encoded as UTF-8.
    """
    if not value or (isinstance(value, str) and value.isascii()):
        return value
    try:
        if _REPLACED not in to_json(value):
            return value
    except ValueError:
        pass
    cleaned: T = _cleaned(value)
    return cleaned


def _cleaned_text(text: str) -> str:
    """Join pairs of surrogates and replace lone ones, in time that does not depend on their number.

    The codecs call an error handler for every surrogate: a hundred times slower.
    """
    if text.isascii():
        return text
    codes = np.array([text]).view(np.uint32)
    kinds = codes >> 10
    high, low = kinds == _HIGH, kinds == _LOW
    pairs = np.flatnonzero(high[:-1] & low[1:])
    joined = 0x10000 + ((codes[pairs] & 0x3FF) << 10) + (codes[pairs + 1] & 0x3FF)
    codes[high | low] = ord("\ufffd")
    if pairs.size:
        codes[pairs] = joined
        codes = np.delete(codes, pairs + 1)
    return codes.tobytes().decode(_UTF_32)


def _cleaned(value: Any) -> Any:
    if isinstance(value, str):
        return _cleaned_text(value)
    if isinstance(value, dict):
        return {_cleaned(k): _cleaned(v) for k, v in value.items()}
    if isinstance(value, list):
        return [_cleaned(v) for v in value]
    if isinstance(value, tuple):
        items = [_cleaned(v) for v in value]
        return type(value)(*items) if hasattr(value, "_fields") else tuple(items)
    if isinstance(value, TurnTokens):
        value.spans = _cleaned(value.spans)
    elif is_dataclass(value) and not isinstance(value, type):
        for field in fields(value):
            setattr(value, field.name, _cleaned(getattr(value, field.name)))
    elif isinstance(value, BaseModel):
        names = type(value).model_fields
        return value.model_copy(update={name: _cleaned(getattr(value, name)) for name in names})
    return value
