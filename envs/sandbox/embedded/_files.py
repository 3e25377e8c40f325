"""The directories of an embedded sandbox on the host. Everything here blocks."""

from __future__ import annotations

import os
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote

from trajgym.envs.sandbox._command import HOME
from trajgym.envs.sandbox._errors import SandboxStartFailed
from trajgym.envs.sandbox._folders import COPY_SECONDS, copy_folder
from trajgym.envs.sandbox._routes import hosts_of, plan_routes
from trajgym.envs.sandbox.embedded._plan import LATE, Layout, write_identity, write_labels

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trajgym.envs.sandbox._base import SandboxSpec

__all__ = ["Files"]

SCRATCH = ("/tmp", "/var/tmp")  # noqa: S108  paths inside the sandbox


@dataclass(frozen=True, slots=True)
class Files:
    """Prepares the writable directories of one sandbox.

    Each writable path is a mount of a directory with a name chosen here, so that no path that the
    agent can change is ever resolved on the host.

    Args:
        folder: folder of this sandbox, empty.
        spec: spec of the sandbox.
        user: uid and gid of commands, inside.
        own: whether files are changed to that owner (this process is root).
        joined: see :class:`Layout`.
    """

    folder: Path
    spec: SandboxSpec
    user: tuple[int, int]
    own: bool
    joined: bool = False

    def plain(self, source: Path | None = None) -> Layout:
        """Create directories with the spec's trees, or with the content of ``source``.

        Raises:
            SandboxStartFailed: a tree is missing, or a read-only path lies in a writable one.
            OSError: something could not be copied.
        """
        files = self.folder / "files"
        files.mkdir()
        readonly = self._readonly(set(self.tops()))
        if source is not None:
            copy_folder(source, files)
        writable = self._writable(files)
        for path, host in writable.items():
            if not host.exists():
                self._make_top(path, host)
        if source is None:
            self._fill(writable)
        return self._layout(writable, readonly)

    def new_top(self, layers: Sequence[Path]) -> None:
        """Create a directory to be mounted over layers, with what they don't contain."""
        top = self.folder / "top"
        top.mkdir()
        for path, host in self._writable(top).items():
            if not any((layer / host.name).is_dir() for layer in layers):
                self._make_top(path, host)

    def stacked(self, place: str) -> Layout:
        """Return the layout of files that are mounted at ``place`` in the folder.

        Raises:
            SandboxStartFailed: as for :meth:`plain`.
        """
        return self._layout(self._writable(self.folder / place), self._readonly(set(self.tops())))

    def tops(self) -> list[str]:
        """Return the writable paths that lie in no other."""
        wanted = {*SCRATCH, HOME, self.spec.workdir, *self.spec.trees}
        return sorted(path for path in wanted if not _holder(path, wanted - {path}))

    def _writable(self, base: Path) -> dict[str, Path]:
        return {path: base / quote(path, safe="") for path in self.tops()}

    def _make_top(self, path: str, host: Path) -> None:
        host.mkdir()
        host.chmod(0o1777 if path in SCRATCH else 0o755)
        if self.own:
            os.chown(host, *self.user)

    def _layout(self, writable: dict[str, Path], readonly: dict[str, Path]) -> Layout:
        (self.folder / "root").mkdir(exist_ok=True)
        (self.folder / LATE).mkdir(exist_ok=True)
        if not (self.folder / "etc").exists():
            hosts = hosts_of(plan_routes(self.spec.allow))
            write_identity(self.folder, self.user, HOME, hosts)
            write_labels(self.folder, self.spec.labels)
        network = self.spec.network
        return Layout(self.folder, writable, readonly, self.user, network, joined=self.joined)

    def _fill(self, writable: dict[str, Path]) -> None:
        for path in (HOME, self.spec.workdir, *self.spec.trees):
            _host_path(path, writable).mkdir(parents=True, exist_ok=True)
        for path, source in self.spec.trees.items():
            if not Path(source).is_dir():
                raise SandboxStartFailed(f"{source} (for {path} in the sandbox) is not a directory")
            copy_folder(Path(source), _host_path(path, writable))
        if self.own:
            owner = f"{self.user[0]}:{self.user[1]}"
            command = ["chown", "-R", "-h", owner, "--", str(self.folder / "files")]
            subprocess.run(command, capture_output=True, timeout=COPY_SECONDS, check=True)

    def _readonly(self, tops: set[str]) -> dict[str, Path]:
        found = {}
        for path, source in {**self.spec.readonly, **self.spec.mounts}.items():
            if not Path(source).is_dir():
                raise SandboxStartFailed(f"{source} (for {path} in the sandbox) is not a directory")
            if _holder(path, tops):
                raise SandboxStartFailed(
                    f"read-only {path} lies inside a writable directory: choose another path"
                )
            real = Path(source).resolve()
            if not (path.startswith("/usr/") and Path(path).resolve() == real):
                found[path] = real
        return found


def _holder(path: str, candidates: set[str]) -> str:
    """Return the candidate that is this path or contains it; empty if none does."""
    for candidate in sorted(candidates, key=len):
        if path == candidate or path.startswith(candidate + "/"):
            return candidate
    return ""


def _host_path(path: str, writable: dict[str, Path]) -> Path:
    top = _holder(path, set(writable))
    return writable[top] / path[len(top) :].lstrip("/")
