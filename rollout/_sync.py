"""Collecting without `await`: in scripts, and in notebooks, whose cells run in a loop."""

from __future__ import annotations

import asyncio
import os
import threading
from typing import TYPE_CHECKING, Any, TypeVar

from trajgym.rollout._collect import collect
from trajgym.trajectory import InvalidInput

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Coroutine, Iterable

    from trajgym.envs import EnvSpec
    from trajgym.rollout._collect import CollectReport
    from trajgym.rollout._policy import Policy
    from trajgym.rollout._progress import Progress
    from trajgym.rollout._settings import RunSettings
    from trajgym.rollout.mixture import Mixture
    from trajgym.trajectory import Task

__all__ = ["collect_sync"]

_T = TypeVar("_T")


def collect_sync(
    spec: EnvSpec | Mixture,
    tasks: Iterable[Task] | None,
    policy: Policy,
    out: str | os.PathLike[str],
    *,
    settings: RunSettings | None = None,
    on_progress: Callable[[Progress], None] | None = None,
    allow_changes: Collection[str] = (),
    **overrides: Any,
) -> CollectReport:
    """Do what :func:`collect` does, and return when it is done.

    Works inside a running event loop, as in a notebook's cell: sessions run on a loop of a thread
    that all calls of this process share, so that a policy's connections live from call to call.
    Interrupting it (Ctrl-C, a notebook's stop) closes every session cleanly first.

    Args:
        spec: the environment, or a :class:`trajgym.rollout.mixture.Mixture` of several.
        tasks: the tasks; None for a mixture.
        policy: gives the assistant messages; not closed here.
        out: run directory, created if missing.
        settings: how sessions are run.
        on_progress: called for every event, on the thread of the loop.
        allow_changes: what may differ from an earlier call on the directory.
        **overrides: settings by name.

    Raises:
        InvalidInput: see :func:`collect`; or it is called on the loop that it would wait for.
        StoreLocked: another process collects into the same directory.
    """
    return _loop().run(
        collect(
            spec,
            tasks,
            policy,
            out,
            settings=settings,
            on_progress=on_progress,
            allow_changes=allow_changes,
            **overrides,
        )
    )


class _BackgroundLoop:
    """An event loop in a daemon thread, for callers that can't await."""

    def __init__(self) -> None:
        self.process = os.getpid()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(
            target=self._loop.run_forever, name="trajgym-sync", daemon=True
        )
        self._thread.start()

    def run(self, work: Coroutine[Any, Any, _T]) -> _T:
        """Wait for work that runs on the loop; an interrupt cancels it and waits for its end."""
        if threading.current_thread() is self._thread:
            work.close()
            raise InvalidInput("collect_sync was called from a session; await collect there")
        ended = threading.Event()
        tasks: list[asyncio.Task[_T]] = []

        def begin() -> None:
            task = self._loop.create_task(work)
            tasks.append(task)
            task.add_done_callback(lambda _: ended.set())

        self._loop.call_soon_threadsafe(begin)
        try:
            ended.wait()
        except BaseException:  # Ctrl-C, or what another signal's handler raises
            self._loop.call_soon_threadsafe(lambda: tasks[0].cancel())
            ended.wait()  # sessions close within their own deadlines
            raise
        return tasks[0].result()


_lock = threading.Lock()
_running: list[_BackgroundLoop] = []


def _loop() -> _BackgroundLoop:
    with _lock:
        # A forked child has no threads of its parent: it needs a loop of its own.
        if not _running or _running[-1].process != os.getpid():
            _running[:] = [_BackgroundLoop()]
        return _running[-1]
