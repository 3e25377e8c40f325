"""Answering one call: the engine is asked, and its answer recorded and sent to the clients."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

from trajgym.server._errors import Refused, UpstreamError
from trajgym.server.sessions._response import Response
from trajgym.server.upstream import Exchange
from trajgym.trajectory import InvalidInput, StoreError, Try

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from trajgym.server.dialects import ClientCall, Dialect
    from trajgym.server.sessions._book import Settings
    from trajgym.server.sessions._flight import Flight
    from trajgym.server.sessions._history import History
    from trajgym.server.sessions._watch import CallWatch

__all__ = ["Answering"]

_PARENT_SECONDS = 30.0
"""How long a call waits for a running one that may be its parent."""


class Answering:
    """Takes a call that has been placed to its end.

    Args:
        session: id of the session.
        flight: the call.
        call: what was asked.
        dialect: the clients' wire format.
        history: the session's calls.
        settings: what all sessions share.
        watch: follows the session's calls.
        running: returns the session's running calls.
        recorded: called with the flight once its turns are durable.
    """

    def __init__(
        self,
        session: str,
        flight: Flight,
        call: ClientCall,
        dialect: Dialect,
        *,
        history: History,
        settings: Settings,
        watch: CallWatch,
        running: Callable[[], Iterable[Flight]],
        recorded: Callable[[Flight], None],
    ) -> None:
        self._flight = flight
        self._call = call
        self._history = history
        self._settings = settings
        self._watch = watch
        self._running = running
        self._recorded = recorded
        self._response = Response(flight, call, dialect)
        self._exchange = Exchange(
            upstream=settings.upstream,
            control=settings.control,
            call=call,
            session=session,
            rename=history.rename,
            renamed=history.recorder.renamed,
            emit=self._response.emit,
            prompt=self._prompt(),
            hold_seconds=settings.limits.hold_seconds,
            tries=list(flight.retry_of),
        )

    async def run(self) -> None:
        """Ask the engine, record its answer, and send it; failures are sent as well."""
        flight, history, metrics = self._flight, self._history, self._settings.metrics
        flight.task = asyncio.current_task()
        metrics.running += 1
        try:
            await self._watch.admit()
            await self._exchange.run()
            await self._finish()
        except asyncio.CancelledError:
            self._lose()
            if flight.turns and flight.state == "running":  # recorded, so it can be replayed
                history.orphan(flight)
                flight.end("failed" if not flight.seen[0].answered else "complete")
            raise
        except Refused as error:
            self._fail(error)
        except UpstreamError as error:
            self._lose()
            self._fail(Refused(502, str(error), kind="api_error"))
        except StoreError as error:
            history.lose(flight)
            self._fail(Refused(500, f"the turn could not be recorded: {error}", kind="api_error"))
        except Exception as error:  # boundary: one call's failure must not affect the others
            self._settings.log.exception("session %s: a call failed", self._exchange.session)
            self._fail(Refused(500, f"{type(error).__name__} in the proxy", kind="api_error"))
        finally:
            metrics.running -= 1
            if flight.state == "running":
                history.drop(flight)
                flight.end("failed")
            flight.task = None  # the flight stays in memory, with all that the task refers to

    def _prompt(self) -> Callable[[], Sequence[int]] | None:
        """Return what renders the prompt in token mode, on top of the turn that it continues."""
        upstream, call = self._settings.upstream, self._call
        if (
            not upstream.tokens
            or call.path != "/v1/chat/completions"
            or (call.body.get("n") or 1) != 1
        ):
            return None
        flight, recorder = self._flight, self._history.recorder

        def prompt() -> Sequence[int]:
            first = flight.seen[0]
            base = first.parent if first.edge == "continue" else None
            prefix = None if base is None or base.turn is None else recorder.ids(base.turn)
            held = 0 if base is None else len(base.prints) + 1
            messages = upstream.edited(call, recorder.renamed)["messages"]
            return upstream.prompt_of(messages, call.tools, prefix, held)

        return prompt

    async def _finish(self) -> None:
        flight, exchange = self._flight, self._exchange
        if exchange.status != 200:
            self._pass_on()
            return
        if not exchange.answer.choices:
            raise UpstreamError("the engine's answer has no choices")
        if flight.place_again:
            await self._wait_for_parents()
        for ack in self._history.record(flight, self._call, exchange):
            await ack
        self._recorded(flight)
        self._response.close(exchange.answer, exchange.raw)
        self._settings.metrics.answered(self._call.dialect, exchange)
        flight.end("complete")

    async def _wait_for_parents(self) -> None:
        """Place the call again, which arrived before its parent's answer was complete."""
        flight, request = self._flight, self._flight.request
        assert request is not None
        ends = set(request.chain[: len(request.atoms)])
        for other in self._running():
            if other is flight or not any(seen.prompt in ends for seen in other.seen):
                continue
            if other.task is not None:
                await asyncio.wait({other.task}, timeout=_PARENT_SECONDS)
        self._history.place_again(flight)

    def _pass_on(self) -> None:
        """Pass the engine's error on to the clients, with its status and message."""
        exchange, error = self._exchange, self._exchange.error
        inner = error.get("error") if isinstance(error, dict) else None
        found = inner if isinstance(inner, dict) else error if isinstance(error, dict) else {}
        message = str(found.get("message") or error)[:2000]
        kind = str(found.get("type") or "invalid_request_error")
        wait = exchange.retry_after
        if wait is not None:
            self._flight.headers.append((b"retry-after", wait.encode("latin-1", "replace")))
        self._fail(Refused(exchange.status, message, kind=kind))

    def _fail(self, error: Refused) -> None:
        flight = self._flight
        self._settings.metrics.refused[error.status] += 1
        self._watch.failed(error.status, str(error))
        cause = f"status {error.status}: {error}"[:200]
        flight.retry_of = [
            *self._exchange.tries,
            Try(flight.arrived, time.time() - flight.arrived, cause),
        ]
        self._response.fail(error)
        self._history.drop(flight)
        flight.end("failed")

    def _lose(self) -> None:
        """Record the sampled part of an answer that no client will receive."""
        flight, choices = self._flight, self._exchange.answer.choices
        if flight.state != "running" or flight.turns or flight.request is None:
            return
        if not any(c.ids or c.content or c.calls for c in choices.values()):
            return
        for choice in choices.values():
            choice.finish = choice.finish or "abort"
        try:
            self._history.record(flight, self._call, self._exchange, orphan=True)
        except (InvalidInput, StoreError):
            self._settings.log.exception(
                "session %s: an orphan could not be recorded", self._exchange.session
            )
