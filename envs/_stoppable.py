"""Await user code, and abandon it if it ignores its cancellation for a grace period."""

from __future__ import annotations

import asyncio
import logging
from types import CoroutineType
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from trajgym.envs._groups import LeftRequests
from trajgym.envs._own_tasks import step

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine

__all__ = ["CANCEL_SECONDS", "stoppable"]

_T = TypeVar("_T")
_log = logging.getLogger(__name__)

CANCEL_SECONDS = 30.0
"""Default time (s) that cancelled code has to clean up."""


async def stoppable(
    call: Awaitable[_T],
    what: str,
    *,
    seconds: float = CANCEL_SECONDS,
    on_abandoned: Callable[[str], object] | None = None,
) -> _T:
    """Await code that must end soon after it is cancelled.

    The code runs in the current task, and cancelling the task cancels it as usual. If it is still
    running ``seconds`` later, it is closed without being resumed, an error is logged, and the
    cancellation continues. Tasks that the code created are not affected: a task that ignores its
    cancellation can't be ended, and ``asyncio.run`` waits for it.

    Args:
        call: the awaitable.
        what: name of the code, for messages.
        seconds: time that it has to clean up after it is cancelled.
        on_abandoned: called with a description when the code is abandoned.

    Raises:
        asyncio.CancelledError: the task was cancelled, and the code ended or was abandoned.
    """
    coroutine = call if isinstance(call, CoroutineType) else _awaiting(call)
    try:
        waits_for = step(coroutine.send, None)
    except StopIteration as ended:  # most calls never suspend
        result: _T = ended.value
        return result
    rest: _Suspended[_T] = _Suspended(coroutine, what, seconds, on_abandoned)
    return await rest.finish(waits_for)


async def _awaiting(call: Awaitable[_T]) -> _T:
    return await call


class _Suspended(Generic[_T]):
    """A suspended coroutine, driven in the current task.

    It is driven step by step, because a coroutine, or a future that it awaits, may ignore the
    cancellation of the task. The task awaits a future of its own instead, which is always
    cancelled.
    """

    def __init__(
        self,
        coroutine: Coroutine[Any, Any, _T],
        what: str,
        seconds: float,
        on_abandoned: Callable[[str], object] | None,
    ) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._task = task
        self._cancels = task.cancelling()
        self._coroutine = coroutine
        self._left = LeftRequests(task, coroutine)
        self._what = what
        self._seconds = seconds
        self._on_abandoned = on_abandoned
        self._first: asyncio.CancelledError | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._gate: asyncio.Future[None] | None = None
        self._expired = False

    async def finish(self, waits_for: Any) -> _T:
        """Drive the coroutine until it ends or is abandoned."""
        try:
            while True:
                error = await self._wait(waits_for)
                if self._expired:
                    break
                try:
                    if error is None:
                        waits_for = step(self._coroutine.send, None)
                    else:
                        waits_for = step(self._coroutine.throw, error)
                except StopIteration as ended:
                    result: _T = ended.value
                    return result
                self._left.stepped()
                self._forget()
        except GeneratorExit:
            self._coroutine.close()
            raise
        finally:
            if self._timer is not None:
                self._timer.cancel()
        self._abandon(waits_for)
        assert self._first is not None
        raise self._first

    async def _wait(self, waits_for: Any) -> BaseException | None:
        """Wait for the object that the coroutine yielded; return the exception to throw, if any."""
        if waits_for is None:  # a bare yield, as in asyncio.sleep(0)
            try:
                await asyncio.sleep(0)
            except asyncio.CancelledError as error:
                self._note(error)
                return error
            return None
        if getattr(waits_for, "_asyncio_future_blocking", None) is not True:
            return RuntimeError(f"{self._what} awaited {waits_for!r}, which is not a future")
        waits_for._asyncio_future_blocking = False  # as asyncio.Task does for an awaited future
        waits_for.add_done_callback(self._open)
        try:
            while not waits_for.done() and not self._expired:
                self._gate = self._task.get_loop().create_future()
                try:
                    await self._gate
                except asyncio.CancelledError as error:
                    self._note(error)
                    # As in Task.cancel, the awaited object is cancelled first.
                    if not waits_for.cancel(*error.args[:1]):
                        return error
        finally:
            self._gate = None
            waits_for.remove_done_callback(self._open)
        return None

    def _open(self, _: object = None) -> None:
        if self._gate is not None and not self._gate.done():
            self._gate.set_result(None)

    def _note(self, error: asyncio.CancelledError) -> None:
        """Start the grace period, unless one is already running for an earlier cancellation."""
        self._left.withdraw()
        outstanding = self._task.cancelling() - self._cancels
        if outstanding > 1 and self._timer is not None:
            return
        if self._timer is not None:
            self._timer.cancel()
        self._first = error
        self._timer = self._task.get_loop().call_later(self._seconds, self._expire)

    def _forget(self) -> None:
        """End the grace period if the cancellation was the code's own, of a timeout inside it.

        Its timer could otherwise expire just after the next such timeout has cancelled the task,
        before the code is resumed.
        """
        if self._timer is not None and self._task.cancelling() <= self._cancels:
            self._timer.cancel()
            self._timer = None

    def _expire(self) -> None:
        self._timer = None
        if self._task.cancelling() > self._cancels:
            self._expired = True
            self._open()

    def _abandon(self, waits_for: Any) -> None:
        message = f"{self._what} ignored its cancellation for {self._seconds:g} s; it was abandoned"
        _log.error("%s", message)
        if isinstance(waits_for, asyncio.Future):
            waits_for.cancel()
        try:
            self._coroutine.close()
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # noqa: BLE001 - boundary: user code that is abandoned
            _log.error("%s raised %s when it was closed", self._what, type(error).__name__)
        if self._on_abandoned is not None:
            self._on_abandoned(message)
