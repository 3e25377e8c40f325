"""A session of an outside agent: its requests from their arrival to their delivery, and its end."""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from typing import TYPE_CHECKING, Any

from trajgym.server._errors import Refused
from trajgym.server.joining import repeat_of
from trajgym.server.sessions._answering import Answering
from trajgym.server.sessions._flight import Flight, Listener
from trajgym.server.sessions._history import History
from trajgym.server.sessions._response import replay
from trajgym.server.sessions._watch import CallWatch
from trajgym.trajectory import Outcome, Status

if TYPE_CHECKING:
    from collections.abc import Mapping

    from trajgym.server.dialects import Dialect
    from trajgym.server.joining import Seen
    from trajgym.server.sessions._book import Settings
    from trajgym.trajectory import Attempt, SessionRecord, Turn

__all__ = ["LiveSession"]


class LiveSession:
    """One session of an outside agent.

    Args:
        record: the session's record.
        attempt: its only attempt.
        turns: turns recorded by an earlier process.
        settings: what all sessions share.
        watch: follows the calls.
    """

    def __init__(
        self,
        record: SessionRecord,
        attempt: Attempt,
        turns: list[Turn],
        settings: Settings,
        watch: CallWatch | None = None,
    ) -> None:
        self.record = record
        self.attempt = attempt
        self.used_at = time.time()
        self._history = History(record, attempt, turns, settings)
        self.recorder = self._history.recorder
        self._settings = settings
        self._watch = watch or CallWatch()
        self._settled = False
        self._flights: dict[str, list[Flight]] = defaultdict(list)
        self._running: list[Flight] = []
        for index, seen in self._history.restored.items():
            self._remember(turns[index], seen)

    @property
    def id(self) -> str:
        """The session's id."""
        return self.record.id

    @property
    def turns(self) -> list[Turn]:
        """Its turns so far."""
        return self.recorder.turns

    @property
    def running(self) -> list[Flight]:
        """Its running calls, in the order of their arrival."""
        self._running = [f for f in self._running if f.state == "running"]
        return self._running

    # Arrival ------------------------------------------------------------------------------

    def arrive(
        self,
        dialect: Dialect,
        body: dict[str, Any],
        digest: str,
        hints: Mapping[str, str],
        *,
        retry: bool,
        listener: Listener,
    ) -> Flight:
        """Place a request and start its call; does not await, so that arrivals are ordered.

        Args:
            dialect: the request's wire format.
            body: the client's JSON.
            digest: hash of path, body and the agent's own hint.
            hints: the agent's hints from the headers.
            retry: the client marks the request as a retry.
            listener: the client that waits for the answer.

        Raises:
            Refused: the session is closed, or the request has no conversation.
        """
        if self._settled or self.attempt.status.ended:
            raise Refused(409, f"session {self.id} is closed ({self.attempt.status})")
        self.used_at = time.time()
        earlier = self._flights[digest]
        repeat = repeat_of([f.earlier for f in earlier], now=self.used_at, retry=retry)
        self._settings.metrics.repeats[repeat.rule] += 1
        if not repeat.forwards and repeat.earlier is not None:
            flight = earlier[repeat.earlier]
            if repeat.rule == "R4":
                flight.replayed = True
                if not flight.pieces:
                    call = dialect.parse(body, self._history.conversation)
                    answered = [self.turns[index] for index in flight.turns]
                    replay(flight, call, dialect, answered, str(body.get("model") or ""))
            flight.listeners.add(listener)
            return flight
        call = dialect.parse(body, self._history.conversation)
        self._watch.asked(call, len(self.running))
        flight = Flight(digest, call, self._history.request(call, hints))
        flight.rule = "" if repeat.rule in {"new", "R3"} else repeat.rule
        if repeat.rule == "R3" and repeat.earlier is not None:
            flight.retry_of = earlier[repeat.earlier].retry_of
        answering = Answering(
            self.record.id,
            flight,
            call,
            dialect,
            history=self._history,
            settings=self._settings,
            watch=self._watch,
            running=lambda: self.running,
            recorded=self._recorded,
        )
        self._history.place(flight)
        flight.listeners.add(listener)
        earlier.append(flight)
        self._running.append(flight)
        self._settings.start(answering.run())
        return flight

    def _recorded(self, flight: Flight) -> None:
        turns = self.recorder.turns
        self._watch.recorded([turns[index] for index in flight.turns])
        self._settings.tell(self)

    # Delivery -----------------------------------------------------------------------------

    def delivered(self, flight: Flight) -> None:
        """Record that an answer was written to a client completely."""
        flight.delivered = True
        for index in flight.turns:
            self.recorder.amend(index, delivery="delivered")
        flight.forget_pieces()

    def left(self, flight: Flight, listener: Listener) -> None:
        """Remove a listener; if it left before the answer was complete, record that."""
        flight.listeners.discard(listener)
        if flight.state == "running" and not flight.listeners:
            loop = asyncio.get_running_loop()
            loop.call_later(self._settings.limits.attach_seconds, self._abandon, flight)
        elif flight.state == "complete" and not flight.delivered and not flight.listeners:
            flight.ended = time.time()  # a client that read slowly may have left much later
            for index in flight.turns:
                if not any(seen.followed for seen in flight.seen):
                    self.recorder.amend(index, delivery="orphan")

    def _abandon(self, flight: Flight) -> None:
        if flight.state == "running" and not flight.listeners and flight.task is not None:
            flight.task.cancel()

    # The end ------------------------------------------------------------------------------

    async def close(self, status: Status, outcome: Outcome | None, cause: str) -> None:
        """Close the session: wait for running calls, assign roles, record the final status.

        A session without an answered call is recorded as ``failed:agent``: the agent did not run.
        """
        await self._land(self._settings.limits.close_seconds)
        if self.attempt.status.ended:
            return
        if status.scored and not self.turns:
            status, outcome = Status("failed", "agent"), None
            cause = cause or "the proxy received no call of the agent"
        self._history.conclude()
        attempt = self.attempt
        attempt.status, attempt.outcome, attempt.cause = status, outcome, cause
        attempt.ended_at = time.time()
        await self._settings.store.put_attempt(self.id, attempt)
        self._settings.tell(self)

    async def settle(self, seconds: float) -> None:
        """End the session's calls without ending its attempt, which its owner does.

        Later requests are refused; agents and roles are assigned.

        Args:
            seconds: for running calls to end; then they are cancelled.
        """
        self._settled = True
        await self._land(seconds)
        self._history.conclude()

    async def _land(self, seconds: float) -> None:
        """Wait for running calls; cancel those that take longer."""
        tasks = {f.task for f in self.running if f.task is not None}
        if tasks:
            _, late = await asyncio.wait(tasks, timeout=seconds)
            for task in late:
                task.cancel()
            if late:
                await asyncio.wait(late, timeout=5.0)

    # A session of an earlier process --------------------------------------------------------

    def _remember(self, turn: Turn, seen: Seen) -> None:
        """Add the call of a recorded turn, so that a repeated request is answered with it."""
        wire = turn.wire
        assert wire is not None
        flights = self._flights[wire.request]
        for flight in flights:  # n choices of one request
            if flight.seen and self.turns[flight.turns[0]].wire is not None:
                first = self.turns[flight.turns[0]].wire
                if first is not None and first.call == wire.call:
                    flight.turns.append(turn.index)
                    flight.seen.append(seen)
                    return
        flight = Flight(wire.request, None, None)
        flight.seen, flight.turns = [seen], [turn.index]
        flight.delivered = turn.delivery == "delivered"
        lost = turn.delivery == "orphan" and turn.finish == "abort"
        flight.end("failed" if lost else "complete")
        flight.ended = turn.started_at + turn.policy_seconds
        flights.append(flight)
