"""`trajgym annotate`: a judge over the turns of a run."""

from __future__ import annotations

import asyncio
import os
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rich.console import Console

from trajgym.rollout import HintJudge, OpenAIPolicy, VoteJudge, annotate
from trajgym.trajectory import InvalidInput, Sampling

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from trajgym.rollout import Annotated, AnnotateReport, Annotator

__all__ = ["AnnotateOptions", "run_annotate"]

_NEXT = {
    "votes": "Next: trajgym reward {run} --with next_state_votes",
    "hints": "What they are worth needs a teacher that scores ids: trajgym.rollout.HintJudge",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class AnnotateOptions:
    """What the command line asks for; see ``trajgym annotate --help``."""

    run: Path
    judge: str
    model: str
    base_url: str | None = None
    votes: int = 3
    concurrency: int = 8
    temperature: float = 1.0
    api_key_env: str = "OPENAI_API_KEY"


def run_annotate(options: AnnotateOptions) -> None:
    """Ask the judge about every turn that it has not judged, and say what came out.

    Ctrl-C ends the program with status 130; what was found is kept.

    Raises:
        InvalidInput: no such judge.
        PolicyUnavailable: it does not answer.
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
        console.print("Stopped. The same command goes on where it stopped.")
        sys.exit(130)
    failed = report.failed.total()
    console.print(
        f"{options.judge} of {options.model}: {report.annotated} turns annotated, "
        f"{report.skipped} were already, {failed} failed. "
        f"{_NEXT[options.judge].format(run=options.run)}",
        highlight=False,
        soft_wrap=True,
    )
    for cause, n in report.failed.most_common(5):
        console.print(f"  failed {n}: {cause}", style="yellow", highlight=False, soft_wrap=True)


async def _annotate(options: AnnotateOptions, note: Callable[[Annotated], None]) -> AnnotateReport:
    async with _judge(options) as judge:
        return await annotate(options.run, judge, concurrency=options.concurrency, on_progress=note)


def _judge(options: AnnotateOptions) -> Annotator:
    if options.judge not in _NEXT:
        raise InvalidInput(f"no judge {options.judge!r}; there are {', '.join(_NEXT)}")
    policy = OpenAIPolicy(
        options.model,
        base_url=options.base_url,
        api_key=os.environ.get(options.api_key_env),
        sampling=Sampling(temperature=options.temperature),
    )
    kind = VoteJudge if options.judge == "votes" else HintJudge
    return kind(policy, votes=options.votes)
