"""The parent's side of one process of a fleet."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any

from trajgym.rollout.fleet._child import serve
from trajgym.rollout.fleet._spawned import Spawned

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from multiprocessing.context import SpawnContext

    from trajgym.rollout._runner import Progress
    from trajgym.rollout.fleet._child import Failure, Recipe
    from trajgym.rollout.fleet._jobs import Job
    from trajgym.rollout.fleet._limits import FleetLimits
    from trajgym.trajectory import Group, Task

__all__ = ["FleetProcess"]

_LOOK = 0.25
"""Seconds between two looks at the deadlines."""


class FleetProcess:
    """A process and what it has been given; used on the event loop that makes it.

    Args:
        context: the spawn context.
        recipe: what the process makes its runner from.
        index: of the process in the fleet.
        limits: deadlines.
        on_event: called with each event of its sessions.
        on_sealed: called with each group that it sealed.
        on_left_open: called with the id of each group that it can't seal.
    """

    def __init__(
        self,
        context: SpawnContext,
        recipe: Recipe,
        index: int,
        limits: FleetLimits,
        *,
        on_event: Callable[[FleetProcess, Progress], None],
        on_sealed: Callable[[FleetProcess, Group], None],
        on_left_open: Callable[[FleetProcess, str], None],
    ) -> None:
        self.index = index
        self.recipe = recipe
        self.jobs: dict[str, Job] = {}
        """Groups that it was given and that it has not sealed, by id."""
        self.wants = asyncio.Semaphore(0)
        """How many more tasks it can take."""
        loop = asyncio.get_running_loop()
        self.made: asyncio.Future[None] = loop.create_future()
        self.ready: asyncio.Future[None] = loop.create_future()
        self.closed: asyncio.Future[None] = loop.create_future()
        """Done when the process has ended and all its messages were handled."""
        self.began = False
        """Whether it could run sessions."""
        self.done = False
        """Whether it has finished all that it was given."""
        self.failure: Failure | None = None
        self.killed = ""
        """Why it was killed by this fleet."""
        self._limits = limits
        self._on_event, self._on_sealed, self._on_left_open = on_event, on_sealed, on_left_open
        self._acks: dict[int, asyncio.Future[None]] = {}
        self._orders = 0
        self._heard_at = self._since = time.monotonic()
        self._loop = loop
        self._process = Spawned(
            context,
            serve,
            (recipe,),
            name=f"trajgym-fleet-{index}",
            receivers=[self._receive],
            on_end=lambda: self._call(self._ended),
        )

    @property
    def pid(self) -> int:
        """The process id."""
        return self._process.process.pid or 0

    @property
    def end(self) -> str:
        """How the process ended, in words."""
        return self.killed or self._process.end or "closed its connection"

    # Messages to the process --------------------------------------------------------------

    def open(self, tasks: Sequence[Task]) -> None:
        """Let it call the environment's ``open_run`` and begin."""
        self._since = time.monotonic()
        self._process.send("open", tasks)

    def give(self, job: Job) -> None:
        """Let it run the sessions that a group lacks."""
        self.jobs[job.group] = job
        self._process.send("task", job.task, job.group, job.earlier)

    def finish(self) -> None:
        """Tell it that there are no more tasks."""
        self._process.send("end")

    async def order(self, name: str, *arguments: Any) -> None:
        """Send a command and wait until it is confirmed; kill the process if it does not answer.

        Before the process can answer, the command is only sent: it will be the first that the
        process obeys.
        """
        self._orders += 1
        number = self._orders
        self._process.send(name, number, *arguments)
        if not self.made.done():
            return
        ack = self._acks[number] = self._loop.create_future()
        waited = [ack, self.closed]
        await asyncio.wait(waited, timeout=self._limits.answer, return_when=asyncio.FIRST_COMPLETED)
        self._acks.pop(number, None)
        if not ack.done() and not self.closed.done():
            self.kill(f"did not confirm {name!r} within {self._limits.answer:g} s")

    def kill(self, why: str) -> None:
        """End the process now."""
        self.killed = self.killed or why
        self._process.process.kill()

    async def close(self) -> None:
        """Let the process close its sessions and end; kill it at the deadline."""
        if not self.closed.done():
            self._process.send("cancel")
            await asyncio.wait([self.closed], timeout=self._limits.stop)
        seconds = self._limits.stop if self.closed.done() else 0.0
        if not await asyncio.to_thread(self._process.join, seconds):
            self.killed = self.killed or f"did not end within {self._limits.stop:g} s"

    async def watch(self) -> None:
        """Kill the process when it exceeds a deadline; returns when it has ended."""
        looked = time.monotonic()
        while not self.closed.done():
            await asyncio.wait([self.closed], timeout=_LOOK)
            now = time.monotonic()
            if now - looked > 10 * _LOOK:
                # This process was suspended or its loop blocked: messages may still be on the way.
                self._heard_at += now - looked
                self._since += now - looked
            looked = now
            if why := self._overdue(now):
                self.kill(why)

    def _overdue(self, now: float) -> str:
        limits = self._limits
        if not self.made.done():
            if now - self._since > limits.start:
                return f"did not start within {limits.start:g} s"
        elif not self.ready.done():
            if now - self._since > limits.open:
                return f"open_run() did not return within {limits.open:g} s"
        elif now - self._heard_at > (limits.stop if self.done else limits.answer):
            return f"has not answered for {now - self._heard_at:.0f} s"
        return ""

    # Messages from the process --------------------------------------------------------------

    def _receive(self, message: Any) -> None:
        self._call(self._handle, *message)

    def _call(self, function: Callable[..., None], *arguments: Any) -> None:
        try:
            self._loop.call_soon_threadsafe(function, *arguments)
        except RuntimeError:
            return  # the loop has ended

    def _handle(self, kind: str, *values: Any) -> None:
        self._heard_at = time.monotonic()
        if kind == "events":
            for event in values[0]:
                self._on_event(self, event)
        elif kind == "sealed":
            self._on_sealed(self, values[0])
        elif kind == "want":
            for _ in range(values[0]):
                self.wants.release()
        elif kind == "ack":
            if (ack := self._acks.get(values[0])) is not None and not ack.done():
                ack.set_result(None)
        elif kind == "unfinished":
            self._on_left_open(self, values[0])
        elif kind == "failed":
            self.failure = values[0]
        elif kind == "done":
            self.done = True
        elif kind == "made":
            _resolve(self.made)
        elif kind == "ready":
            self.began = True
            _resolve(self.ready)

    def _ended(self) -> None:
        for future in (self.made, self.ready, self.closed, *self._acks.values()):
            _resolve(future)


def _resolve(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
