"""Calls in order, joined by the pure rules: a short notation for tests."""

from __future__ import annotations

from typing import Any

from trajgym.server.joining import Known, Placement, Request, Role, Seen, head_of, place, roles_of

TOOL = [{"type": "function", "function": {"name": "add", "parameters": {}}}]


def user(text: Any) -> dict[str, Any]:
    return {"role": "user", "content": text}


def system(text: str) -> dict[str, Any]:
    return {"role": "system", "content": text}


def tool(identity: str, text: str) -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": identity, "content": text}


def says(text: str = "", *calls: tuple[str, str, str], **fields: Any) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": text, **fields}
    if calls:
        message["tool_calls"] = [
            {"id": i, "type": "function", "function": {"name": name, "arguments": arguments}}
            for i, name, arguments in calls
        ]
    return message


class Story:
    """A session's calls as joining sees them."""

    def __init__(self) -> None:
        self.known = Known()
        self.places: list[Placement] = []
        self.seen: list[Seen] = []

    def ask(
        self,
        messages: list[Any],
        *,
        tools: Any = TOOL,
        hints: Any = None,
        signatures: Any = (),
        previous: Seen | None = None,
    ) -> Seen:
        """Let a request arrive."""
        request = Request(
            messages,
            head=head_of(messages, tools),
            tools=repr(tools) if tools else "",
            hints=hints,
            signatures=signatures,
            previous=previous,
        )
        found = place(self.known, request)
        seen = self.known.add(request, found)
        self.places.append(found)
        self.seen.append(seen)
        return seen

    def call(self, messages: list[Any], answer: dict[str, Any], **fields: Any) -> Seen:
        """Let a request arrive and answer it."""
        seen = self.ask(messages, **fields)
        self.answer(seen, answer)
        return seen

    def answer(self, seen: Seen, message: dict[str, Any]) -> None:
        seen.turn = seen.number
        self.known.by_name[f"c{seen.number}"] = seen
        self.known.answer(seen, message)

    @property
    def last(self) -> Placement:
        return self.places[-1]

    @property
    def rules(self) -> list[str]:
        return [found.rule for found in self.places]

    def roles(self) -> dict[int, Role]:
        return roles_of(self.known.calls)
