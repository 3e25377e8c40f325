"""Prepares a task to be started: an image for Docker, folders for the embedded sandbox."""

from __future__ import annotations

import asyncio
import dataclasses
import sys
import tarfile
import tempfile
from importlib import resources
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from trajgym.envs.sandbox import (
    BASE_IMAGE,
    DockerProvider,
    ImageNotFound,
    SandboxSpec,
    SandboxStartFailed,
    WarmPool,
)
from trajgym.envs.swe._cache import content_key
from trajgym.envs.swe._errors import InvalidTask
from trajgym.envs.swe._layout import (
    BASE_GIT,
    PYTHON,
    REPO,
    RUNNER,
    environment,
    image_environment,
)
from trajgym.envs.swe._record import SweRecord
from trajgym.envs.swe._runner import runner_folder
from trajgym.envs.swe._sources import base_tree

if TYPE_CHECKING:
    from collections.abc import Callable

    from trajgym.envs.sandbox import SandboxProvider
    from trajgym.trajectory import Task

__all__ = ["prepare"]

_BUILD_SECONDS = 600.0

_locks: WeakKeyDictionary[asyncio.AbstractEventLoop, dict[str, asyncio.Lock]] = WeakKeyDictionary()


async def prepare(
    task: Task,
    provider: SandboxProvider,
    *,
    base_image: str = BASE_IMAGE,
    cache_dir: Path | None = None,
) -> SandboxSpec:
    """Return the sandbox spec of a task; sources and images are made at first use.

    Args:
        task: a SWE task.
        provider: that will start it.
        base_image: for Docker: has python3, git, bash and user 1000.
        cache_dir: instead of the user's cache.

    Raises:
        InvalidTask: the task is not a SWE task, or its image runs in Docker only.
        SourceUnavailable: its sources can't be fetched.
        SandboxError: the image can't be built, or does not exist on this engine.
    """
    record = SweRecord.of(task)
    if record.source is None and record.image:
        return await _published(record, provider)
    tree = await asyncio.to_thread(base_tree, record, cache_dir)
    runner = await asyncio.to_thread(runner_folder, record.install.needs, cache_dir)
    spec = SandboxSpec(
        trees={REPO: tree.repo},
        readonly={BASE_GIT: tree.git, RUNNER: runner},
        workdir=REPO,
        env=environment(record),
    )
    provider = provider.inner if isinstance(provider, WarmPool) else provider
    if isinstance(provider, DockerProvider):
        return dataclasses.replace(spec, image=await _image(spec, provider, base_image))
    return dataclasses.replace(spec, readonly={**spec.readonly, **_python()})


async def _published(record: SweRecord, provider: SandboxProvider) -> SandboxSpec:
    """Return a spec for a record whose repository is in a published image."""
    if not isinstance(provider, DockerProvider):
        raise InvalidTask(
            f"record {record.instance_id!r}: its repository is in the image {record.image}, which "
            "needs Docker (--set sandbox=docker)"
        )
    image_id = await provider.engine.call(lambda api: _image_id(api, record.image))
    if image_id is None:
        raise ImageNotFound(
            f"the image {record.image} is not here; run: docker pull {record.image}"
        )
    dockerfile = _data("Dockerfile.named")
    bug = str((record.model_extra or {}).get("bug_patch", ""))
    arguments = {"BASE": record.image, "REPO_DIR": record.repo_dir}
    tag = f"trajgym/swe:{content_key(dockerfile, image_id, bug, record.repo_dir)}"

    def context(folder: Path) -> dict[str, Path]:
        (folder / "bug.patch").write_text(bug)
        return {"bug.patch": folder / "bug.patch"}

    await _built(tag, provider, dockerfile, context, arguments)
    return SandboxSpec(image=tag, workdir=REPO, env=image_environment())


def _python() -> dict[str, Path]:
    """Return this Python's folder if the host has no Python in the usual place."""
    return {} if Path("/usr/bin/python3").exists() else {PYTHON: Path(sys.base_prefix)}


async def _image(spec: SandboxSpec, provider: DockerProvider, base: str) -> str:
    """Return the name of an image with the spec's folders, built at first use."""
    folders = {"repo": spec.trees[REPO], "runner": spec.readonly[RUNNER]}
    folders["base.git"] = spec.readonly[BASE_GIT]
    dockerfile = _data("Dockerfile")
    base_id = await provider.engine.call(lambda api: _image_id(api, base))
    if base_id is None:
        raise ImageNotFound(
            f"the base image {base} is not on this engine; run: trajgym sandboxes prepare"
        )
    names = [str(folders["repo"].parent.name), str(folders["runner"].name)]
    tag = f"trajgym/swe:{content_key(dockerfile, base_id, names)}"
    await _built(tag, provider, dockerfile, lambda _: folders, {"BASE": base})
    return tag


async def _built(
    tag: str,
    provider: DockerProvider,
    dockerfile: str,
    context: Callable[[Path], dict[str, Path]],
    arguments: dict[str, str],
) -> None:
    """Build an image unless it exists; ``context(scratch)`` returns the build context."""
    async with _lock(tag):
        if await provider.engine.call(lambda api: _image_id(api, tag)) is None:
            await provider.engine.call(
                lambda api: _build(api, tag, dockerfile, context, arguments),
                seconds=_BUILD_SECONDS,
                patience=int(_BUILD_SECONDS),
            )


def _data(name: str) -> str:
    return resources.files("trajgym.envs.swe").joinpath("data", name).read_text("utf-8")


def _lock(tag: str) -> asyncio.Lock:
    """Return the lock of an image's build; locks belong to their event loop."""
    locks = _locks.setdefault(asyncio.get_running_loop(), {})
    return locks.setdefault(tag, asyncio.Lock())


def _image_id(api: Any, name: str) -> str | None:
    found = api.images(name)
    return str(found[0]["Id"]) if found else None


def _build(
    api: Any,
    tag: str,
    dockerfile: str,
    make_context: Callable[[Path], dict[str, Path]],
    arguments: dict[str, str],
) -> None:
    with tempfile.TemporaryFile() as context, tempfile.TemporaryDirectory() as scratch:
        _pack(context, dockerfile, make_context(Path(scratch)))
        context.seek(0)
        steps = api.build(
            fileobj=context,
            custom_context=True,
            tag=tag,
            buildargs=arguments,
            network_mode="none",
            labels={"trajgym": "1"},
            rm=True,
            forcerm=True,
            decode=True,
        )
        for step in steps:
            if "error" in step:
                raise SandboxStartFailed(f"image {tag} can't be built: {step['error']}")


def _pack(context: IO[bytes], dockerfile: str, folders: dict[str, Path]) -> None:
    """Write a build context whose bytes depend on the files only, so that layers are cached."""

    def plain(entry: tarfile.TarInfo) -> tarfile.TarInfo:
        entry.uid = entry.gid = 0
        entry.uname = entry.gname = ""
        entry.mtime = 0
        return entry

    with tempfile.TemporaryDirectory() as folder, tarfile.open(fileobj=context, mode="w") as tar:
        file = Path(folder) / "Dockerfile"
        file.write_text(dockerfile)
        tar.add(file, "Dockerfile", filter=plain)
        for name, source in folders.items():
            tar.add(source, name, filter=plain)
