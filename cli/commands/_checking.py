"""Check runs, trainers' settings, and parts of your own."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from trajgym.cli._kinds import SandboxKind, TrainerName
from trajgym.cli._options import AsJson, EnvConfig, RunPath, parse_settings

__all__ = ["check", "check_deriver", "check_env", "check_sandbox", "lint", "verify"]


def check(
    run: RunPath,
    trainers: Annotated[
        list[TrainerName] | None,
        typer.Option("--for", help="Also report what this trainer can't use; may be repeated."),
    ] = None,
    max_tokens: Annotated[int | None, typer.Option(help="With --for: most ids of a row.")] = None,
    max_prompt: Annotated[
        int | None, typer.Option(help="With --for: most ids before the first trained one.")
    ] = None,
    max_response: Annotated[
        int | None, typer.Option(help="With --for: most ids from there on.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Read all records of a run and report damage. The exit status is 1 if there is any."""
    from trajgym.cli._stats import check_run

    limits = {"max_tokens": max_tokens, "max_prompt": max_prompt, "max_response": max_response}
    names = [trainer.value for trainer in trainers or []]
    raise typer.Exit(check_run(run, trainers=names, limits=limits, as_json=as_json))


def verify(
    run: RunPath,
    sample: Annotated[
        float, typer.Option(metavar="SHARE", help="Share of the sessions to repeat, up to 1.")
    ] = 1.0,
    seed: Annotated[int, typer.Option(help="Seed of the choice of sessions.")] = 0,
    concurrency: Annotated[int, typer.Option(help="Attempts repeated at the same time.")] = 8,
    deadline: Annotated[float, typer.Option(help="Seconds for one attempt.")] = 3600.0,
    ignore: Annotated[
        list[str] | None,
        typer.Option(metavar="REGEX", help="Text that may differ; may be repeated."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Execute recorded actions again in fresh environments; status 1 if anything differs."""
    from trajgym.cli._verify import run_verify

    status = run_verify(
        run,
        share=sample,
        seed=seed,
        concurrency=concurrency,
        deadline=deadline,
        ignore=ignore or [],
        as_json=as_json,
    )
    raise typer.Exit(status)


def lint(
    trainer: Annotated[str, typer.Argument(help="areal or verl.")],
    config: Annotated[Path, typer.Argument(metavar="CONFIG", help="The trainer's YAML file.")],
    data: Annotated[
        list[Path] | None,
        typer.Option(metavar="FILE", help="Data file of the trainer; may be repeated."),
    ] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set", metavar="KEY=VALUE", help="Override, as on the trainer's command line."
        ),
    ] = None,
) -> None:
    """Report settings with which a trainer would silently train on wrong data."""
    from trajgym.cli._lint import run_lint

    run_lint(trainer, config, data or [], parse_settings(settings))


def check_env(
    env: Annotated[str, typer.Argument(help="Environment: a name or module:Class.")],
    tasks: Annotated[
        str | None,
        typer.Option(help="Task file, directory or name; the first task is used."),
    ] = None,
    config: EnvConfig = None,
) -> None:
    """Check an environment against the contract of `Env`. The exit status is 1 on a violation."""
    from trajgym.cli._conformance import run_check_env

    raise typer.Exit(run_check_env(env, tasks, parse_settings(config)))


def check_deriver(
    name: Annotated[str, typer.Argument(help="Name of the deriver.")],
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Setting of the deriver; may be repeated."),
    ] = None,
) -> None:
    """Check a deriver on generated sessions. The exit status is 1 on a violation."""
    from trajgym.cli._conformance import run_check_deriver

    raise typer.Exit(run_check_deriver(name, parse_settings(settings)))


def check_sandbox(
    kind: Annotated[SandboxKind, typer.Argument(help="Kind of sandbox.")] = SandboxKind.auto,
) -> None:
    """Check isolation and cleanup of sandboxes on this host. The exit status is 1 on a failure."""
    from trajgym.cli._conformance import run_check_sandbox

    raise typer.Exit(run_check_sandbox(kind.value))
