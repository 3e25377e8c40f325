"""What the clients of a call receive: a stream of events, a whole answer or an error."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from trajgym.server._answer import Answer, Choice

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trajgym.server._errors import Refused
    from trajgym.server.dialects import ClientCall, Dialect
    from trajgym.server.sessions._flight import Flight
    from trajgym.trajectory import Turn

__all__ = ["Response", "replay"]


class Response:
    """Writes the response of a call, in the wire format of its clients.

    Args:
        flight: the call.
        call: what was asked.
        dialect: the wire format.
    """

    __slots__ = ("_call", "_dialect", "_flight", "_writer")

    def __init__(self, flight: Flight, call: ClientCall, dialect: Dialect) -> None:
        self._flight = flight
        self._call = call
        self._dialect = dialect
        self._writer = dialect.writer(call) if call.stream else None
        flight.keep_alive = b"" if self._writer is None else self._writer.keep_alive()

    def emit(self, chunk: dict[str, Any]) -> None:
        """Send a chunk of a stream; ignored if the answer is sent as a whole."""
        writer, flight = self._writer, self._flight
        if writer is None:
            return
        if not flight.status:
            flight.begin(200, "text/event-stream")
        flight.send(writer.feed(chunk))

    def close(self, answer: Answer, raw: dict[str, Any]) -> None:
        """Send the rest of a stream, or the whole answer.

        Args:
            answer: the answer.
            raw: the engine's own JSON of it, if it is not streamed.
        """
        writer, flight = self._writer, self._flight
        if writer is None:
            flight.begin(200, "application/json")
            flight.send(self._dialect.whole(self._call, answer, raw))
        else:
            if not flight.status:
                flight.begin(200, "text/event-stream")
            flight.send(writer.close(answer))

    def fail(self, error: Refused) -> None:
        """Send an error, as an event if a stream has begun."""
        flight = self._flight
        if flight.status and self._writer is not None:
            flight.send(self._writer.fail(error.status, str(error), error.kind))
            return
        if error.retry_after is not None:
            flight.headers.append((b"retry-after", b"%d" % max(1, error.retry_after)))
        flight.begin(error.status, "application/json")
        flight.send(self._dialect.error(error.status, str(error), error.kind))


def replay(
    flight: Flight, call: ClientCall, dialect: Dialect, turns: Sequence[Turn], model: str
) -> None:
    """Send again what an earlier process answered.

    Args:
        flight: the call, which has ended.
        call: what was asked.
        dialect: the wire format.
        turns: the recorded choices; there is at least one.
        model: the name of the model that the client asked for.
    """
    answer = Answer()
    answer.model, answer.created = model, int(turns[-1].started_at)
    for i, turn in enumerate(turns):
        assert turn.wire is not None
        call.name = turn.wire.call
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
    response = Response(flight, call, dialect)  # its ids are those of the call
    if call.stream:
        head = {"object": "chat.completion.chunk", "created": answer.created, "model": model}
        for i, choice in answer.choices.items():
            delta = choice.message
            for n, tool in enumerate(delta.get("tool_calls") or ()):
                tool["index"] = n
            said = {"index": i, "delta": delta, "finish_reason": None}
            response.emit({**head, "choices": [said]})
            end = {"index": i, "delta": {}, "finish_reason": choice.finish}
            response.emit({**head, "choices": [end]})
    response.close(answer, {})
