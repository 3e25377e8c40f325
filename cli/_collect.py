"""`trajgym collect`: collect a run and show progress on the terminal."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections import Counter
from contextlib import nullcontext
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Self

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from trajgym.cli._advice import RefusedKey, advice_for
from trajgym.cli._agents import AgentOptions, agent_policy
from trajgym.cli._endpoint import EndpointOptions
from trajgym.cli._mix import mixture_of, part_stats, planned, print_parts
from trajgym.cli._policies import make_policy
from trajgym.cli._signals import ENDINGS
from trajgym.cli._terminal import print_json, say
from trajgym.envs import Budgets, EnvSpec
from trajgym.rollout import CollectReport, RunSettings, collect
from trajgym.rollout.evaluation import CostMeter, Prices
from trajgym.rollout.fleet import collect_in_processes
from trajgym.rollout.fleet.ray import RayLauncher
from trajgym.rollout.mixture import Mixture, load_mixture
from trajgym.trajectory import InvalidInput, Run, Usage

if TYPE_CHECKING:
    from collections.abc import Coroutine, Sequence
    from contextlib import AbstractContextManager
    from pathlib import Path

    from trajgym.adapters.tracking import Tracking
    from trajgym.rollout import Policy, Runner
    from trajgym.rollout import Progress as Event
    from trajgym.rollout.fleet import Fleet
    from trajgym.trajectory import Task

__all__ = [
    "COST_LIMIT",
    "CollectOptions",
    "checked_tasks",
    "collect_with_progress",
    "cost_meter",
    "policy_of",
    "run_collect",
]

COST_LIMIT = 3
"""Exit status of a run that the cost limit ended before it was finished."""
_SESSIONS = 16
"""Concurrent sessions of a process on Ray, unless the number of processes is given."""
_CAUSES = 10
"""How many different causes of failure are printed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectOptions:
    """Options of ``trajgym collect``."""

    env: str
    config: dict[str, Any]
    tasks: str
    out: Path
    mix: Path | None = None
    policy: str = "scripted"
    endpoint: EndpointOptions = field(default_factory=EndpointOptions)
    program: AgentOptions = field(default_factory=AgentOptions)
    samples: int = 8
    concurrency: int = 16
    processes: int | None = None
    ray: str | None = None
    turns: int | None = None
    retries: int = 0
    seed: int = 0
    keep_failed: bool = False
    max_tries: int = 10
    allow_changes: tuple[str, ...] = ()
    prices: Path | None = None
    max_cost: float | None = None
    track: str | None = None
    track_project: str = "trajgym"

    @property
    def workers(self) -> int:
        """The number of processes."""
        if self.processes is not None:
            return self.processes
        return 1 if self.ray is None else -(-self.concurrency // _SESSIONS)


def run_collect(options: CollectOptions, *, as_json: bool = False) -> int:
    """Collect, then print a summary and the next command.

    Returns:
        The exit status: 0, 1 if every session of a task failed, or 3 if the cost limit ended the
        run.
    """
    console = Console(stderr=as_json)
    if options.mix is None:
        tasks = checked_tasks(options)
        work: Mixture | Sequence[Task] = tasks
        groups = len(tasks)
    else:
        work = mixture = _checked_mixture(options, options.mix)
        groups, _ = planned(mixture, options.samples)
    meter = cost_meter(options)
    report = collect_with_progress(console, options, work, meter)
    stopped = meter.stopped if _unfinished(options.out, groups) else ""
    parts = part_stats(options.out) if isinstance(work, Mixture) else {}
    if as_json:
        document = _document(options, report, meter, stopped)
        if parts:
            document["environments"] = {name: one.to_json() for name, one in parts.items()}
        print_json(document)
    else:
        if parts:
            print_parts(parts)
        endings = ", ".join(f"{n} {status}" for status, n in sorted(report.statuses.items()))
        again = f"{report.again} of them failed samples run again, " if report.again else ""
        say(
            f"{report.sessions} sessions ({endings or 'nothing was left to do'}), {again}"
            f"{report.solved} solved, {report.groups} groups sealed{_spent(meter)}. "
            f"Next: trajgym show {options.out}"
        )
    status = print_failures(report)
    if stopped:
        say(f"Stopped: {stopped}. Raise --max-cost to continue the run.", error=True)
    return status or (COST_LIMIT if stopped else 0)


def checked_tasks(options: CollectOptions) -> Sequence[Task]:
    """Check the environment's settings and return the tasks; nothing is written.

    Raises:
        UnknownEnv: there is no such environment, or it is not a subclass of `Env`.
        InvalidInput: an unknown setting, tasks that can't be read, or no task.
    """
    spec = EnvSpec(id=options.env, config=options.config)
    spec.make()
    tasks = spec.resolve().load_tasks(options.tasks)
    if not tasks:
        raise InvalidInput(f"tasks {options.tasks!r}: there is no task")
    return tasks


def _checked_mixture(options: CollectOptions, path: Path) -> Mixture:
    if options.config:
        raise InvalidInput(f"--set: the settings of several environments are in {path}")
    return mixture_of(path, options.turns)


def cost_meter(options: CollectOptions) -> CostMeter:
    """Return what counts tokens and costs.

    Raises:
        InvalidInput: the price table can't be read, or there is a limit without one.
    """
    prices = None if options.prices is None else Prices.load(options.prices)
    return CostMeter(prices, limit=options.max_cost)


def print_failures(report: CollectReport) -> int:
    """Print the causes of tasks without a scored session; return the exit status."""
    if not report.failed_tasks:
        return 0
    names = ", ".join(report.failed_tasks[:5]) + (", ..." if len(report.failed_tasks) > 5 else "")
    n = len(report.failed_tasks)
    lines = [f"Every session of {n} task{'s' * (n > 1)} failed ({names}):"]
    causes = report.causes.most_common()
    lines += [f"  {count} x {_one_line(cause)}" for cause, count in causes[:_CAUSES]]
    if len(causes) > _CAUSES:
        lines.append(f"  and {len(causes) - _CAUSES} other causes")
    lines += advice_for(cause for cause, _ in causes)
    lines.append("Run the same command again to retry failed samples; --keep-failed skips them.")
    for line in lines:
        say(line, error=True)
    return 1


def _one_line(text: str) -> str:
    return " ".join(text.split())


def _unfinished(out: Path, tasks: int) -> bool:
    with Run(out) as run:
        return sum(group.sealed for group in run.groups()) < tasks


def _spent(meter: CostMeter) -> str:
    spent = meter.spent
    if not spent.prompt_tokens + spent.completion_tokens:
        return ""
    text = f", {spent.prompt_tokens:,} prompt and {spent.completion_tokens:,} completion tokens"
    if meter.prices is not None:
        text += f", {spent.cost:.4g} {meter.prices.currency}"
    return text


def _document(
    options: CollectOptions, report: CollectReport, meter: CostMeter, stopped: str
) -> dict[str, Any]:
    spent = asdict(meter.spent)
    if meter.prices is None:
        del spent["cost"], spent["unpriced"]
    else:
        spent["currency"] = meter.prices.currency
    return {
        "run": str(options.out),
        "sessions": report.sessions,
        "statuses": dict(report.statuses),
        "solved": report.solved,
        "groups": report.groups,
        "again": report.again,
        "failed_tasks": report.failed_tasks,
        "causes": dict(report.causes),
        "spent": spent,
        "stopped": stopped,
    }


def collect_with_progress(
    console: Console,
    options: CollectOptions,
    work: Mixture | Sequence[Task],
    meter: CostMeter | None = None,
) -> CollectReport:
    """Collect with a progress bar.

    A run whose first eight sessions fail because the endpoint refuses the API key is stopped.

    The first Ctrl-C, SIGTERM or SIGHUP closes every session and ends the program with status 130.
    The second exits at once; sandboxes that are left behind are removed at the next start.

    Raises:
        InvalidInput: the cost is limited and the model has no price.
    """
    meter, refused = meter or CostMeter(), RefusedKey()
    budgets = None
    if isinstance(work, Mixture):
        spec: EnvSpec | Mixture = work
        tasks = None
        _, sessions = planned(work, options.samples)
    else:
        spec, tasks = EnvSpec(id=options.env, config=options.config), work
        sessions = len(tasks) * options.samples
        if options.turns is not None:
            plain = asdict(spec.resolve().budgets)
            budgets = Budgets.from_json({**plain, "turns": options.turns})
    launcher = None if options.ray is None else RayLauncher(options.ray)
    policy = policy_of(options)
    _check_price(meter, policy)
    tracked = _tracking(options, policy, meter)
    if any(options.out.glob("*.sqlite")):
        with Run(options.out) as run:
            meter.count(run)
    with (
        tracked as tracking,
        _Bar(console, sessions, policy.name) as bar,
    ):

        def begin(runner: Runner | Fleet) -> None:
            meter.watch(runner)
            refused.watch(runner)

        def note(event: Event) -> None:
            bar.note(event)
            meter.note(event)
            refused.note(event)
            if tracking is not None:
                tracking.note(event)

        settings = RunSettings(
            samples=options.samples,
            concurrency=options.concurrency,
            budgets=budgets,
            retries=options.retries,
            seed=options.seed,
            keep_failed=options.keep_failed,
            max_tries=options.max_tries,
        )
        common: dict[str, Any] = {
            "settings": settings,
            "allow_changes": options.allow_changes,
            "on_start": begin,
            "on_progress": note,
        }

        async def collected() -> CollectReport:
            async with policy:
                if launcher is None and options.workers == 1:
                    return await collect(spec, tasks, policy, options.out, **common)
                return await collect_in_processes(
                    spec,
                    tasks,
                    partial(policy_of, options),
                    options.out,
                    processes=options.workers,
                    launcher=launcher,
                    **common,
                )

        report = run_interruptible(collected(), bar.console)
    if tracking is not None and tracking.error:
        say(f"warning: {tracking.error}", style="yellow", error=True)
    if refused.stopped:
        say(f"Stopped: {refused.stopped}; no other session was begun.", error=True)
    return report


def policy_of(options: CollectOptions) -> Policy:
    """Return the policy that options name, for one of their processes.

    Raises:
        InvalidInput: see :func:`make_policy` and :func:`agent_policy`.
    """
    endpoint = options.endpoint
    if endpoint.request_rate is not None:
        endpoint = replace(endpoint, request_rate=endpoint.request_rate / options.workers)
    if options.program.wanted:
        return agent_policy(options.program, endpoint)
    if options.mix is not None:
        return make_policy(options.policy, load_mixture(options.mix), endpoint)
    env = EnvSpec(id=options.env, config=options.config).resolve()
    return make_policy(options.policy, env, endpoint)


def _check_price(meter: CostMeter, policy: Policy) -> None:
    if meter.limit is None or meter.prices is None:
        return
    if meter.prices.cost(policy.name, Usage()) is None:
        known = ", ".join(sorted(meter.prices.models))
        raise InvalidInput(
            f"--max-cost needs a price for {policy.name.partition(':')[2] or policy.name}; the "
            f"price table has {known}",
        )


def _tracking(
    options: CollectOptions, policy: Policy, meter: CostMeter
) -> AbstractContextManager[Tracking | None]:
    if options.track is None:
        return nullcontext()
    from trajgym.adapters.tracking import Tracking, open_tracker

    directory = options.out / "tracking"
    tracker = open_tracker(options.track, project=options.track_project, directory=directory)
    directory.mkdir(parents=True, exist_ok=True)
    config = {
        "env": options.env if options.mix is None else str(options.mix),
        "settings": options.config,
        "tasks": options.tasks,
        "samples": options.samples,
        "seed": options.seed,
        "policy": policy.identity,
    }
    return Tracking(tracker, name=options.out.resolve().name, config=config, prices=meter.prices)


def run_interruptible(work: Coroutine[Any, Any, CollectReport], console: Console) -> CollectReport:
    """Run until the end, or until Ctrl-C, SIGTERM or SIGHUP cancels the work."""

    async def supervised() -> CollectReport:
        task = asyncio.ensure_future(work)
        loop = asyncio.get_running_loop()
        presses = Counter[str]()
        numbers = [n for n in ENDINGS if signal.getsignal(n) != signal.SIG_IGN]

        def interrupt() -> None:
            presses["n"] += 1
            if presses["n"] > 1:
                os._exit(130)
            console.print("Closing sessions… (press Ctrl-C again to exit at once)")
            task.cancel()

        for number in numbers:
            loop.add_signal_handler(number, interrupt)
        try:
            return await task
        finally:
            for number in numbers:
                loop.remove_signal_handler(number)

    try:
        return asyncio.run(supervised())
    except asyncio.CancelledError:
        console.print("Stopped. The same command goes on where it stopped.")
        sys.exit(130)


class _Bar:
    """A progress bar over sessions, with counts of turns, solved and failed sessions."""

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
        about = escape(f"collecting ({policy})")
        self._bar = self._progress.add_task(about, total=total, note="")
        self._seen: Counter[str] = Counter()

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def note(self, event: Event) -> None:
        """Update the bar with an event of the runner."""
        if event.kind == "turn":
            self._seen["turns"] += 1
        elif event.kind == "ended":
            self._seen["solved"] += (event.score or 0.0) >= 1.0
            self._seen["failed"] += event.status.startswith("failed")
            if event.status != "interrupted":  # by the death of its process; it is run again
                self._progress.advance(self._bar)
        else:
            return
        words = [f"{self._seen['turns']} turns", f"{self._seen['solved']} solved"]
        if self._seen["failed"]:
            words.append(f"[red]{self._seen['failed']} failed[/]")
        self._progress.update(self._bar, note=", ".join(words))
