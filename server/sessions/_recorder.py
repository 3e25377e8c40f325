"""Recording of answered calls as turns in the store."""

from __future__ import annotations

import struct
import time
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import numpy.typing as npt

from trajgym.envs._ledger import TokenTail, tail_of
from trajgym.envs._reply import Sampled
from trajgym.server._json import dumps
from trajgym.server.joining import kept_of
from trajgym.server.sessions._stored import storable
from trajgym.trajectory import (
    InvalidInput,
    Sampling,
    SessionTree,
    Turn,
    Usage,
    Wire,
    check_message,
)

if TYPE_CHECKING:
    import re
    from collections.abc import Sequence

    from trajgym.envs._ledger import Taken
    from trajgym.server._answer import Answer, Choice
    from trajgym.server.dialects import ClientCall
    from trajgym.server.joining import Placement, Request, Seen
    from trajgym.server.upstream import Exchange, Upstream
    from trajgym.trajectory import Ack, Attempt, Edge, IntArray, Message, SessionRecord, Store

__all__ = ["Recorder"]

_Number = TypeVar("_Number", np.int32, np.float32)
_NUMBERS: tuple[tuple[str, type], ...] = (
    ("temperature", float),
    ("top_p", float),
    ("top_k", int),
    ("max_completion_tokens", int),
    ("max_tokens", int),
    ("seed", int),
)


class Recorder:
    """The turns of one session, in memory and in the store.

    Args:
        record: the session's record.
        store: where turns are recorded.
        attempt: the session's only attempt.
        turns: turns that are recorded already.
        redact: patterns whose matches are not stored.
    """

    def __init__(
        self,
        record: SessionRecord,
        store: Store,
        attempt: Attempt,
        turns: list[Turn],
        redact: Sequence[re.Pattern[str]] = (),
    ) -> None:
        self.record = record
        self.attempt = attempt
        self.turns = turns
        self.renamed: dict[str, str] = {}
        """Maps tool-call ids that the client knows to the engine's, where they differ."""
        self._store = store
        self._redact = redact
        self._tails: dict[int, TokenTail] = {}
        self._tools: dict[str, Ack] = {}

    @property
    def tree(self) -> SessionTree:
        """The session so far."""
        return SessionTree(self.record, list(self.turns), [self.attempt])

    def append(
        self,
        call: ClientCall,
        request: Request,
        place: Placement,
        seen: Seen,
        choice: Choice,
        exchange: Exchange,
        wire: Wire,
    ) -> Ack:
        """Record a choice as a turn; the result completes once the turn is durable."""
        answer, upstream = exchange.answer, exchange.upstream
        base = place.base
        earlier: list[Ack] = []

        def keep(data: bytes, media_type: str) -> str:
            name, ack = self._store.put_blob(data, media_type)
            earlier.append(ack)
            return name

        message = storable([checked(choice.message)], keep, self._redact)[0]
        kept = kept_of(base, request) if base is not None and place.edge != "spawn" else None
        taken, wire.inexact = self._exact(base, place.edge, answer, choice, upstream)
        edge: Edge = place.edge
        if edge == "continue" and base is not None and taken is not None and taken.broken:
            edge, wire.rule = "rewrite", f"{wire.rule}:template"
        usage = answer.usage or {}
        turn = Turn(
            index=len(self.turns),
            parent=None if base is None else base.turn,
            edge=edge,
            agent=seen.agent,
            kept=kept,
            context=storable(request.messages[_start(place, kept) :], keep, self._redact),
            message=message,
            finish=_finish(choice),
            usage=Usage(
                prompt_tokens=usage.get("prompt_tokens") or 0,
                completion_tokens=usage.get("completion_tokens") or len(choice.ids),
            ),
            sampling=_sampling(call.body, upstream),
            policy=f"proxy:{answer.model or call.body.get('model') or ''}",
            synthetic=upstream.synthetic,
            tokens=None if taken is None else taken.tokens,
            started_at=exchange.started,
            policy_seconds=max(0.0, time.time() - exchange.started - exchange.paused),
            returns=[r.turn for r in place.returns if r.turn is not None],
            delivery="open",
            wire=wire,
        )
        wire.tools = request.tools
        if call.tools:
            earlier.append(self._keep_tools(call.tools, request.tools))
        if place.summary is not None and place.summary.turn is not None:
            wire.links["summary"] = place.summary.turn
        ack = self._store.append_turn(self.record.id, turn).after(*earlier)
        seen.turn = turn.index
        self.turns.append(turn)
        if taken is not None:
            self._tails[turn.index] = taken.tail
            if turn.parent is not None:
                self._tails.pop(turn.parent, None)  # rebuilt from the tree for the rare sibling
        return ack

    def ids(self, index: int) -> IntArray | None:
        """Return int32 ``[S]``, prompt and response ids of a turn; None if it is a text turn."""
        return self._tail(index).ids

    def amend(self, index: int, **fields: Any) -> Ack | None:
        """Change fields of a turn, in memory and in the store; None if nothing changes."""
        turn = self.turns[index]
        changed = {k: v for k, v in fields.items() if getattr(turn, k) != v}
        if not changed:
            return None
        for name, value in changed.items():
            setattr(turn, name, value)
        return self._store.amend_turn(self.record.id, index, **changed)

    def _exact(
        self, base: Seen | None, edge: Edge, answer: Answer, choice: Choice, upstream: Upstream
    ) -> tuple[Taken | None, str]:
        """Return the turn's ids as a delta, or None and the reason why there are none."""
        if upstream.kind == "hosted":
            return None, ""
        if why := answer.inexact(choice):
            return None, why
        tail = TokenTail()
        if base is not None and base.turn is not None and edge != "spawn":
            tail = self._tail(base.turn)
        try:
            taken = tail.take(
                Sampled(
                    prompt_ids=_array(answer.prompt_ids or (), np.int32),
                    response_ids=_array(choice.ids, np.int32),
                    logprobs=_array(choice.logprobs, np.float32),
                    segments=tuple(choice.segments),
                    spans=_spans(answer, choice, upstream),
                )
            )
        except (InvalidInput, OverflowError, TypeError, ValueError, struct.error) as error:
            return None, f"ids and log-probs are inconsistent: {error}"[:200]
        return taken, ""

    def _tail(self, index: int) -> TokenTail:
        found = self._tails.get(index)
        return tail_of(self.tree, self.turns[index]) if found is None else found

    def _keep_tools(self, tools: Sequence[Any], digest: str) -> Ack:
        """Store the tools of a call, once per session."""
        kept = self._tools.get(digest)
        if kept is None or kept.error is not None:
            _, kept = self._store.put_blob(dumps(tools), "application/json")
            self._tools[digest] = kept
        return kept


def checked(message: Message) -> Message:
    """Return an engine's message with an id for every tool call, as records require."""
    for i, call in enumerate(message.get("tool_calls") or ()):
        call["id"] = call["id"] or f"call_{i}"
    return check_message(message, "the engine's answer", role="assistant")


def _array(values: Sequence[Any], kind: type[_Number]) -> npt.NDArray[_Number]:
    """Return numbers as a read-only array, in less than half the time of ``np.array``.

    Raises:
        struct.error: a value is not a number of that kind, or is out of range.
    """
    return np.frombuffer(struct.pack(f"{len(values)}{np.dtype(kind).char}", *values), kind)


def _start(place: Placement, kept: int | None) -> int:
    """Return the index of the first message of the request that is not stored yet."""
    if place.base is None or place.edge == "spawn":
        return 0
    return len(place.base.prints) + 1 if kept is None else kept


def _finish(choice: Choice) -> str:
    known = {"stop", "tool_calls", "length", "abort"}
    finish = choice.finish or "abort"
    return finish if finish in known else "stop"


def _sampling(body: dict[str, Any], upstream: Upstream) -> Sampling:
    given: dict[str, Any] = {
        name: kind(body[name])
        for name, kind in _NUMBERS
        if name in body
        and isinstance(body[name], (int, float))
        and not isinstance(body[name], bool)
    }
    most = given.pop("max_completion_tokens", None) or given.pop("max_tokens", None)
    given.pop("max_tokens", None)
    return Sampling(**given, max_tokens=most, logprob_mode=upstream.logprob_mode)


def _spans(answer: Answer, choice: Choice, upstream: Upstream) -> tuple[Any, ...]:
    """Return the renderer's spans, with tool-call ids as the client knows them."""
    if upstream.renderer is None:
        return ()
    spans = upstream.renderer.parse(choice.ids, answer.prompt_ids or ()).spans
    names = [choice.calls[i]["id"] for i in sorted(choice.calls)]
    if sum(span.kind == "tool_call" for span in spans) != len(names):
        return tuple(span for span in spans if span.kind != "tool_call")
    given = iter(names)
    return tuple(
        span._replace(call_id=next(given)) if span.kind == "tool_call" else span for span in spans
    )
