"""Sub-agents: the value that a tool returns to delegate work to another agent."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from trajgym.trajectory import InvalidInput

if TYPE_CHECKING:
    from trajgym.envs._budgets import Budgets
    from trajgym.envs._spec import EnvSpec
    from trajgym.trajectory import Message, Task

__all__ = ["Spawn"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Spawn:
    """A sub-agent: an agent with its own conversation, budgets and tools.

    A tool returns ``ToolResult(spawn=Spawn(...))``; the sub-agent's last message then becomes the
    tool's result.

    Args:
        prompt: text of its first user message, or its first messages (such as system and user).
            If None, the opening of ``env`` is used.
        agent: its name in the record; a number is appended if the session already has an agent of
            that name.
        tools: names of tools of the parent's environment that it may call, on the same instance.
            Its first message without a tool call is its answer.
        env: a separate environment, instead of ``tools``; the sub-agent ends when the episode of
            that environment ends. The episode is not verified.
        task: the task with which ``env`` is reset; the parent's task by default.
        budgets: its limits; by default those of ``env``, or the default budgets. Its time also
            counts towards the parent's, and is limited to the time that the parent has left.

    Raises:
        InvalidInput: neither a prompt nor an environment is given, or both tools and an
            environment are.
    """

    prompt: str | list[Message] | None = None
    agent: str = "helper"
    tools: tuple[str, ...] = ()
    env: EnvSpec | None = None
    task: Task | None = None
    budgets: Budgets | None = None

    def __post_init__(self) -> None:
        if not self.prompt and self.env is None:
            raise InvalidInput("spawn: give a prompt, or an environment that opens with one")
        if self.tools and self.env is not None:
            raise InvalidInput("spawn: give tools of the parent or env, not both")

    def opening(self) -> list[Message] | None:
        """Return the first messages, or None if the environment provides them."""
        if isinstance(self.prompt, str):
            return [{"role": "user", "content": self.prompt}] if self.prompt else None
        return list(self.prompt) if self.prompt else None
