"""Forks by replay: a new environment instance in the state after some recorded turns."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from trajgym.envs._errors import ForkDiverged, Unforkable
from trajgym.envs._ledger import tail_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trajgym.envs._conversation import Conversation
    from trajgym.envs._env import Env
    from trajgym.envs._instance import Instance
    from trajgym.envs._ledger import Ledger
    from trajgym.envs._meter import Meter
    from trajgym.envs._spec import EnvSpec
    from trajgym.trajectory import Task, Turn

__all__ = ["Replay", "check_forkable"]


def check_forkable(
    spec: EnvSpec, task: Task, shared: Sequence[Turn], recorded: Sequence[Turn]
) -> None:
    """Check that turns can be repeated in another instance.

    Args:
        spec: the environment.
        task: what it is reset with.
        shared: the turns to repeat.
        recorded: all turns of the session.

    Raises:
        Unforkable: see :meth:`Session.fork`.
    """
    if not spec.resolve().forkable:
        raise Unforkable(f"environment {spec.id!r} declares that it can't be forked")
    if task.data.get("replayable") is False:
        raise Unforkable(f"task {task.id!r} declares that it can't be replayed")
    if shared and shared[-1].done:
        raise Unforkable(f"turn {shared[-1].index} ended the episode: fork an earlier one")
    if shared and any(call.status == "timeout" for call in shared[-1].calls):
        raise Unforkable(
            f"turn {shared[-1].index} was stopped when the time ran out, which can't be repeated: "
            "fork an earlier one"
        )
    indices = {one.index for one in shared}
    for other in recorded:
        if other.edge == "spawn" and other.parent in indices:
            raise Unforkable(
                f"turn {other.parent} spawned {other.agent!r}, whose run can't be repeated: "
                "fork an earlier one"
            )


class Replay:
    """Repeats recorded turns in a new instance, and checks that they give the same again.

    Args:
        ledger: the session's record.
        instance: of the fork; it is opened here.
        conversation: of the fork; the turns are added to it.
        meter: of the fork; the turns are counted.
    """

    def __init__(
        self, ledger: Ledger, instance: Instance, conversation: Conversation, meter: Meter
    ) -> None:
        self._ledger = ledger
        self._instance = instance
        self._conversation = conversation
        self._meter = meter
        self._where = f"session {ledger.record.id}"

    async def run(self, shared: Sequence[Turn]) -> None:
        """Restore the nearest snapshot, and execute the turns since then.

        Raises:
            ForkDiverged: an observation differs from the recorded one.
        """
        env = self._instance.make()
        start = max((i for i, turn in enumerate(shared) if turn.snapshot), default=-1)
        async with asyncio.timeout(env.reset_seconds):
            await self._reopen(env, shared[start].snapshot if start >= 0 else None)
        tree = self._ledger.tree()
        for position, turn in enumerate(shared):
            if position > start:
                await self._repeat(env, turn)
            self._conversation.advance(turn, tail_of(tree, turn))
            self._meter.count(turn)
        env.take_others()  # what they said is recorded with the turns that are shared

    async def _reopen(self, env: Env, snapshot: str | None) -> None:
        if snapshot is not None:
            await self._instance.restore(env, snapshot)
            return
        opening = await self._instance.reset(env, self._meter.remaining())
        if opening != self._ledger.opening:
            raise ForkDiverged(
                f"{self._where}: reset gave other first messages; derive them from task and seed",
            )
        self._conversation.messages = opening

    async def _repeat(self, env: Env, turn: Turn) -> None:
        remaining = self._meter.remaining(1, turn.usage)
        run = self._instance.execution(env, turn.message, remaining)
        async with asyncio.timeout(self._meter.budgets.seconds_per_turn):
            await run.run()
        run.settle()
        if run.fault is not None:
            raise ForkDiverged(f"{self._where}: turn {turn.index}: {run.fault.cause}")
        if run.observation != turn.observation:
            raise ForkDiverged(
                f"{self._where}: replaying turn {turn.index} gave another observation; make "
                "the environment deterministic, take snapshots, or declare it unforkable",
            )
