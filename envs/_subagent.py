"""A running sub-agent: a session within a session."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TYPE_CHECKING, Self

from trajgym.envs._budgets import Budgets
from trajgym.envs._conversation import Conversation
from trajgym.envs._errors import Unforkable
from trajgym.envs._instance import Borrowed
from trajgym.envs._plain import plain_message
from trajgym.envs._session import Session
from trajgym.envs._tools import tools_of
from trajgym.trajectory import Attempt, InvalidInput

if TYPE_CHECKING:
    from trajgym.envs._execute import Execution
    from trajgym.envs._spawn import Spawn
    from trajgym.trajectory import Status, ToolSchema

__all__ = ["SubAgent"]


class SubAgent(Session):
    """An agent that another agent spawned, with its own conversation, budgets and tools.

    Its turns are recorded in the parent's session, in the same attempt; the first has a ``spawn``
    edge. It is not verified: it ends with a status, but without a score.
    """

    def __init__(self, parent: Session, spawn: Spawn) -> None:
        own = spawn.env is not None
        spec = parent.spec if spawn.env is None else spawn.env
        self._shown = _shown(parent, spawn)
        self._opening = spawn.opening()
        if self._opening is not None:
            where = f"spawn {spawn.agent!r}: prompt"
            self._opening = [plain_message(one, where) for one in self._opening]
        budgets = spawn.budgets or (spec.resolve().budgets if own else Budgets())
        left = parent.seconds_left
        if left is not None and (budgets.seconds is None or budgets.seconds > left):
            budgets = replace(budgets, seconds=left)
        self._open(
            spec,
            spawn.task or parent.task,
            parent._ledger,
            Attempt(index=parent.attempt.index),
            budgets,
            0,
        )
        self.waits = parent.waits
        self._agent = parent._ledger.new_agent(spawn.agent)
        self._conversation = Conversation(origin=parent.turns[-1].index)
        self._borrowed: Borrowed | None = None
        if not own:
            self._borrowed = Borrowed(parent._instance, budgets.observation_bytes, spawn.tools)
        self.ended_episode = False
        """Whether one of the parent's tools ended the episode."""

    @property
    def tools(self) -> list[ToolSchema]:
        """JSON schemas of the tools that it may call."""
        return self._shown

    @property
    def answer(self) -> str:
        """The text of its last message, with a note if it did not complete."""
        text = ""
        if turns := self._conversation.turns:
            content = turns[-1].message.get("content")
            parts = content if isinstance(content, list) else []
            text = content if isinstance(content, str) else ""
            text = text or "".join(str(part.get("text") or "") for part in parts)
        if self.status.kind == "completed":
            return text
        note = f"[{self.agent} ended early: {self.status}]"
        return f"{text}\n{note}" if text else note

    async def fork(self, turn: int | None) -> Session:
        """Raise, because sub-agents can't be forked.

        Raises:
            Unforkable: always.
        """
        del turn
        raise Unforkable(f"session {self.id}: sub-agent {self.agent!r} can't be forked")

    async def __aenter__(self) -> Self:
        if self._borrowed is not None:
            self._instance = self._borrowed
        else:
            await super().__aenter__()
        if self._opening is not None:
            self._conversation.messages = self._opening
        return self

    async def _end_if_over(self, run: Execution) -> None:
        spoke = not run.message.get("tool_calls")
        self.ended_episode = self._borrowed is not None and run.done and not spoke
        await super()._end_if_over(run)

    async def _end(self, status: Status, cause: str, error: str = "") -> None:
        attempt = self._attempt
        if attempt.status.ended:
            return
        attempt.status, attempt.cause, attempt.error = status, cause, error
        attempt.ended_at = time.time()
        await self._instance.close()


def _shown(parent: Session, spawn: Spawn) -> list[ToolSchema]:
    if spawn.env is not None:
        return [tool.schema for tool in tools_of(spawn.env.resolve()).values()]
    known = {tool["function"]["name"]: tool for tool in parent.tools}
    if unknown := [name for name in spawn.tools if name not in known]:
        raise InvalidInput(
            f"spawn {spawn.agent!r}: the parent has no tools {unknown}; it has {sorted(known)}"
        )
    return [known[name] for name in spawn.tools]
