"""Layered files of embedded sandboxes: forks share the lower layers and write to their own."""

from __future__ import annotations

import contextlib
import secrets
import subprocess
import threading
from typing import TYPE_CHECKING

from trajgym.envs.sandbox._folders import copy_folder, disk_use, remove_folder
from trajgym.envs.sandbox.embedded._remount import MountSpace

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from trajgym.envs.sandbox.embedded._files import Files
    from trajgym.envs.sandbox.embedded._mounts import MountThread
    from trajgym.envs.sandbox.embedded._plan import Layout

__all__ = ["Layers", "SandboxFiles", "freeze_under"]

DEPTH = 48
"""Most layers under one sandbox; more are copied into one. The kernel allows some hundreds."""


class Layers:
    """Frozen layers of one provider, with their reference counts. Everything here blocks.

    Args:
        folder: where they are kept.
        mounts: where they are mounted.
    """

    def __init__(self, folder: Path, mounts: MountThread) -> None:
        self.folder = folder
        self.mounts = mounts
        self._holders: dict[str, int] = {}
        self._sizes: dict[str, int] = {}
        self._works: bool | None = None
        self._lock = threading.Lock()

    def usable(self) -> bool:
        """Whether this kernel and file system support stacked layers; tried once, in the thread."""
        if self._works is None:
            self._works = self.mounts.private and self._try()
        return self._works

    def _try(self) -> bool:
        name = f"try-{secrets.token_hex(4)}"
        base = self.folder / name
        try:
            for part in ("lower", "top", "merged-work", "merged"):
                (base / part).mkdir(parents=True)
            self.mounts.overlay(self.folder, [f"{name}/lower"], base)
            self.mounts.unmount(base / "merged")
        except OSError:
            return False
        finally:
            remove_folder(base)
        return True

    def add(self, files: Path) -> str:
        """Turn a directory into a layer with a new name; it is read-only from now on."""
        name = secrets.token_hex(4)
        self.folder.mkdir(mode=0o700, exist_ok=True)
        files.rename(self.folder / name)
        return name

    def hold(self, names: Sequence[str]) -> None:
        """Record that a sandbox or a snapshot uses these."""
        with self._lock:
            for name in names:
                self._holders[name] = self._holders.get(name, 0) + 1

    def release(self, names: Sequence[str]) -> None:
        """Delete layers that are no longer used."""
        free = []
        with self._lock:
            for name in names:
                if name not in self._holders:
                    continue
                self._holders[name] -= 1
                if not self._holders[name]:
                    del self._holders[name]
                    self._sizes.pop(name, None)
                    free.append(name)
        for name in free:
            remove_folder(self.folder / name)

    def have(self, names: Sequence[str]) -> bool:
        """Return whether all of these exist."""
        return all((self.folder / name).is_dir() for name in names)

    def size(self, names: Sequence[str]) -> int:
        """Return the bytes of frozen files."""
        total = 0
        for name in names:
            size = self._sizes.get(name)
            if size is None:
                size = self._sizes[name] = disk_use(self.folder / name)
            total += size
        return total


def freeze_under(files: SandboxFiles, pids: Sequence[int]) -> tuple[str, ...] | None:
    """Freeze files while idle shells have them mounted, and remount the new ones for those.

    Call it in the mount thread.

    Args:
        files: what they have mounted.
        pids: pids of the processes that made the shells' namespaces.

    Returns:
        The layers' names; None if a process may still write; then nothing was done.

    Raises:
        OSError: the kernel refused.
    """
    places, before = tuple(files.layout.writable), files.layout
    spaces: list[MountSpace] = []
    forbidden: list[MountSpace] = []
    try:
        try:
            for pid in pids:
                spaces.append(MountSpace(pid))
                spaces[-1].forbid(places)
                forbidden.append(spaces[-1])
        except OSError:
            for space in forbidden:
                space.allow(places)
            return None
        names = files.freeze()
        for space in spaces:
            try:
                if files.layout is before:
                    space.allow(places)
                else:
                    space.replace(files.layout.writable)
            except OSError:
                space.kill()  # or it would continue with files that are no longer visible
    finally:
        for space in spaces:
            space.close()
    return names


class SandboxFiles:
    """The files of one sandbox: one directory, or a top over frozen layers. Everything blocks.

    Args:
        files: creates the directories.
        layers: layers of the provider.
        layout: what commands see first.
        names: the layers under it, the newest first; none for a plain directory.
    """

    def __init__(
        self, files: Files, layers: Layers, layout: Layout, names: Sequence[str] = ()
    ) -> None:
        self.layout = layout
        self.names = tuple(names)
        self._files = files
        self._layers = layers
        self._folder = files.folder
        self._mounted: list[str] = []
        self._count = 0

    @classmethod
    def over(cls, files: Files, layers: Layers, names: Sequence[str]) -> SandboxFiles:
        """Return files that start with the content of frozen layers; call it in the mount thread.

        Raises:
            OSError: the kernel refused.
        """
        layers.hold(names)
        try:
            files.new_top([layers.folder / name for name in names])
            made = cls(files, layers, files.stacked("merged-0"), names)
            made._mount()
        except BaseException:
            layers.release(names)
            raise
        return made

    def _mount(self) -> None:
        place = f"merged-{self._count}"
        self._count += 1
        for part in ("top", place, f"{place}-work"):
            (self._folder / part).mkdir(exist_ok=True)
        self._layers.mounts.overlay(self._layers.folder, self.names, self._folder, place=place)
        self._mounted.append(place)
        self.layout = self._files.stacked(place)

    def freeze(self) -> tuple[str, ...]:
        """Freeze all files as layers and continue above them; call it in the mount thread.

        No process may run inside during the call, and later commands must use the new layout.

        Raises:
            OSError: the kernel refused.
        """
        top = self._folder / ("top" if self.names else "files")
        if self.names and not any(top.iterdir()):
            return self.names
        name = self._layers.add(top)
        self._layers.hold([name])
        self.names = (name, *self.names)
        self._files.new_top([self._layers.folder / each for each in self.names])
        self._mount()
        if len(self.names) > DEPTH:
            self._rebase()
        return self.names

    def _rebase(self) -> None:
        """Copy all layers into one."""
        copied = self._folder / "rebased"
        copy_folder(self._folder / self._mounted[-1], copied)
        old, self.names = self.names, (self._layers.add(copied),)
        self._layers.hold(self.names)
        self._mount()
        self._layers.release(old)

    def copy(self, target: Path) -> None:
        """Copy the files that commands see; call it in the mount thread.

        Raises:
            OSError: something could not be read or written.
        """
        try:
            copy_folder(self._folder / (self._mounted[-1] if self.names else "files"), target)
        except subprocess.SubprocessError as error:
            raise OSError(f"the copy did not end: {error}") from error

    def use(self) -> int:
        """Return the bytes that it takes, including what it shares with others."""
        if not self.names:
            return disk_use(self._folder / "files")
        return disk_use(self._folder / "top") + self._layers.size(self.names)

    def tidy(self) -> None:
        """Unmount what was mounted before the last freeze; call it in the mount thread.

        This is slow while processes that used the mounts are exiting; callers don't wait for it.
        """
        self._unmount(self._mounted[:-1])

    def unmount(self) -> None:
        """Unmount everything; call it in the mount thread, before :meth:`remove`."""
        self._unmount(self._mounted[:])

    def _unmount(self, places: list[str]) -> None:
        for place in places:
            self._mounted.remove(place)
            with contextlib.suppress(OSError):
                self._layers.mounts.unmount(self._folder / place)

    def remove(self) -> None:
        """Delete everything; slow for many files."""
        remove_folder(self._folder)
        self._layers.release(self.names)
        self.names = ()
