"""`trajgym check-env`, `check-sandbox`, `check-deriver`: the conformance checks."""

from __future__ import annotations

import asyncio
import sys
from typing import TYPE_CHECKING, Any

from rich.console import Console

from trajgym.envs import EnvSpec, check_env
from trajgym.envs._runs import opened_run
from trajgym.trajectory import ConformanceError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from trajgym.envs.sandbox import ProviderName
    from trajgym.envs.sandbox.conformance import CheckReport

__all__ = ["run_check_deriver", "run_check_env", "run_check_sandbox"]


def run_check_env(env: str, tasks: str | None, config: dict[str, Any]) -> int:
    """Print the checks that passed; return 0, or 1 if the environment violates the contract."""
    spec = EnvSpec(id=env, config=config)
    kind = spec.resolve()
    task = None if tasks is None else kind.load_tasks(tasks)[0]

    async def work() -> list[str]:
        given = [] if task is None else [task]
        async with opened_run(spec, given):
            return await check_env(spec, task)

    try:
        kept = asyncio.run(work())
    except ConformanceError as error:
        return _broken(error)
    _kept(kept)
    return 0


def run_check_sandbox(kind: ProviderName) -> int:
    """Print the checks that passed or were skipped; return 0, or 1 if one failed."""
    from trajgym.envs.sandbox import SandboxSpec, find_provider
    from trajgym.envs.sandbox.conformance import check_sandbox

    async def work() -> CheckReport:
        async with await find_provider(kind) as provider:
            return await check_sandbox(provider, SandboxSpec())

    try:
        report = asyncio.run(work())
    except ConformanceError as error:
        return _broken(error)
    _kept(f"{name} ({seconds:.1f} s)" for name, seconds in report.kept.items())
    console = Console(highlight=False, markup=False, soft_wrap=True)
    for name, reason in report.skipped.items():
        console.print(f"-  {name}: {reason}", style="yellow")
    return 0


def run_check_deriver(name: str, settings: dict[str, Any]) -> int:
    """Print that a deriver conforms; return 0, or 1 if it does not."""
    from trajgym.rewards import DeriverFault, check_deriver, get_deriver

    deriver = get_deriver(name, **settings)
    try:
        check_deriver(deriver)
    except DeriverFault as error:
        return _broken(error)
    _kept([f"{name} conforms to the contract of derivers"])
    return 0


def _kept(names: Iterable[str]) -> None:
    console = Console(highlight=False, markup=False, soft_wrap=True)
    for name in names:
        console.print(f"ok  {name}", style="green" if sys.stdout.isatty() else "")


def _broken(error: Exception) -> int:
    console = Console(stderr=True, highlight=False, markup=False, soft_wrap=True)
    console.print(f"broken  {error}", style="red")
    return 1
