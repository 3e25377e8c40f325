"""The loop of a fleet's worker: a runner whose tasks come from another process."""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import os
import pickle
import signal
import threading
import traceback
from contextlib import AsyncExitStack
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from trajgym.rollout._resume import Earlier
from trajgym.rollout._runner import Runner
from trajgym.rollout.fleet._errors import FleetFailed
from trajgym.rollout.fleet._handling import handle_all
from trajgym.rollout.fleet._jobs import brief
from trajgym.rollout.fleet._shard import Shard
from trajgym.rollout.fleet._spawned import PipeChannel, private
from trajgym.rollout.fleet._streamed import ShardStream
from trajgym.rollout.monitoring import log_as_asked
from trajgym.trajectory import Run, Store, TrajgymError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator, Sequence
    from multiprocessing.connection import Connection
    from pathlib import Path

    from trajgym.envs import EnvSpec
    from trajgym.rollout._policy import Policy
    from trajgym.rollout._progress import Progress
    from trajgym.rollout._sample import OpenGroup
    from trajgym.rollout._settings import RunSettings
    from trajgym.rollout.fleet._handling import GroupHandler, Handled
    from trajgym.rollout.mixture import Mixture
    from trajgym.trajectory import SessionTree, Task

__all__ = ["Channel", "Failure", "Recipe", "Worker", "serve"]

_BEAT = 1.0
"""Seconds between two signs of life."""
_BATCH = 0.05
"""Seconds for which events are collected before they are sent."""
_AHEAD = 2
"""Tasks that a process has in advance, so that its sessions don't wait for a message."""


class Channel(Protocol):
    """A worker's connection to its fleet."""

    def send(self, message: Any) -> None:
        """Send a message, which must not be changed afterwards; does not block."""
        ...

    def messages(self) -> Iterator[Any]:
        """Yield the fleet's messages until the fleet is gone; blocks."""
        ...

    def close(self) -> None:
        """Wait until all messages are sent."""
        ...


class Recipe(NamedTuple):
    """What a worker makes its runner from."""

    modules: tuple[str, ...]
    """Imported first, because they register the environments."""
    spec: EnvSpec | Mixture
    make_policy: Callable[[], Policy]
    settings: RunSettings
    store: Path
    """The worker's file; the fleet's own before :meth:`of`."""
    run: Path
    stop_seconds: float
    last_key: int | None = None
    """The largest key of a session in the shard, if the fleet writes it; see `ShardStream`."""
    make_handler: Callable[[], GroupHandler] | None = None
    shard: Shard = Shard(0, 1)
    environ: tuple[tuple[str, str | None], ...] = ()
    """Environment variables, set before the modules are imported; None removes one."""

    def of(self, shard: Shard, sessions: int, last_key: int | None) -> Recipe:
        """Return the recipe of one worker of several, from what all have in common.

        Args:
            shard: its share.
            sessions: most sessions that it runs at the same time.
            last_key: see the field.
        """
        return self._replace(
            spec=shard.environments(self.spec),
            # The fleet admits groups.
            settings=replace(self.settings, concurrency=sessions, admission=None),
            store=shard.store(self.run),
            last_key=last_key,
            shard=shard,
        )


class Failure(NamedTuple):
    """Why a worker gave up."""

    error: bytes | None
    """The pickled exception, if it is one of this package's."""
    text: str
    """Its traceback."""

    @property
    def exception(self) -> Exception:
        """The exception, or one that has its traceback as text."""
        if self.error is not None:
            error = pickle.loads(self.error)  # noqa: S301 - pickled by a worker of this fleet
            if isinstance(error, Exception):
                return error
        return FleetFailed(f"a process of the fleet failed:\n{self.text}")


def serve(recipe: Recipe, control: Connection) -> None:
    """Run sessions until the parent process says that there are no more tasks, or exits.

    Args:
        recipe: what the runner is made from.
        control: commands and tasks in; events, sealed groups and failures out.
    """
    private(control)
    log_as_asked()
    # Ctrl-C and the end of a terminal reach the whole process group; the parent process handles
    # them. Programs that sessions start have the default action, as with no other setting.
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda *_: None)
    worker = Worker(recipe, PipeChannel(control, "trajgym-fleet"))
    signal.signal(signal.SIGTERM, lambda *_: worker.cancel())
    worker.run()


class Worker:
    """A runner, and the messages that it is directed by.

    Args:
        recipe: what the runner is made from.
        channel: commands and tasks in; events, sealed groups and failures out.
    """

    def __init__(self, recipe: Recipe, channel: Channel) -> None:
        self.recipe = recipe
        self._channel = channel
        self._stream = None if recipe.last_key is None else ShardStream(recipe.last_key, self._send)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._main: asyncio.Task[None] | None = None
        self._runner: _DirectedRunner | None = None
        self._jobs: asyncio.Queue[tuple[Task, str, Earlier] | None] = asyncio.Queue()
        self._open: asyncio.Future[Sequence[Task]] | None = None
        self._events: list[Progress] = []
        self._cancelled = False

    def run(self) -> None:
        """Run sessions until the fleet has no more tasks, or is gone; blocks."""
        try:
            asyncio.run(self._main_function())
        except BaseException as error:  # noqa: BLE001 - boundary: sent to the fleet, which raises
            # A cancellation that was not asked for came from code that it runs.
            if not (self._cancelled and isinstance(error, asyncio.CancelledError)):
                self._send("failed", _failure(error))
        self._channel.close()

    def _send(self, *message: Any) -> None:
        self._channel.send(message)

    def cancel(self) -> None:
        """Close all sessions and end; safe to call from a signal handler and from any thread."""
        loop, main = self._loop, self._main
        if loop is not None and main is not None and not self._cancelled:
            self._cancelled = True
            with contextlib.suppress(RuntimeError):  # the loop has ended
                loop.call_soon_threadsafe(main.cancel)

    async def _main_function(self) -> None:
        self._loop, self._main = asyncio.get_running_loop(), asyncio.current_task()
        self._open = self._loop.create_future()
        recipe = self.recipe
        recipe.shard.enter()
        for name, value in recipe.environ:
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
        for module in recipe.modules:
            if module != "__main__":  # which spawning imports
                importlib.import_module(module)
        beat = asyncio.create_task(self._beat())
        try:
            await self._run(recipe)
        finally:
            beat.cancel()
        self._send("done")

    async def _run(self, recipe: Recipe) -> None:
        assert self._open is not None
        policy = recipe.make_policy()
        async with AsyncExitStack() as stack:
            await stack.enter_async_context(policy)
            store = Store(recipe.store, sink=self._stream)
            await stack.enter_async_context(store)
            handler = None
            if recipe.make_handler is not None:
                handler = recipe.make_handler()
                stack.push_async_callback(handler.close)
            self._runner = runner = _DirectedRunner(
                recipe,
                self._tasks,
                policy,
                store=store,
                load=self._earlier_session,
                on_progress=self._note,
                on_left_open=lambda name: self._send("unfinished", name),
            )
            threading.Thread(target=self._read, name="trajgym-fleet-read", daemon=True).start()
            self._send("made")
            try:
                runner.known = await self._open
                async with runner:
                    self._send("ready")
                    self._send("want", _AHEAD)
                    await handle_all(runner, handler, store, self._deliver)
            finally:
                self._flush()

    def _deliver(self, handled: Handled) -> None:
        self._flush()
        self._send("sealed", handled)

    # Tasks and commands -------------------------------------------------------------------

    async def _tasks(self) -> AsyncIterator[Task]:
        while (job := await self._jobs.get()) is not None:
            task, group, earlier = job
            assert self._runner is not None
            self._runner.assigned = (group, earlier)
            self._send("want", 1)
            yield task

    def _read(self) -> None:
        """Pass on messages, in a thread; the end of the fleet's process ends this one."""
        loop = self._loop
        assert loop is not None
        for message in self._channel.messages():
            if message[0] == "answer":
                assert self._stream is not None
                self._stream.answer(*message[1:])
                continue
            with contextlib.suppress(RuntimeError):  # the loop has ended
                loop.call_soon_threadsafe(self._obey, *message)
        if self._stream is not None:
            self._stream.lose()
        self.cancel()
        timer = threading.Timer(self.recipe.stop_seconds, os._exit, [1])
        timer.daemon = True
        timer.start()

    def _obey(self, kind: str, *values: Any) -> None:
        assert self._runner is not None
        assert self._open is not None
        if kind == "task":
            self._jobs.put_nowait(values)
        elif kind == "end":
            self._jobs.put_nowait(None)
        elif kind == "open":
            if not self._open.done():
                self._open.set_result(values[0])
        elif kind == "cancel":
            self.cancel()
        else:
            number, *arguments = values
            _COMMANDS[kind](self._runner, *arguments)
            if kind == "stop":
                self._jobs.put_nowait(None)
            self._send("ack", number)

    def _earlier_session(self, session_id: str) -> SessionTree:
        """Return a session that another worker may have run. Blocks."""
        if self._stream is not None:
            return self._stream.session(session_id)
        with Run(self.recipe.run) as run:
            return run.session(session_id)

    # Reports ------------------------------------------------------------------------------

    async def _beat(self) -> None:
        while True:
            await asyncio.sleep(_BEAT)
            self._send("beat")

    def _note(self, event: Progress) -> None:
        if event.kind == "sealed":
            return  # reported with the group
        if event.turn is not None:
            event = event._replace(turn=brief(event.turn))
        if not self._events:
            assert self._loop is not None
            self._loop.call_later(_BATCH, self._flush)
        self._events.append(event)

    def _flush(self) -> None:
        events, self._events = self._events, []
        if events:
            self._send("events", events)


_COMMANDS: dict[str, Callable[..., None]] = {
    "pause": Runner.pause,
    "resume": Runner.resume,
    "version": Runner.set_version,
    "stop": Runner.stop,
}


class _DirectedRunner(Runner):
    """A runner that is told which groups to run and what the run has of them."""

    def __init__(
        self,
        recipe: Recipe,
        tasks: Callable[[], AsyncIterator[Task]],
        policy: Policy,
        *,
        store: Store,
        load: Callable[[str], SessionTree],
        on_progress: Callable[[Progress], None],
        on_left_open: Callable[[str], None],
    ) -> None:
        super().__init__(
            recipe.spec,
            tasks(),
            policy,
            store=store,
            settings=recipe.settings,
            on_progress=on_progress,
        )
        self.assigned = ("", Earlier())
        """The group of the task that was yielded last, and what the run has of it."""
        self.known: Sequence[Task] = ()
        self._earlier_session = load
        self._on_left_open = on_left_open

    async def _claim(self) -> Sequence[Task]:
        return self.known  # the parent process has compared and claimed the run

    def _group_of(self, task: Task) -> tuple[str, Earlier]:
        del task
        return self.assigned

    def _left_open(self, group: OpenGroup) -> None:
        self._on_left_open(group.group.id)

    def _load(self, session_id: str) -> SessionTree:
        return self._earlier_session(session_id)


def _failure(error: BaseException) -> Failure:
    text = "".join(traceback.format_exception(error))[-4000:]
    if isinstance(error, TrajgymError):
        try:
            pickle.loads(pickled := pickle.dumps(error))  # noqa: S301 - pickled here
        except Exception:  # noqa: BLE001 - boundary: exceptions may refuse either
            return Failure(None, text)
        return Failure(pickled, text)
    return Failure(None, text)
