"""Plain (not async) environment code, run off the event loop."""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import threading
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

__all__ = ["Worker", "finish_despite_cancel", "inline"]


_INLINE = "__trajgym_inline__"
_F = TypeVar("_F", bound="Callable[..., Any]")


def inline(function: _F) -> _F:
    """Mark a plain method that does nothing slow: it needs no thread."""
    setattr(function, _INLINE, True)
    return function


class Worker:
    """One daemon thread for the plain methods of one environment.

    All of them run in the same thread, so that libraries that are bound to a thread work. A call
    that hangs can't be killed: the waiter goes on, the thread is left behind, and the next call
    gets a new one. Hung environments therefore never use up a shared pool.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._queue: SimpleQueue[Callable[[], None] | None] | None = None
        self._busy = False

    async def call(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Await an async function; run a plain one in the thread and await its result."""
        if getattr(function, _INLINE, False):
            return function(*args, **kwargs)
        if inspect.iscoroutinefunction(function):
            return await function(*args, **kwargs)
        result = await self._submit(function, args, kwargs)
        return await result if inspect.isawaitable(result) else result

    def _submit(
        self,
        function: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Awaitable[Any]:
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Any] = loop.create_future()
        context = contextvars.copy_context()
        if self._queue is None or self._busy:
            self._queue = SimpleQueue()
            self._busy = False
            threading.Thread(
                target=_serve,
                args=(self._queue,),
                name=self._name,
                daemon=True,
            ).start()
        queue = self._queue
        self._busy = True

        def settle(result: Any, error: BaseException | None) -> None:
            if self._queue is queue:
                self._busy = False
            if future.done():
                return
            if error is None:
                future.set_result(result)
            else:
                future.set_exception(error)

        def work() -> None:
            result: Any = None
            error: BaseException | None = None
            try:
                result = context.run(function, *args, **kwargs)
            except StopIteration as stop:  # a future can't carry it
                error = RuntimeError(f"{function!r} raised StopIteration: {stop}")
            except BaseException as caught:  # noqa: BLE001 - boundary: it travels to the waiter
                error = caught
            try:
                loop.call_soon_threadsafe(settle, result, error)
            except RuntimeError:  # the loop has ended: nobody waits any more
                return

        queue.put(work)
        return future

    def stop(self) -> None:
        """Let the thread end after the call it is in, if any."""
        if self._queue is not None:
            self._queue.put(None)
            self._queue = None


def _serve(queue: SimpleQueue[Callable[[], None] | None]) -> None:
    while (work := queue.get()) is not None:
        work()


async def finish_despite_cancel(work: Awaitable[Any], seconds: float) -> Any:
    """Wait for clean-up even if this task is cancelled meanwhile; then pass the cancellation on.

    Raises:
        TimeoutError: the work did not end within ``seconds``; it was cancelled.
    """
    task = asyncio.ensure_future(asyncio.wait_for(work, seconds))
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.wait([task])
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is not None:
        if not task.cancelled():
            task.exception()  # seen: the cancellation is what the caller must hear of
        raise cancelled
    return task.result()
