"""`trajgym dataset`: operations that make new runs from runs."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from trajgym.cli._options import (
    AsJson,
    DecisionsFile,
    Redact,
    RunPath,
)
from trajgym.cli._terminal import print_json, say

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trajgym.trajectory.datasets import Derived

__all__ = ["dataset_app"]

dataset_app = typer.Typer(
    no_args_is_help=True,
    help="Make new runs of a run's sessions; name, export and import them.",
)

Out = Annotated[Path, typer.Option(help="Directory of the new run.")]
Seed = Annotated[int, typer.Option(help="Seed of the choice.")]


class Match(StrEnum):
    """Which sessions of a group have to match."""

    any = "any"
    all = "all"


class By(StrEnum):
    """What makes two groups equal."""

    content = "content"
    task = "task"


@dataset_app.command()
def merge(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN...", help="Run directories.")],
    out: Out,
    as_json: AsJson = False,
) -> None:
    """Put the sessions of several runs into one; ids that are taken get a number."""
    from trajgym.trajectory.datasets import merge_runs

    _print([merge_runs(runs, out)], as_json=as_json)


@dataset_app.command()
def split(
    run: RunPath,
    out: Annotated[Path, typer.Option(help="Directory in which the parts are made.")],
    part: Annotated[
        list[str],
        typer.Option(metavar="NAME=SHARE", help="A part and its share of the tasks; repeated."),
    ],
    by: Annotated[
        str, typer.Option(metavar="EXPR", help="Tasks with an equal value stay together.")
    ] = "task",
    seed: Seed = 0,
    as_json: AsJson = False,
) -> None:
    """Split a run by task, such as `--part train=0.9 --part test=0.1`."""
    from trajgym.trajectory.datasets import split_run

    _print(list(split_run(run, out, _parts(part), seed=seed, by=by).values()), as_json=as_json)


@dataset_app.command(name="filter")
def filter_(
    run: RunPath,
    out: Out,
    where: Annotated[str, typer.Option(metavar="EXPR", help="Such as 'passed and turns < 20'.")],
    match: Annotated[
        Match, typer.Option(help="Keep a group if any, or all, of its sessions match.")
    ] = Match.any,
    as_json: AsJson = False,
) -> None:
    """Keep what an expression over fields is true for; `trajgym dataset fields` lists them."""
    from trajgym.trajectory.datasets import filter_run

    _print([filter_run(run, out, where, match=match.value)], as_json=as_json)


@dataset_app.command()
def dedup(
    run: RunPath,
    out: Out,
    by: Annotated[
        By, typer.Option(help="Compare tasks and all messages, or the tasks only.")
    ] = By.content,
    as_json: AsJson = False,
) -> None:
    """Keep the first of equal groups."""
    from trajgym.trajectory.datasets import dedup_run

    _print([dedup_run(run, out, by=by.value)], as_json=as_json)


@dataset_app.command()
def sample(
    run: RunPath,
    out: Out,
    n: Annotated[int | None, typer.Option("-n", help="How many groups.")] = None,
    share: Annotated[float | None, typer.Option(help="Or their share, up to 1.")] = None,
    seed: Seed = 0,
    as_json: AsJson = False,
) -> None:
    """Keep a random sample of the groups."""
    from trajgym.trajectory.datasets import sample_run

    _print([sample_run(run, out, n=n, share=share, seed=seed)], as_json=as_json)


@dataset_app.command()
def stratify(
    run: RunPath,
    out: Out,
    by: Annotated[
        str, typer.Option(metavar="EXPR", help="Such as 'data.level' or 'solve_rate > 0.5'.")
    ],
    per: Annotated[
        int | None, typer.Option(help="Groups per value; as many as the rarest has by default.")
    ] = None,
    seed: Seed = 0,
    as_json: AsJson = False,
) -> None:
    """Keep equally many groups of each value of an expression."""
    from trajgym.trajectory.datasets import stratify_run

    _print([stratify_run(run, out, by, per=per, seed=seed)], as_json=as_json)


@dataset_app.command()
def contamination(
    train: Annotated[Path, typer.Argument(metavar="TRAIN", help="Run to train on.")],
    evaluation: Annotated[
        Path, typer.Argument(metavar="EVAL", help="Run, or JSON Lines file of tasks.")
    ],
    out: Annotated[
        Path | None, typer.Option(help="Directory of a new run without what was found.")
    ] = None,
    ngram: Annotated[int, typer.Option(help="Words per n-gram.")] = 13,
    overlap: Annotated[
        float, typer.Option(help="Least share of the n-grams of a task's prompt or data.")
    ] = 0.5,
    as_json: AsJson = False,
) -> None:
    """Search a run for the tasks of an evaluation set; status 1 if there are, without --out."""
    from trajgym.cli._contamination import run_contamination

    status = run_contamination(
        train, evaluation, out=out, ngram=ngram, overlap=overlap, as_json=as_json
    )
    raise typer.Exit(status)


@dataset_app.command()
def redact(
    run: RunPath,
    out: Out,
    decisions: DecisionsFile = None,
    report: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write what was found as JSON.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Copy a run with secrets and personal data replaced; `trajgym dataset rules` lists the kinds.

    Turns whose texts change lose their token ids, which spell the texts.
    """
    from trajgym.cli._redact import run_redact

    run_redact(run, out, decisions=decisions, report=report, as_json=as_json)


@dataset_app.command()
def review(
    run: RunPath,
    decisions: Annotated[
        Path,
        typer.Option(metavar="FILE", help="File for the decisions; it is updated if it is there."),
    ],
    as_json: AsJson = False,
) -> None:
    """List what `redact` would replace, in a file in which each finding can be kept."""
    from trajgym.cli._redact import run_review

    run_review(run, decisions, as_json=as_json)


@dataset_app.command()
def rules() -> None:
    """List the kinds of secrets and personal data that are found."""
    from trajgym.cli._terminal import print_table
    from trajgym.trajectory.redaction import default_rules

    kinds = {rule.name: rule.about for rule in default_rules()}
    print_table(["rule", "finds"], list(kinds.items()))


@dataset_app.command()
def name(
    run: RunPath,
    dataset: Annotated[str, typer.Argument(metavar="NAME", help="Such as namespace/name-v0.")],
    as_json: AsJson = False,
) -> None:
    """Give a run a name; its environments and their versions are recorded with it."""
    from trajgym.cli._versions import env_versions
    from trajgym.trajectory.datasets import name_dataset

    found = name_dataset(run, dataset, versions=env_versions(run))
    if as_json:
        print_json({"id": found.id, "environments": found.environments, "versions": found.versions})
        return
    say(f"{run}: {found.id}")
    for env in found.environments:
        say(f"  {env['id']}: {env['sessions']} sessions")
    for package, version in found.versions.items():
        say(f"  {package} {version}")


@dataset_app.command()
def info(run: RunPath) -> None:
    """Print a run's name, environments, licences of tasks and lineage as JSON."""
    from collections import Counter
    from dataclasses import asdict

    from trajgym.trajectory import Run
    from trajgym.trajectory.datasets import dataset_id, lineage, task_licence

    with Run(run) as opened:
        named, made = dataset_id(opened), lineage(opened)
        licences = Counter(task_licence(task) or "unknown" for task in opened.tasks())
    print_json(
        {
            "dataset": None if named is None else asdict(named),
            "licences": licences,
            "lineage": None if made is None else made.to_json(),
        }
    )


@dataset_app.command()
def export(
    run: RunPath,
    out: Annotated[Path, typer.Option(help="Directory of the data set.")],
    licence: Annotated[
        str | None, typer.Option(metavar="SPDX", help="Licence, such as MIT.")
    ] = None,
    redact: Redact = False,
    decisions: DecisionsFile = None,
    as_json: AsJson = False,
) -> None:
    """Write a run as Parquet tables with a card, for Hugging Face's `datasets`."""
    from trajgym.adapters.exports.dataset import write_dataset
    from trajgym.cli._redact import redacted

    with redacted(run, out, wanted=redact, decisions=decisions) as (source, _):
        report = write_dataset(source, out, licence=licence)
    if as_json:
        print_json({"path": str(out), "rows": report.rows, "licences": report.licences})
        return
    say(f"{out}: README.md and {sum(report.rows.values())} rows")
    for table, rows in report.rows.items():
        if rows:
            say(f"  {table}: {rows}")


@dataset_app.command(name="import")
def import_(
    directory: Annotated[Path, typer.Argument(help="Directory of the data set.")],
    out: Out,
) -> None:
    """Make a run of a data set that `trajgym dataset export` wrote."""
    from trajgym.adapters.exports.dataset import read_dataset

    say(f"{out}: {read_dataset(directory, out)} sessions")


@dataset_app.command()
def fields() -> None:
    """List the fields that expressions can use."""
    from trajgym.cli._terminal import print_table
    from trajgym.trajectory.datasets import FIELDS

    print_table(["field", "meaning"], [[key, about] for key, about in FIELDS.items()])


def _parts(given: Sequence[str]) -> dict[str, float]:
    parts: dict[str, float] = {}
    for text in given:
        key, _, share = text.partition("=")
        try:
            parts[key] = float(share)
        except ValueError as error:
            raise typer.BadParameter(f"--part {text!r}: write NAME=SHARE") from error
    return parts


def _print(made: Sequence[Derived], *, as_json: bool) -> None:
    if as_json:
        print_json([{**one._asdict(), "path": str(one.path)} for one in made])
        return
    for one in made:
        more = f"; {one.left_out} sessions left out" * bool(one.left_out)
        more += f"; {one.renamed} sessions renamed" * bool(one.renamed)
        say(f"{one.path}: {one.sessions} sessions, {one.groups} groups, {one.tasks} tasks{more}")
