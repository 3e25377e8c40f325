"""The conformance suite of sandboxes: what every provider promises, tried from inside."""

from __future__ import annotations

import dataclasses
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from trajgym.envs.sandbox._base import MIB
from trajgym.envs.sandbox._errors import SandboxError
from trajgym.envs.sandbox.conformance import _commands, _forks, _isolation, _shells
from trajgym.envs.sandbox.conformance._case import PROMISES, Case, NotPromised
from trajgym.trajectory import ConformanceError

if TYPE_CHECKING:
    from trajgym.envs.sandbox._base import SandboxProvider, SandboxSpec

__all__ = ["PROMISES", "CheckReport", "check_sandbox"]

# Importing these modules fills the table.
PARTS = (_commands, _isolation, _shells, _forks)


@dataclass(frozen=True, slots=True)
class CheckReport:
    """What :func:`check_sandbox` found.

    Args:
        kept: the promises that were tried and kept, with the seconds that each took.
        skipped: the promises that this provider does not make here, with its reason.
    """

    kept: dict[str, float] = field(default_factory=dict)
    skipped: dict[str, str] = field(default_factory=dict)


async def check_sandbox(
    provider: SandboxProvider, spec: SandboxSpec, *, only: str | None = None
) -> CheckReport:
    """Check every guarantee of the sandbox interface, each in a separate sandbox.

    Takes about half a minute. Needs a POSIX shell and core utilities inside.

    Args:
        provider: ready to start sandboxes.
        spec: what to start; limits are lowered so that attacks on them stay small.
        only: the name of one promise, one of ``PROMISES``.

    Raises:
        ConformanceError: names the promises that were broken and what was seen.
        SandboxUnavailable, SandboxStartFailed, ImageNotFound: no sandbox could be started.
    """
    limits = dataclasses.replace(
        spec.limits,
        memory=min(spec.limits.memory, 256 * MIB),
        pids=min(spec.limits.pids, 100),
        output=min(spec.limits.output, 64 * 1024),
    )
    spec = dataclasses.replace(spec, limits=limits)
    report = CheckReport()
    broken = []
    for name, check in PROMISES.items():
        if only not in {None, name}:
            continue
        begun = time.monotonic()
        async with await provider.start(spec) as sandbox:
            try:
                await check(Case(provider, spec, sandbox))
            except NotPromised as reason:
                report.skipped[name] = str(reason)
            except (AssertionError, SandboxError) as error:
                broken.append(f"{name}: {type(error).__name__}: {error}")
            else:
                report.kept[name] = time.monotonic() - begun
    if broken:
        raise ConformanceError(f"{provider.name} sandboxes break a promise: " + "; ".join(broken))
    return report
