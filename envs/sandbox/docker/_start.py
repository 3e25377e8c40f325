"""Creating and starting a container: blocking code that runs in one of the start threads."""

from __future__ import annotations

import logging
import tarfile
import tempfile
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from trajgym.envs.sandbox._base import BASE_IMAGE
from trajgym.envs.sandbox._command import HOME, command_env
from trajgym.envs.sandbox._errors import ImageNotFound, SandboxError, SandboxStartFailed
from trajgym.envs.sandbox._protocol import MARK
from trajgym.envs.sandbox._routes import hosts_of, plan_routes
from trajgym.envs.sandbox.docker._directories import Directories
from trajgym.envs.sandbox.docker._engine import SLOW_SECONDS, DockerEngine, translated
from trajgym.envs.sandbox.docker._errors import ContainerGone
from trajgym.envs.sandbox.docker._fork import NotCarried, layer_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from trajgym.envs.sandbox._base import SandboxSpec
    from trajgym.envs.sandbox.docker._fork import Stage

__all__ = ["HOLDS", "Launch", "user_of"]

_log = logging.getLogger(__name__)
HOLDS = "trajgym.holds"
"""Label of an image: colon-separated paths that it contains already."""
DEFAULT_USER = "1000:1000"
SPOOL = 64 << 20


def user_of(spec: SandboxSpec) -> str:
    """``uid:gid`` of commands in a container."""
    return spec.user or DEFAULT_USER


@dataclass(slots=True)
class Launch:
    """One start, which can be abandoned while it is in progress.

    Args:
        engine: that runs it.
        spec: spec of the sandbox; ``image`` replaces its image.
        name: name of the container.
        image: what to start from.
        labels: put on the container.
        fresh: whether trees are copied in (not when a snapshot or a stage holds them).
        stage: files of another container of the same image.
        pull: whether a missing image is pulled.
    """

    engine: DockerEngine
    spec: SandboxSpec
    name: str
    image: str
    labels: Mapping[str, str]
    fresh: bool
    stage: Stage | None
    pull: bool
    abandoned: threading.Event = field(default_factory=threading.Event)

    def __call__(self) -> str:
        """Start the container and return its id; if that fails, nothing is left behind.

        Raises:
            ImageNotFound: the image does not exist here.
            SandboxStartFailed: the start was abandoned in the meantime.
            EngineLost, EngineRefused: the engine did not answer, or refused.
        """
        self._go_on()
        held = self._look_up_image() if self.stage is None else set()
        if self.spec.readonly_root:
            self._refuse_trees(held)
        client = self.engine.client()
        try:
            container: str = client.create_container(**self._arguments(client))["Id"]
            self._go_on()
            if self.fresh and not self.spec.readonly_root:
                self._furnish(container, held)
                self._go_on()
            if self.stage is not None:
                self.stage.lay(layer_of(client.inspect_container(container)))
                self._go_on()
            client.start(container)
            self._go_on()
        except BaseException:
            self._remove()
            raise
        return container

    def _go_on(self) -> None:
        if self.abandoned.is_set():
            raise SandboxStartFailed(f"the start of {self.name} was abandoned")

    def _remove(self) -> None:
        try:
            translated(lambda: self.engine.client().remove_container(self.name, v=True, force=True))
        except ContainerGone:
            return  # never created
        except SandboxError as error:  # the reaper finds it by its labels
            _log.warning("container %s may still be there: %s", self.name, error)

    def _look_up_image(self) -> set[str]:
        """Return the paths that the image contains already."""
        client = self.engine.client()
        try:
            found = translated(lambda: client.inspect_image(self.image))
        except ContainerGone:
            if not self.pull:
                if self.image == BASE_IMAGE:
                    advice = "make it with: trajgym sandboxes prepare"
                else:
                    advice = "build or pull it first (docker pull), or pass pull=True"
                raise ImageNotFound(
                    f"image {self.image!r} is not on this engine; {advice}"
                ) from None
            self._pull()
            found = translated(lambda: client.inspect_image(self.image))
        labels = (found.get("Config") or {}).get("Labels") or {}
        return {path for path in labels.get(HOLDS, "").split(":") if path}

    def _pull(self) -> None:
        try:
            translated(lambda: self.engine.client(SLOW_SECONDS).pull(self.image))
        except SandboxError as error:
            raise ImageNotFound(f"image {self.image!r} can't be pulled: {error}") from error

    def _arguments(self, client: Any) -> dict[str, Any]:
        limits = self.spec.limits
        from docker.types import Mount, Ulimit

        host = client.create_host_config(
            runtime=self.engine.runtime,
            read_only=self.spec.readonly_root,
            tmpfs=self._scratch() if self.spec.readonly_root else None,
            init=True,
            network_mode="bridge" if self.spec.network else "none",
            extra_hosts=hosts_of(plan_routes(self.spec.allow)),
            mounts=[
                Mount(path, str(Path(source).resolve()), type="bind", read_only=True)
                for path, source in self.spec.mounts.items()
            ],
            cap_drop=["ALL"],
            cap_add=list(self.spec.capabilities),
            security_opt=["no-new-privileges"],
            pids_limit=limits.pids,
            mem_limit=limits.memory,
            memswap_limit=limits.memory,
            nano_cpus=int(min(limits.cpus, self.engine.cpus()) * 1e9),
            ulimits=[
                Ulimit(name="fsize", soft=limits.disk, hard=limits.disk),
                Ulimit(name="core", soft=0, hard=0),
            ],
            log_config={"Type": "none"},
        )
        return {
            "image": self.image,
            # As root, so that the agent can't kill what keeps the container alive.
            "user": "0:0",
            "entrypoint": ["/bin/sh", "-c", "exec sleep 2147483647"],
            "command": [],
            "working_dir": "/",
            "environment": {**command_env(self.spec), MARK: "keep"},
            "labels": dict(self.labels),
            "name": self.name,
            "hostname": "sandbox",
            "host_config": host,
            "healthcheck": {"test": ["NONE"]},
        }

    def _refuse_trees(self, held: set[str]) -> None:
        """Check that a read-only root has no trees: the engine can't write there."""
        for path in {*self.spec.trees, *self.spec.readonly} - held:
            raise SandboxStartFailed(
                f"a read-only root can't take the tree {path}: build it into the image (label "
                f"{HOLDS}), or upload it after the start"
            )

    def _scratch(self) -> dict[str, str]:
        """Return the directories that stay writable, in memory, with a read-only root."""
        uid, gid = user_of(self.spec).split(":")
        plain = f"exec,nosuid,nodev,size={self.spec.limits.disk}"
        own = f"{plain},mode=0755,uid={uid},gid={gid}"
        scratch = {"/tmp": f"{plain},mode=1777", "/var/tmp": f"{plain},mode=1777"}  # noqa: S108
        return {**scratch, HOME: own, self.spec.workdir: own}

    def _furnish(self, container: str, held: set[str]) -> None:
        """Add to a new container what it needs besides its image.

        If that is only directories, they are the same in every container of the image: the engine
        unpacks them once, which takes a fifth of a start, and later they are made in the layer.
        """
        found = self._empty_layer(container, held)
        if found is None:
            self._fill(container, held)
            return
        image, upper = found
        key = (image, user_of(self.spec), self.spec.workdir)
        known = self.engine.directories.get(key)
        if known is None or not known.make(upper):
            self._fill(container, held)
            self.engine.directories[key] = Directories.read(upper)

    def _empty_layer(self, container: str, held: set[str]) -> tuple[str, Path] | None:
        """Return the image's id and the layer, if only directories are missing in it."""
        if {*self.spec.trees, *self.spec.readonly} - held:
            return None
        seen = self.engine.client().inspect_container(container)
        if seen.get("Mounts"):
            return None  # what lies in a volume is not in the layer
        try:
            return str(seen["Image"]), layer_of(seen)
        except NotCarried:
            return None

    def _fill(self, container: str, held: set[str]) -> None:
        """Copy the trees and the directories that the agent owns into the container."""
        uid, gid = map(int, user_of(self.spec).split(":"))
        with tempfile.SpooledTemporaryFile(max_size=SPOOL) as spool:
            with tarfile.open(fileobj=spool, mode="w") as archive:
                for path in (HOME, self.spec.workdir):
                    _add_directory(archive, path, uid, gid)
                for path, source in self.spec.trees.items():
                    if path not in held:
                        _add_tree(archive, path, source, (uid, gid), keep=0o7777)
                for path, source in self.spec.readonly.items():
                    if path not in held:
                        _add_tree(archive, path, source, (0, 0), keep=0o755)
            spool.seek(0)
            self._put(container, spool)

    def _put(self, container: str, spool: IO[bytes]) -> None:
        size = spool.seek(0, 2)
        spool.seek(0)
        client = self.engine.client(SLOW_SECONDS) if size > SPOOL else self.engine.client()
        client.put_archive(container, "/", spool)


def _add_directory(archive: tarfile.TarFile, path: str, uid: int, gid: int) -> None:
    entry = tarfile.TarInfo(path.lstrip("/"))
    entry.type, entry.mode, entry.uid, entry.gid = tarfile.DIRTYPE, 0o755, uid, gid
    entry.mtime = int(time.time())
    archive.addfile(entry)


def _add_tree(
    archive: tarfile.TarFile, path: str, source: Path, owner: tuple[int, int], *, keep: int
) -> None:
    def owned(entry: tarfile.TarInfo) -> tarfile.TarInfo | None:
        if not (entry.isreg() or entry.isdir() or entry.issym() or entry.islnk()):
            return None
        entry.uid, entry.gid = owner
        entry.uname = entry.gname = ""
        entry.mode &= keep
        return entry

    root = Path(source).resolve()
    if not root.is_dir():
        raise SandboxStartFailed(f"{source} (for {path} in the sandbox) is not a directory")
    archive.add(root, path.lstrip("/"), filter=owned)
