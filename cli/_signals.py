"""Signals that end a command."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from types import FrameType

__all__ = ["ENDINGS", "end_like_ctrl_c"]

ENDINGS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""Sent by Ctrl-C, by ``timeout`` and schedulers, and by a terminal that is closed."""


def end_like_ctrl_c() -> None:
    """Let SIGTERM and SIGHUP end this process as Ctrl-C does, after cleaning up.

    A signal that is ignored stays ignored, as SIGHUP is under ``nohup`` and SIGINT in a script's
    background jobs; SIGTERM ends those as well.
    """
    if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
        # asyncio.run cancels its main task on SIGINT only where Python's own handler is installed.
        # A blocked signal has no effect either, and can have that handler.
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
        signal.signal(signal.SIGINT, signal.default_int_handler)
    for number in ENDINGS[1:]:
        if signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, _interrupt)


def _interrupt(number: int, frame: FrameType | None) -> None:
    del number
    handler = signal.getsignal(signal.SIGINT)  # Python's own, or the one of asyncio.run
    if callable(handler):
        handler(signal.SIGINT, frame)
