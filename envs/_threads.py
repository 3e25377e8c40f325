"""Running plain (not async) environment code in threads, and clean-up despite cancellation."""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import threading
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, TypeVar

from trajgym.envs._stoppable import CANCEL_SECONDS, stoppable
from trajgym.envs.faults import contained

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

__all__ = ["Worker", "finish_despite_cancel", "inline"]


_INLINE = "__trajgym_inline__"
_F = TypeVar("_F", bound="Callable[..., Any]")
_T = TypeVar("_T")


def inline(function: _F) -> _F:
    """Mark a plain method that does not block, so that it is called without a thread."""
    setattr(function, _INLINE, True)
    return function


class Worker:
    """One daemon thread for the plain methods of one environment.

    All of them run in the same thread, for libraries that are bound to a thread. A call that hangs
    can't be killed: the caller continues after cancellation, the thread is abandoned, and the next
    call gets a new one. Hung environments therefore can't exhaust a shared pool. Async methods run
    in the caller's task; one that ignores its cancellation is abandoned.

    Args:
        name: name of the thread.
        cancel_seconds: in which an async method has to end once it is cancelled.
        on_abandoned: called with a description when an async method was abandoned.
    """

    def __init__(
        self,
        name: str,
        *,
        cancel_seconds: float = CANCEL_SECONDS,
        on_abandoned: Callable[[str], object] | None = None,
    ) -> None:
        self._cancel_seconds = cancel_seconds
        self._on_abandoned = on_abandoned
        self._name = name
        self._queue: SimpleQueue[Callable[[], None] | None] | None = None
        self._busy = False

    async def call(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Await an async function; run a plain one in the thread and await its result.

        Raises:
            UserCodeExit: see :class:`trajgym.envs.faults.contained`.
        """
        with contained():
            if getattr(function, _INLINE, False):
                return function(*args, **kwargs)
            if not _is_coroutine_function(function):
                result = await self._submit(function, args, kwargs)
                if not inspect.isawaitable(result):
                    return result
            else:
                result = function(*args, **kwargs)
            return await stoppable(
                result,
                _name_of(function),
                seconds=self._cancel_seconds,
                on_abandoned=self._on_abandoned,
            )

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
                with contained():
                    result = context.run(function, *args, **kwargs)
            except StopIteration as stop:  # a future can't raise StopIteration
                error = RuntimeError(f"{_name_of(function)} raised StopIteration: {stop}")
            except BaseException as caught:  # noqa: BLE001 - boundary: it travels to the waiter
                error = caught
            try:
                loop.call_soon_threadsafe(settle, result, error)
            except RuntimeError:  # the loop has ended, and the waiter with it
                return

        queue.put(work)
        return future

    def stop(self) -> None:
        """End the thread after its current call."""
        if self._queue is not None:
            self._queue.put(None)
            self._queue = None


def _name_of(function: Callable[..., Any]) -> str:
    name: str = getattr(function, "__qualname__", type(function).__name__)
    return name


def _is_coroutine_function(function: Callable[..., Any]) -> bool:
    # Once a turn: methods have their function's code, and looking at its flags takes a tenth of
    # the time of inspect's answer.
    code = getattr(function, "__code__", None)
    if code is not None and code.co_flags & inspect.CO_COROUTINE:
        return True
    return inspect.iscoroutinefunction(function)


def _serve(queue: SimpleQueue[Callable[[], None] | None]) -> None:
    while (work := queue.get()) is not None:
        work()


async def finish_despite_cancel(work: Awaitable[_T], seconds: float | None = None) -> _T:
    """Wait for clean-up even if this task is cancelled; then raise the cancellation.

    Args:
        work: the clean-up, which runs in its own task.
        seconds: its deadline; None if it has its own.

    Raises:
        TimeoutError: the work did not end within ``seconds``; it was cancelled.
        asyncio.CancelledError: the caller was cancelled while the work ran; the work has ended.
    """
    task = asyncio.ensure_future(work if seconds is None else asyncio.wait_for(work, seconds))
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.wait([task])
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is not None:
        if not task.cancelled():
            task.exception()  # retrieved: the caller gets the cancellation instead
        raise cancelled
    return task.result()
