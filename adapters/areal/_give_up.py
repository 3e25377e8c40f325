"""Ends a training of AReaL in which no group has rows."""

from __future__ import annotations

import asyncio
import logging
import multiprocessing
import os
import signal
from typing import TYPE_CHECKING, Any

from trajgym.adapters._errors import RolloutFailed

if TYPE_CHECKING:
    from collections.abc import Hashable

__all__ = ["GroupWatch", "watch_for"]

_log = logging.getLogger(__name__)


class GroupWatch:
    """Counts consecutive groups without a row, and ends the training after too many.

    AReaL treats an exception of a workflow as a rejected episode and samples another one. Only an
    error of one of its executor's own threads stops it, so such an error is set.

    Args:
        most: number of consecutive groups without a row that ends the training.
    """

    def __init__(self, most: int) -> None:
        self.most = most
        self.barren = 0
        self.error: RolloutFailed | None = None

    def rows(self) -> None:
        """Record a group with rows."""
        self.barren = 0

    def nothing(self, engine: Any, reason: str) -> None:
        """Record a group without rows and the reason; stop the training after too many.

        Args:
            engine: AReaL's ``InferenceEngine``; None if it is not known, as in an agent.
            reason: why there are no rows.
        """
        self.barren += 1
        if self.barren < self.most or self.error is not None:
            return
        self.error = RolloutFailed(
            f"{self.barren} consecutive groups had no row, the last because of {reason}; the "
            "store has the cause for each session",
        )
        _log.critical("%s", self.error)
        _stop(engine, self.error)


_watches: dict[Hashable, GroupWatch] = {}


def watch_for(key: Hashable, most: int) -> GroupWatch:
    """Return the watch of a key; kept here because AReaL creates a workflow for every task."""
    return _watches.setdefault(key, GroupWatch(most))


def _stop(engine: Any, error: RolloutFailed) -> None:
    executor = getattr(engine, "workflow_executor", None) or _executor_of_loop()
    dispatcher = getattr(executor, "dispatcher", None)
    stop = getattr(dispatcher, "_set_thread_exception", None)
    if stop is not None:
        stop(error)
        for name in ("_result_cv", "_input_cv"):
            waiting = getattr(dispatcher, name, None)
            if waiting is not None:
                with waiting:
                    waiting.notify_all()
    elif (parent := multiprocessing.parent_process()) is not None and parent.pid:
        # AReaL runs this agent in a pool of processes and has no way to report a fatal error from
        # there: interrupt the process that started the pool, as Ctrl-C would.
        os.kill(parent.pid, signal.SIGINT)
    else:
        _log.critical("can't stop AReaL: its engine has no executor of the known kind")


def _executor_of_loop() -> Any:
    """Return the executor whose tasks run on the current event loop, or None.

    AReaL does not pass the engine to agents, but an episode's task refers to its executor.
    """
    try:
        tasks = asyncio.all_tasks()
    except RuntimeError:
        return None
    for task in tasks:
        frame = getattr(task.get_coro(), "cr_frame", None)
        for value in () if frame is None else frame.f_locals.values():
            for found in (value, getattr(value, "workflow_executor", None)):
                if hasattr(getattr(found, "dispatcher", None), "_set_thread_exception"):
                    return found
    return None
