"""The calls of a session as joining sees them, and indexes over them."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from trajgym.server.joining._atoms import (
    arguments_of,
    chain,
    leading_system,
    read,
    squeeze,
    text_parts,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from trajgym.server.joining._atoms import Atom, Reading
    from trajgym.trajectory import Edge, Message

__all__ = ["Known", "Placement", "Request", "Seen"]

_RECENT = 3
"""How many earlier requests with other openings are kept, to read those that extend them."""


class Request:
    """A request as joining sees it.

    Args:
        messages: the whole conversation in chat form.
        head: digest of system text, tools and the like.
        tools: digest of the tools, empty if there are none.
        hints: the agent's hints: ``agent``, ``parent_agent``, ``session``.
        previous: the call that the request names as the one it continues.
        signatures: ids of the answers whose reasoning the request repeats.
        before: an earlier request; messages that both begin with are not read again.
    """

    __slots__ = (
        "atoms", "chain", "head", "hints", "messages", "previous", "prints", "reading",
        "signatures", "tools",
    )  # fmt: skip

    def __init__(
        self,
        messages: Sequence[Message],
        *,
        head: str = "",
        tools: str = "",
        hints: Mapping[str, str] | None = None,
        previous: Seen | None = None,
        signatures: Sequence[str] = (),
        before: Request | None = None,
    ) -> None:
        self.reading: Reading = read(messages, None if before is None else before.reading)
        self.messages: Sequence[Message]
        self.atoms: list[Atom]
        self.messages, self.atoms, self.prints, self.chain, _ = self.reading
        self.head = head
        self.tools = tools
        self.hints = hints or {}
        self.previous = previous
        self.signatures = signatures


@dataclass(slots=True, eq=False)
class Seen:
    """A placed call, and its answer once there is one; n choices of a request are n of these."""

    number: int
    """Order of arrival."""
    prompt: int
    """Digest of the prompt's atoms."""
    size: int
    """Number of atoms of the prompt."""
    prints: tuple[int, ...]
    head: str
    tools: str
    agent: str
    parent: Seen | None
    edge: Edge
    rule: str
    caller: str = ""
    """Id of the parent's tool call that spawned this one's agent."""
    turn: int | None = None
    """Index of the recorded turn."""
    answered: bool = False
    followed: bool = False
    """True if a later call shows that the agent has the answer."""
    heirs: int = 0
    """Number of calls that continue its conversation."""
    summary: bool = False
    """True if its text opened a new conversation."""
    echo: int = 0
    """Digest of prompt and answer."""
    reply: tuple[object, ...] = ()
    """Tokens of the answer's atoms."""
    texts: tuple[str, ...] = ()
    """The answer's texts, unchanged."""
    calls: tuple[tuple[str, tuple[str, ...]], ...] = ()
    """Id and string arguments of its tool calls."""
    print: int = 0
    spawned: list[Seen] = field(default_factory=list)
    returned: set[str] = field(default_factory=set)
    """Agents that have returned to this call's agent up to this call."""
    returning: tuple[Seen, ...] = ()
    """Last calls of the agents that return with this call."""
    summarised: Seen | None = None
    """The call whose text opens this call's conversation."""

    @property
    def said(self) -> str:
        """The answer's text."""
        return " ".join(text for text in map(squeeze, self.texts) if text)

    @property
    def call_ids(self) -> list[str]:
        """Ids of its tool calls."""
        return [identity for identity, _ in self.calls if identity]

    @property
    def evidence(self) -> list[str]:
        """Texts that identify its answer elsewhere: its content and its string arguments."""
        return [s for s in (self.said, *(a for _, args in self.calls for a in args)) if s]


class Placement(NamedTuple):
    """Where a call belongs in the tree."""

    base: Seen | None
    edge: Edge
    rule: str
    """The rule that applied, with its reason."""
    agent: str
    returns: tuple[Seen, ...] = ()
    summary: Seen | None = None
    """The call whose text opens this conversation."""
    caller: str = ""


class Known:
    """The calls of one session, with indexes over them."""

    def __init__(self) -> None:
        self.calls: list[Seen] = []
        self.by_prompt: dict[int, list[Seen]] = defaultdict(list)
        self.by_call_id: dict[str, Seen] = {}
        self.by_text: dict[object, Seen] = {}
        self.by_name: dict[str, Seen] = {}
        """Calls by the id of their answer that clients know."""
        self.agents: dict[str, Seen] = {}
        """Last answered call of every agent."""
        self.named: dict[str, str] = {}
        """Agents by the id in their own hints."""
        self.spawns: list[Seen] = []
        """The first calls of sub-agents."""
        self._recent: list[Request] = []
        self._fresh = 0
        self._arrived = 0

    def fresh_agent(self) -> str:
        """Return a new name for an agent without one."""
        self._fresh += 1
        return f"agent-{self._fresh}"

    def recent(self, messages: Sequence[Message]) -> Request | None:
        """Return the recent request with which a conversation shares its opening, if any."""
        for request in reversed(self._recent):
            first = leading_system(messages) + 1
            if messages[:first] == request.messages[:first]:
                return request
        return None

    def add(self, request: Request, place: Placement) -> Seen:
        """Add a placed call, before its answer is known."""
        replaced = self.recent(request.messages)
        if replaced is not None:
            self._recent.remove(replaced)
        self._recent = [*self._recent[-_RECENT:], request]
        seen = Seen(
            number=self._arrived,
            prompt=request.chain[-1],
            size=len(request.atoms),
            prints=request.prints,
            head=request.head,
            tools=request.tools,
            agent=place.agent,
            parent=place.base,
            edge=place.edge,
            rule=place.rule,
            caller=place.caller,
            returning=place.returns,
            summarised=place.summary,
        )
        self._arrived += 1
        self.calls.append(seen)
        self.by_prompt[seen.prompt].append(seen)
        if own := request.hints.get("agent"):
            self.named.setdefault(own, seen.agent)
        if place.base is not None:
            place.base.followed = True
            if place.edge == "spawn":
                self.spawns.append(seen)
                place.base.spawned.append(seen)
            else:
                place.base.heirs += 1
                seen.returned |= place.base.returned
        seen.returned |= {child.agent for child in place.returns}
        for child in place.returns:
            child.followed = True
        if place.summary is not None:
            place.summary.summary = True
        return seen

    def reserve(self, agents: Iterable[str]) -> None:
        """Reserve agent names that an earlier process assigned."""
        for agent in agents:
            number = agent.removeprefix("agent-")
            if agent.startswith("agent-") and number.isdigit():
                self._fresh = max(self._fresh, int(number))

    def forget(self, seen: Seen) -> None:
        """Remove a call without an answer; its next try takes its place."""
        self.calls.remove(seen)
        self.by_prompt[seen.prompt].remove(seen)
        if seen.parent is not None and seen.edge == "spawn":
            self.spawns.remove(seen)
            seen.parent.spawned.remove(seen)
        elif seen.parent is not None:
            seen.parent.heirs -= 1

    def answer(self, seen: Seen, message: Message) -> None:
        """Add the answer of a call."""
        reading = read([message])
        atoms, (seen.print,) = reading.atoms, reading.prints
        seen.answered = True
        seen.reply = tuple([atom.token for atom in atoms])
        seen.echo = chain(atoms, seen.prompt)[-1]
        seen.calls = tuple(arguments_of(message))
        seen.texts = tuple(text_parts(message))
        for identity in seen.call_ids:
            self.by_call_id[identity] = seen
        for atom in atoms:
            if atom.kind == "text":
                self.by_text[atom.key] = seen
        self.agents[seen.agent] = seen

    def waiting(self) -> list[Seen]:
        """Return answered calls with open tool calls: the agent has not continued yet."""
        return [seen for seen in self.calls if seen.calls and not seen.heirs]
