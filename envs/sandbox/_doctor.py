"""What sandboxes can use on this host, and how to get what is missing."""

from __future__ import annotations

import asyncio
import os
import shutil
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from trajgym.envs.sandbox._base import BASE_IMAGE
from trajgym.envs.sandbox._errors import SandboxError, SandboxUnavailable
from trajgym.envs.sandbox.docker._network import network_refusal
from trajgym.envs.sandbox.docker._provider import DockerProvider
from trajgym.envs.sandbox.embedded._provider import NO_NETWORKS, EmbeddedProvider

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

__all__ = ["Finding", "clean_sandboxes", "examine_sandboxes"]

LOW_SPACE = 10 << 30
CHECK_SECONDS = 20.0


class Finding(NamedTuple):
    """The result of one check."""

    part: str
    """``docker`` or ``embedded``."""
    level: Literal["good", "limited", "missing"]
    said: str
    advice: str = ""


async def examine_sandboxes() -> list[Finding]:
    """Check Docker and the embedded sandbox; nothing is left running."""
    docker, embedded = await asyncio.gather(_docker(), _embedded())
    return [*docker, *embedded]


async def clean_sandboxes() -> dict[str, int]:
    """Remove what killed processes left, for every kind that works here; return the counts."""
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
            text = str(error) or f"no engine answers within {CHECK_SECONDS:g} s"
            return [Finding("docker", "missing", text)]
    findings = [Finding("docker", "good", f"engine {info['ServerVersion']} answers")]
    findings += [_driver(info), _groups(info), _seccomp(info), _runtimes(info), _base(images)]
    findings.append(_allow(network_refusal(provider.engine)))
    findings += _space("docker", info.get("DockerRootDir", ""))
    findings.append(Finding("docker", "good", f"{ours} containers of this project exist"))
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
        f"storage driver {driver}, its files can't be read here: forks commit an image, "
        "which is several times slower",
        "for fast forks run as root on the engine's host, with overlay2",
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
        return Finding("docker", "good", "gVisor is installed: use DockerProvider(runtime='runsc')")
    return Finding(
        "docker",
        "limited",
        "no gVisor: containers share the host's kernel",
        "for code that attacks the kernel install runsc and name it in the engine's daemon.json",
    )


def _allow(refusal: str) -> Finding:
    if refusal:
        text = f"allow-lists of reachable endpoints are not supported: {refusal}"
        return Finding("docker", "limited", text)
    return Finding("docker", "good", "allow-lists of reachable endpoints (allow) are supported")


def _base(images: set[str]) -> Finding:
    if BASE_IMAGE in images:
        return Finding("docker", "good", f"image {BASE_IMAGE} is there")
    return Finding(
        "docker", "missing", f"image {BASE_IMAGE} is not there", "run: trajgym sandboxes prepare"
    )


def _space(part: Literal["docker", "embedded"], path: str | Path) -> list[Finding]:
    try:
        free = shutil.disk_usage(path).free
    except OSError:
        return []
    if free < LOW_SPACE:
        text = f"{free >> 30} GiB are free in {path}"
        return [Finding(part, "limited", text, "remove images or files that are not needed")]
    return [Finding(part, "good", f"{free >> 30} GiB are free in {path}")]


async def _embedded() -> list[Finding]:
    async with EmbeddedProvider() as provider:
        try:
            async with asyncio.timeout(CHECK_SECONDS):
                await provider.check()
        except (SandboxError, TimeoutError) as error:
            text = str(error) or f"no sandbox starts within {CHECK_SECONDS:g} s"
            return [Finding("embedded", "missing", text)]
        findings = [Finding("embedded", "good", f"namespaces work, by {provider.tool}")]
        if await provider.mounts.call(provider.layers.usable):
            findings.append(Finding("embedded", "good", "layers can be stacked: forks are fast"))
        else:
            text = "layers can't be stacked here: forks copy all changed files"
            advice = "run as root with the sandboxes (TRAJGYM_SANDBOX_DIR) on a disk like ext4"
            findings.append(Finding("embedded", "limited", text, advice))
        if os.geteuid() == 0:
            text = "allow-lists of reachable endpoints (allow) and services are supported"
            findings.append(Finding("embedded", "good", text))
        else:
            text = "allow-lists of reachable endpoints and services are not supported"
            findings.append(Finding("embedded", "limited", text, NO_NETWORKS))
        findings += [
            Finding("embedded", "limited", f"{aspect}: {text}", _ADVICE.get(aspect, ""))
            for aspect, text in provider.isolation().items()
            if "NOT" in text or "NO " in text
        ]
        return findings + await asyncio.to_thread(_space, "embedded", provider.root)


_CGROUPS = "run where control groups can be made: as root, or in a delegated group"
_ADVICE = {
    "kernel": "use Docker for code that attacks the kernel, with runsc if you can",
    "memory": _CGROUPS,
    "pids": _CGROUPS,
    "cpu": _CGROUPS,
}
