"""A session: its calls, its tree, and how each request is handled."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import time
from collections import defaultdict
from typing import TYPE_CHECKING, Any

from trajgym.server._answer import Answer, Choice
from trajgym.server._errors import Refused, UpstreamError
from trajgym.server._json import dumps
from trajgym.server.joining import (
    SET_BY_API,
    Known,
    Placement,
    Request,
    Seen,
    head_of,
    main_root,
    place,
    repeat_of,
    roles_of,
    tools_digest,
)
from trajgym.server.sessions._flight import Flight, Listener
from trajgym.server.sessions._recorder import Recorder
from trajgym.server.sessions._stored import with_images
from trajgym.server.sessions._watch import CallWatch
from trajgym.server.upstream import Exchange
from trajgym.trajectory import InvalidInput, Outcome, Status, StoreError, Try, Wire

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from trajgym.server.dialects import ClientCall, Dialect, EventWriter
    from trajgym.server.sessions._book import Settings
    from trajgym.trajectory import Ack, Attempt, Message, SessionRecord, Turn

__all__ = ["LiveSession"]

_PARENT_SECONDS = 30.0
"""How long a call waits for a running one that may be its parent."""


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
        self.recorder = Recorder(record, settings.store, attempt, turns, settings.redact)
        self.known = Known()
        self._settings = settings
        self._watch = watch or CallWatch()
        self._settled = False
        self._flights: dict[str, list[Flight]] = defaultdict(list)
        self._running: list[Flight] = []
        self._ids: set[str] = set()
        self._tool_heads: dict[str, str] = {"": tools_digest(())}
        self._last_tools: tuple[list[dict[str, Any]], str] = ([], "")
        self._restore()

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
                    self._recall(flight, dialect, body)
            flight.listeners.add(listener)
            return flight
        call = dialect.parse(body, self._conversation)
        self._watch.asked(call, len(self.running))
        flight = Flight(digest, call, self._request(call, hints))
        flight.rule = "" if repeat.rule in {"new", "R3"} else repeat.rule
        if repeat.rule == "R3" and repeat.earlier is not None:
            flight.retry_of = earlier[repeat.earlier].retry_of
        self._place(flight)
        flight.listeners.add(listener)
        earlier.append(flight)
        self._running.append(flight)
        self._settings.start(self._fly(flight, call, dialect))
        return flight

    def _request(self, call: ClientCall, hints: Mapping[str, str]) -> Request:
        tools = self._tools_of(call)
        return Request(
            call.messages,
            head=head_of(call.messages, self._tool_heads[tools], call.extras),
            tools=tools,
            hints=hints,
            previous=self.known.by_name.get(call.previous) if call.previous else None,
            signatures=call.signatures,
            before=self.known.recent(call.messages),
        )

    def _tools_of(self, call: ClientCall) -> str:
        """Return the hash of a call's tools; agents send the same ones with every call."""
        last, digest = self._last_tools
        if call.tools != last:
            digest = hashlib.sha256(dumps(call.tools)).hexdigest() if call.tools else ""
            self._last_tools = (call.tools, digest)
            if digest not in self._tool_heads:
                self._tool_heads[digest] = tools_digest(call.tools)
        return digest

    def _place(self, flight: Flight) -> Placement:
        request, call = flight.request, flight.call
        assert request is not None
        assert call is not None
        found = place(self.known, request)
        seen = self.known.add(request, found)
        self.known.by_name[call.name] = seen
        flight.seen = [seen]
        flight.place_again = False
        if found.rule[0] in "OWS":
            ends = set(request.chain[: len(request.atoms)])
            flight.place_again = any(
                not one.answered and one is not seen and one.prompt in ends
                for one in self.known.calls
            )
        return found

    def _conversation(self, name: str) -> list[Message] | None:
        """Return the conversation up to and including one of our answers."""
        seen = self.known.by_name.get(name)
        if seen is None or seen.turn is None:
            return None
        tree = self.recorder.tree
        return with_images(tree.conversation(tree.turns[seen.turn]), self._settings.store)

    # The call itself ----------------------------------------------------------------------

    async def _fly(self, flight: Flight, call: ClientCall, dialect: Dialect) -> None:
        flight.task = asyncio.current_task()
        metrics = self._settings.metrics
        writer = dialect.writer(call) if call.stream else None
        flight.keep_alive = b"" if writer is None else writer.keep_alive()
        exchange = Exchange(
            upstream=self._settings.upstream,
            control=self._settings.control,
            call=call,
            session=self.id,
            rename=self._rename,
            renamed=self.recorder.renamed,
            emit=lambda chunk: self._emit(flight, writer, chunk),
            prompt=self._prompt(flight, call),
            hold_seconds=self._settings.limits.hold_seconds,
            tries=list(flight.retry_of),
        )
        metrics.running += 1
        try:
            await self._watch.admit()
            await exchange.run()
            await self._finish(flight, call, dialect, writer, exchange)
        except asyncio.CancelledError:
            self._lost(flight, call, exchange)
            if flight.turns and flight.state == "running":  # recorded, so it can be replayed
                self._orphan(flight)
                flight.end("failed" if not flight.seen[0].answered else "complete")
            raise
        except Refused as error:
            self._fail(flight, dialect, writer, exchange, error)
        except UpstreamError as error:
            refused = Refused(502, str(error), kind="api_error")
            self._lost(flight, call, exchange)
            self._fail(flight, dialect, writer, exchange, refused)
        except StoreError as error:
            self._orphan(flight)  # it may be stored, but not all that it refers to
            refused = Refused(500, f"the turn could not be recorded: {error}", kind="api_error")
            self._fail(flight, dialect, writer, exchange, refused)
        except Exception as error:  # boundary: one call's failure must not affect the others
            self._settings.log.exception("session %s: a call failed", self.id)
            refused = Refused(500, f"{type(error).__name__} in the proxy", kind="api_error")
            self._fail(flight, dialect, writer, exchange, refused)
        finally:
            metrics.running -= 1
            if flight.state == "running":
                self._drop(flight)
            flight.task = None  # the flight stays in memory, with all that the task refers to

    def _prompt(self, flight: Flight, call: ClientCall) -> Callable[[], Sequence[int]] | None:
        """Return what renders a call's prompt in token mode, on top of the turn it continues."""
        upstream = self._settings.upstream
        if (
            not upstream.tokens
            or call.path != "/v1/chat/completions"
            or (call.body.get("n") or 1) != 1
        ):
            return None

        def prompt() -> Sequence[int]:
            first = flight.seen[0]
            base = first.parent if first.edge == "continue" else None
            prefix = None if base is None or base.turn is None else self.recorder.ids(base.turn)
            held = 0 if base is None else len(base.prints) + 1
            messages = upstream.edited(call, self.recorder.renamed)["messages"]
            return upstream.prompt_of(messages, call.tools, prefix, held)

        return prompt

    def _emit(self, flight: Flight, writer: EventWriter | None, chunk: dict[str, Any]) -> None:
        if writer is None:
            return
        if not flight.status:
            flight.begin(200, "text/event-stream")
        flight.send(writer.feed(chunk))

    async def _finish(
        self,
        flight: Flight,
        call: ClientCall,
        dialect: Dialect,
        writer: EventWriter | None,
        exchange: Exchange,
    ) -> None:
        if exchange.status != 200:
            self._pass_on(flight, dialect, exchange)
            return
        if not exchange.answer.choices:
            raise UpstreamError("the engine's answer has no choices")
        await self._commit(flight, call, exchange)
        if writer is None:
            flight.begin(200, "application/json")
            flight.send(dialect.whole(call, exchange.answer, exchange.raw))
        else:
            if not flight.status:
                flight.begin(200, "text/event-stream")
            flight.send(writer.close(exchange.answer))
        self._settings.metrics.answered(call.dialect, exchange)
        flight.end("complete")

    def _pass_on(self, flight: Flight, dialect: Dialect, exchange: Exchange) -> None:
        """Pass the engine's error on to the client, with its status and message."""
        error = exchange.error
        inner = error.get("error") if isinstance(error, dict) else None
        found = inner if isinstance(inner, dict) else error if isinstance(error, dict) else {}
        message = str(found.get("message") or error)[:2000]
        kind = str(found.get("type") or "invalid_request_error")
        wait = exchange.retry_after
        refused = Refused(exchange.status, message, kind=kind)
        if wait is not None:
            flight.headers.append((b"retry-after", wait.encode("latin-1", "replace")))
        self._fail(flight, dialect, None, exchange, refused)

    def _fail(
        self,
        flight: Flight,
        dialect: Dialect,
        writer: EventWriter | None,
        exchange: Exchange,
        error: Refused,
    ) -> None:
        self._settings.metrics.refused[error.status] += 1
        self._watch.failed(error.status, str(error))
        cause = f"status {error.status}: {error}"[:200]
        flight.retry_of = [
            *exchange.tries,
            Try(flight.arrived, time.time() - flight.arrived, cause),
        ]
        if flight.status and writer is not None:
            flight.send(writer.fail(error.status, str(error), error.kind))
        else:
            if error.retry_after is not None:
                flight.headers.append((b"retry-after", b"%d" % max(1, error.retry_after)))
            flight.begin(error.status, "application/json")
            flight.send(dialect.error(error.status, str(error), error.kind))
        self._drop(flight)

    def _drop(self, flight: Flight) -> None:
        """Remove a call without an answer from the tree; its next try takes its place."""
        for seen in flight.seen:
            if not seen.answered:
                self.known.forget(seen)
        flight.end("failed")

    # Recording ----------------------------------------------------------------------------

    async def _commit(self, flight: Flight, call: ClientCall, exchange: Exchange) -> None:
        if flight.place_again:
            await self._wait_for_parents(flight)
        acks = self._record(flight, call, exchange, "open")
        for ack in acks:
            await ack
        self._watch.recorded([self.turns[index] for index in flight.turns])
        self._settings.tell(self)

    def _record(
        self, flight: Flight, call: ClientCall, exchange: Exchange, delivery: str
    ) -> list[Ack]:
        request = flight.request
        assert request is not None
        first = flight.seen[0]
        acks: list[Ack] = []
        for i, choice in sorted(exchange.answer.choices.items()):
            seen = first if not acks else self._beside(request, first)
            place = Placement(
                first.parent, first.edge, first.rule, seen.agent, first.returning, first.summarised
            )
            wire = Wire(
                call=call.name,
                dialect=call.dialect,
                request=flight.digest,
                head=request.head,
                rule=flight.rule or (f"{first.rule}:n" if i else first.rule),
                renamed=self._renamed_in(choice),
                hints=dict(request.hints),
                tries=list(exchange.tries),
            )
            ack = self.recorder.append(call, request, place, seen, choice, exchange, wire)
            if wire.inexact:
                self._settings.metrics.inexact[wire.inexact] += 1
            if delivery == "orphan":
                assert seen.turn is not None
                self.recorder.amend(seen.turn, delivery="orphan")
            else:
                self.known.answer(seen, choice.message)
            acks.append(ack)
            assert seen.turn is not None
            flight.turns.append(seen.turn)
        parent = first.parent
        if parent is not None and parent.turn is not None:
            self.recorder.amend(parent.turn, delivery="delivered")
        return acks

    def _beside(self, request: Request, first: Seen) -> Seen:
        """Return the place of another one of n choices."""
        agent = self.known.fresh_agent() if first.edge == "spawn" else first.agent
        place = Placement(first.parent, first.edge, first.rule, agent, caller=first.caller)
        return self.known.add(request, place)

    async def _wait_for_parents(self, flight: Flight) -> None:
        """Place a call again that arrived before its parent's answer was complete."""
        request = flight.request
        assert request is not None
        ends = set(request.chain[: len(request.atoms)])
        for other in self.running:
            if other is flight or not any(s.prompt in ends for s in other.seen):
                continue
            if other.task is not None:
                await asyncio.wait({other.task}, timeout=_PARENT_SECONDS)
        self.known.forget(flight.seen[0])
        self._place(flight)

    def _lost(self, flight: Flight, call: ClientCall, exchange: Exchange) -> None:
        """Record the sampled part of an answer that no client will receive."""
        choices = exchange.answer.choices
        if flight.state != "running" or flight.turns or flight.request is None:
            return
        if not any(c.ids or c.content or c.calls for c in choices.values()):
            return
        for choice in choices.values():
            choice.finish = choice.finish or "abort"
        try:
            self._record(flight, call, exchange, "orphan")
        except (InvalidInput, StoreError):
            self._settings.log.exception("session %s: an orphan could not be recorded", self.id)

    def _orphan(self, flight: Flight) -> None:
        """Note that the client does not receive what was recorded of a call."""
        with contextlib.suppress(StoreError):  # nothing more can be recorded then
            for index in flight.turns:
                self.recorder.amend(index, delivery="orphan")

    def _renamed_in(self, choice: Choice) -> dict[str, str]:
        found = {}
        for call in choice.calls.values():
            if call["id"] in self.recorder.renamed:
                found[call["id"]] = self.recorder.renamed[call["id"]]
        return found

    def _rename(self, identity: str) -> str:
        """Return an id that is unique in this session; the engine's own if it already is."""
        fits = identity.replace("_", "").replace("-", "").isalnum() and len(identity) <= 64
        if fits and identity not in self._ids:
            self._ids.add(identity)
            return identity
        name = f"call_{self._settings.fresh_id()}"
        self.recorder.renamed[name] = identity
        self._ids.add(name)
        return name

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

    def _recall(self, flight: Flight, dialect: Dialect, body: dict[str, Any]) -> None:
        """Rebuild the response to a call that an earlier process answered."""
        call = dialect.parse(body, self._conversation)
        answer = Answer()
        for i, index in enumerate(flight.turns):
            turn = self.turns[index]
            assert turn.wire is not None
            call.name = turn.wire.call
            answer.model = str(body.get("model") or "")
            answer.created = int(turn.started_at)
            answer.choices[i] = choice = Choice()
            choice.feed(turn.message)
            choice.finish = turn.finish
            if turn.usage is not None:
                given, made = turn.usage.prompt_tokens, turn.usage.completion_tokens
                answer.usage = {
                    "prompt_tokens": given,
                    "completion_tokens": made,
                    "total_tokens": given + made,
                }
        if not call.stream:
            flight.begin(200, "application/json")
            flight.pieces = [dialect.whole(call, answer, {})]
            return
        writer = dialect.writer(call)
        flight.keep_alive = writer.keep_alive()
        flight.begin(200, "text/event-stream")
        head = {"object": "chat.completion.chunk", "created": answer.created, "model": answer.model}
        for i, choice in answer.choices.items():
            delta = choice.message
            for n, tool in enumerate(delta.get("tool_calls") or ()):
                tool["index"] = n
            said = {"index": i, "delta": delta, "finish_reason": None}
            flight.pieces.append(writer.feed({**head, "choices": [said]}))
            end = {"index": i, "delta": {}, "finish_reason": choice.finish}
            flight.pieces.append(writer.feed({**head, "choices": [end]}))
        flight.pieces.append(writer.close(answer))

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
        self._set_leaf()
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
        self._set_leaf()

    async def _land(self, seconds: float) -> None:
        """Wait for running calls; cancel those that take longer."""
        tasks = {f.task for f in self.running if f.task is not None}
        if tasks:
            _, late = await asyncio.wait(tasks, timeout=seconds)
            for task in late:
                task.cancel()
            if late:
                await asyncio.wait(late, timeout=5.0)

    def _set_leaf(self) -> None:
        self._label()
        own = [t.index for t in self.turns if t.agent == "main" and t.role == "main"]
        self.attempt.leaf = own[-1] if own else (self.turns[-1].index if self.turns else None)

    def _label(self) -> None:
        """Name the main agent, and assign roles to side calls."""
        answered = [seen for seen in self.known.calls if seen.turn is not None]
        root = main_root(answered)
        if root is not None and root.agent != "main" and root.parent is None:
            swap = {root.agent: "main", "main": root.agent}
            for turn in self.turns:
                if turn.agent in swap:
                    self.recorder.amend(turn.index, agent=swap[turn.agent])
        roles = roles_of(answered)
        for seen in answered:
            assert seen.turn is not None
            role = roles.get(seen.number)
            if role is not None and self.turns[seen.turn].role_reason != SET_BY_API:
                self.recorder.amend(seen.turn, role=role.role, role_reason=role.reason)

    # A session of an earlier process --------------------------------------------------------

    def _restore(self) -> None:
        by_turn: dict[int, Seen] = {}
        tree = self.recorder.tree
        for turn in self.turns:
            wire = turn.wire
            if wire is None:
                continue
            context = tree.context(turn)
            request = Request(
                context,
                head=wire.head,
                tools=wire.tools,
                hints=wire.hints,
                before=self.known.recent(context),
            )
            base = None if turn.parent is None else by_turn.get(turn.parent)
            returns = tuple(by_turn[i] for i in turn.returns if i in by_turn)
            summary = by_turn.get(wire.links.get("summary", -1))
            place = Placement(base, turn.edge, wire.rule, turn.agent, returns, summary)
            seen = self.known.add(request, place)
            seen.turn = turn.index
            by_turn[turn.index] = seen
            self.known.by_name.setdefault(wire.call, seen)
            if turn.delivery != "orphan" or turn.finish != "abort":
                self.known.answer(seen, turn.message)
            self._ids |= {c["id"] for c in turn.message.get("tool_calls") or ()}
            self.recorder.renamed |= wire.renamed
            self._remember(turn, wire, seen)
        self.known.reserve(turn.agent for turn in self.turns)

    def _remember(self, turn: Turn, wire: Wire, seen: Seen) -> None:
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
