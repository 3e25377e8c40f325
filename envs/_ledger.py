"""What a session and its forks share: the record, the tree as it grows, and the store."""

from __future__ import annotations

import hashlib
import sys
import time
from dataclasses import dataclass, field, replace
from itertools import zip_longest
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from trajgym.envs._reply import Reply
from trajgym.trajectory import (
    Attempt,
    Message,
    SessionRecord,
    SessionTree,
    Status,
    Turn,
    TurnTokens,
    Usage,
    check_message,
    replace_surrogates,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trajgym.envs._reply import Sampled
    from trajgym.envs._tools import Image
    from trajgym.trajectory import ImageRef, IntArray, Store

__all__ = ["Ledger", "Taken", "TokenTail", "as_reply", "tail_of", "usage_of"]


@dataclass(slots=True)
class Ledger:
    """Append-only record of one session; forks append to the same one."""

    record: SessionRecord
    store: Store | None
    turns: list[Turn] = field(default_factory=list)
    attempts: list[Attempt] = field(default_factory=lambda: [Attempt()])
    images: dict[str, Image] = field(default_factory=dict)
    opening: list[Message] = field(default_factory=list)

    async def begin(self) -> None:
        """Keep the head."""
        if self.store is not None:
            await self.store.begin_session(self.record)

    def new_attempt(self, forked_at: int | None) -> Attempt:
        """Open another attempt; the caller keeps it."""
        attempt = Attempt(index=len(self.attempts), forked_at=forked_at, leaf=forked_at)
        self.attempts.append(attempt)
        return attempt

    async def add_failed_fork(self, forked_at: int | None, cause: str, error: str) -> None:
        """Keep an attempt that ended before it began."""
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
        """Keep an attempt's newer state."""
        if self.store is not None:
            await self.store.put_attempt(self.record.id, attempt)

    async def append(self, turn: Turn) -> None:
        """Give the turn its index and keep it; returns when it is durable."""
        turn.index = len(self.turns)
        # Hand it to the store before waiting: a fork that appends meanwhile gets the next index.
        ack = None if self.store is None else self.store.append_turn(self.record.id, turn)
        self.turns.append(turn)
        if ack is not None:
            await ack

    def keep_image(self, image: Image) -> str:
        """Keep an image once; return its hash. It is durable before the turn that shows it."""
        name = hashlib.sha256(image.data).hexdigest()
        if name not in self.images:
            self.images[name] = image
            if self.store is not None:
                self.store.put_blob(image.data, image.media_type)
        return name

    def tree(self) -> SessionTree:
        """Return the session so far as a tree."""
        return SessionTree(self.record, list(self.turns), list(self.attempts))


class Taken(NamedTuple):
    """A prompt and response turned into what is recorded."""

    tokens: TurnTokens
    sequence: IntArray
    """int32 ``[S]``: the whole prompt and response."""
    images: tuple[ImageRef, ...]
    """The images in it."""
    broken: bool
    """The prompt does not start with the last turn's sequence: the edge is a rewrite."""

    @property
    def tail(self) -> TokenTail:
        """What the next turn's prompt is compared with."""
        return TokenTail(self.sequence, self.images)


@dataclass(slots=True)
class TokenTail:
    """The ids of one attempt so far, to turn whole prompts into deltas.

    Args:
        ids: prompt and response of the last turn; None before the first exact turn and after a
            text turn.
        images: the images among them.
    """

    ids: IntArray | None = None
    images: tuple[ImageRef, ...] = ()

    def take(self, sampled: Sampled) -> Taken:
        """Return the delta to the last turn.

        Raises:
            InvalidInput: the ids and log-probs do not fit together.
        """
        prompt = np.asarray(sampled.prompt_ids, dtype=np.int32)
        tail = self.ids
        kept, broken = 0, False
        if tail is not None:
            if prompt.size >= tail.size and np.array_equal(prompt[: tail.size], tail):
                kept = tail.size
            else:
                shared = min(prompt.size, tail.size)
                different = np.nonzero(prompt[:shared] != tail[:shared])[0]
                kept = int(different[0]) if different.size else shared
            if sampled.images or self.images:
                # Placeholders are the same ids whatever the picture.
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
        sequence = np.concatenate([prompt, tokens.response_ids])
        return Taken(tokens, sequence, sampled.images, broken)


def tail_of(tree: SessionTree, turn: Turn) -> TokenTail:
    """Return the tail after a recorded turn."""
    if not turn.exact:
        return TokenTail()
    return TokenTail(tree.sequence(turn), tuple(tree.images(turn)))


def _same_images(before: Sequence[ImageRef], now: Sequence[ImageRef]) -> int:
    """Return how many leading ids show the same images in both."""
    for one, other in zip_longest(before, now):
        if one != other:
            return min(image.start for image in (one, other) if image is not None)
    return sys.maxsize


def as_reply(given: Reply | Message | str | object, turn: int) -> Reply:
    """Return what a caller handed to ``step`` as a reply with a well-formed message.

    Text becomes an assistant message; tool calls without an id, or with one used twice, get one.

    Raises:
        InvalidInput: it is not an assistant message.
    """
    if isinstance(given, str):
        given = {"role": "assistant", "content": given}
    reply = given if isinstance(given, Reply) else Reply(message=given)  # type: ignore[arg-type]
    message = reply.message
    if isinstance(message, dict) and message.get("tool_calls"):
        calls = _with_ids(message["tool_calls"], turn)
        if calls is not message["tool_calls"]:
            message = {**message, "tool_calls": calls}
    message = replace_surrogates(
        check_message(message, f"reply of turn {turn}", role="assistant"),
    )
    context = reply.context
    if context is not None:
        for shown in context:
            check_message(shown, f"context of turn {turn}")
        context = replace_surrogates(context)
    if message is reply.message and context is reply.context:
        return reply
    return replace(reply, message=message, context=context)


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
    """Return the token counts of a prompt and response whose ids are known."""
    if taken is None:
        return None
    tokens = taken.tokens
    return Usage(
        prompt_tokens=taken.sequence.size - tokens.response_ids.size,
        completion_tokens=tokens.response_ids.size,
        reasoning_tokens=sum(s.end - s.start for s in tokens.spans if s.kind == "reasoning"),
    )
