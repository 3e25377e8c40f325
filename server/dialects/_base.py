"""The common form of requests, and the interface of a dialect."""

from __future__ import annotations

import base64
import binascii
import os
from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from trajgym.server._errors import Refused
from trajgym.server._json import dumps

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from trajgym.server._answer import Answer, Choice
    from trajgym.trajectory import Message

    Resolve = Callable[[str], "list[Message] | None"]

__all__ = [
    "ClientCall",
    "Dialect",
    "EventWriter",
    "as_list",
    "as_text",
    "event",
    "new_id",
    "read_signature",
    "signature_of",
]


@dataclass(slots=True, kw_only=True)
class ClientCall:
    """A client's request, in chat form.

    Args:
        dialect: name of the dialect it came in.
        name: id of its answer, as the client will see it.
        body: the request to forward, before our own edits; keeps unknown fields.
        messages: the whole conversation.
        tools: schemas in chat form.
        path: of the engine's endpoint.
        stream: whether the client requests a stream of events.
        shows_ids: the client requested token ids.
        shows_logprobs: the client requested log-probs.
        shows_usage: the client requested usage at the end of a stream.
        previous: id of the answer that the request continues.
        signatures: ids of the answers whose reasoning the request repeats.
        extras: further parts of the head: template settings, response format.
        given: the client's own body, for fields that the answer repeats.
        custom: names of tools with free-text input.
        namespaces: namespace and own name of each tool that belongs to one, by the name under which
            the engine knows it.
    """

    dialect: str
    name: str
    body: dict[str, Any]
    messages: list[Message]
    tools: list[dict[str, Any]] = field(default_factory=list)
    path: str = "/v1/chat/completions"
    stream: bool = False
    shows_ids: bool = False
    shows_logprobs: bool = False
    shows_usage: bool = False
    previous: str | None = None
    signatures: list[str] = field(default_factory=list)
    extras: list[Any] = field(default_factory=list)
    given: Mapping[str, Any] = field(default_factory=dict)
    custom: frozenset[str] = frozenset()
    namespaces: Mapping[str, tuple[str, str]] = field(default_factory=dict)


class EventWriter(ABC):
    """Converts an engine's chunks into a client's events.

    Only :meth:`close` returns the events that mark the answer as complete, so that they can be sent
    once the turn is durable.
    """

    @abstractmethod
    def feed(self, chunk: dict[str, Any]) -> bytes:
        """Return the events of a chunk; empty if there are none yet."""

    @abstractmethod
    def close(self, answer: Answer) -> bytes:
        """Return the events that complete the answer."""

    @abstractmethod
    def fail(self, status: int, message: str, kind: str) -> bytes:
        """Return the event of an error in the middle of a stream."""

    def keep_alive(self) -> bytes:
        """Return an event that clients ignore, sent during silence."""
        return b": keep-alive\n\n"


class Dialect(ABC):
    """A wire format: parses requests and writes answers."""

    name: str

    @abstractmethod
    def parse(self, body: dict[str, Any], resolve: Resolve) -> ClientCall:
        """Parse a request; unknown fields and values are accepted.

        Args:
            body: the client's JSON.
            resolve: returns the conversation up to and including one of our answers, by its id.

        Raises:
            Refused: the request has no conversation.
        """

    @abstractmethod
    def whole(self, call: ClientCall, answer: Answer, raw: dict[str, Any]) -> bytes:
        """Return the body of a complete answer.

        Args:
            call: the request.
            answer: the engine's answer.
            raw: the engine's body, edited; empty if it was streamed.
        """

    @abstractmethod
    def writer(self, call: ClientCall) -> EventWriter:
        """Return a writer of the answer as events."""

    def error(self, status: int, message: str, kind: str) -> bytes:
        """Return the body of an error."""
        del status
        return dumps({"error": {"message": message, "type": kind, "code": None, "param": None}})


def new_id(prefix: str) -> str:
    """Return a unique id."""
    return f"{prefix}{os.urandom(16).hex()}"


def event(name: str, data: dict[str, Any]) -> bytes:
    """Return a named event."""
    return b"event: " + name.encode() + b"\ndata: " + dumps(data) + b"\n\n"


def signature_of(name: str, block: int) -> str:
    """Return a unique, stable signature of a reasoning block, which names its answer."""
    return base64.urlsafe_b64encode(f"trajgym:{name}:{block}".encode()).decode()


def read_signature(signature: Any) -> str | None:
    """Return the id of the answer that a signature belongs to; None if it is not ours."""
    try:
        mark, name, _ = base64.urlsafe_b64decode(str(signature)).decode().split(":")
    except (ValueError, binascii.Error):
        return None
    return name if mark == "trajgym" else None


def as_list(value: Any, where: str) -> list[Any]:
    """Return a field that must be a list.

    Raises:
        Refused: it is not a list.
    """
    if not isinstance(value, list):
        raise Refused(400, f"{where} must be a list")
    return value


def as_text(content: Any) -> str:
    """Return the text of content in any dialect."""
    if isinstance(content, str):
        return content
    parts = content if isinstance(content, list) else []
    return "".join(str(p.get("text") or "") for p in parts if isinstance(p, dict))


def first_choice(answer: Answer) -> Choice | None:
    """Return the first of an answer's choices."""
    return answer.choices.get(0)
