"""`trajgym rescore`: a rubric over the attempts of a run."""

from __future__ import annotations

import asyncio
import importlib
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

from trajgym.cli._terminal import print_json, say
from trajgym.envs import EnvSpec
from trajgym.envs.rubrics import Rubric
from trajgym.rollout import OpenAIPolicy, annotate, rescore
from trajgym.rollout.annotators import RubricJudge
from trajgym.trajectory import InvalidInput, Run, Sampling

if TYPE_CHECKING:
    from pathlib import Path

    from trajgym.rollout import RescoreReport
    from trajgym.rollout.annotators import AnnotateReport

__all__ = ["RescoreOptions", "run_rescore"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RescoreOptions:
    """What the command line asks for; see ``trajgym rescore --help``."""

    run: Path
    rubric: str | None = None
    name: str | None = None
    model: str | None = None
    base_url: str | None = None
    api_key_env: str = "OPENAI_API_KEY"
    concurrency: int = 8
    as_json: bool = False


def run_rescore(options: RescoreOptions) -> int:
    """Have the judged parts judged, score the run again, and print what changed.

    Returns:
        0, or 1 if an attempt could not be scored.

    Raises:
        InvalidInput: there is no such rubric, or it has no judged part.
        PolicyUnavailable: the judge does not answer.
    """
    rubric = None if options.rubric is None else _imported(options.rubric)
    judged = None
    if options.model is not None:
        judged = asyncio.run(_judge(options, rubric or _own(options.run), options.model))
    report = rescore(options.run, rubric, name=options.name)
    if options.as_json:
        print_json(_plain(report))
    else:
        _print(options.run, report, judged)
    return int(bool(report.failed))


async def _judge(options: RescoreOptions, rubric: Rubric, model: str) -> AnnotateReport:
    with Run(options.run) as run:
        tasks = {task.id: task for task in run.tasks()}
    policy = OpenAIPolicy(
        model,
        base_url=options.base_url,
        api_key=os.environ.get(options.api_key_env),
        sampling=Sampling(temperature=0.0),
    )
    async with RubricJudge(policy, rubric, tasks) as judge:
        return await annotate(options.run, judge, concurrency=options.concurrency)


def _imported(path: str) -> Rubric:
    module, _, name = path.partition(":")
    try:
        found: object = importlib.import_module(module)
        for part in name.split("."):
            found = getattr(found, part)
    except (ImportError, AttributeError, ValueError) as error:
        raise InvalidInput(f"rubric {path!r} can't be imported: {error}") from error
    if not isinstance(found, Rubric):
        raise InvalidInput(f"{path!r} is {type(found).__name__}; it must be a Rubric")
    return found


def _own(path: Path) -> Rubric:
    with Run(path) as run:
        for summary in run.summaries():
            where = f"{path}: session {summary.record.id}: its environment"
            rubric = EnvSpec.from_json(summary.record.env, where).resolve().rubric
            if rubric is not None:
                return rubric
    raise InvalidInput(f"{path}: its environment has no rubric; name one with --rubric")


def _plain(report: RescoreReport) -> dict[str, object]:
    before, after = report.means or (None, None)
    return {
        "outcomes": report.name,
        "rescored": report.rescored,
        "changed": report.changed,
        "passed_before": report.passed_before,
        "passed": report.passed,
        "mean_before": before,
        "mean": after,
        "failed": dict(report.failed.most_common()),
    }


def _print(path: Path, report: RescoreReport, judged: AnnotateReport | None) -> None:
    if judged is not None:
        say(f"judged {judged.annotated} attempts, {judged.skipped} were judged already")
        for cause, n in judged.failed.most_common(5):
            say(f"  not judged {n}: {cause}", style="yellow")
    means = report.means
    scores = "" if means is None else f", mean score {means[0]:.3f} before, {means[1]:.3f} now"
    say(
        f"rescored {report.rescored} attempts, {report.changed} changed; "
        f"{report.passed_before} passed before, {report.passed} now{scores}"
    )
    for cause, n in report.failed.most_common(10):
        say(f"  not scored {n}: {cause}", style="yellow")
    if report.rescored:
        say(
            f"Kept beside the recorded outcomes as {report.name!r}; "
            f"next: trajgym reward {path} --with grpo --outcomes {report.name}"
        )
