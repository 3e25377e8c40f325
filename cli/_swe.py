"""`trajgym swe`: import, grade, build and validate SWE tasks."""

from __future__ import annotations

from pathlib import Path  # noqa: TC003 - typer reads the annotations at run time
from typing import Annotated, Optional

import typer

from trajgym.cli._kinds import SandboxKind

__all__ = ["swe"]

swe = typer.Typer(
    name="swe", help="SWE tasks: import, grade, build, validate.", no_args_is_help=True
)

Tasks = Annotated[str, typer.Option(help="File, folder, or name: builtin, recipes, corpus.")]
Sandbox = Annotated[SandboxKind, typer.Option(help="Where code runs.")]
Concurrency = Annotated[int, typer.Option(help="How many at once.")]
TestSeconds = Annotated[float, typer.Option(help="Limit of one test run.")]


@swe.command("import")
def import_(
    source: Annotated[str, typer.Argument(help="A parquet, jsonl, json or arrow file, a folder, or "
                                               "the name of a data set on the hub.")],
    out: Annotated[Path, typer.Option(help="JSON lines file for the tasks.")],
    split: Annotated[str, typer.Option(help="Split of the data set.")] = "test",
    shape: Annotated[Optional[str], typer.Option(help="Shape of the rows, if not told.")] = None,  # noqa: UP045
    image: Annotated[
        Optional[str],  # noqa: UP045
        typer.Option(help="Image of each record, such as 'name/{instance_id}:latest'."),
    ] = None,
) -> None:  # fmt: skip
    """Read a published data set into tasks; records that can't be used are named."""
    from trajgym.cli._swe_run import run_import

    run_import(source, out, split, shape, image)


@swe.command()
def grade(
    tasks: Tasks,
    predictions: Annotated[Path, typer.Option(help="Predictions in SWE-bench's format.")],
    out: Annotated[Path, typer.Option(help="Result lines; an existing file is resumed.")],
    sandbox: Sandbox = SandboxKind.auto,
    concurrency: Concurrency = 2,
    test_seconds: TestSeconds = 300.0,
) -> None:
    """Grade patches that anyone brings: one result line per instance."""
    from trajgym.cli._swe_run import run_grade

    run_grade(tasks, predictions, out, sandbox.value, concurrency, test_seconds)


@swe.command()
def validate(
    tasks: Tasks,
    sandbox: Sandbox = SandboxKind.auto,
    repeats: Annotated[int, typer.Option(help="How often gold must solve a task.")] = 3,
    concurrency: Concurrency = 2,
    test_seconds: TestSeconds = 300.0,
    out: Annotated[Optional[Path], typer.Option(help="JSON lines file for the findings.")] = None,  # noqa: UP045
) -> None:
    """Check on this machine that gold solves each task every time, and nothing does not."""
    from trajgym.cli._swe_run import run_validate

    run_validate(tasks, sandbox.value, repeats, concurrency, test_seconds, out)


@swe.command()
def build(
    out: Annotated[Path, typer.Option(help="Folder for the recipes.")],
    pypi: Annotated[
        Optional[tuple[str, str, str]],  # noqa: UP045
        typer.Option(metavar="NAME OLD NEW", help="Two releases that ship tests: one task."),
    ] = None,
    hunks: Annotated[
        bool, typer.Option("--hunks", help="With --pypi: a task for each hunk that tests tell.")
    ] = False,
    git: Annotated[Optional[str], typer.Option(help="A repository, with --commits.")] = None,  # noqa: UP045
    commits: Annotated[Optional[str], typer.Option(help="Range, such as v1.0..v1.1.")] = None,  # noqa: UP045
    mutate: Annotated[
        Optional[tuple[str, str]],  # noqa: UP045
        typer.Option(metavar="NAME VERSION", help="Put bugs into a release that ships tests."),
    ] = None,
    count: Annotated[int, typer.Option(help="With --mutate: how many tasks.")] = 12,
    seed: Annotated[int, typer.Option(help="With --mutate: which places are tried.")] = 0,
    needs: Annotated[
        Optional[list[str]],  # noqa: UP045
        typer.Option(help="A pinned package that the tests need; may be repeated."),
    ] = None,
    licence: Annotated[str, typer.Option(help="With --git: licence of the repository.")] = "",
    repeats: Annotated[int, typer.Option(help="Validation runs of gold; 0 for none.")] = 3,
    sandbox: Sandbox = SandboxKind.embedded,
    test_seconds: TestSeconds = 120.0,
    report: Annotated[Optional[Path], typer.Option(help="JSON file for the yield.")] = None,  # noqa: UP045
) -> None:
    """Make new tasks from real code: recipes without source, each validated here."""
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
