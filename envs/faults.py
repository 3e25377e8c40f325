"""Call user code so that any exception that it raises ends only its own attempt.

For authors of loops: use :func:`contained` around every call of an environment, a policy or a
callback, :func:`stoppable` around what is awaited in it, and :func:`fault_of` for the exceptions.
"""

from __future__ import annotations

import asyncio
import threading
import traceback
from typing import TYPE_CHECKING, NamedTuple

from trajgym.envs._own_tasks import UserCodeExit
from trajgym.envs._stoppable import CANCEL_SECONDS, stoppable
from trajgym.trajectory import TrajgymError
from trajgym.trajectory._internal import replace_surrogates

if TYPE_CHECKING:
    from types import TracebackType

__all__ = [
    "CANCEL_SECONDS",
    "Fault",
    "UserCodeExit",
    "contained",
    "describe",
    "fault_of",
    "message_of",
    "stoppable",
    "traceback_of",
]

_CAUSE = 2_000
"""Largest number of characters of an exception's text."""
_TRACEBACK = 50_000
"""Largest number of characters of a traceback."""
_PART = 100
"""Largest number of characters of a part's name."""


class Fault(NamedTuple):
    """Why an attempt ends as ``failed:<part>``."""

    part: str
    cause: str
    error: str


class contained:  # noqa: N801 - used like a function
    """Context manager for calls of user code; raises only ``Exception`` and real cancellations.

    A ``CancelledError`` is real if the task was cancelled inside the block, by its owner or by a
    deadline; otherwise something that the code awaited was cancelled. If the code suppresses a real
    one, it is raised at the end of the block. ``KeyboardInterrupt`` is real on the main thread, on
    which Python raises it for Ctrl-C.

    Raises:
        UserCodeExit: in place of any other ``BaseException``.
    """

    __slots__ = ("_cancels", "_task")

    def __enter__(self) -> None:
        try:  # once a turn and more: no call of _current_task
            self._task = task = asyncio.current_task()
        except RuntimeError:
            self._task = task = None
        self._cancels = 0 if task is None else task.cancelling()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        task = self._task
        cancelled = task is not None and task.cancelling() > self._cancels
        if error is None or isinstance(error, Exception):
            if cancelled:
                raise asyncio.CancelledError from error
            return
        if isinstance(error, asyncio.CancelledError) and cancelled:
            return
        if not self._is_real(error):
            raise UserCodeExit(_exit_text(error)) from error

    def _is_real(self, error: BaseException) -> bool:
        if isinstance(error, KeyboardInterrupt):
            return threading.current_thread() is threading.main_thread()
        # Closing a coroutine raises GeneratorExit in it, after which it must not await. That
        # happens outside its task.
        return isinstance(error, GeneratorExit) and _current_task() is not self._task


def _current_task() -> asyncio.Task[object] | None:
    try:
        return asyncio.current_task()
    except RuntimeError:  # no running loop
        return None


def _exit_text(error: BaseException) -> str:
    if isinstance(error, asyncio.CancelledError):
        return "CancelledError: it awaited something that was cancelled; the session was not"
    return f"{describe(error)}: user code can't end the run"


def message_of(error: BaseException, limit: int | None = _CAUSE) -> str:
    """Return the text of an exception, bounded, even if its ``__str__`` fails.

    Args:
        error: any exception.
        limit: largest number of characters; None for the default.
    """
    limit = limit or _CAUSE
    try:
        text = str.__str__(str(error))
    except BaseException as failed:  # boundary: ``__str__`` is user code
        if isinstance(failed, KeyboardInterrupt):
            raise
        return f"<no text: __str__ raised {type(failed).__name__}>"
    if len(text) > limit:
        text = f"{text[:limit]}... ({len(text)} characters)"
    return replace_surrogates(text)


def describe(error: BaseException) -> str:
    """Return type and text of an exception, bounded."""
    text = message_of(error)
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def traceback_of(error: BaseException) -> str:
    """Return the formatted traceback, bounded to its start and end."""
    try:
        if _is_large(error):
            text = "".join(traceback.format_tb(error.__traceback__)) + describe(error)
        else:
            text = "".join(traceback.format_exception(error))
    except BaseException as failed:  # boundary: formatting calls ``__str__``, user code
        if isinstance(failed, KeyboardInterrupt):
            raise
        text = "".join(traceback.format_tb(error.__traceback__)) + describe(error)
    if len(text) > _TRACEBACK:
        half = _TRACEBACK // 2
        text = (
            f"{text[:half]}\n[... {len(text) - 2 * half} characters left out ...]\n{text[-half:]}"
        )
    return replace_surrogates(text)


def _is_large(error: BaseException) -> bool:
    """Return whether formatting an exception, with its causes, could block the event loop."""
    left, found = _TRACEBACK, [error]
    seen: set[int] = set()
    while found and left > 0:
        one = found.pop()
        if id(one) in seen:
            continue
        seen.add(id(one))
        notes = getattr(one, "__notes__", None) or ()
        left -= 100 + len(str(one)) + sum(len(str(note)) for note in notes)
        found += [other for other in (one.__cause__, one.__context__) if other is not None]
        if isinstance(one, BaseExceptionGroup):
            found += one.exceptions
    return left <= 0


def fault_of(error: BaseException, part: str = "env") -> Fault:
    """Return the fault of an exception: of the part that it names, or of ``part``."""
    # Sandbox and policy errors have a ``part`` attribute, so they need not be imported here.
    own = getattr(error, "part", None) if isinstance(error, TrajgymError) else None
    if isinstance(error, UserCodeExit):
        return Fault(part, message_of(error), traceback_of(error))
    if not isinstance(own, str) or not own:
        return Fault(part, describe(error), traceback_of(error))
    return Fault(own[:_PART], message_of(error) or type(error).__name__, traceback_of(error))
