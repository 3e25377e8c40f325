"""Records to and from JSON; pydantic validates at this border and nowhere else."""

from __future__ import annotations

import json
from typing import Any, TypeVar

from pydantic import TypeAdapter, ValidationError
from pydantic_core import PydanticSerializationError, to_json

from trajgym.trajectory._errors import InvalidInput
from trajgym.trajectory._records import Turn
from trajgym.trajectory._tokens import pack_tokens, unpack_tokens

__all__ = ["decode", "decode_turn", "encode", "encode_turn", "replace_surrogates", "to_jsonable"]

T = TypeVar("T")


_ADAPTERS: dict[type, TypeAdapter[Any]] = {}


def _adapter(kind: type[T]) -> TypeAdapter[T]:
    found = _ADAPTERS.get(kind)
    if found is None:
        found = _ADAPTERS[kind] = TypeAdapter(kind)
    return found


def encode(value: object, *, exclude: set[str] | None = None) -> bytes:
    """Return the compact JSON of a record; fields at their default are left out.

    Raises:
        InvalidInput: a value in it is not JSON, or text in it is not valid Unicode.
    """
    try:
        return _adapter(type(value)).dump_json(value, exclude=exclude, exclude_defaults=True)
    except (PydanticSerializationError, UnicodeEncodeError) as error:
        raise InvalidInput(f"{type(value).__name__}: not representable as JSON: {error}") from error


def decode(kind: type[T], data: bytes | str) -> T:
    """Read a record that :func:`encode` wrote, or one written by hand.

    Raises:
        InvalidInput: with the field and what was wrong with it.
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
    """Return a turn's JSON (without tokens) and its packed tokens."""
    packed = None if turn.tokens is None else pack_tokens(turn.tokens)
    return encode(turn, exclude={"tokens"}), packed


def decode_turn(body: bytes, packed: bytes | None) -> Turn:
    """Rebuild the turn that :func:`encode_turn` wrote."""
    turn = decode(Turn, body)
    if packed is not None:
        turn.tokens = unpack_tokens(packed)
    return turn


def replace_surrogates(value: T) -> T:
    r"""Return JSON values with lone surrogates (invalid Unicode) replaced by U+FFFD.

    Models and hosts can produce them through ``\\\\ud800`` escapes; UTF-8 files can't hold them.
    """
    try:
        to_json(value)
    except ValueError:
        cleaned: T = _cleaned(value)
        return cleaned
    return value


def _cleaned(value: Any) -> Any:
    if isinstance(value, str):
        return value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    if isinstance(value, dict):
        return {_cleaned(k): _cleaned(v) for k, v in value.items()}
    if isinstance(value, list):
        return [_cleaned(v) for v in value]
    return value
