"""Tasks that user code creates: a ``SystemExit`` fails the task, and does not end the loop."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from trajgym.trajectory import TrajgymError

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["UserCodeExit", "step"]

_T = TypeVar("_T")


class UserCodeExit(TrajgymError):
    """User code raised an exception that would have ended more than its own attempt.

    ``__cause__`` is that exception: ``SystemExit``, ``GeneratorExit``, another ``BaseException``,
    or a ``CancelledError`` although the task was not cancelled.
    """


def step(resume: Callable[..., _T], *arguments: Any) -> _T:
    """Resume a coroutine of user code, so that the tasks that it creates meanwhile are contained.

    asyncio ends the event loop if a task raises ``SystemExit``. In these tasks, and in those that
    they create, it becomes a :class:`UserCodeExit`, which whoever awaits the task gets.
    """
    loop = asyncio.get_running_loop()
    before = loop.get_task_factory()
    if isinstance(before, partial) and before.func is _made:
        return resume(*arguments)
    loop.set_task_factory(partial(_made, before))
    try:
        return resume(*arguments)
    finally:
        loop.set_task_factory(before)


def _made(before: Any, loop: asyncio.AbstractEventLoop, work: Any, **options: Any) -> Any:
    contained = _Contained(work)
    if before is None:
        return asyncio.Task(contained, loop=loop, **options)
    return before(loop, contained, **options)


class _Contained(Coroutine[Any, Any, Any]):
    """A coroutine that raises :class:`UserCodeExit` in place of ``SystemExit``.

    It delegates to the coroutine without a frame of its own: one that is cancelled before it began
    is closed, and inspecting the task shows the coroutine.
    """

    __slots__ = ("_coroutine",)

    def __init__(self, coroutine: Coroutine[Any, Any, Any]) -> None:
        self._coroutine = coroutine

    def __getattr__(self, name: str) -> Any:
        return getattr(self._coroutine, name)

    def __await__(self) -> Any:
        return self._coroutine.__await__()

    def send(self, value: Any) -> Any:
        return self._step(self._coroutine.send, value)

    def throw(self, *error: Any) -> Any:
        return self._step(self._coroutine.throw, *error)

    def close(self) -> None:
        self._coroutine.close()

    def _step(self, resume: Callable[..., Any], *arguments: Any) -> Any:
        try:
            return step(resume, *arguments)
        except SystemExit as error:
            raise UserCodeExit(
                f"SystemExit: {error.code!r:.200}: user code can't end the run"
            ) from error
