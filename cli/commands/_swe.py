"""`trajgym swe`: import, grade, build and validate SWE tasks."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from trajgym.cli._kinds import SandboxKind

__all__ = ["swe_app"]

swe_app = typer.Typer(help="Import, grade, build and validate SWE tasks.", no_args_is_help=True)

Tasks = Annotated[str, typer.Option(help="File, folder, or name: builtin, recipes, corpus.")]
Sandbox = Annotated[SandboxKind, typer.Option(help="Kind of sandbox.")]
Concurrency = Annotated[int, typer.Option(help="Concurrent jobs.")]
TestSeconds = Annotated[float, typer.Option(help="Time limit of one test run (s).")]


@swe_app.command("import")
def import_(
    source: Annotated[str, typer.Argument(help="A parquet, jsonl, json or arrow file, a folder, or "
                                               "the name of a data set on the hub.")],
    out: Annotated[Path, typer.Option(help="JSONL file for the tasks.")],
    split: Annotated[str, typer.Option(help="Split of the data set.")] = "test",
    shape: Annotated[str | None, typer.Option(help="Format of the rows.")] = None,
    image: Annotated[
        str | None,
        typer.Option(help="Image of each record, such as 'name/{instance_id}:latest'."),
    ] = None,
    scripts: Annotated[
        Path | None,
        typer.Option(help="Folder with run_script.sh and parser.py for each instance_id."),
    ] = None,
) -> None:  # fmt: skip
    """Import tasks from a published data set, and report the records that can't be used."""
    from trajgym.cli._swe_run import run_import

    run_import(source, out, split, shape, image, scripts)


@swe_app.command()
def grade(
    tasks: Tasks,
    predictions: Annotated[Path, typer.Option(help="Predictions in SWE-bench's format.")],
    out: Annotated[
        Path, typer.Option(help="JSONL file for the results. An existing file is resumed.")
    ],
    sandbox: Sandbox = SandboxKind.auto,
    concurrency: Concurrency = 2,
    test_seconds: TestSeconds = 300.0,
) -> None:
    """Grade patches, with one result line per instance."""
    from trajgym.cli._swe_run import run_grade

    run_grade(tasks, predictions, out, sandbox.value, concurrency, test_seconds)


@swe_app.command()
def validate(
    tasks: Tasks,
    sandbox: Sandbox = SandboxKind.auto,
    repeats: Annotated[
        int, typer.Option(help="Runs with the gold patch, all of which must pass.")
    ] = 3,
    concurrency: Concurrency = 2,
    test_seconds: TestSeconds = 300.0,
    out: Annotated[Path | None, typer.Option(help="JSONL file for the findings.")] = None,
) -> None:
    """Check that the gold patch always solves each task, and that no change does not."""
    from trajgym.cli._swe_run import run_validate

    run_validate(tasks, sandbox.value, repeats, concurrency, test_seconds, out)


@swe_app.command()
def build(
    out: Annotated[Path, typer.Option(help="Folder for the recipes.")],
    pypi: Annotated[
        tuple[str, str, str] | None,
        typer.Option(metavar="NAME OLD NEW", help="Two releases that ship tests; makes one task."),
    ] = None,
    hunks: Annotated[
        bool, typer.Option("--hunks", help="With --pypi: one task per hunk that a test detects.")
    ] = False,
    git: Annotated[str | None, typer.Option(help="A repository, with --commits.")] = None,
    commits: Annotated[str | None, typer.Option(help="Range, such as v1.0..v1.1.")] = None,
    mutate: Annotated[
        tuple[str, str] | None,
        typer.Option(
            metavar="NAME VERSION", help="Release that ships tests, into which bugs are inserted."
        ),
    ] = None,
    count: Annotated[int, typer.Option(help="With --mutate: number of tasks.")] = 12,
    seed: Annotated[int, typer.Option(help="With --mutate: seed of the choice of places.")] = 0,
    needs: Annotated[
        list[str] | None,
        typer.Option(help="Pinned package that the tests need; may be repeated."),
    ] = None,
    licence: Annotated[str, typer.Option(help="With --git: licence of the repository.")] = "",
    repeats: Annotated[
        int, typer.Option(help="Validation runs of the gold patch; 0 skips validation.")
    ] = 3,
    sandbox: Sandbox = SandboxKind.embedded,
    test_seconds: TestSeconds = 120.0,
    report: Annotated[
        Path | None, typer.Option(help="JSON file for the counts of candidates and tasks.")
    ] = None,
) -> None:
    """Make tasks from released code, as recipes without source, and validate them."""
    from trajgym.cli._swe_run import BuildOptions, run_build

    run_build(
        BuildOptions(
            out=out,
            pypi=pypi,
            hunks=hunks,
            git=git,
            commits=commits,
            mutate=mutate,
            count=count,
            seed=seed,
            needs=tuple(needs or ()),
            licence=licence,
            repeats=repeats,
            sandbox=sandbox.value,
            test_seconds=test_seconds,
            report=report,
        )
    )
