"""Replace the directories of an idle shell, in its own mount namespace.

A fork freezes the files written so far. A shell that continues still has the old directories
mounted, which must no longer change: they are made read-only, which the kernel refuses while a
file there is open for writing, and are then replaced by the new ones. All functions block, and are
called in the thread of :class:`MountThread`.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

__all__ = ["MountSpace"]

# Older C libraries have no names for these system calls; the numbers are the same on every
# architecture.
OPEN_TREE, MOVE_MOUNT, MOUNT_SETATTR = 428, 429, 442
AT_FDCWD = -100
AT_EMPTY_PATH = 0x1000
OPEN_TREE_CLONE = 1
MOVE_MOUNT_F_EMPTY_PATH = 4
READ_ONLY, NO_SETUID, NO_DEVICES = 1, 2, 4
CLONE_NEWNS = 0x20000
MNT_DETACH = 2

_libc = ctypes.CDLL(None, use_errno=True)


class _Attributes(ctypes.Structure):
    _fields_ = (
        ("set", ctypes.c_uint64),
        ("clear", ctypes.c_uint64),
        ("propagation", ctypes.c_uint64),
        ("user_namespace", ctypes.c_uint64),
    )


class MountSpace:
    """The mount namespace of a sandbox's process.

    Args:
        outer: pid of the process that created it; its first child is inside.

    Raises:
        OSError: the process has exited, or has no namespace of its own.
    """

    def __init__(self, outer: int) -> None:
        self._outer = outer
        children = Path(f"/proc/{outer}/task/{outer}/children").read_text().split()
        if not children:
            raise ProcessLookupError(f"process {outer} has no child")
        self._handle = os.open(f"/proc/{children[0]}/ns/mnt", os.O_RDONLY | os.O_CLOEXEC)
        ours = [Path(f"/proc/{who}/ns/mnt").stat().st_ino for who in ("thread-self", "self")]
        if os.fstat(self._handle).st_ino in ours:
            self.close()
            raise ProcessLookupError(f"process {children[0]} has no namespace of its own")

    def forbid(self, places: Iterable[str]) -> None:
        """Make the mounts at these paths inside read-only.

        Raises:
            OSError: a file is open for writing there, or the kernel refused; nothing is changed.
        """
        done: list[str] = []
        with self._visiting():
            try:
                for place in places:
                    _set_attributes(AT_FDCWD, place, set_=READ_ONLY)
                    done.append(place)
            except OSError:
                _allow(done)
                raise

    def allow(self, places: Iterable[str]) -> None:
        """Undo :meth:`forbid`."""
        with self._visiting():
            _allow(places)

    def replace(self, folders: Mapping[str, Path]) -> None:
        """Mount other directories in place of the current ones.

        Args:
            folders: ``{path inside: directory on the host}``.

        Raises:
            OSError: the kernel refused; some may have been replaced.
        """
        trees: dict[str, int] = {}
        try:
            for place, folder in folders.items():
                trees[place] = _open_tree(folder)
            with self._visiting():
                for place, tree in trees.items():
                    name = os.fsencode(place)
                    _check(_libc.umount2(name, MNT_DETACH), f"unmounting {place}")
                    flags = MOVE_MOUNT_F_EMPTY_PATH
                    moved = _libc.syscall(MOVE_MOUNT, tree, b"", AT_FDCWD, name, flags)
                    _check(moved, f"mounting {place}")
        finally:
            for tree in trees.values():
                os.close(tree)

    def kill(self) -> None:
        """Kill the process that created it, and with it everything inside."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self._outer, signal.SIGKILL)

    def close(self) -> None:
        """Release it."""
        os.close(self._handle)

    @contextlib.contextmanager
    def _visiting(self) -> Iterator[None]:
        own = os.open("/proc/thread-self/ns/mnt", os.O_RDONLY | os.O_CLOEXEC)
        root = os.open("/", os.O_PATH | os.O_CLOEXEC)
        try:
            _check(_libc.setns(self._handle, CLONE_NEWNS), "entering the mount namespace")
            try:
                yield
            finally:
                _check(_libc.setns(own, CLONE_NEWNS), "leaving the mount namespace")
                # The kernel has set this thread's root to the namespace's, which may differ.
                os.fchdir(root)
                os.chroot(".")
        finally:
            os.close(root)
            os.close(own)


def _allow(places: Iterable[str]) -> None:
    for place in places:
        with contextlib.suppress(OSError):
            _set_attributes(AT_FDCWD, place, clear=READ_ONLY)


def _open_tree(folder: Path) -> int:
    flags = OPEN_TREE_CLONE | os.O_CLOEXEC
    tree = _libc.syscall(OPEN_TREE, AT_FDCWD, os.fsencode(folder), flags)
    _check(min(tree, 0), f"{folder}")
    try:
        _set_attributes(tree, "", set_=NO_SETUID | NO_DEVICES)
    except OSError:
        os.close(tree)
        raise
    return int(tree)


def _set_attributes(handle: int, place: str, *, set_: int = 0, clear: int = 0) -> None:
    attributes = _Attributes(set_, clear, 0, 0)
    flags = 0 if place else AT_EMPTY_PATH
    size = ctypes.sizeof(attributes)
    name = os.fsencode(place)
    done = _libc.syscall(MOUNT_SETATTR, handle, name, flags, ctypes.byref(attributes), size)
    _check(done, f"attributes of {place or 'a mount'}")


def _check(result: int, what: str) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")
