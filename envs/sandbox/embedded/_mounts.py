"""A thread with a mount namespace of its own: only processes that it starts see its mounts.

When the thread ends, at the latest with this process, its mounts disappear and the processes that
it started are killed: nothing is left to unmount.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, ParamSpec, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

__all__ = ["MountThread"]

P = ParamSpec("P")
T = TypeVar("T")
CLONE_NEWNS = 0x20000
MS_REC, MS_SLAVE = 0x4000, 1 << 19
MNT_DETACH = 2
OPTIONS = "index=off,redirect_dir=off,metacopy=off,xino=off"


class MountThread:
    """The thread in which all work with mounts runs.

    Where this process is not permitted to create a namespace, the thread runs its work without one,
    and :attr:`private` is False.
    """

    def __init__(self) -> None:
        self.private = False
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._pool = ThreadPoolExecutor(1, "trajgym-mounts", initializer=self._begin)

    def _begin(self) -> None:
        if os.geteuid() != 0 or self._libc.unshare(CLONE_NEWNS) != 0:
            return
        # Mounts of the host still propagate here; those made here don't propagate to the host.
        self.private = self._libc.mount(None, b"/", None, MS_REC | MS_SLAVE, None) == 0

    async def call(self, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run ``work`` in the thread.

        Raises:
            RuntimeError: the thread was closed.
        """
        return await asyncio.wrap_future(self._pool.submit(work, *args, **kwargs))

    def overlay(
        self, base: Path, layers: Sequence[str], folder: Path, *, place: str = "merged"
    ) -> None:
        """Mount layers under ``folder``'s ``top`` at one of its directories; call it in the thread.

        Args:
            base: directory of the layers.
            layers: their names, the newest first.
            folder: has ``top`` and the empty directories ``place`` and ``place``-work.
            place: name of the directory.

        Raises:
            OSError: the kernel refused.
        """
        near = os.path.relpath(folder, base)
        lower = ":".join(layers)
        text = f"lowerdir={lower},upperdir={near}/top,workdir={near}/{place}-work,{OPTIONS}"
        if len(text) > 4000:
            raise OSError(f"{len(layers)} layers are too many for one mount")
        os.chdir(base)  # this thread's own directory: names stay short
        try:
            target = os.fsencode(folder / place)
            if self._libc.mount(b"overlay", target, b"overlay", 0, text.encode()) != 0:
                number = ctypes.get_errno()
                raise OSError(number, f"overlay mount at {folder}: {os.strerror(number)}")
        finally:
            os.chdir("/")

    def unmount(self, place: Path) -> None:
        """Unmount lazily: new processes no longer see it. Call this in the thread.

        Raises:
            OSError: nothing is mounted there.
        """
        if self._libc.umount2(os.fsencode(place), MNT_DETACH) != 0:
            number = ctypes.get_errno()
            raise OSError(number, f"{place}: {os.strerror(number)}")

    def close(self) -> None:
        """End the thread after the work that it was given."""
        self._pool.shutdown(wait=False)
