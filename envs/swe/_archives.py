"""Unpacks source archives and wheels: files only, without running them, inside the folder only."""

from __future__ import annotations

import tarfile
import zipfile
from pathlib import Path, PurePosixPath

from trajgym.envs.swe._errors import SourceUnavailable

__all__ = ["unpack_sdist", "unpack_wheel"]

_MAX_BYTES = 256 << 20


def unpack_sdist(archive: Path, into: Path, *, only: str = "") -> None:
    """Unpack a source archive without its top folder and without generated metadata.

    Links and special files are skipped; of the modes only the executable bit is kept.

    Args:
        archive: a ``.tar.gz``.
        into: folder to fill.
        only: subfolder whose content alone is unpacked, relative to the top folder.

    Raises:
        SourceUnavailable: damaged, too large, or with a path outside the folder.
    """
    total = 0
    try:
        with tarfile.open(archive, "r:gz") as tar:
            for member in tar:
                inside = PurePosixPath(*PurePosixPath(member.name).parts[1:])
                source = tar.extractfile(member) if member.isfile() else None
                if source is None or _is_generated(inside):
                    continue
                if only and not inside.is_relative_to(only):
                    continue
                total = _bounded(total + member.size, archive)
                target = _inside(into, inside.relative_to(only) if only else inside, archive)
                target.write_bytes(source.read())
                target.chmod(0o755 if member.mode & 0o100 else 0o644)
    except (tarfile.TarError, EOFError, OSError) as error:
        raise SourceUnavailable(f"{archive.name} can't be unpacked: {error}") from error


def unpack_wheel(wheel: Path, into: Path) -> None:
    """Unpack a pure-Python wheel into a folder for the import path.

    Raises:
        SourceUnavailable: damaged, too large, or with a path outside the folder.
    """
    total = 0
    try:
        with zipfile.ZipFile(wheel) as archive:
            for entry in archive.infolist():
                if entry.is_dir():
                    continue
                total = _bounded(total + entry.file_size, wheel)
                target = _inside(into, PurePosixPath(entry.filename), wheel)
                target.write_bytes(archive.read(entry))
    except (zipfile.BadZipFile, OSError) as error:
        raise SourceUnavailable(f"{wheel.name} can't be unpacked: {error}") from error


def _is_generated(path: PurePosixPath) -> bool:
    return path.parts == ("PKG-INFO",) or any(p.endswith(".egg-info") for p in path.parts)


def _inside(folder: Path, path: PurePosixPath, archive: Path) -> Path:
    if path.is_absolute() or ".." in path.parts or not path.parts:
        raise SourceUnavailable(f"{archive.name} holds the unsafe path {str(path)!r}")
    target = folder.joinpath(*path.parts)
    target.parent.mkdir(parents=True, exist_ok=True)
    return target


def _bounded(total: int, archive: Path) -> int:
    if total > _MAX_BYTES:
        raise SourceUnavailable(f"{archive.name} unpacks to more than {_MAX_BYTES} bytes")
    return total
