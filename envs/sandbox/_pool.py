"""A pool of sandboxes that are started before they are requested."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import logging
import os
import time
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from trajgym.envs._threads import finish_despite_cancel
from trajgym.envs.faults import contained, describe
from trajgym.envs.sandbox._base import Sandbox, SandboxProvider, SandboxSpec, Snapshot
from trajgym.envs.sandbox._command import close_all
from trajgym.envs.sandbox._errors import SandboxError, SandboxUnavailable
from trajgym.envs.sandbox._shares import HostShares
from trajgym.trajectory import InvalidInput, TrajgymError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

__all__ = ["WarmPool"]

_log = logging.getLogger(__name__)
WINDOW = 30.0
"""Seconds over which demand is counted."""
START_SECONDS = 120.0
RETRY_SECONDS = 5.0
REFILL_SECONDS = 0.2


class NoShare(SandboxUnavailable):
    """The host's limit of waiting sandboxes is reached."""


@dataclass(slots=True)
class _Kind:
    """Idle sandboxes of one spec, ignoring its labels."""

    spec: SandboxSpec
    idle: deque[Sandbox] = field(default_factory=deque)
    demand: deque[float] = field(default_factory=deque)
    prepare: Callable[[Sandbox], Awaitable[None]] | None = None
    used: float = 0.0
    starting: int = 0
    refill: asyncio.TimerHandle | None = None
    not_before: float = 0.0
    changed: asyncio.Event = field(default_factory=asyncio.Event)

    def rest(self) -> None:
        """Stop starting them."""
        if self.refill is not None:
            self.refill.cancel()


class WarmPool(SandboxProvider):
    """A provider that starts sandboxes in advance, so that most requests take a millisecond.

    For each requested spec, the pool keeps as many idle sandboxes as were taken in the last half
    minute, but at most ``idle`` per spec and ``total`` overall. Sandboxes are never returned to the
    pool: each serves one session and is then closed. Forks of Docker sandboxes also use idle ones.

    A container's labels can't be changed after its creation: an idle one has the labels of its
    owner and of the first requested spec, without ``session``; when it is taken, the session
    becomes part of its name.

    Args:
        inner: starts them; closed with the pool.
        idle: maximum number of idle sandboxes per spec.
        total: maximum number of idle sandboxes overall.
        reserve: bytes of the host's memory that stay free; below that none is started ahead.
        shares: what the pools of all processes of this host may keep waiting together.
        seconds: time without demand after which the idle sandboxes of a spec are closed.
    """

    def __init__(
        self,
        inner: SandboxProvider,
        *,
        idle: int = 8,
        total: int = 64,
        reserve: int = 1 << 30,
        seconds: float = 300.0,
        shares: HostShares | None = None,
    ) -> None:
        if idle < 1 or total < 1:
            raise InvalidInput("a pool needs idle and total of at least 1")
        self.inner = inner
        self.name = inner.name
        self._idle = idle
        self._total = total
        self._reserve = reserve
        self._seconds = seconds
        self._shares = shares or HostShares()
        self._kinds: dict[tuple[Any, ...], _Kind] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._alarm: asyncio.TimerHandle | None = None
        self._closed = False
        # Starting more concurrently makes each of them slower.
        self._slots = asyncio.Semaphore(2 * (os.cpu_count() or 1))
        inner.use_ready(self.take)

    def prepare(self, spec: SandboxSpec, work: Callable[[Sandbox], Awaitable[None]]) -> None:
        """Run something in every sandbox of a spec that is started ahead, before it is ready.

        Args:
            spec: which sandboxes.
            work: called with the sandbox; if it raises, the sandbox is closed. Sandboxes that are
                started on demand, because none was ready, are not prepared.
        """
        self._kind(spec).prepare = work

    async def check(self) -> None:
        """See :meth:`SandboxProvider.check`."""
        await self.inner.check()

    def ready(self, spec: SandboxSpec) -> int:
        """Return how many sandboxes of this spec are waiting."""
        kind = self._kinds.get(_key(spec))
        return 0 if kind is None else len(kind.idle)

    async def warm(self, spec: SandboxSpec, count: int = 1) -> None:
        """Wait until this many (at most ``idle``) are ready.

        Raises:
            SandboxError: they can't be started, or the host's limit is reached.
        """
        kind = self._kind(spec)
        while not self._closed:
            missing = min(count, self._idle) - len(kind.idle)
            if missing <= 0:
                return
            starts = [self._start(kind) for _ in range(missing - kind.starting)]
            if not starts:
                kind.changed.clear()
                await kind.changed.wait()
            for error in await asyncio.gather(*starts, return_exceptions=True):
                if error is not None:
                    raise error

    async def start(self, spec: SandboxSpec, *, timeout: float = START_SECONDS) -> Sandbox:
        """See :meth:`SandboxProvider.start`; returns a ready sandbox if there is one."""
        return self.take(spec) or await self.inner.start(spec, timeout=timeout)

    def take(self, spec: SandboxSpec) -> Sandbox | None:
        """Return a ready sandbox, if there is one, and start the next."""
        if self._closed:
            return None
        kind = self._kind(spec)
        kind.demand.append(time.monotonic())
        kind.used = time.monotonic()
        found = None
        while kind.idle and found is None:
            found = kind.idle.popleft()
            self._spawn(self._release(kind))
            if not found.alive:
                self._spawn(found.close())
                found = None
        if found is not None:
            found.assign(spec)
        self._refill_soon(kind)
        self._set_alarm()
        return found

    def _refill_soon(self, kind: _Kind) -> None:
        """Refill after a moment: a start takes processor time that the new session needs first."""
        if kind.refill is None:

            def refill() -> None:
                kind.refill = None
                self._refill(kind)

            kind.refill = asyncio.get_running_loop().call_later(REFILL_SECONDS, refill)

    def _kind(self, spec: SandboxSpec) -> _Kind:
        key = _key(spec)
        if key not in self._kinds:
            labels = {name: text for name, text in spec.labels.items() if name != "session"}
            self._kinds[key] = _Kind(dataclasses.replace(spec, labels=labels))
        return self._kinds[key]

    def _refill(self, kind: _Kind) -> None:
        now = time.monotonic()
        while kind.demand and kind.demand[0] < now - WINDOW:
            kind.demand.popleft()
        wanted = min(self._idle, len(kind.demand))
        waiting = sum(len(other.idle) + other.starting for other in self._kinds.values())
        room = self._total - waiting
        missing = min(wanted - len(kind.idle) - kind.starting, room)
        if now < kind.not_before or _free_memory() < self._reserve:
            return
        for _ in range(missing):
            self._spawn(self._refill_one(kind))

    async def _refill_one(self, kind: _Kind) -> None:
        try:
            await self._start(kind)
        except Exception as error:  # noqa: BLE001 - boundary: what prepares a sandbox
            if self._closed:
                return
            kind.not_before = time.monotonic() + RETRY_SECONDS
            if isinstance(error, NoShare):
                _log.info("no sandbox is started ahead: %s", error)
                return
            # The next caller that needs one gets the error itself.
            known = isinstance(error, TrajgymError)
            shown = None if known else error
            _log.warning("no sandbox could be started ahead: %s", describe(error), exc_info=shown)

    async def _start(self, kind: _Kind) -> None:
        kind.starting += 1
        try:
            async with self._slots:
                if self._closed:
                    return
                await self._claim(kind)
                try:
                    made = await self.inner.start(kind.spec, timeout=START_SECONDS)
                except BaseException:
                    await finish_despite_cancel(self._release(kind))
                    raise
            try:
                if kind.prepare is not None:
                    with contained():
                        await kind.prepare(made)
                await made.settle()
            except BaseException:
                try:
                    await finish_despite_cancel(made.close())
                finally:
                    await finish_despite_cancel(self._release(kind))
                raise
            if made.alive:
                kind.idle.append(made)
            else:  # the pool was closed in the meantime
                await self._release(kind)
        finally:
            kind.starting -= 1
            kind.changed.set()

    async def _claim(self, kind: _Kind) -> None:
        memory = kind.spec.limits.memory
        try:
            refusal = await finish_despite_cancel(asyncio.to_thread(self._shares.claim, memory))
        except OSError as error:
            refusal = f"the host's file of shares can't be used: {error}"
        if refusal:
            raise NoShare(refusal)

    async def _release(self, kind: _Kind) -> None:
        memory = kind.spec.limits.memory
        try:
            await finish_despite_cancel(asyncio.to_thread(self._shares.release, memory))
        except (OSError, SandboxError) as error:
            _log.warning("a share of the host was not returned: %s", error)

    async def _drop(self, kind: _Kind) -> None:
        releases = [self._release(kind) for _ in kind.idle]
        await asyncio.gather(close_all(kind.idle), *releases)

    def _spawn(self, work: Any) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _set_alarm(self) -> None:
        if self._alarm is None and not self._closed:
            loop = asyncio.get_running_loop()
            self._alarm = loop.call_later(self._seconds, self._drop_unused)

    def _drop_unused(self) -> None:
        self._alarm = None
        now = time.monotonic()
        for key, kind in list(self._kinds.items()):
            if now - kind.used >= self._seconds and not kind.starting:
                del self._kinds[key]
                kind.rest()
                self._spawn(self._drop(kind))
        if self._kinds:
            self._set_alarm()

    async def restore(
        self, snapshot: Snapshot, spec: SandboxSpec, *, timeout: float = START_SECONDS
    ) -> Sandbox:
        """See :meth:`SandboxProvider.restore`; never a ready one."""
        return await self.inner.restore(snapshot, spec, timeout=timeout)

    async def discard(self, snapshot: Snapshot) -> None:
        """See :meth:`SandboxProvider.discard`."""
        await self.inner.discard(snapshot)

    async def reap(self) -> int:
        """See :meth:`SandboxProvider.reap`."""
        return await self.inner.reap()

    def isolation(self) -> dict[str, str]:
        """See :meth:`SandboxProvider.isolation`."""
        return self.inner.isolation()

    async def close(self) -> None:
        """See :meth:`SandboxProvider.close`."""
        if self._closed:
            return
        self._closed = True
        if self._alarm is not None:
            self._alarm.cancel()
        for kind in self._kinds.values():
            kind.rest()
        await finish_despite_cancel(self._close())

    async def _close(self) -> None:
        await self.inner.close()
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=START_SECONDS)
        self._kinds.clear()
        with contextlib.suppress(OSError, SandboxError):
            await asyncio.to_thread(self._shares.close)


def _key(spec: SandboxSpec) -> tuple[Any, ...]:
    """Return all parts of a spec that make a difference inside."""
    found: list[Any] = []
    for entry in dataclasses.fields(spec):
        value = getattr(spec, entry.name)
        if entry.name == "labels":
            continue
        if isinstance(value, dict):
            value = tuple(sorted(value.items()))
        found.append(tuple(value) if isinstance(value, list) else value)
    return tuple(found)


def _free_memory() -> int:
    """Return the host's available memory in bytes; a large number where that is unknown."""
    try:
        with open("/proc/meminfo") as file:  # noqa: PTH123  short and often
            for line in file:
                if line.startswith("MemAvailable:"):
                    return int(line.split()[1]) * 1024
    except OSError:
        pass
    return 1 << 62
