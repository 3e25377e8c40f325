"""Images of terminal tasks: built from a task's Dockerfile, on a mapped base where needed."""

from __future__ import annotations

import asyncio
import hashlib
import io
import json
import re
import tarfile
import tempfile
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, NamedTuple
from weakref import WeakKeyDictionary

from trajgym.envs.sandbox import ImageNotFound, SandboxStartFailed
from trajgym.trajectory import InvalidInput

if TYPE_CHECKING:
    from collections.abc import Mapping

    from trajgym.envs.sandbox import DockerProvider
    from trajgym.envs.terminal._format import TerminalRecord

__all__ = ["Account", "account_of", "built_image", "mapped_dockerfile"]

_FROM = re.compile(
    r"^(?P<head>\s*FROM\s+(?:--platform=\S+\s+)?)(?P<image>\S+)(?P<tail>.*)$",
    re.IGNORECASE | re.MULTILINE,
)
_STAGE = re.compile(r"\s+AS\s+(\S+)", re.IGNORECASE)
_locks: WeakKeyDictionary[asyncio.AbstractEventLoop, dict[str, asyncio.Lock]] = WeakKeyDictionary()


def mapped_dockerfile(text: str, bases: Mapping[str, str]) -> tuple[str, list[str]]:
    """Return a Dockerfile with mapped bases, and the images that it is built on.

    Args:
        text: the Dockerfile.
        bases: image by the name after ``FROM``; ``*`` stands for every other one. A mapped base is
            followed by ``USER root``, which public images have as their user.
    """
    stages: set[str] = {"scratch"}
    needed: list[str] = []

    def replaced(match: re.Match[str]) -> str:
        image = match["image"]
        is_stage = image.lower() in stages
        if named := _STAGE.search(match["tail"]):
            stages.add(named[1].lower())
        if is_stage:
            return match[0]
        target = bases.get(image) or bases.get(image.removesuffix(":latest")) or bases.get("*")
        needed.append(target or image)
        if target is None:
            return match[0]
        return f"{match['head']}{target}{match['tail']}\nUSER root"

    return _FROM.sub(replaced, text), needed


async def built_image(
    record: TerminalRecord, provider: DockerProvider, bases: Mapping[str, str], *, network: bool
) -> str:
    """Return the name of a task's image, built at first use.

    Raises:
        ImageNotFound: a ready image or a base is not on the engine and is not mapped.
        SandboxStartFailed: a step of the Dockerfile failed.
    """
    if record.image:
        name = bases.get(record.image, record.image)
        await _present(provider, name, "docker_image")
        return name
    folder = Path(record.folder) / record.context
    text = await asyncio.to_thread((folder / "Dockerfile").read_text, "utf-8")
    dockerfile, needed = mapped_dockerfile(text, bases)
    ids = [await _present(provider, name, "FROM") for name in needed]
    key = json.dumps([record.content, dockerfile, ids, network])
    tag = f"trajgym/terminal:{hashlib.sha256(key.encode()).hexdigest()[:16]}"
    locks = _locks.setdefault(asyncio.get_running_loop(), {})
    async with locks.setdefault(tag, asyncio.Lock()):
        if await provider.engine.call(lambda api: _image_id(api, tag)) is None:
            await provider.engine.call(
                lambda api: _build(api, tag, dockerfile, folder, network=network),
                seconds=record.build_seconds,
                patience=int(record.build_seconds),
            )
    return tag


class Account(NamedTuple):
    """A user of an image."""

    ids: str
    """``uid:gid``."""
    home: str


async def account_of(provider: DockerProvider, image: str, user: str) -> Account:
    """Return a user of an image by name or number, as ``USER`` in a Dockerfile means it.

    Args:
        provider: whose engine has the image.
        image: its name.
        user: ``user`` or ``user:group``, each a name or a number.

    Raises:
        InvalidInput: the image has no such user or group.
    """
    users, groups = await provider.engine.call(lambda api: _accounts(api, image))
    name, _, group = user.partition(":")
    entry = next((line for line in users if name in (line[0], line[2])), None)
    if entry is None and not name.isdigit():
        raise InvalidInput(f"image {image}: no user {name!r} in its /etc/passwd")
    uid, gid, home = (entry[2], entry[3], entry[5]) if entry else (name, "0", "/")
    if group and not group.isdigit():
        found = next((line for line in groups if line[0] == group), None)
        if found is None:
            raise InvalidInput(f"image {image}: no group {group!r} in its /etc/group")
        group = found[2]
    return Account(f"{uid}:{group or gid}", home)


def _accounts(api: Any, image: str) -> tuple[list[list[str]], list[list[str]]]:
    """Return the lines of an image's ``/etc/passwd`` and ``/etc/group``, split at colons."""
    from docker.errors import NotFound

    # Files of an image can only be read through a container; it is never started.
    container = api.create_container(image, command=["true"], labels={"trajgym": "1"})["Id"]
    try:
        found: list[list[list[str]]] = []
        for path, fields in (("/etc/passwd", 7), ("/etc/group", 4)):
            try:
                stream, _ = api.get_archive(container, path)
            except NotFound:
                found.append([])
                continue
            with tarfile.open(fileobj=io.BytesIO(b"".join(stream))) as tar:
                file = tar.extractfile(tar.next() or "")
                text = file.read().decode("utf-8", "replace") if file else ""
            lines = (line.split(":") for line in text.splitlines())
            found.append([line for line in lines if len(line) == fields])
    finally:
        api.remove_container(container, v=True, force=True)
    return found[0], found[1]


async def _present(provider: DockerProvider, name: str, where: str) -> str:
    found: str | None = await provider.engine.call(lambda api: _image_id(api, name))
    if found is None and name != "scratch":
        raise ImageNotFound(
            f"the image {name} ({where}) is not on this engine; run: docker pull {name}, or name "
            f'one that is there in the setting bases: {{"{name}": "trajgym/base:bookworm"}}'
        )
    return found or name


def _image_id(api: Any, name: str) -> str | None:
    found = api.images(name)
    return str(found[0]["Id"]) if found else None


def _build(api: Any, tag: str, dockerfile: str, folder: Path, *, network: bool) -> None:
    with tempfile.TemporaryFile() as context:
        _pack(context, dockerfile, folder)
        context.seek(0)
        steps = api.build(
            fileobj=context,
            custom_context=True,
            dockerfile=".trajgym.Dockerfile",
            tag=tag,
            network_mode="default" if network else "none",
            labels={"trajgym": "1"},
            rm=True,
            forcerm=True,
            decode=True,
        )
        text = ""
        for step in steps:
            text = (text + str(step.get("stream", "")))[-2000:]
            if "error" in step:
                raise SandboxStartFailed(
                    f"image {tag} can't be built: {step['error']}; it printed: {text.strip()}"
                )


def _pack(context: IO[bytes], dockerfile: str, folder: Path) -> None:
    """Write the build context; times are left out, so that layers are cached."""

    def plain(entry: tarfile.TarInfo) -> tarfile.TarInfo:
        entry.uid = entry.gid = 0
        entry.uname = entry.gname = ""
        entry.mtime = 0
        return entry

    with tempfile.TemporaryDirectory() as scratch, tarfile.open(fileobj=context, mode="w") as tar:
        file = Path(scratch) / "Dockerfile"
        file.write_text(dockerfile)
        tar.add(file, ".trajgym.Dockerfile", filter=plain)
        for path in sorted(folder.iterdir()):
            tar.add(path, path.name, filter=plain)
