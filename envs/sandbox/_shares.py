"""The limit of waiting sandboxes on this host, shared by the pools of all its processes."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import secrets
import time
from typing import IO, TYPE_CHECKING

from trajgym.envs.sandbox._errors import SandboxUnavailable
from trajgym.envs.sandbox._owner import is_dead, own_token
from trajgym.envs.sandbox._state_dir import default_root, own_folder
from trajgym.trajectory import InvalidInput

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

__all__ = ["HostShares"]

LOCK_SECONDS = 10.0
Books = dict[str, dict[str, int]]


class HostShares:
    """The number of sandboxes that the pools of one host may keep waiting, in one locked file.

    Every waiting sandbox takes a share: one, and the memory that it may use once it is handed
    out. Shares of processes that have exited don't count. Blocks for a moment.

    Args:
        file: where the shares are recorded; None takes ``pool-shares.json`` beside the embedded
            sandboxes (``TRAJGYM_SANDBOX_DIR``), so one for each user of the host.
        count: maximum number of sandboxes.
        memory: maximum bytes; None for all memory of the host.

    Raises:
        InvalidInput: a bound is not positive.

    All methods raise :class:`SandboxUnavailable` or :class:`OSError` where the file can't be
    written.
    """

    def __init__(
        self, file: Path | None = None, *, count: int = 256, memory: int | None = None
    ) -> None:
        if count < 1 or (memory is not None and memory < 1):
            raise InvalidInput("shares of a host need a count and a memory of at least 1")
        self.file = file or default_root() / "pool-shares.json"
        self.count = count
        self.memory = memory or _host_memory()
        # Several pools of a process have separate shares.
        self._name = f"{own_token()}/{secrets.token_hex(4)}"

    def claim(self, memory: int) -> str:
        """Take a share.

        Args:
            memory: bytes that the sandbox may use.

        Returns:
            An empty string if it is granted, else a description of who holds the shares.
        """
        with self._locked() as shares:
            count = sum(share["count"] for share in shares.values())
            taken = sum(share["memory"] for share in shares.values())
            if count + 1 > self.count or taken + memory > self.memory:
                return (
                    f"{count} of {self.count} sandboxes with {taken >> 20} of {self.memory >> 20} "
                    f"MiB wait in {len(shares)} pools of this host ({self.file})"
                )
            own = shares.setdefault(self._name, {"count": 0, "memory": 0})
            own["count"] += 1
            own["memory"] += memory
        return ""

    def release(self, memory: int) -> None:
        """Return a share."""
        with self._locked() as shares:
            own = shares.get(self._name)
            if own is not None:
                own["count"] -= 1
                own["memory"] -= memory
                if own["count"] < 1:
                    del shares[self._name]

    def close(self) -> None:
        """Return all of this pool's shares."""
        with self._locked() as shares:
            shares.pop(self._name, None)

    def held(self) -> Books:
        """The shares of running processes' pools, by process and pool."""
        with self._locked() as shares:
            return dict(shares)

    @contextlib.contextmanager
    def _locked(self) -> Iterator[Books]:
        """Read the shares of running processes and write them back; locks the file."""
        own_folder(self.file.parent)
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        with os.fdopen(os.open(self.file, flags, 0o600), "r+") as file:
            self._lock(file)
            before = file.read()
            shares = _read(before)
            for name in [name for name in shares if is_dead(name.partition("/")[0])]:
                del shares[name]
            yield shares
            after = json.dumps(shares)
            if after != before:
                file.seek(0)
                file.truncate()
                file.write(after)

    def _lock(self, file: IO[str]) -> None:
        deadline = time.monotonic() + LOCK_SECONDS
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise SandboxUnavailable(
                        f"{self.file} is locked for {LOCK_SECONDS:g} s by a process that hangs"
                    ) from None
                time.sleep(0.005)
            else:
                return


def _read(text: str) -> Books:
    """Parse the file; one that a killed writer left incomplete reads as empty."""
    try:
        found = json.loads(text)
        return {
            str(name): {"count": int(share["count"]), "memory": int(share["memory"])}
            for name, share in found.items()
        }
    except (ValueError, TypeError, KeyError, AttributeError):
        return {}


def _host_memory() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
