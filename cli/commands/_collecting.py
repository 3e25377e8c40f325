"""Collect runs of environments, and evaluate models and agents on them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from trajgym.cli._options import AsJson
from trajgym.cli.commands._shared import SharedOptions
from trajgym.cli.commands._unfold import unfold

__all__ = ["collect", "evaluate"]

Tasks = Annotated[
    str | None, typer.Option(help="File, directory, or a name the environment knows.")
]


@unfold
def collect(
    *,
    out: Annotated[Path, typer.Option(help="Run directory. An existing run is resumed.")],
    tasks: Tasks = None,
    mix: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="TOML file with several environments and their tasks, instead of --env, --tasks.",
        ),
    ] = None,
    shared: SharedOptions,
    as_json: AsJson = False,
) -> None:
    """Run tasks and record every turn. After Ctrl-C, the same command resumes the run.

    The exit status is 1 if every session of some task failed, and 3 at the cost limit.
    """
    from trajgym.cli._collect import run_collect

    if (tasks is None) == (mix is None):
        raise typer.BadParameter("give either --tasks or --mix")
    options = shared.collection(out, tasks=tasks, mix=mix)
    raise typer.Exit(run_collect(options, as_json=as_json))


@unfold
def evaluate(
    *,
    out: Annotated[Path, typer.Option(help="Directory for the runs. Existing runs are resumed.")],
    tasks: Tasks = None,
    suite: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="TOML file with one [[eval]] table per environment."),
    ] = None,
    shared: SharedOptions,
    by: Annotated[
        str | None,
        typer.Option(metavar="KEY", help="Key of the tasks' data to group tasks by."),
    ] = None,
    against: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Earlier evaluation to compare with, per task."),
    ] = None,
    markdown: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Also write the report as Markdown."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Collect, then report solved shares with intervals, pass@k, pass^k, failures and costs.

    The exit status is 1 if an environment has no scored attempt, and 3 if the cost limit ended the
    evaluation.
    """
    from trajgym.cli._eval import EvalOptions, eval_jobs, run_eval

    if (tasks is None) == (suite is None):
        raise typer.BadParameter("give either --tasks or --suite")
    base = shared.collection(out, tasks=tasks)
    jobs = [base] if suite is None else eval_jobs(suite, base)
    options = EvalOptions(by=by, against=against, markdown=markdown, as_json=as_json)
    raise typer.Exit(run_eval(jobs, options))
