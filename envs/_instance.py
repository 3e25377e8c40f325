"""One instance of an environment: opened, reset, executed in and closed by a session."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any

from trajgym.envs._execute import Execution, content_parts
from trajgym.envs._plain import plain_message, readable
from trajgym.envs._results import as_facts, as_result, as_snapshot, described
from trajgym.envs._stoppable import stoppable
from trajgym.envs._tools import ToolResult, tools_of
from trajgym.envs.faults import contained
from trajgym.trajectory._internal import replace_surrogates

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trajgym.envs._env import Env
    from trajgym.envs._ledger import Ledger
    from trajgym.envs._meter import Remaining
    from trajgym.envs._spec import EnvSpec
    from trajgym.envs._threads import Worker
    from trajgym.trajectory import Message, Task

__all__ = ["Borrowed", "Instance"]

_log = logging.getLogger(__name__)


class Instance:
    """An environment and the thread that runs its plain methods.

    Args:
        spec: builds the environment.
        task: what it is reset with.
        ledger: names the session and keeps the images of observations.
        worker: runs the environment's plain methods.
        text_limit: largest number of bytes of text per result.
    """

    def __init__(
        self,
        spec: EnvSpec,
        task: Task,
        ledger: Ledger,
        worker: Worker,
        text_limit: int | None,
    ) -> None:
        self.env: Env | None = None
        """The environment while it is open."""
        self.opening_signals: dict[str, Any] = {}
        """What the environment reported about its opening, for the first turn."""
        self.worker = worker
        self.spec = spec
        self._task = task
        self._ledger = ledger
        self._text_limit = text_limit

    def make(self) -> Env:
        """Build the environment, and return it."""
        with contained():
            self.env = self.spec.make()
        return self.env

    async def reset(self, env: Env, remaining: Remaining) -> list[Message]:
        """Reset the environment and return its first messages.

        Raises:
            TypeError: it returned something else.
            InvalidInput: a message is malformed.
        """
        record = self._ledger.record
        self._label(env)
        env.remaining = remaining
        opening = await self.worker.call(env.reset, self._task, record.seed)
        noted = readable(env.take_signals, "take_signals()")
        self.opening_signals = as_facts(noted, "note_signals(): signals", "env")
        if isinstance(opening, ToolResult):
            opening = as_result(opening, "reset()")
            self.opening_signals |= opening.signals
            content = content_parts(opening.content, self._ledger.keep_image, self._text_limit)
            opening = [{"role": "user", "content": content}]
        elif isinstance(opening, str):
            opening = [{"role": "user", "content": opening}]
        if not isinstance(opening, list) or not opening:
            raise TypeError(
                f"reset() returned {described(opening)}; return the first message's text, or "
                "a list of messages",
            )
        return replace_surrogates([plain_message(message, "reset()") for message in opening])

    async def restore(self, env: Env, snapshot: str) -> None:
        """Bring the environment to a snapshot's state."""
        self._label(env)
        await self.worker.call(env.restore, self._task, self._ledger.record.seed, snapshot)

    async def snapshot(self, env: Env) -> str | None:
        """Take a snapshot, within the environment's deadline for a reset."""
        async with asyncio.timeout(env.reset_seconds):
            return as_snapshot(await self.worker.call(env.snapshot))

    async def discard(self, snapshots: Sequence[str]) -> None:
        """Delete snapshots, within the environment's deadline to close. Failures are logged."""
        kind = self.spec.resolve()
        try:
            async with asyncio.timeout(kind.close_seconds):
                with contained():
                    await stoppable(
                        kind.discard_snapshots(self.spec.config, list(snapshots)),
                        "discard_snapshots()",
                        seconds=kind.cancel_seconds,
                    )
        except Exception:  # noqa: BLE001 - boundary: the attempts have ended, however this fails
            _log.exception("session %s: deleting its snapshots failed", self._ledger.record.id)

    def execution(self, env: Env, message: Message, remaining: Remaining) -> Execution:
        """Return the execution of an assistant message, which is yet to be run."""
        env.remaining, env.acting_on = remaining, message
        return Execution(
            env=env,
            worker=self.worker,
            message=message,
            keep_image=self._ledger.keep_image,
            text_limit=self._text_limit,
        )

    async def close(self) -> None:
        """Close the environment, if it is open, and stop the thread. Failures are logged."""
        env, self.env = self.env, None
        if env is None:
            return
        try:
            async with asyncio.timeout(env.close_seconds):
                await self.worker.call(env.close)
        except Exception:  # noqa: BLE001 - boundary: a broken close must not change how the attempt ended
            _log.exception("session %s: closing the environment failed", self._ledger.record.id)
        finally:
            self.worker.stop()

    def _label(self, env: Env) -> None:
        record = self._ledger.record
        env.labels = {"session": record.id, **record.labels}


class Borrowed(Instance):
    """The open instance of another agent, which closes it.

    Args:
        owner: the other agent's.
        text_limit: largest number of bytes of text per result.
        tools: names of the tools that may be called.
    """

    def __init__(self, owner: Instance, text_limit: int | None, tools: Sequence[str]) -> None:
        super().__init__(owner.spec, owner._task, owner._ledger, owner.worker, text_limit)
        self.env = owner.env
        known = tools_of(type(owner.env))
        self._tools = {name: known[name] for name in tools}

    def execution(self, env: Env, message: Message, remaining: Remaining) -> Execution:
        """Return the execution of a message; one without a tool call ends the agent's run."""
        run = super().execution(env, message, remaining)
        run.tools, run.plain_ends = self._tools, True
        return run

    async def close(self) -> None:
        """Forget the environment."""
        self.env = None
