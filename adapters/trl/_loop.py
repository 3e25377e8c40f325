"""An event loop in a thread, for trainers with synchronous callbacks."""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING, Any, TypeVar

from trajgym.adapters._errors import RolloutFailed

if TYPE_CHECKING:
    from collections.abc import Coroutine

__all__ = ["LoopThread"]

_T = TypeVar("_T")
_STOP_SECONDS = 180.0


class LoopThread:
    """Runs coroutines for other threads; the thread starts with the first one."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None

    def run(self, work: Coroutine[Any, Any, _T], timeout: float | None = None) -> _T:
        """Block until a coroutine is done and return its result.

        Raises:
            TimeoutError: ``timeout`` seconds passed; the coroutine is cancelled.
        """
        future = asyncio.run_coroutine_threadsafe(work, self._started())
        try:
            return future.result(timeout)
        except BaseException:  # also KeyboardInterrupt: the coroutine must not run on
            future.cancel()
            raise

    def close(self) -> None:
        """Cancel all coroutines and end the thread. Idempotent.

        Raises:
            RolloutFailed: the thread did not end in time.
        """
        with self._lock:
            loop, thread = self._loop, self._thread
            self._loop = self._thread = None
        if loop is None or thread is None:
            return
        loop.call_soon_threadsafe(loop.stop)
        thread.join(_STOP_SECONDS)
        if thread.is_alive():
            raise RolloutFailed(f"thread {self._name!r} did not end within {_STOP_SECONDS:g} s")

    def _started(self) -> asyncio.AbstractEventLoop:
        with self._lock:
            if self._loop is None:
                loop = self._loop = asyncio.new_event_loop()
                self._thread = threading.Thread(
                    target=_serve, args=(loop,), name=self._name, daemon=True
                )
                self._thread.start()
            return self._loop


def _serve(loop: asyncio.AbstractEventLoop) -> None:
    asyncio.set_event_loop(loop)
    try:
        loop.run_forever()
        left = asyncio.all_tasks(loop)
        for task in left:
            task.cancel()
        loop.run_until_complete(asyncio.gather(*left, return_exceptions=True))
        loop.run_until_complete(loop.shutdown_asyncgens())
        loop.run_until_complete(loop.shutdown_default_executor())
    finally:
        loop.close()
