"""A worker of TRL's asynchronous GRPO trainer whose groups come from a session server."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from typing import TYPE_CHECKING, NamedTuple

from trajgym.adapters._fed import FedGroups, Worked
from trajgym.adapters.trl._group_samples import GroupSamples, SampleBuilder
from trajgym.adapters.trl._sample_worker import SampleWorker
from trajgym.adapters.trl._worker import TRL_STALENESS
from trajgym.trajectory import InvalidInput, TrajgymError
from trajgym.trajectory._internal import first_error

if TYPE_CHECKING:
    from collections.abc import Collection, Coroutine
    from contextlib import AsyncExitStack
    from typing import Any

    from trajgym.adapters._group_rows import MissingRule
    from trajgym.adapters.trl._group_samples import Tally
    from trajgym.adapters.trl._samples import Form
    from trajgym.adapters.trl._versions import VersionClock
    from trajgym.rewards import DeriverSpec
    from trajgym.server import Feed

__all__ = ["FeedWorker"]

_log = logging.getLogger(__name__)
_END_SECONDS = 20.0
"""Within which the server has to take the last version when the worker ends."""
_CONTROL_SECONDS = 120.0
"""Within which the server has to answer before and after weights are sent."""


class _Handed(NamedTuple):
    """A group whose samples are in the queue."""

    worked: Worked[GroupSamples]
    until: int
    """Number of samples put into the queue so far, its own included."""


class FeedWorker(SampleWorker):
    """Passes the rows of a session server's groups to TRL's ``AsyncGRPOTrainer``.

    Agents run elsewhere and reach the engine through the server; see :class:`trajgym.server.Feed`.

    ::

        worker = FeedWorker(Feed("http://127.0.0.1:8100", max_staleness=4))
        trainer = AsyncGRPOTrainer(model=name, args=args, train_dataset=..., rollout_worker=worker)
        worker.attach(trainer)
        trainer.train()

    A group is acknowledged once the trainer has taken its last sample; one that was not comes again
    to the next worker of the same consumer. Each policy version is announced to the server, and
    with :meth:`attach` the server holds calls while weights are sent.

    Args:
        feed: the groups; used by this worker only, and closed with it.
        temperature: with which the sessions are sampled; the trainer's must be the same.
        versions: a shared clock.
        deriver: returns advantages, see :func:`trajgym.rewards.as_deriver`.
        missing_signals: how to treat sessions without the signals that the deriver reads.
        allow: kinds of sessions that are accepted nevertheless; see
            :class:`trajgym.adapters.Gate`.
        form: how rows are split into samples, see :func:`rollout_samples`.
        skip_flat: leave out groups all of whose advantages are 0.
        token_budget: the trainer's; sessions with a longer sample are left out as a whole.
        max_staleness: the trainer's.
        queue_maxsize: most samples that wait for the trainer.
        stop_seconds: deadline of :meth:`stop` (s).

    Raises:
        InvalidInput: a setting is invalid.
        MissingExtra: TRL is not installed.
    """

    def __init__(
        self,
        feed: Feed,
        *,
        temperature: float = 1.0,
        versions: VersionClock | None = None,
        deriver: DeriverSpec = "grpo",
        missing_signals: MissingRule = "error",
        allow: Collection[str] = (),
        form: Form = "auto",
        skip_flat: bool = False,
        token_budget: int | None = None,
        max_staleness: int = TRL_STALENESS,
        queue_maxsize: int = 1024,
        stop_seconds: float = 180.0,
    ) -> None:
        if not temperature > 0:
            raise InvalidInput(f"temperature is {temperature}; it must be above 0 for training")
        self._build = SampleBuilder(
            deriver,
            form,
            skip_flat=skip_flat,
            allow=allow,
            temperature=temperature,
            missing_signals=missing_signals,
            longest=token_budget,
        )
        super().__init__(
            versions=versions,
            temperature=temperature,
            max_staleness=max_staleness,
            queue_maxsize=queue_maxsize,
            stop_seconds=stop_seconds,
        )
        self._feed = feed
        self._handed: deque[_Handed] = deque()
        self._took = asyncio.Event()
        self._updated = asyncio.Event()
        self._updating = asyncio.Lock()
        self._groups: FedGroups[GroupSamples] | None = None
        self._held = False
        self._ended = False

    @property
    def tally(self) -> Tally:
        """Counts of sessions up to now."""
        return self._build.tally

    # Weight updates -----------------------------------------------------------------------

    def pause(self) -> None:
        """Let the server hold agents' calls until the next version is announced."""
        self._ask(self._hold())

    def resume(self) -> None:
        """Do nothing: calls go on once the version is announced, so that none has the old one."""

    def _set_version(self) -> None:
        self._updated.set()

    def _ask(self, work: Coroutine[Any, Any, None]) -> None:
        """Run a request on the worker's loop and wait for it."""
        if self._loop is None or self._loop.is_closed():
            work.close()
            return
        asyncio.run_coroutine_threadsafe(work, self._loop).result(_CONTROL_SECONDS)

    # The thread -----------------------------------------------------------------------------

    def _wake(self) -> None:
        super()._wake()
        self._in_loop(self._took.set)

    async def _work(self, stack: AsyncExitStack) -> None:
        groups = await stack.enter_async_context(FedGroups(self._feed, self._build))
        await groups.announce(self.versions.version)
        self._groups = groups
        stack.push_async_callback(self._let_go, groups)
        with first_error():
            async with asyncio.TaskGroup() as tasks:
                announcer = tasks.create_task(self._announce(groups))
                taken = tasks.create_task(self._acknowledge(groups))
                await self._take(groups)
                self._ended = True
                self._took.set()
                await taken
                announcer.cancel()

    async def _take(self, groups: FedGroups[GroupSamples]) -> None:
        put = 0
        while (worked := await groups.take()) is not None:
            await self._put_all(worked.made)
            put += len(worked.made.samples)
            self._handed.append(_Handed(worked, put))
            self._took.set()

    async def _acknowledge(self, groups: FedGroups[GroupSamples]) -> None:
        """Acknowledge groups as the trainer takes their samples; return after the last one."""
        buffer = self.rollout_buffer
        while self._handed or not self._ended:
            # No deadline: a training step may take any time, and stop() cancels this.
            await self._took.wait()
            self._took.clear()
            while self._handed and self._handed[0].until <= buffer.taken + buffer.stale:
                await groups.done(self._handed[0].worked)
                self._handed.popleft()

    async def _announce(self, groups: FedGroups[GroupSamples]) -> None:
        """Announce versions, and let the server's calls go on after an update."""
        while True:
            await self._updated.wait()
            await self._go_on(groups)

    async def _hold(self) -> None:
        """Pause the server once it knows the last update, so that only the next one ends this."""
        async with self._updating:
            if self._groups is None:
                self._updated.clear()  # the version then is announced when the feed is opened
            else:
                await self._catch_up(self._groups)
            self._held = True
            await self._feed.pause()

    async def _go_on(self, groups: FedGroups[GroupSamples]) -> None:
        async with self._updating:
            await self._catch_up(groups)

    async def _catch_up(self, groups: FedGroups[GroupSamples]) -> None:
        """Announce the last update, unless that was done, and end its pause."""
        if not self._updated.is_set():
            return
        self._updated.clear()
        try:
            await groups.announce(self.versions.version)
            if self._held:
                await self._feed.resume()
                self._held = False
        except BaseException:
            self._updated.set()  # tried again when the worker ends
            raise

    async def _let_go(self, groups: FedGroups[GroupSamples]) -> None:
        """Leave no server paused behind: the last update may have come with the end."""
        if self._held or self._updated.is_set():
            self._updated.set()
            try:
                async with asyncio.timeout(_END_SECONDS):
                    await self._go_on(groups)
            except (TimeoutError, TrajgymError) as error:
                _log.warning("the server was left paused, or with an old version: %s", error)
