"""`trajgym collect`: options into a run, with progress on the terminal."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections import Counter
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from trajgym.cli._policies import make_policy
from trajgym.envs import Budgets, EnvSpec
from trajgym.rollout import CollectReport, collect

if TYPE_CHECKING:
    from collections.abc import Coroutine, Sequence
    from pathlib import Path

    from trajgym.rollout import Progress as Event
    from trajgym.trajectory import Task

__all__ = ["CollectOptions", "collect_with_progress", "run_collect"]


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectOptions:
    """What the command line asks for; see ``trajgym collect --help``."""

    env: str
    config: dict[str, Any]
    tasks: str
    out: Path
    policy: str = "scripted"
    base_url: str | None = None
    model: str | None = None
    api_key_env: str = "OPENAI_API_KEY"
    temperature: float = 1.0
    samples: int = 8
    concurrency: int = 16
    turns: int | None = None
    retries: int = 0
    seed: int = 0


def run_collect(options: CollectOptions) -> None:
    """Collect, then say what happened and what to do next."""
    console = Console()
    tasks = EnvSpec(id=options.env, config=options.config).resolve().load_tasks(options.tasks)
    report = collect_with_progress(console, options, tasks)
    endings = ", ".join(f"{n} {status}" for status, n in sorted(report.statuses.items()))
    console.print(
        f"{report.sessions} sessions ({endings or 'nothing was left to do'}), "
        f"{report.solved} solved, {report.groups} groups sealed. "
        f"Next: trajgym show {options.out}",
        highlight=False,
        soft_wrap=True,
    )


def collect_with_progress(
    console: Console,
    options: CollectOptions,
    tasks: Sequence[Task],
) -> CollectReport:
    """Collect with a progress bar.

    The first Ctrl-C (or SIGTERM) closes every session cleanly and ends the program with status
    130; the second aborts at once, and what it leaves is removed at the next start.
    """
    spec = EnvSpec(id=options.env, config=options.config)
    env = spec.resolve()
    budgets = None
    if options.turns is not None:
        budgets = Budgets.from_json({**asdict(env.budgets), "turns": options.turns})
    policy = make_policy(
        options.policy,
        env,
        base_url=options.base_url,
        model=options.model,
        api_key_env=options.api_key_env,
        temperature=options.temperature,
    )
    with _Bar(console, len(tasks) * options.samples, policy.name) as bar:

        async def work() -> CollectReport:
            async with policy:
                return await collect(
                    spec,
                    tasks,
                    policy,
                    options.out,
                    samples=options.samples,
                    concurrency=options.concurrency,
                    budgets=budgets,
                    retries=options.retries,
                    seed=options.seed,
                    on_progress=bar.note,
                )

        return run_interruptible(work(), bar.console)


def run_interruptible(work: Coroutine[Any, Any, CollectReport], console: Console) -> CollectReport:
    """Run to the end, or until Ctrl-C cancels it cleanly."""

    async def supervised() -> CollectReport:
        task = asyncio.ensure_future(work)
        loop = asyncio.get_running_loop()
        presses = Counter[str]()

        def interrupt() -> None:
            presses["n"] += 1
            if presses["n"] > 1:
                os._exit(130)
            console.print("Closing sessions… (Ctrl-C again aborts at once)")
            task.cancel()

        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, interrupt)
        try:
            return await task
        finally:
            for number in (signal.SIGINT, signal.SIGTERM):
                loop.remove_signal_handler(number)

    try:
        return asyncio.run(supervised())
    except asyncio.CancelledError:
        console.print("Stopped. The same command goes on where it stopped.")
        sys.exit(130)


class _Bar:
    """A progress bar that counts sessions as they end, with how many were solved or failed."""

    def __init__(self, console: Console, total: int, policy: str) -> None:
        self._progress = Progress(
            TextColumn("[bold]{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[note]}"),
            TimeElapsedColumn(),
            console=console,
        )
        self.console = self._progress.console
        self._bar = self._progress.add_task(f"collecting ({policy})", total=total, note="")
        self._seen: Counter[str] = Counter()

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def note(self, event: Event) -> None:
        """Take an event of the runner."""
        if event.kind == "turn":
            self._seen["turns"] += 1
        elif event.kind == "ended":
            self._seen["solved"] += (event.score or 0.0) >= 1.0
            self._seen["failed"] += event.status.startswith("failed")
            self._progress.advance(self._bar)
        else:
            return
        words = [f"{self._seen['turns']} turns", f"{self._seen['solved']} solved"]
        if self._seen["failed"]:
            words.append(f"[red]{self._seen['failed']} failed[/]")
        self._progress.update(self._bar, note=", ".join(words))
