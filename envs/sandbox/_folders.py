"""Whole directories on the host: copied, removed, measured. Everything here blocks."""

from __future__ import annotations

import os
import subprocess
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["COPY_SECONDS", "copy_folder", "disk_use", "remove_folder"]

COPY_SECONDS = 600


def copy_folder(source: Path, target: Path) -> None:
    """Copy a directory's content, sharing blocks where the file system can.

    Raises:
        OSError: something could not be read or written.
    """
    target.mkdir(exist_ok=True, parents=True)
    done = subprocess.run(
        ["cp", "-a", "--reflink=auto", "--", f"{source}/.", f"{target}/"],
        capture_output=True,
        timeout=COPY_SECONDS,
        check=False,
    )
    if done.returncode != 0:
        raise OSError(done.stderr.decode(errors="replace").strip()[-500:])


def remove_folder(folder: Path) -> None:
    """Remove a directory of any depth and with any modes; links in it are not followed."""
    command = ["rm", "-rf", "--one-file-system", "--", str(folder)]
    subprocess.run(command, capture_output=True, timeout=COPY_SECONDS, check=False)
    if folder.exists():
        # A sandbox that runs as this user can hold directories whose mode forbids their removal.
        modes = ["chmod", "-R", "u+rwX", "--", str(folder)]
        subprocess.run(modes, capture_output=True, timeout=COPY_SECONDS, check=False)
        subprocess.run(command, capture_output=True, timeout=COPY_SECONDS, check=False)


def disk_use(folder: Path) -> int:
    """Return the total size of a directory's files; files that vanish during the call count 0."""
    total = 0
    waiting = [str(folder)]
    while waiting:
        try:
            with os.scandir(waiting.pop()) as entries:
                for entry in entries:
                    status = entry.stat(follow_symlinks=False)
                    total += status.st_blocks * 512
                    if entry.is_dir(follow_symlinks=False):
                        waiting.append(entry.path)
        except OSError:
            continue
    return total
