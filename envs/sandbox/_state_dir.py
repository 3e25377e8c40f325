"""The directory on the host for this user's sandboxes: their files, and the pools' shares."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from trajgym.envs.sandbox._errors import SandboxUnavailable

__all__ = ["default_root", "own_folder"]


def default_root() -> Path:
    """``TRAJGYM_SANDBOX_DIR``, or a directory of this user's under the system's temporary one."""
    given = os.environ.get("TRAJGYM_SANDBOX_DIR")
    return Path(given or Path(tempfile.gettempdir()) / f"trajgym-sandboxes-{os.geteuid()}")


def own_folder(folder: Path) -> None:
    """Make a directory owned by this user if it does not exist. Blocks.

    Raises:
        SandboxUnavailable: it belongs to another user, or is a link.
        OSError: it can't be made.
    """
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    if folder.is_symlink() or folder.lstat().st_uid != os.geteuid():
        raise SandboxUnavailable(
            f"{folder} belongs to another user or is a link; set TRAJGYM_SANDBOX_DIR elsewhere"
        )
