"""What this host can offer to sandboxes, and what to do about what it can't."""

from __future__ import annotations

import asyncio
import os
import shutil
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from trajgym.envs.sandbox._docker import DockerProvider
from trajgym.envs.sandbox._docker_network import network_refusal
from trajgym.envs.sandbox._embedded import NO_NETWORKS, EmbeddedProvider
from trajgym.envs.sandbox._errors import SandboxError, SandboxUnavailable

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

__all__ = ["Finding", "clean_sandboxes", "examine_sandboxes"]

BASE = "trajgym/base:bookworm"
LOW_SPACE = 10 << 30
CHECK_SECONDS = 20.0


class Finding(NamedTuple):
    """One thing that was looked at."""

    part: str
    """``docker`` or ``embedded``."""
    level: Literal["good", "limited", "missing"]
    said: str
    advice: str = ""


async def examine_sandboxes() -> list[Finding]:
    """Look at Docker and at the embedded sandbox; starts nothing that stays."""
    docker, embedded = await asyncio.gather(_docker(), _embedded())
    return [*docker, *embedded]


async def clean_sandboxes() -> dict[str, int]:
    """Remove what killed processes left, of every kind that works here; return the counts."""
    counts = {}
    makers: list[Callable[[], DockerProvider | EmbeddedProvider]] = [
        DockerProvider,
        EmbeddedProvider,
    ]
    for make in makers:
        async with make() as provider:
            try:
                async with asyncio.timeout(CHECK_SECONDS):
                    await provider.check()
            except (SandboxUnavailable, TimeoutError):
                continue
            counts[provider.name] = await provider.reap()
    return counts


async def _docker() -> list[Finding]:
    async with DockerProvider() as provider:
        try:
            async with asyncio.timeout(CHECK_SECONDS):
                await provider.check()
                info, images, ours = await provider.engine.call(_ask)
        except (SandboxError, TimeoutError) as error:
            said = str(error) or f"no engine answers within {CHECK_SECONDS:g} s"
            return [Finding("docker", "missing", said)]
    findings = [Finding("docker", "good", f"engine {info['ServerVersion']} answers")]
    findings += [_driver(info), _groups(info), _seccomp(info), _runtimes(info), _base(images)]
    findings.append(_allow(network_refusal(provider.engine)))
    findings += _space("docker", info.get("DockerRootDir", ""))
    findings.append(Finding("docker", "good", f"{ours} containers of this project are there"))
    return findings


def _ask(api: Any) -> tuple[dict[str, Any], set[str], int]:
    tags = {tag for image in api.images() for tag in image.get("RepoTags") or []}
    containers = api.containers(all=True, filters={"label": "trajgym=1"})
    return api.info(), tags, len(containers)


def _driver(info: dict[str, Any]) -> Finding:
    driver = info.get("Driver")
    root = str(info.get("DockerRootDir") or "/nonexistent")
    if driver == "overlay2" and os.access(root, os.R_OK | os.X_OK):
        return Finding("docker", "good", "storage driver overlay2, readable here: forks are fast")
    return Finding(
        "docker",
        "limited",
        f"storage driver {driver}, its files can't be read here: forks are commits, several times "
        "slower",
        "run as root beside an engine with overlay2, or live with it",
    )


def _groups(info: dict[str, Any]) -> Finding:
    missing = [
        name
        for name, key in (("memory", "MemoryLimit"), ("pids", "PidsLimit"), ("cpu", "CpuCfsQuota"))
        if not info.get(key, True)
    ]
    if missing:
        return Finding(
            "docker",
            "limited",
            f"the engine can't limit {', '.join(missing)}",
            "enable these control groups in the kernel (boot options cgroup_enable=…)",
        )
    version = info.get("CgroupVersion", "1")
    return Finding("docker", "good", f"memory, pids and cpu are limited (cgroup v{version})")


def _seccomp(info: dict[str, Any]) -> Finding:
    if any("seccomp" in option for option in info.get("SecurityOptions") or []):
        return Finding("docker", "good", "system calls are filtered (seccomp)")
    return Finding(
        "docker", "limited", "system calls are not filtered", "use an engine built with seccomp"
    )


def _runtimes(info: dict[str, Any]) -> Finding:
    if "runsc" in (info.get("Runtimes") or {}):
        return Finding("docker", "good", "gVisor is there: DockerProvider(runtime='runsc')")
    return Finding(
        "docker",
        "limited",
        "no gVisor: containers share the host's kernel",
        "for code that attacks the kernel install runsc and name it in the engine's daemon.json",
    )


def _allow(refusal: str) -> Finding:
    if refusal:
        said = f"no allow-list of places that may be reached: {refusal}"
        return Finding("docker", "limited", said)
    return Finding("docker", "good", "places that may be reached can be named (allow)")


def _base(images: set[str]) -> Finding:
    if BASE in images:
        return Finding("docker", "good", f"image {BASE} is there")
    return Finding("docker", "missing", f"image {BASE} is not there", "run scripts/base-image.sh")


def _space(part: Literal["docker", "embedded"], path: str | Path) -> list[Finding]:
    try:
        free = shutil.disk_usage(path).free
    except OSError:
        return []
    if free < LOW_SPACE:
        said = f"{free >> 30} GiB are free in {path}"
        return [Finding(part, "limited", said, "remove images or files that nobody needs")]
    return [Finding(part, "good", f"{free >> 30} GiB are free in {path}")]


async def _embedded() -> list[Finding]:
    async with EmbeddedProvider() as provider:
        try:
            async with asyncio.timeout(CHECK_SECONDS):
                await provider.check()
        except (SandboxError, TimeoutError) as error:
            said = str(error) or f"no sandbox starts within {CHECK_SECONDS:g} s"
            return [Finding("embedded", "missing", said)]
        findings = [Finding("embedded", "good", f"namespaces work, by {provider.tool}")]
        if await provider.mounts.call(provider.layers.usable):
            findings.append(Finding("embedded", "good", "layers can be stacked: forks are fast"))
        else:
            said = "layers can't be stacked here: forks copy what was changed"
            advice = "run as root with the sandboxes (TRAJGYM_SANDBOX_DIR) on a disk like ext4"
            findings.append(Finding("embedded", "limited", said, advice))
        if os.geteuid() == 0:
            said = "places that may be reached can be named (allow), and services declared"
            findings.append(Finding("embedded", "good", said))
        else:
            said = "no allow-list of places that may be reached, no services"
            findings.append(Finding("embedded", "limited", said, NO_NETWORKS))
        findings += [
            Finding("embedded", "limited", f"{aspect}: {said}", _ADVICE.get(aspect, ""))
            for aspect, said in provider.isolation().items()
            if "NOT" in said or "NO " in said
        ]
        return findings + await asyncio.to_thread(_space, "embedded", provider.root)


_CGROUPS = "run where control groups can be made: as root, or in a delegated group"
_ADVICE = {
    "kernel": "use Docker for code that attacks the kernel, with runsc if you can",
    "memory": _CGROUPS,
    "pids": _CGROUPS,
    "cpu": _CGROUPS,
}
