"""The calls of a session: where each belongs in the tree, and what is recorded of it."""

from __future__ import annotations

import contextlib
import hashlib
from typing import TYPE_CHECKING, Any

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
    roles_of,
    tools_digest,
)
from trajgym.server.sessions._recorder import Recorder
from trajgym.server.sessions._stored import with_images
from trajgym.trajectory import StoreError, Wire

if TYPE_CHECKING:
    from collections.abc import Mapping

    from trajgym.server._answer import Choice
    from trajgym.server.dialects import ClientCall
    from trajgym.server.sessions._book import Settings
    from trajgym.server.sessions._flight import Flight
    from trajgym.server.upstream import Exchange
    from trajgym.trajectory import Ack, Attempt, Message, SessionRecord, Turn

__all__ = ["History"]


class History:
    """Places the calls of a session in its tree, and records their answers there.

    Args:
        record: the session's record.
        attempt: its only attempt.
        turns: turns recorded by an earlier process.
        settings: what all sessions share.
    """

    def __init__(
        self, record: SessionRecord, attempt: Attempt, turns: list[Turn], settings: Settings
    ) -> None:
        self.recorder = Recorder(record, settings.store, attempt, turns, settings.redact)
        self.known = Known()
        self.restored: dict[int, Seen] = {}
        """The calls of an earlier process, by the indices of their turns."""
        self._settings = settings
        self._attempt = attempt
        self._lost: set[int] = set()
        """Turns that could not be stored."""
        self._ids: set[str] = set()
        self._tool_heads: dict[str, str] = {"": tools_digest(())}
        self._last_tools: tuple[list[dict[str, Any]], str] = ([], "")
        self._restore()

    # Requests -----------------------------------------------------------------------------

    def request(self, call: ClientCall, hints: Mapping[str, str]) -> Request:
        """Return a call as joining sees it.

        Args:
            call: the call.
            hints: the agent's hints from the headers.
        """
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

    def conversation(self, name: str) -> list[Message] | None:
        """Return the conversation up to and including one of our answers."""
        seen = self.known.by_name.get(name)
        if seen is None or seen.turn is None:
            return None
        tree = self.recorder.tree
        return with_images(tree.conversation(tree.turns[seen.turn]), self._settings.store)

    # Places -------------------------------------------------------------------------------

    def place(self, flight: Flight) -> None:
        """Place a call, before its answer is known."""
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

    def place_again(self, flight: Flight) -> None:
        """Place a call that arrived before its parent's answer, which is complete now."""
        self.known.forget(flight.seen[0])
        self.place(flight)

    def drop(self, flight: Flight) -> None:
        """Remove a call without an answer from the tree; its next try takes its place."""
        for seen in flight.seen:
            if not seen.answered:
                self.known.forget(seen)

    def _beside(self, request: Request, first: Seen) -> Seen:
        """Return the place of another one of n choices."""
        agent = self.known.fresh_agent() if first.edge == "spawn" else first.agent
        place = Placement(first.parent, first.edge, first.rule, agent, caller=first.caller)
        return self.known.add(request, place)

    # Records ------------------------------------------------------------------------------

    def record(
        self, flight: Flight, call: ClientCall, exchange: Exchange, *, orphan: bool = False
    ) -> list[Ack]:
        """Record the choices of an answer as turns, which are durable once these complete.

        Args:
            flight: the call, which has been placed.
            call: what was asked.
            exchange: the answer.
            orphan: whether no client receives it.
        """
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
            if orphan:
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

    def lose(self, flight: Flight) -> None:
        """Note that a call's turns are not stored, or not all that they refer to."""
        self._lost.update(flight.turns)
        self.orphan(flight)

    def orphan(self, flight: Flight) -> None:
        """Note that the client does not receive what was recorded of a call."""
        with contextlib.suppress(StoreError):  # nothing more can be recorded then
            for index in flight.turns:
                self.recorder.amend(index, delivery="orphan")

    def rename(self, identity: str) -> str:
        """Return an id that is unique in this session; the engine's own if it already is.

        Args:
            identity: the engine's id of a tool call.
        """
        fits = identity.replace("_", "").replace("-", "").isalnum() and len(identity) <= 64
        if fits and identity not in self._ids:
            self._ids.add(identity)
            return identity
        name = f"call_{self._settings.fresh_id()}"
        self.recorder.renamed[name] = identity
        self._ids.add(name)
        return name

    def _renamed_in(self, choice: Choice) -> dict[str, str]:
        found = {}
        for call in choice.calls.values():
            if call["id"] in self.recorder.renamed:
                found[call["id"]] = self.recorder.renamed[call["id"]]
        return found

    # The end ------------------------------------------------------------------------------

    def conclude(self) -> None:
        """Name the main agent, assign roles to side calls, and set the attempt's leaf."""
        self._label()
        turns = self.recorder.turns
        stored = [turn for turn in turns if turn.index not in self._lost]
        own = [turn.index for turn in stored if turn.agent == "main" and turn.role == "main"]
        self._attempt.leaf = own[-1] if own else (stored[-1].index if stored else None)

    def _label(self) -> None:
        turns = self.recorder.turns
        answered = [
            seen
            for seen in self.known.calls
            if seen.turn is not None and seen.turn not in self._lost
        ]
        root = main_root(answered)
        if root is not None and root.agent != "main" and root.parent is None:
            swap = {root.agent: "main", "main": root.agent}
            for turn in turns:
                if turn.agent in swap:
                    self.recorder.amend(turn.index, agent=swap[turn.agent])
        roles = roles_of(answered)
        for seen in answered:
            assert seen.turn is not None
            role = roles.get(seen.number)
            if role is not None and turns[seen.turn].role_reason != SET_BY_API:
                self.recorder.amend(seen.turn, role=role.role, role_reason=role.reason)

    # A session of an earlier process --------------------------------------------------------

    def _restore(self) -> None:
        by_turn = self.restored
        turns, tree = self.recorder.turns, self.recorder.tree
        for turn in turns:
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
            self._ids |= {call["id"] for call in turn.message.get("tool_calls") or ()}
            self.recorder.renamed |= wire.renamed
        self.known.reserve(turn.agent for turn in turns)
