"""`trajgym annotate`: a model judges the turns of a run."""

from __future__ import annotations

import asyncio
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rich.console import Console

from trajgym.cli._endpoint import endpoint_policy
from trajgym.cli._judges import make_judge
from trajgym.cli._terminal import say
from trajgym.rollout import annotate
from trajgym.rollout.memory import LessonWriter

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from trajgym.cli._endpoint import EndpointOptions
    from trajgym.rollout.annotators import Annotated, AnnotateReport, Annotator

__all__ = ["AnnotateOptions", "run_annotate"]

_NEXT = {
    "votes": "Next: trajgym reward {run} --with next_state_votes",
    "hints": "Scoring hints needs a teacher model: see trajgym.rollout.annotators.HintJudge.",
    "lessons": "Next: trajgym memory build {run} --out memory.jsonl",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class AnnotateOptions:
    """Options of ``trajgym annotate``."""

    run: Path
    judge: str
    endpoint: EndpointOptions
    votes: int = 3
    concurrency: int = 8


def run_annotate(options: AnnotateOptions) -> None:
    """Judge every turn that has not been judged yet, and print a summary.

    Ctrl-C ends the program with status 130; signals that were recorded are kept.

    Raises:
        InvalidInput: no such judge.
        PolicyUnavailable: the endpoint does not answer.
    """
    console = Console()
    try:
        with console.status("judging…") as status:
            done = 0

            def note(event: Annotated) -> None:
                nonlocal done
                done += not event.cause
                status.update(f"judging… {done} turns")

            report = asyncio.run(_annotate(options, note))
    except KeyboardInterrupt:
        console.print("Stopped. Run the same command again to continue.")
        sys.exit(130)
    failed = report.failed.total()
    say(
        f"{options.judge} of {options.endpoint.model}: {report.annotated} turns annotated, "
        f"{report.skipped} annotated before, {failed} failed. "
        f"{_NEXT[options.judge].format(run=options.run)}"
    )
    for cause, n in report.failed.most_common(5):
        say(f"  failed {n}: {cause}", style="yellow")


async def _annotate(options: AnnotateOptions, note: Callable[[Annotated], None]) -> AnnotateReport:
    async with _annotator(options) as judge:
        return await annotate(options.run, judge, concurrency=options.concurrency, on_progress=note)


def _annotator(options: AnnotateOptions) -> Annotator:
    if options.judge == "lessons":
        return LessonWriter(endpoint_policy(options.endpoint))
    return make_judge(options.judge, options.endpoint, options.votes, others=["lessons"])
