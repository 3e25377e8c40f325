"""Delegation: the sub-agents that an agent waits for after one of its turns."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from trajgym.envs._execute import bound_text

if TYPE_CHECKING:
    from trajgym.envs._execute import Execution
    from trajgym.envs._subagent import SubAgent
    from trajgym.trajectory import Message

__all__ = ["Delegation"]


@dataclass(slots=True)
class Delegation:
    """The sub-agents that a turn waits for, and the messages that will hold their answers."""

    run: Execution
    results: list[Message]
    """The turn's whole observation; the sub-agents' answers are filled in."""
    children: dict[int, SubAgent] = field(default_factory=dict)
    """The sub-agents, by the position of their answers in ``results``."""

    @property
    def agents(self) -> list[SubAgent]:
        """The sub-agents, in the order of their calls."""
        return list(self.children.values())

    def ask(self, child: SubAgent) -> None:
        """Add a sub-agent that no tool call asked for; its answer is a user message."""
        self.children[len(self.results)] = child
        self.results.append({"role": "user", "content": ""})

    def collect(self, text_limit: int | None) -> list[int]:
        """Fill in the answers of sub-agents that have ended; return their last turns."""
        last: list[int] = []
        for position, child in self.children.items():
            self.results[position]["content"] = bound_text(child.answer, text_limit)
            last += [turn.index for turn in child.turns[-1:]]
            self.run.done = self.run.done or child.ended_episode
        return last
