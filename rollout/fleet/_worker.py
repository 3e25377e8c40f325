"""The fleet's side of one of its workers."""

from __future__ import annotations

import asyncio
import threading
import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from trajgym.rollout._progress import Progress
    from trajgym.rollout.fleet._child import Failure, Recipe
    from trajgym.rollout.fleet._handling import Handled
    from trajgym.rollout.fleet._jobs import Job
    from trajgym.rollout.fleet._launcher import Launcher, Room
    from trajgym.rollout.fleet._limits import FleetLimits
    from trajgym.rollout.fleet._streamed import ShardWriter
    from trajgym.trajectory import Task

__all__ = ["FleetWorker"]

_LOOK = 0.25
"""Seconds between two looks at the deadlines."""


class FleetWorker:
    """A process and what it has been given; used on the event loop that makes it.

    The process is on this machine, or wherever the launcher starts it.

    Args:
        launcher: starts it.
        recipe: what the process makes its runner from.
        room: where it runs.
        index: of the process in the fleet.
        limits: deadlines.
        writer: writes its shard, unless it does so itself; closed here.
        on_event: called with each event of its sessions.
        on_sealed: called with each group that it sealed and handled.
        on_left_open: called with the id of each group that it can't seal.
    """

    def __init__(
        self,
        launcher: Launcher,
        recipe: Recipe,
        room: Room,
        index: int,
        limits: FleetLimits,
        *,
        writer: ShardWriter | None,
        on_event: Callable[[FleetWorker, Progress], None],
        on_sealed: Callable[[FleetWorker, Handled], None],
        on_left_open: Callable[[FleetWorker, str], None],
    ) -> None:
        self.index = index
        self.recipe = recipe
        self.room = room
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
        self.retiring = asyncio.Event()
        """Set when it is to get no more tasks, because its machine is about to leave."""
        self._limits = limits
        self._on_event, self._on_sealed, self._on_left_open = on_event, on_sealed, on_left_open
        self._acks: dict[int, asyncio.Future[None]] = {}
        self._orders = 0
        self._heard_at = self._since = time.monotonic()
        self._loop = loop
        self._writer = writer
        self._linked = threading.Event()
        self._link = launcher.launch(
            recipe, room, index, receive=self._receive, on_end=self._receive_end
        )
        self._linked.set()

    @property
    def pid(self) -> int:
        """The process id."""
        return self._link.pid

    @property
    def lost(self) -> bool:
        """Whether it ended because its machine left."""
        return self._link.lost

    @property
    def end(self) -> str:
        """How the process ended, in words."""
        return self.killed or self._link.end or "closed its connection"

    # Messages to the process --------------------------------------------------------------

    def open(self, tasks: Sequence[Task]) -> None:
        """Let it call the environment's ``open_run`` and begin."""
        self._since = time.monotonic()
        self._link.send("open", tasks)

    def give(self, job: Job) -> None:
        """Let it run the sessions that a group lacks."""
        self.jobs[job.group] = job
        self._link.send("task", job.task, job.group, job.earlier)

    def finish(self) -> None:
        """Tell it that there are no more tasks."""
        self._link.send("end")

    async def order(self, name: str, *arguments: Any) -> None:
        """Send a command and wait until it is confirmed; kill the process if it does not answer.

        Before the process can answer, the command is only sent: it will be the first that the
        process obeys.
        """
        self._orders += 1
        number = self._orders
        self._link.send(name, number, *arguments)
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
        self._link.kill()

    def cancel(self) -> None:
        """Tell it to close its sessions and end."""
        self._link.send("cancel")

    def join(self, seconds: float) -> None:
        """Wait for its end, from any thread; kill it on timeout. Blocks."""
        self._link.join(seconds)

    async def close(self) -> bool:
        """Let the process close its sessions and end; kill it at the deadline (False)."""
        if not self.closed.done():
            self.cancel()
            await asyncio.wait([self.closed], timeout=self._limits.stop)
        seconds = self._limits.stop if self.closed.done() else 0.0
        if ended := await asyncio.to_thread(self._link.join, seconds):
            return ended
        self.killed = self.killed or f"did not end within {self._limits.stop:g} s"
        return False

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
        """Pass a message on; called in a thread, which also does the writes of a streamed shard."""
        if message[0] in {"write", "load"}:
            assert self._writer is not None
            answer = self._writer.handle(*message)
            self._linked.wait()
            self._link.send(*answer)
        else:
            self._call(self._handle, *message)

    def _receive_end(self) -> None:
        if self._writer is not None:
            self._writer.close()  # before the shard is read for what the worker has left
        self._call(self._ended)

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
