"""Choosing the kind of sandbox, and sharing one provider of each kind in a process."""

from __future__ import annotations

import asyncio
import os
from typing import TYPE_CHECKING, Literal

from trajgym.envs.sandbox._errors import SandboxUnavailable
from trajgym.envs.sandbox._pool import WarmPool
from trajgym.envs.sandbox.docker._provider import DockerProvider
from trajgym.envs.sandbox.embedded._provider import EmbeddedProvider
from trajgym.trajectory import InvalidInput

if TYPE_CHECKING:
    from trajgym.envs.sandbox._base import SandboxProvider

__all__ = [
    "ProviderName",
    "close_shared_providers",
    "find_provider",
    "hold_shared_providers",
    "release_shared_providers",
    "shared_provider",
]

ProviderName = Literal["auto", "docker", "embedded"]
ENGINE_SECONDS = 10.0
"""How long an engine may take to answer; one that works answers in milliseconds, if not busy."""

# One per process: a forked child has to start threads of its own.
_shared: dict[tuple[int, str], SandboxProvider] = {}
_holds: dict[int, int] = {}
"""Number of runs that use the shared providers, by process."""


async def find_provider(name: ProviderName = "auto") -> SandboxProvider:
    """Make a provider and check that it works here.

    Args:
        name: ``docker``, ``embedded``, or ``auto``: Docker if an engine answers within 10 seconds,
            else embedded.

    Raises:
        SandboxUnavailable: with the reason and what to do about it.
        InvalidInput: there is no such kind.
    """
    if name == "docker":
        return await _checked(DockerProvider())
    if name == "embedded":
        return await _checked(EmbeddedProvider())
    if name != "auto":
        raise InvalidInput(f"sandbox kind {name!r}: use auto, docker or embedded")
    try:
        async with asyncio.timeout(ENGINE_SECONDS):
            return await _checked(DockerProvider())
    except (TimeoutError, SandboxUnavailable) as no_engine:
        try:
            return await _checked(EmbeddedProvider())
        except SandboxUnavailable as error:
            reason = str(no_engine) or f"no Docker engine answers in {ENGINE_SECONDS:g} s"
            raise SandboxUnavailable(f"{reason}; and {error}") from None


async def _checked(provider: SandboxProvider) -> SandboxProvider:
    try:
        await provider.check()
    except BaseException:
        await provider.close()
        raise
    return provider


async def shared_provider(name: ProviderName = "auto", *, warm: int = 0) -> SandboxProvider:
    """Return this process's provider of a kind; the first call makes it, see :func:`find_provider`.

    The first call also removes the sandboxes that dead processes left.

    Close it by :func:`close_shared_providers`, not by its own ``close``.

    Args:
        name: the kind.
        warm: how many sandboxes of a spec may be started ahead; if any, it is a
            :class:`WarmPool`. Later calls don't change it.
    """
    ahead = "warm-" if warm else ""
    kinds = ("docker", "embedded") if name == "auto" else (name,)
    for kind in kinds:
        if (os.getpid(), ahead + kind) in _shared:
            return _shared[os.getpid(), ahead + kind]
    made = await find_provider(name)
    await made.reap()
    if warm:
        made = WarmPool(made, idle=warm)
    kept = _shared.setdefault((os.getpid(), ahead + made.name), made)
    if kept is not made:
        await made.close()
    return kept


async def close_shared_providers() -> None:
    """Close every provider that :func:`shared_provider` made in this process. Idempotent."""
    for key in [key for key in _shared if key[0] == os.getpid()]:
        await _shared.pop(key).close()


def hold_shared_providers() -> None:
    """Begin a run that uses the shared providers: they stay open until it has released them.

    Environments call it at the end of ``open_run``; runs of several environments may overlap in
    one process.
    """
    _holds[os.getpid()] = _holds.get(os.getpid(), 0) + 1


async def release_shared_providers() -> None:
    """End such a run; the last one closes the providers."""
    left = _holds.pop(os.getpid(), 0) - 1
    if left > 0:
        _holds[os.getpid()] = left
    else:
        await close_shared_providers()
