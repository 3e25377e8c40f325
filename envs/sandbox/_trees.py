"""Copies directories into and out of a sandbox as tar streams; links never point outside."""

from __future__ import annotations

import io
import os
import posixpath
import stat
import tarfile
from typing import TYPE_CHECKING, NamedTuple

from trajgym.envs.sandbox._errors import SandboxFileError

if TYPE_CHECKING:
    from pathlib import Path

    from trajgym.envs.sandbox._base import CommandResult

__all__ = ["LIST_FILES", "PACK", "UNPACK", "FileEntry", "pack", "read_listing", "unpack"]

UNPACK = 'mkdir -p -- "$1" && exec tar -x --no-same-owner -f - -C "$1"'
PACK = """\
if [ ! -e "$1" ]; then exit 61; fi
if [ ! -d "$1" ]; then exit 64; fi
cd -- "$1" && exec tar -c -f - .
"""
# Types and sizes first, then names: names may contain anything but NUL.
LIST_FILES = """\
if [ ! -e "$1" ]; then exit 61; fi
if [ ! -d "$1" ]; then exit 64; fi
cd -- "$1" || exit 65
set -- .[!.]* ..?* *
for f in "$@"; do
    shift
    if [ -e "$f" ] || [ -L "$f" ]; then set -- "$@" "$f"; fi
done
[ $# != 0 ] || exit 0
stat -c '%f %s' -- "$@" && printf '\\0' && printf '%s\\0' "$@"
"""
KINDS = {stat.S_IFREG: "file", stat.S_IFDIR: "directory", stat.S_IFLNK: "link"}


class FileEntry(NamedTuple):
    """One entry of a directory inside."""

    name: str
    kind: str
    """``file``, ``directory``, ``link`` or ``other``."""
    size: int
    mode: int
    """Permission bits."""


def read_listing(path: str, done: CommandResult) -> list[FileEntry]:
    """Parse what :data:`LIST_FILES` printed.

    Raises:
        SandboxFileError: it is malformed or too long.
    """
    if not done.stdout:
        return []
    numbers, _, rest = done.stdout.partition(b"\0")
    names = rest.split(b"\0")[:-1]
    lines = numbers.decode(errors="replace").splitlines()
    if done.dropped_stdout or len(lines) != len(names):
        raise SandboxFileError(f"can't list {path}: too many entries")
    found = []
    for line, name in zip(lines, names, strict=True):
        mode, size = line.split()
        bits = int(mode, 16)
        kind = KINDS.get(stat.S_IFMT(bits), "other")
        found.append(FileEntry(os.fsdecode(name), kind, int(size), stat.S_IMODE(bits)))
    return sorted(found)


def pack(source: Path, limit: int) -> bytes:
    """Make an archive of a directory on the host: files, directories, links as links. Blocks.

    Raises:
        SandboxFileError: it is not a directory, or larger than ``limit`` bytes.
    """
    if not source.is_dir():
        raise SandboxFileError(f"can't upload {source}: it is not a directory")
    buffer = io.BytesIO()

    def plain(entry: tarfile.TarInfo) -> tarfile.TarInfo | None:
        if buffer.tell() + entry.size > limit:
            raise SandboxFileError(f"can't upload {source}: more than {limit} bytes")
        if not (entry.isreg() or entry.isdir() or entry.issym() or entry.islnk()):
            return None
        entry.uid = entry.gid = 0
        entry.uname = entry.gname = ""
        entry.mode &= 0o755
        return entry

    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT) as archive:
        archive.add(source, ".", filter=plain)
    return buffer.getvalue()


def unpack(data: bytes, target: Path) -> list[str]:
    """Extract an archive that the agent may have made into a new directory on the host. Blocks.

    Returns:
        What was left out, as ``path: reason``: links that point outside, devices, sockets.

    Raises:
        SandboxFileError: ``target`` exists already, or the archive is broken.
        OSError: the host's file system refused, as when the disk is full.
    """
    if target.exists() or target.is_symlink():
        raise SandboxFileError(f"can't download to {target}: it exists already")
    target.mkdir(parents=True)
    links: list[tuple[Path, str]] = []
    try:
        with tarfile.open(fileobj=io.BytesIO(data), mode="r:") as archive:
            written = ((entry.name, _write(archive, entry, target, links)) for entry in archive)
            left_out = [f"{name}: {problem}" for name, problem in written if problem]
    except tarfile.TarError as error:
        raise SandboxFileError(f"the archive of the sandbox is broken: {error}") from error
    # Links are written last, so that no file can be written through one.
    for path, text in links:
        if not (path.exists() or path.is_symlink()):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.symlink_to(text)
    return left_out


def _write(
    archive: tarfile.TarFile,
    entry: tarfile.TarInfo,
    target: Path,
    links: list[tuple[Path, str]],
) -> str:
    """Write one entry; return why it was left out, or nothing."""
    name = posixpath.normpath(entry.name)
    if name == ".":
        return ""
    if name.startswith(("/", "..")):
        return "it lies outside"
    path = target / name
    if entry.isdir():
        path.mkdir(parents=True, exist_ok=True)
    elif entry.issym():
        aim = posixpath.normpath(posixpath.join(posixpath.dirname(name), entry.linkname))
        if entry.linkname.startswith("/") or aim.startswith(".."):
            return f"a link that points outside, to {entry.linkname}"
        links.append((path, entry.linkname))
    elif entry.isreg() or entry.islnk():
        try:
            source = archive.extractfile(entry)
        except KeyError:
            source = None
        if source is None:
            return "a hard link to nothing in the archive"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(source.read())
        path.chmod(0o755 if entry.mode & 0o100 else 0o644)
    else:
        return "neither a file nor a directory nor a link"
    return ""
