"""Records to and from JSON; pydantic validates at this border and nowhere else."""

from __future__ import annotations

import json
from typing import Any, TypeVar

from pydantic import TypeAdapter, ValidationError
from pydantic_core import PydanticSerializationError, to_json

from trajgym.trajectory._errors import InvalidInput
from trajgym.trajectory._records import CallResult, Turn
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
    try:
        return to_json(_turn_fields(turn), inf_nan_mode="null"), packed
    except (PydanticSerializationError, UnicodeEncodeError) as error:
        raise InvalidInput(f"Turn: not representable as JSON: {error}") from error


def _turn_fields(turn: Turn) -> dict[str, Any]:
    """Return what :func:`encode` would write of a turn, without its tokens.

    Written out because it runs once a turn while sessions wait: a third of the general way's time.
    """
    fields: dict[str, Any] = {"index": turn.index, "parent": turn.parent, "message": turn.message}
    if turn.edge != "continue":
        fields["edge"] = turn.edge
    if turn.attempt:
        fields["attempt"] = turn.attempt
    if turn.agent != "main":
        fields["agent"] = turn.agent
    if turn.kept is not None:
        fields["kept"] = turn.kept
    if turn.context:
        fields["context"] = turn.context
    if turn.observation:
        fields["observation"] = turn.observation
    if turn.calls:
        fields["calls"] = [_call_fields(call) for call in turn.calls]
    if turn.reward is not None:
        fields["reward"] = turn.reward
    if turn.done:
        fields["done"] = True
    if turn.signals:
        fields["signals"] = turn.signals
    if turn.finish != "stop":
        fields["finish"] = turn.finish
    for name in ("usage", "sampling"):
        if (part := getattr(turn, name)) is not None:
            fields[name] = _adapter(type(part)).dump_python(part, exclude_defaults=True)
    if turn.policy:
        fields["policy"] = turn.policy
    if turn.synthetic:
        fields["synthetic"] = True
    if turn.snapshot is not None:
        fields["snapshot"] = turn.snapshot
    for name in ("started_at", "policy_seconds", "env_seconds"):
        if seconds := getattr(turn, name):
            fields[name] = seconds
    return fields


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

    Models and hosts can produce them through ``\\\\ud800`` escapes; UTF-8 files can't hold them.
    """
    if not value or (isinstance(value, str) and value.isascii()):
        return value
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
