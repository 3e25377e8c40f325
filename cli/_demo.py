"""`trajgym demo`: collect SWE tasks, compute rewards and export for trainers."""

from __future__ import annotations

import asyncio
import shutil
import time
from collections import defaultdict
from typing import TYPE_CHECKING, NamedTuple

from rich.console import Console
from rich.table import Table

from trajgym.cli._collect import CollectOptions, collect_with_progress
from trajgym.cli._endpoint import EndpointOptions
from trajgym.cli._reward import export_run, run_reward
from trajgym.envs.sandbox import (
    ImageNotFound,
    ProviderName,
    close_shared_providers,
    shared_provider,
)
from trajgym.envs.swe import SourceUnavailable, SweEnv, prepare
from trajgym.rewards import get_deriver
from trajgym.trajectory import Run

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from trajgym.adapters import ExportReport
    from trajgym.trajectory import Task

__all__ = ["run_demo"]

_TEXT_EXPORTS: dict[str, tuple[str, ...]] = {"sft": (), "preference": ()}
_ROW_EXPORTS: dict[str, tuple[str, ...]] = {
    "rows": ("outcome", "grpo"),
    "trl-grpo": ("grpo",),
    "verl": ("outcome",),
    "areal": ("outcome",),
}


class _Source(NamedTuple):
    tasks: list[Task]
    said: str


def run_demo(
    out: Path,
    *,
    samples: int,
    sandbox: ProviderName,
    base_url: str | None,
    model: str | None,
) -> None:
    """Collect the demo tasks, compute rewards, export, and print where the files are."""
    console = Console()
    started = time.monotonic()
    provider = asyncio.run(_which_sandbox(sandbox, console))
    console.print(f"Sandboxes: {provider}.", highlight=False)
    with console.status("Building tasks from package sources…"):
        source = _tasks()
    console.print(source.said, highlight=False)
    options = CollectOptions(
        env="swe",
        config={"sandbox": provider},
        tasks="demo",
        out=out / "run",
        endpoint=EndpointOptions(model=model, base_url=base_url),
        samples=samples,
        concurrency=4,
    )
    collect_with_progress(console, options, source.tasks)
    run_reward(options.out, "outcome", {})
    run_reward(options.out, "outcome_return", {})
    reports = _export(options.out, out / "export", _TEXT_EXPORTS)
    if not model:
        synthetic = _synthetic(options, out, console)
        reports += _export(synthetic, out / "export-synthetic", _ROW_EXPORTS)
    console.print(_summary(options.out))
    console.print(_files(reports))
    console.print(
        f"Done in {time.monotonic() - started:.0f} s. Look at a session: "
        f"trajgym show {options.out} SESSION",
        highlight=False,
        soft_wrap=True,
    )


async def _which_sandbox(name: ProviderName, console: Console) -> ProviderName:
    """Return the kind of sandbox to use; ``auto`` falls back to embedded without a base image."""
    try:
        provider = await shared_provider(name)
        await prepare(SweEnv.load_tasks("builtin")[0], provider)
    except ImageNotFound as error:
        if name != "auto":
            raise
        console.print(f"{error}; using the embedded sandbox.", highlight=False, soft_wrap=True)
        return "embedded"
    finally:
        await close_shared_providers()
    return "docker" if provider.name == "docker" else "embedded"


def _tasks() -> _Source:
    try:
        tasks = SweEnv.load_tasks("demo")
    except SourceUnavailable as error:
        tasks = SweEnv.load_tasks("builtin")
        text = f"The package index can't be reached ({error}); using the tasks of the package."
        return _Source(tasks, text)
    return _Source(tasks, f"{len(tasks)} SWE tasks built from package sources, verified by hash.")


def _synthetic(options: CollectOptions, out: Path, console: Console) -> Path:
    """Run the same script through a fake engine, whose exact turns can be exported as rows."""
    path = out / "run-synthetic"
    fake = CollectOptions(
        env=options.env,
        config=options.config,
        tasks="builtin",
        out=path,
        policy="fake",
        samples=options.samples,
        concurrency=options.concurrency,
    )
    collect_with_progress(console, fake, SweEnv.load_tasks("builtin"))
    return path


def _export(
    path: Path,
    out: Path,
    names: Mapping[str, tuple[str, ...]],
) -> list[ExportReport]:
    shutil.rmtree(out, ignore_errors=True)
    allow = {"allow": ["synthetic"]}
    with Run(path) as run:
        return [
            export_run(run, name, out, [get_deriver(deriver) for deriver in derivers], allow)
            for name, derivers in names.items()
        ]


def _summary(path: Path) -> Table:
    table = Table(box=None, header_style="bold", pad_edge=False)
    table.add_column("task", overflow="fold")
    for name in ("sessions", "solved", "failed", "turns", "mean reward"):
        table.add_column(name, justify="right")
    rows: dict[str, list[float]] = defaultdict(lambda: [0, 0, 0, 0, 0, 0])
    with Run(path) as run:
        for summary in run.summaries():
            row = rows[summary.record.task]
            attempt = summary.attempts[0]
            row[0] += 1
            row[2] += attempt.status.kind == "failed"
            row[3] += summary.turns
            if attempt.outcome is not None:
                row[1] += attempt.outcome.passed
                row[4] += attempt.outcome.score
                row[5] += 1
    for task, (sessions, solved, failed, turns, score, scored) in rows.items():
        mean = f"{score / scored:.2f}" if scored else "-"
        cells = [f"{sessions:.0f}", f"{solved:.0f}", f"{failed:.0f}", f"{turns:.0f}", mean]
        table.add_row(task, *cells)
    return table


def _files(reports: list[ExportReport]) -> Table:
    table = Table(box=None, header_style="bold", pad_edge=False)
    table.add_column("export")
    table.add_column("records", justify="right")
    table.add_column("left out", justify="right")
    table.add_column("file", overflow="fold")
    for report in reports:
        marked = f"{report.written} synthetic" if report.synthetic else str(report.written)
        files = ", ".join(map(str, report.files))
        table.add_row(report.name, marked, str(len(report.dropped)), files)
    return table
