"""The user's cache of downloads and builds."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
import tempfile
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trajgym.envs.swe._errors import SourceUnavailable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = ["build_once", "cache_root", "content_key"]

_LOCK_SECONDS = 600.0


def cache_root(cache_dir: Path | None = None) -> Path:
    """Return the cache folder: the argument, ``TRAJGYM_CACHE``, or the XDG cache folder."""
    if cache_dir is not None:
        return cache_dir
    if configured := os.environ.get("TRAJGYM_CACHE"):
        return Path(configured)
    base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(base).expanduser() / "trajgym"


def content_key(*parts: Any) -> str:
    """Return a short stable name for JSON values: equal values, equal name."""
    text = json.dumps(parts, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def build_once(target: Path, build: Callable[[Path], None]) -> Path:
    """Return ``target``, made by ``build(folder)`` if it does not exist yet.

    Safe between threads and processes; a build that fails or is killed leaves no ``target``.

    Raises:
        SourceUnavailable: another process has been building it for ten minutes.
    """
    if target.exists():
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    with _locked(target.with_name(f"{target.name}.lock")):
        if target.exists():
            return target
        work = Path(tempfile.mkdtemp(prefix=f".{target.name}.", dir=target.parent))
        try:
            build(work)
            _make_readable(work)
            work.rename(target)
        finally:
            shutil.rmtree(work, ignore_errors=True)
    return target


def _make_readable(folder: Path) -> None:
    """Make files readable for others: sandboxes read the cache as another user."""
    for path in (folder, *folder.rglob("*")):
        if not path.is_symlink():
            path.chmod(path.stat().st_mode | (0o555 if path.is_dir() else 0o444))


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    deadline = time.monotonic() + _LOCK_SECONDS
    with path.open("a") as file:
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise SourceUnavailable(
                        f"{path} has been locked for {_LOCK_SECONDS:.0f} s by another process; "
                        "end that process and try again"
                    ) from None
                time.sleep(0.1)
        yield
