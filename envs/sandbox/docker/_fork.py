"""Changes in a container's files, read from its layer where the engine is on this host.

The engine can list changes too, but compares whole images for it: seconds instead of milliseconds.
"""

from __future__ import annotations

import asyncio
import contextlib
import io
import os
import secrets
import stat
import subprocess
import tarfile
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from trajgym.envs._threads import finish_despite_cancel
from trajgym.envs.sandbox._errors import SandboxDied, SandboxError
from trajgym.envs.sandbox._folders import copy_folder

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Mapping

    from trajgym.envs.sandbox.docker._sandbox import DockerSandbox

__all__ = ["ChangeSet", "NotCarried", "Stage", "apply_changes", "layer_of", "staged"]

MAX_ENTRIES = 20_000
MAX_BYTES = 256 << 20
MAX_ARGUMENTS = 100_000
TAR_SECONDS = 120.0
PAUSE_DELAYS = (0.05, 0.2, 0.8, 2.0)
# Files that the engine itself creates in every container.
ENGINE_FILES = frozenset({"/.dockerenv", "/dev", "/etc/hostname", "/etc/hosts", "/etc/mtab",
                          "/etc/resolv.conf", "/proc", "/sys", "/dev/console", "/dev/pts",
                          "/dev/shm"})  # fmt: skip  # noqa: S108


class NotCarried(Exception):
    """These changes can't be copied as an archive; the message gives the reason."""


class ChangeSet(NamedTuple):
    """The differences between a container's files and its image's."""

    gone: frozenset[str]
    """Paths to remove; a path may be in ``there`` as well if it was created again."""
    there: dict[str, tuple[int, int]]
    """Type with permissions, and size, of every new or changed path."""
    archive: bytes
    """A tar of all paths in ``there``."""


class Stage:
    """A copy, on this host, of a container's layer at one moment.

    Args:
        layer: the copy, including whiteouts.
        seen: the layer that was copied, as it was found before.
    """

    def __init__(self, layer: Path, seen: ChangeSet) -> None:
        self._layer = layer
        self._seen = seen
        self._lock = threading.RLock()
        self._starts = 0
        self._packs = False
        self._packed: ChangeSet | None = None

    def expect(self, *, starts: int, packs: bool) -> None:
        """Prepare it for its uses.

        Args:
            starts: how many containers it will be the layer of; the last one gets the files
                themselves.
            packs: whether the changes are also needed as an archive.
        """
        self._starts, self._packs = starts, packs

    def changes(self) -> ChangeSet:
        """Return the layer as an archive, for containers that are running. Blocks.

        Raises:
            NotCarried: it can't be packed.
        """
        with self._lock:
            self._packed = self._packed or _read(self._layer, pack=True)
            return self._packed

    def lay(self, upper: Path) -> None:
        """Make it the layer of a container of the same image that has not run yet. Blocks.

        Raises:
            NotCarried: it can't be written, or the result differs.
        """
        with self._lock:
            if self._packs:
                self.changes()
            self._starts -= 1
            try:
                if self._starts or not _move(self._layer, upper):
                    copy_folder(self._layer, upper)
            except (OSError, subprocess.SubprocessError) as error:
                raise NotCarried(f"{upper} can't be written: {error}") from error
        _compare(_read(upper, pack=False), self._seen)


def _move(layer: Path, upper: Path) -> bool:
    """Replace an empty directory by another, if possible."""
    try:
        upper.rmdir()
        layer.rename(upper)
    except OSError:
        upper.mkdir(exist_ok=True)
        return False
    return True


@contextlib.asynccontextmanager
async def staged(sandbox: DockerSandbox) -> AsyncIterator[Stage]:
    """Copy a layer; the container is paused while its files are copied.

    Raises:
        NotCarried: there are too many changes, or the engine's files are not readable here.
        SandboxDied: the sandbox is gone.
    """
    upper = await _layer(sandbox)
    # Beside the layer itself: the same file system, and removed by the engine with the container.
    layer = upper.parent / f"trajgym-{secrets.token_hex(8)}"
    copied: asyncio.Future[ChangeSet] = asyncio.get_running_loop().create_future()
    copying = asyncio.create_task(_copy_paused(sandbox, upper, layer, copied))
    try:
        either: set[asyncio.Future[Any]] = {copying, copied}
        await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        if copying.done():
            copying.result()
        yield Stage(layer, copied.result())
    finally:
        await finish_despite_cancel(_finish(copying))
        sandbox.clear_later(layer)


async def _copy_paused(
    sandbox: DockerSandbox, upper: Path, layer: Path, copied: asyncio.Future[ChangeSet]
) -> None:
    async with sandbox.shell_pool.gate.shut():
        await _insist(sandbox, lambda api: api.pause(sandbox.container))
        try:
            # Callers continue while the container is unpaused.
            copied.set_result(await asyncio.to_thread(_copy, upper, layer))
        finally:
            await _insist(sandbox, lambda api: api.unpause(sandbox.container))


async def _insist(sandbox: DockerSandbox, work: Callable[[Any], object]) -> None:
    """Retry if the engine refuses: on a busy host, a control group may not freeze immediately."""
    for delay in PAUSE_DELAYS:
        try:
            await sandbox.shell_pool.call(work)
        except SandboxDied:
            raise
        except SandboxError:
            await asyncio.sleep(delay)
        else:
            return
    await sandbox.shell_pool.call(work)


async def _finish(copying: asyncio.Task[None]) -> None:
    with contextlib.suppress(SandboxError, NotCarried):  # reported already, or by the next command
        await copying


def _copy(upper: Path, layer: Path) -> ChangeSet:
    seen = _read(upper, pack=False)  # raises if it is too much
    try:
        copy_folder(upper, layer)
    except (OSError, subprocess.SubprocessError) as error:
        raise NotCarried(f"{upper} can't be copied to {layer}: {error}") from error
    return seen


async def apply_changes(sandbox: DockerSandbox, changes: ChangeSet) -> None:
    """Apply a change set to a sandbox of the same image, and check the result.

    Raises:
        NotCarried: the result differs.
        SandboxDied: the sandbox is gone.
    """
    upper = await _layer(sandbox)
    before = await asyncio.to_thread(_read, upper, pack=False)
    doomed = changes.gone | (before.there.keys() - changes.there.keys())
    tops = [path for path in sorted(doomed) if not _under(path, doomed)]
    if tops:
        await _remove(sandbox, tops)
    if changes.archive:
        await sandbox.shell_pool.call(
            lambda api: api.put_archive(sandbox.container, "/", changes.archive)
        )
    after = await asyncio.to_thread(_read, upper, pack=False)
    _compare(after._replace(gone=changes.gone), changes)


def _compare(made: ChangeSet, wanted: ChangeSet) -> None:
    odd = made.there.items() ^ wanted.there.items()
    if odd or made.gone != wanted.gone:
        raise NotCarried(f"the copy differs: {sorted(odd)[:5]}")


def _under(path: str, others: frozenset[str]) -> bool:
    return any(str(parent) in others for parent in Path(path).parents)


async def _layer(sandbox: DockerSandbox) -> Path:
    return layer_of(await sandbox.description())


def layer_of(seen: Mapping[str, Any]) -> Path:
    """Return where the engine keeps the files that a container has written.

    Args:
        seen: what the engine reports about the container.

    Raises:
        NotCarried: it is not readable from here.
    """
    driver = seen.get("GraphDriver") or {}
    upper = Path((driver.get("Data") or {}).get("UpperDir") or "/nonexistent")
    if driver.get("Name") != "overlay2" or not os.access(upper, os.R_OK | os.X_OK):
        raise NotCarried(f"the engine's files ({driver.get('Name')}) can't be read from here")
    return upper


async def _remove(sandbox: DockerSandbox, paths: list[str]) -> None:
    if sum(map(len, paths)) > MAX_ARGUMENTS:
        raise NotCarried("too many paths were removed")
    words = ["rm", "-rf", "--", *paths]
    done = await sandbox.helper(words, stdin=b"", limit=4096, timeout=TAR_SECONDS)
    if not done.ok:
        raise NotCarried(f"rm: {done.stderr.decode(errors='replace').strip()[-300:]}")


def _read(upper: Path, *, pack: bool) -> ChangeSet:
    """Walk a layer; if it is packed, it must not change during the call. Blocks."""
    try:
        return _scan(upper, pack=pack)
    except OSError as error:
        raise NotCarried(f"{upper} can't be read: {error}") from error


def _scan(upper: Path, *, pack: bool) -> ChangeSet:
    gone: set[str] = set()
    there: dict[str, tuple[int, int]] = {}
    buffer = io.BytesIO()
    top = len(str(upper))
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT) as archive:
        waiting = [str(upper)]
        while waiting:
            for entry in _entries(waiting.pop(), ordered=pack):
                path = entry.path[top:]
                if path in ENGINE_FILES:
                    continue
                status = entry.stat(follow_symlinks=False)
                mode, size = status.st_mode, 0
                kind = stat.S_IFMT(mode)
                if kind == stat.S_IFREG:
                    size = status.st_size
                elif kind == stat.S_IFDIR:
                    waiting.append(entry.path)
                    if _is_opaque(entry.path):
                        gone.add(path)
                elif kind == stat.S_IFSOCK:
                    continue  # of no use without its process
                elif kind == stat.S_IFCHR and status.st_rdev == 0:
                    gone.add(path)
                    continue
                there[path] = (mode, size)
                if len(there) > MAX_ENTRIES:
                    raise NotCarried(f"more than {MAX_ENTRIES} paths changed")
                if pack:
                    archive.add(entry.path, path.lstrip("/"), recursive=False)
                if buffer.tell() > MAX_BYTES:
                    raise NotCarried(f"more than {MAX_BYTES} bytes changed")
    data = buffer.getvalue() if pack and there else b""
    return ChangeSet(frozenset(gone), there, data)


def _entries(folder: str, *, ordered: bool) -> list[os.DirEntry[str]]:
    with os.scandir(folder) as found:
        return sorted(found, key=lambda entry: entry.name) if ordered else list(found)


def _is_opaque(path: str) -> bool:
    try:
        return os.getxattr(path, "trusted.overlay.opaque", follow_symlinks=False) == b"y"
    except OSError:
        return False
