"""Implementation of `trajgym swe`."""

from __future__ import annotations

import asyncio
import json
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar, get_args

from rich.console import Console
from rich.markup import escape

from trajgym.envs.sandbox import ProviderName, close_shared_providers, shared_provider
from trajgym.envs.swe import (
    Builder,
    InvalidTask,
    build_task,
    grade_predictions,
    import_tasks,
    load_tasks,
    read_predictions,
    validate_task,
    write_corpus,
)
from trajgym.trajectory import InvalidInput
from trajgym.trajectory._internal import first_error

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable
    from pathlib import Path

    from trajgym.envs.sandbox import SandboxProvider
    from trajgym.envs.swe import GradedPrediction, Validation
    from trajgym.trajectory import Task

__all__ = ["BuildOptions", "run_build", "run_grade", "run_import", "run_validate"]

_SHOWN = 10
_T = TypeVar("_T")


def run_import(
    source: str,
    out: Path,
    split: str,
    shape: str | None,
    image: str | None,
    scripts: Path | None = None,
) -> None:
    """Write the tasks of a data set as JSON lines; exit with status 1 if there are none."""
    console = Console(soft_wrap=True, highlight=False)
    tasks, problems = import_tasks(
        source,
        split=split,
        shape=shape,  # type: ignore[arg-type]
        image=image,
        scripts=scripts,
    )
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text("".join(json.dumps(task.data) + "\n" for task in tasks))
    for problem in problems[:_SHOWN]:
        console.print(f"[red]left out[/] {escape(problem)}")
    if len(problems) > _SHOWN:
        console.print(f"and {len(problems) - _SHOWN} more")
    console.print(f"{len(tasks)} tasks in {out}, {len(problems)} records left out")
    if not tasks:
        raise SystemExit(1)


def run_grade(
    tasks: str, predictions: Path, out: Path, sandbox: str, concurrency: int, test_seconds: float
) -> None:
    """Grade predictions; exit with status 1 if some could not be graded."""
    console = Console(soft_wrap=True, highlight=False)
    known = load_tasks(tasks)
    patches = read_predictions(predictions)

    def told(result: GradedPrediction) -> None:
        why = result.problem or "; ".join([*result.tampering, *result.tried])
        text = f" ({escape(why)})" if why else ""
        console.print(f"{result.status:10} {result.instance_id}{text}")

    async def work(provider: SandboxProvider) -> list[GradedPrediction]:
        return await grade_predictions(
            known, patches, provider, out,
            concurrency=concurrency, test_seconds=test_seconds, on_result=told,
        )  # fmt: skip

    results = _with_provider(sandbox, work)
    counts = Counter(result.status for result in results)
    missing = len(known) - len({result.instance_id for result in results})
    console.print(
        f"{counts['resolved']} of {len(results)} resolved, {counts['tampered']} tampered, "
        f"{counts['failed']} failed, {max(0, missing)} tasks without a prediction. Lines: {out}"
    )
    if counts["failed"]:
        raise SystemExit(1)


def run_validate(
    tasks: str, sandbox: str, repeats: int, concurrency: int, test_seconds: float, out: Path | None
) -> None:
    """Validate tasks; exit with status 1 if one is not sound."""
    console = Console(soft_wrap=True, highlight=False)
    known = load_tasks(tasks)

    async def work(provider: SandboxProvider) -> list[Validation]:
        return await _validated(known, provider, console, repeats, concurrency, test_seconds)

    found = _with_provider(sandbox, work)
    if out is not None:
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_text("".join(json.dumps(_line(validation)) + "\n" for validation in found))
    sound = sum(validation.sound for validation in found)
    console.print(f"{sound} of {len(found)} tasks are sound on this machine")
    if sound < len(found):
        raise SystemExit(1)


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildOptions:
    """Options of ``trajgym swe build``."""

    out: Path
    pypi: tuple[str, str, str] | None = None
    hunks: bool = False
    git: str | None = None
    commits: str | None = None
    mutate: tuple[str, str] | None = None
    count: int = 12
    seed: int = 0
    needs: tuple[str, ...] = ()
    licence: str = ""
    repeats: int = 3
    sandbox: str = "embedded"
    test_seconds: float = 120.0
    report: Path | None = None


@dataclass(slots=True)
class _Yield:
    """The results for all candidates."""

    candidates: int = 0
    reasons: Counter[str] = field(default_factory=Counter)
    recipes: list[dict[str, Any]] = field(default_factory=list)
    unsound: dict[str, list[str]] = field(default_factory=dict)


def run_build(options: BuildOptions) -> None:
    """Build, validate and write recipes; exit with status 1 if there are none."""
    if [bool(options.pypi), bool(options.git), bool(options.mutate)].count(True) != 1:
        raise InvalidInput("give one of --pypi NAME OLD NEW, --git REPO, --mutate NAME VERSION")
    if options.git and not options.commits:
        raise InvalidInput("--git needs --commits RANGE, such as v1.0..v1.1")
    console = Console(soft_wrap=True, highlight=False)
    begun = time.monotonic()

    async def work(provider: SandboxProvider) -> _Yield:
        return await _build(options, provider, console)

    found = _with_provider(options.sandbox, work)
    seconds = time.monotonic() - begun
    files = _write(found.recipes, options.out)
    console.print(
        f"{len(found.recipes)} tasks out of {found.candidates} candidates in {seconds:.0f} s, "
        f"{len(found.unsound)} not sound: {', '.join(map(str, files)) or 'nothing written'}"
    )
    if options.report is not None:
        _report(options, found, seconds)
    if not found.recipes:
        raise SystemExit(1)


async def _build(options: BuildOptions, provider: SandboxProvider, console: Console) -> _Yield:
    found = _Yield()

    def told(name: str, why: str) -> None:
        found.candidates += 1
        found.reasons["".join(c for c in why if not c.isdigit()) or "kept"] += 1
        console.print(f"{'no ' if why else 'yes'} {name} {escape(why)}")

    builder = Builder(
        provider, needs=options.needs, seconds=options.test_seconds, on_candidate=told
    )
    async for recipe in _recipes(builder, options):
        if not options.repeats:
            found.recipes.append(recipe)
            continue
        task = await asyncio.to_thread(build_task, recipe)
        result = await validate_task(
            task, provider, repeats=options.repeats, test_seconds=2 * options.test_seconds
        )
        if result.sound:
            found.recipes.append(recipe)
        else:
            found.unsound[task.id] = list(result.problems)
            console.print(f"not sound: {task.id}: {escape('; '.join(result.problems))}")
    return found


async def _recipes(builder: Builder, options: BuildOptions) -> AsyncIterator[dict[str, Any]]:
    if options.mutate:
        async for recipe in builder.mutations(
            *options.mutate, count=options.count, seed=options.seed
        ):
            yield recipe
    elif options.git and options.commits:
        async for recipe in builder.commits(options.git, options.commits, options.licence):
            yield recipe
    elif options.pypi and options.hunks:
        async for recipe in builder.hunks(*options.pypi):
            yield recipe
    elif options.pypi:
        try:
            recipe = await builder.release(*options.pypi)
        except InvalidTask as error:
            builder.on_candidate("-".join(options.pypi), str(error))
        else:
            builder.on_candidate(recipe["instance_id"], "")
            yield recipe


def _write(recipes: list[dict[str, Any]], out: Path) -> list[Path]:
    """Write recipes of one-file changes into packed files, all others into a file each."""
    packed = [r for r in recipes if r["source"]["kind"] in {"pypi-mutation", "pypi-hunk"}]
    written = write_corpus(packed, out) if packed else []
    for recipe in recipes:
        if recipe not in packed:
            path = out / f"{recipe['instance_id'].replace('/', '_')}.json"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(json.dumps(recipe, indent=1) + "\n")
            written.append(path)
    return written


def _report(options: BuildOptions, found: _Yield, seconds: float) -> None:
    assert options.report is not None
    about = found.recipes[0]["provenance"] if found.recipes else {}
    data = {
        "package": about.get("package"),
        "version": about.get("version"),
        "licence": about.get("licence"),
        "made_from": about.get("made_from"),
        "candidates": found.candidates,
        "outcomes": dict(sorted(found.reasons.items())),
        "unsound": found.unsound,
        "tasks": len(found.recipes),
        "rules": dict(_rules(found.recipes)),
        "seconds": round(seconds, 1),
    }
    options.report.parent.mkdir(parents=True, exist_ok=True)
    options.report.write_text(json.dumps(data, indent=1) + "\n")


def _rules(recipes: list[dict[str, Any]]) -> Counter[str]:
    sources = (recipe["source"] for recipe in recipes)
    return Counter(source["mutation"]["rule"] for source in sources if "mutation" in source)


async def _validated(
    tasks: list[Task],
    provider: SandboxProvider,
    console: Console,
    repeats: int,
    concurrency: int,
    test_seconds: float,
) -> list[Validation]:
    slots = asyncio.Semaphore(max(1, concurrency))

    async def one(task: Task) -> Validation:
        async with slots:
            found = await validate_task(task, provider, repeats=repeats, test_seconds=test_seconds)
        text = "sound" if found.sound else f"[red]not sound[/]: {escape('; '.join(found.problems))}"
        console.print(f"{task.id}: {text}")
        return found

    with first_error():
        async with asyncio.TaskGroup() as group:
            started = [group.create_task(one(task)) for task in tasks]
    return [task.result() for task in started]


def _line(validation: Validation) -> dict[str, Any]:
    return {
        **validation._asdict(),
        "problems": list(validation.problems),
        "sound": validation.sound,
    }


def _with_provider(kind: str, work: Callable[[SandboxProvider], Awaitable[_T]]) -> _T:
    """Run ``work`` with a provider of that kind, which is closed afterwards."""
    if kind not in get_args(ProviderName):
        raise InvalidInput(f"sandbox {kind!r}: use one of {get_args(ProviderName)}")

    async def run() -> _T:
        try:
            return await work(await shared_provider(kind))  # type: ignore[arg-type]
        finally:
            await close_shared_providers()

    return asyncio.run(run())
