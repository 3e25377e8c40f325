"""The state that a session and its forks share: the record, the tree and the store."""

from __future__ import annotations

import hashlib
import math
import sys
import time
from contextlib import suppress
from dataclasses import dataclass, field, fields, is_dataclass, replace
from functools import cache
from itertools import zip_longest
from numbers import Integral
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import numpy as np
from pydantic_core import to_json

from trajgym.envs._plain import plain_message, plain_number, plain_text, plain_values, readable
from trajgym.envs._reply import Reply
from trajgym.trajectory import (
    Attempt,
    InvalidInput,
    Message,
    Sampling,
    SessionRecord,
    SessionTree,
    Status,
    Turn,
    TurnTokens,
    Usage,
    check_message,
)
from trajgym.trajectory._internal import append_ids, replace_surrogates, same_start

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trajgym.envs._reply import Sampled
    from trajgym.envs._tools import Image
    from trajgym.trajectory import Ack, ImageRef, IntArray, Store

__all__ = [
    "Ledger",
    "Taken",
    "TokenTail",
    "as_reply",
    "paused_seconds",
    "tail_of",
    "usage_of",
]


_T = TypeVar("_T")
_FIELDS: tuple[tuple[str, type, bool], ...] = (
    ("finish", str, False),
    ("policy", str, False),
    ("synthetic", bool, False),
    ("usage", Usage, True),
    ("sampling", Sampling, True),
)
"""Fields of a reply, their types, and whether None is allowed."""
_PLAIN = frozenset({bool, int, float, str})


@dataclass(slots=True)
class Ledger:
    """Append-only record of one session and its forks."""

    record: SessionRecord
    store: Store | None
    turns: list[Turn] = field(default_factory=list)
    attempts: list[Attempt] = field(default_factory=lambda: [Attempt()])
    images: dict[str, Image] = field(default_factory=dict)
    opening: list[Message] = field(default_factory=list)
    agents: set[str] = field(default_factory=lambda: {"main"})
    begun: bool = False
    """Whether the session's record is in the store."""
    _images_kept: list[Ack] = field(default_factory=list, init=False, repr=False)
    """Writes of images since the last turn."""

    async def begin(self) -> None:
        """Store the session's record.

        Raises:
            InvalidInput: the store has a session with that id.
        """
        if self.store is not None:
            ack = self.store.begin_session(self.record)
            self.begun = True
            await ack

    async def begin_if_new(self) -> None:
        """Store the session's record if that has not happened: it failed before it was entered."""
        if not self.begun:
            with suppress(InvalidInput):  # the store has another session with that id
                await self.begin()

    def new_agent(self, name: str) -> str:
        """Return a name for a sub-agent that no other agent of the session has."""
        name = replace_surrogates(str(name)) or "helper"
        found, number = name, 1
        while found in self.agents:
            number += 1
            found = f"{name}-{number}"
        self.agents.add(found)
        return found

    def new_attempt(self, forked_at: int | None) -> Attempt:
        """Return a new attempt, which the caller stores."""
        attempt = Attempt(index=len(self.attempts), forked_at=forked_at, leaf=forked_at)
        self.attempts.append(attempt)
        return attempt

    async def add_failed_fork(self, forked_at: int | None, cause: str, error: str) -> None:
        """Store an attempt that could not be opened."""
        attempt = Attempt(
            index=len(self.attempts),
            forked_at=forked_at,
            leaf=forked_at,
            status=Status("failed", "fork"),
            cause=replace_surrogates(cause),
            error=replace_surrogates(error),
            ended_at=time.time(),
        )
        self.attempts.append(attempt)
        await self.put_attempt(attempt)

    async def put_attempt(self, attempt: Attempt) -> None:
        """Store an attempt's newer state."""
        if self.store is not None and self.begun:
            await self.store.put_attempt(self.record.id, attempt)

    async def append(self, turn: Turn) -> None:
        """Assign the turn's index and store it; returns when it is durable."""
        turn.index = len(self.turns)
        # Passed to the store before waiting, so that a concurrent fork gets the next index.
        ack = None if self.store is None else self.store.append_turn(self.record.id, turn)
        if ack is not None and self._images_kept:
            ack.after(*self._images_kept)
            self._images_kept.clear()
        self.turns.append(turn)
        if ack is not None:
            await ack

    def keep_image(self, image: Image) -> str:
        """Store an image once; return its hash. It is durable before the turn that shows it."""
        name = hashlib.sha256(image.data).hexdigest()
        if name not in self.images:
            self.images[name] = image
            if self.store is not None:
                self._images_kept.append(self.store.put_blob(image.data, image.media_type)[1])
        return name

    def tree(self, ended: Attempt | None = None) -> SessionTree:
        """Return the session so far as a tree, with this newer state of an attempt if given."""
        attempts = list(self.attempts)
        if ended is not None:
            attempts[ended.index] = ended
        return SessionTree(self.record, list(self.turns), attempts)


class Taken(NamedTuple):
    """The recorded form of a prompt and response."""

    tokens: TurnTokens
    sequence: IntArray
    """int32 ``[S]``: the whole prompt and response."""
    images: tuple[ImageRef, ...]
    """The images of the whole sequence."""
    broken: bool
    """True if the prompt does not start with the last turn's sequence: a ``rewrite`` edge."""

    @property
    def tail(self) -> TokenTail:
        """The state that the next turn's prompt is compared with."""
        return TokenTail(self.sequence, self.images)


@dataclass(slots=True)
class TokenTail:
    """The ids of one attempt so far, for converting whole prompts to deltas.

    Args:
        ids: prompt and response of the last turn; None before the first exact turn and after a
            text turn.
        images: the images in them.
    """

    ids: IntArray | None = None
    images: tuple[ImageRef, ...] = ()

    def take(self, sampled: Sampled) -> Taken:
        """Return the delta from the last turn.

        Raises:
            InvalidInput: ids and log-probs are inconsistent.
        """
        prompt = np.asarray(sampled.prompt_ids, dtype=np.int32)
        tail = self.ids
        kept, broken = 0, False
        if tail is not None:
            if prompt.size >= tail.size and (
                same_start(prompt, tail) or bool((prompt[: tail.size] == tail).all())
            ):
                kept = tail.size
            else:
                shared = min(prompt.size, tail.size)
                different = np.nonzero(prompt[:shared] != tail[:shared])[0]
                kept = int(different[0]) if different.size else shared
            if sampled.images or self.images:
                # Placeholders are the same ids for different images.
                kept = min(kept, _same_images(self.images, sampled.images))
            broken = kept < tail.size
        tokens = TurnTokens(
            prompt_kept=kept,
            prompt_ids=prompt[kept:],
            response_ids=sampled.response_ids,  # type: ignore[arg-type]
            logprobs=sampled.logprobs,  # type: ignore[arg-type]
            segments=sampled.segments,
            spans=sampled.spans,
            images=tuple(i.moved(-kept) for i in sampled.images if i.start >= kept),
        )
        if tail is not None and not broken and not same_start(prompt, tail):
            # An engine's own array: the last sequence is extended, not copied.
            prompt = append_ids(tail, tokens.prompt_ids)
        sequence = append_ids(prompt, tokens.response_ids)
        return Taken(tokens, sequence, sampled.images, broken)


def tail_of(tree: SessionTree, turn: Turn) -> TokenTail:
    """Return the tail after a recorded turn."""
    if not turn.exact:
        return TokenTail()
    return TokenTail(tree.sequence(turn), tuple(tree.images(turn)))


def _same_images(before: Sequence[ImageRef], now: Sequence[ImageRef]) -> int:
    """Return the length of the common prefix of ids in which both show the same images."""
    for one, other in zip_longest(before, now):
        if one != other:
            return min(image.start for image in (one, other) if image is not None)
    return sys.maxsize


def as_reply(given: Reply | Message | str | object, turn: int) -> Reply:
    """Convert the argument of ``step`` to a reply with a well-formed message.

    Text becomes an assistant message; tool calls with a missing or duplicate id get a new one.

    Raises:
        InvalidInput: the argument is not an assistant message.
    """
    if isinstance(given, str):
        given = {"role": "assistant", "content": given}
    reply = given if isinstance(given, Reply) else Reply(message=given)  # type: ignore[arg-type]
    where = f"reply of turn {turn}"
    return readable(lambda: _checked(reply, turn), where)


def _checked(reply: Reply, turn: int) -> Reply:
    where = f"reply of turn {turn}"
    _check_fields(reply, where)
    message = plain_values(reply.message)
    if isinstance(message, dict) and message.get("tool_calls"):
        calls = _with_ids(message["tool_calls"], turn)
        if calls is not message["tool_calls"]:
            message = {**message, "tool_calls": calls}
    message = _storable(check_message(message, where, role="assistant"), where)
    context = reply.context
    if context is not None:
        shown = f"context of turn {turn}"
        context = _storable([plain_message(one, shown) for one in context], shown)
    plain: dict[str, Any] = {
        "message": message,
        "context": context,
        "finish": plain_text(reply.finish),
        "policy": plain_text(reply.policy),
        "usage": _plain_fields(reply.usage),
        "sampling": _plain_fields(reply.sampling),
    }
    changed = {name: value for name, value in plain.items() if value is not getattr(reply, name)}
    return replace(reply, **changed) if changed else reply


def _plain_fields(record: _T) -> _T:
    """Return a record whose numbers and texts are plain; the same one if they are."""
    if record is None or not is_dataclass(record) or isinstance(record, type):
        return record
    changed: dict[str, Any] = {}
    for name in _names(type(record)):
        value = getattr(record, name)
        if value is None or type(value) in _PLAIN:
            continue
        if isinstance(value, str):
            changed[name] = plain_text(value)
        elif (number := plain_number(value)) is not None:
            changed[name] = int(number) if isinstance(number, Integral) else float(number)
    return replace(record, **changed) if changed else record


@cache
def _names(kind: type) -> tuple[str, ...]:
    """Return the names of a record's fields; kept, because every turn needs those of two."""
    return tuple(one.name for one in fields(kind))


def paused_seconds(reply: object) -> float:
    """Return the seconds of a policy call that don't count as the agent's time.

    Raises:
        InvalidInput: it is not a reply, or its ``paused_seconds`` is not a valid number.
    """
    if not isinstance(reply, Reply):
        raise InvalidInput(f"the policy returned {type(reply).__name__}; return a Reply")
    paused: Any = reply.paused_seconds
    if (
        isinstance(paused, bool)
        or not isinstance(paused, int | float)
        or not 0 <= paused < math.inf
    ):
        raise InvalidInput(f"paused_seconds is {paused!r}; it must be seconds, 0 or more")
    return float(paused)


def _check_fields(reply: Reply, where: str) -> None:
    for name, kind, optional in _FIELDS:
        value = getattr(reply, name)
        if not isinstance(value, kind) and not (optional and value is None):
            found = type(value).__name__
            raise InvalidInput(f"{where}: {name} is {found}; it must be {kind.__name__}")


def _storable(value: _T, where: str) -> _T:
    """Return JSON values without lone surrogates.

    Called before the environment executes the message; otherwise a turn that can't be stored would
    have changed the environment's state.
    """
    try:
        to_json(value)
    except ValueError:
        value = replace_surrogates(value)
        try:
            to_json(value)
        except ValueError as error:
            raise InvalidInput(f"{where}: not representable as JSON: {error}") from error
    return value


def _with_ids(calls: object, turn: int) -> object:
    if not isinstance(calls, list):
        return calls
    ids = [call.get("id") for call in calls if isinstance(call, dict)]
    if all(ids) and len(set(ids)) == len(calls):
        return calls
    seen: set[str] = set()
    named = []
    for i, call in enumerate(calls):
        if isinstance(call, dict) and (not call.get("id") or call["id"] in seen):
            call = {**call, "id": f"call_{turn}_{i}"}
        if isinstance(call, dict):
            seen.add(str(call["id"]))
        named.append(call)
    return named


def usage_of(taken: Taken | None) -> Usage | None:
    """Return the token counts of an exact prompt and response."""
    if taken is None:
        return None
    tokens = taken.tokens
    return Usage(
        prompt_tokens=taken.sequence.size - tokens.response_ids.size,
        completion_tokens=tokens.response_ids.size,
        reasoning_tokens=sum(s.end - s.start for s in tokens.spans if s.kind == "reasoning"),
    )
