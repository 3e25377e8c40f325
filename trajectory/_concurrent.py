"""Errors of code that runs concurrently."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["first_error"]


@contextmanager
def first_error() -> Iterator[None]:
    """Raise the first exception of a task group in the block, instead of an exception group.

    It keeps its own cause and context. The exceptions of the other tasks become notes of it.
    """
    try:
        yield
    except BaseExceptionGroup as group:
        first, *others = _leaves(group)
        for other in others:
            first.add_note(f"At the same time another task failed: {_shown(other)}")
        context, suppressed = first.__context__, first.__suppress_context__
        try:
            raise first
        finally:
            # Raising set the context to the group, and so would hide what the exception is due to.
            first.__context__, first.__suppress_context__ = context, suppressed


def _leaves(group: BaseExceptionGroup[BaseException]) -> Iterator[BaseException]:
    for error in group.exceptions:
        if isinstance(error, BaseExceptionGroup):
            yield from _leaves(error)
        else:
            yield error


def _shown(error: BaseException) -> str:
    try:
        return repr(error)
    except Exception:  # noqa: BLE001 - boundary: the exceptions of user code
        return type(error).__name__
