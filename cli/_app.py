"""The command tree; each command's work is in a module of its own, imported when it runs."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated, Any, Optional

import typer
from rich.console import Console

from trajgym.cli import _sandboxes
from trajgym.cli._kinds import SandboxKind
from trajgym.cli._search import search_app
from trajgym.cli._swe import swe
from trajgym.trajectory import TrajgymError

__all__ = ["app", "main"]

app = typer.Typer(
    name="trajgym",
    help="Environments, token-exact trajectories and structural rewards for training LLM agents.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.add_typer(_sandboxes.app, name="sandboxes")

app.add_typer(swe)
app.add_typer(search_app, name="search")

RunPath = Annotated[Path, typer.Argument(metavar="RUN", help="Run directory.")]
EnvConfig = Annotated[
    Optional[list[str]],  # noqa: UP045 - typer reads the annotation at run time
    typer.Option("--set", metavar="KEY=VALUE", help="Setting of the environment; JSON or text."),
]


def main() -> None:
    """Run the command line; our own errors end it with one clear line."""
    sys.path.insert(0, str(Path.cwd()))  # so that --env my_module:MyEnv finds the user's file
    try:
        app()
    except TrajgymError as error:
        Console(stderr=True).print(f"[bold red]error:[/] {error}", markup=True, highlight=False)
        sys.exit(2)


@app.command()
def collect(
    out: Annotated[Path, typer.Option(help="Run directory; an existing one is resumed.")],
    tasks: Annotated[str, typer.Option(help="File, directory, or a name the environment knows.")],
    env: Annotated[str, typer.Option(help="Environment: a name or module:Class.")] = "swe",
    policy: Annotated[
        str,
        typer.Option(help="scripted, fake (synthetic ids), local (SmolLM2 on this CPU), openai."),
    ] = "scripted",
    samples: Annotated[int, typer.Option(help="Sessions per task.")] = 8,
    concurrency: Annotated[int, typer.Option(help="Sessions at once.")] = 16,
    turns: Annotated[Optional[int], typer.Option(help="Turn budget.")] = None,  # noqa: UP045
    retries: Annotated[int, typer.Option(help="Further tries of failed sessions.")] = 0,
    seed: Annotated[int, typer.Option(help="Seed of environments and sampling.")] = 0,
    base_url: Annotated[
        Optional[str],  # noqa: UP045
        typer.Option(help="OpenAI-compatible endpoint; implies --policy openai."),
    ] = None,
    model: Annotated[Optional[str], typer.Option(help="Model at that endpoint.")] = None,  # noqa: UP045
    api_key_env: Annotated[
        str, typer.Option(help="Environment variable that holds the API key.")
    ] = "OPENAI_API_KEY",
    temperature: Annotated[float, typer.Option(help="Sampling temperature.")] = 1.0,
    config: EnvConfig = None,
) -> None:
    """Run tasks and record every turn. Ctrl-C closes cleanly; the same command resumes."""
    from trajgym.cli._collect import CollectOptions, run_collect

    run_collect(
        CollectOptions(
            env=env,
            config=parse_settings(config),
            tasks=tasks,
            policy="openai" if base_url or model else policy,
            base_url=base_url,
            model=model,
            api_key_env=api_key_env,
            temperature=temperature,
            out=out,
            samples=samples,
            concurrency=concurrency,
            turns=turns,
            retries=retries,
            seed=seed,
        ),
    )


@app.command()
def show(
    run: RunPath,
    session: Annotated[Optional[str], typer.Argument(help="Session id, or its start.")] = None,  # noqa: UP045
    full: Annotated[bool, typer.Option("--full", help="Do not shorten long texts.")] = False,
) -> None:
    """Show a run as a table, or the turns of one session."""
    from trajgym.cli._show import show_run, show_session

    if session is None:
        show_run(run)
    else:
        show_session(run, session, full=full)


@app.command()
def stats(run: RunPath) -> None:
    """Count sessions, outcomes, turns and tokens of a run."""
    from trajgym.cli._stats import show_stats

    show_stats(run)


@app.command()
def check(run: RunPath) -> None:
    """Read everything in a run and say what is damaged."""
    from trajgym.cli._stats import check_run

    check_run(run)


@app.command()
def reward(
    run: RunPath,
    name: Annotated[str, typer.Option("--with", metavar="DERIVER", help="Which deriver.")],
    settings: Annotated[
        Optional[list[str]],  # noqa: UP045
        typer.Option("--set", metavar="KEY=VALUE", help="Setting of the deriver."),
    ] = None,
    explain: Annotated[
        Optional[str],  # noqa: UP045
        typer.Option(metavar="SESSION", help="Print what each turn's value is made of."),
    ] = None,
    plot: Annotated[
        Optional[Path],  # noqa: UP045
        typer.Option(
            metavar="FILE",
            help="Draw a group's values (.png, .svg); with --explain, the tree of that session.",
        ),
    ] = None,
) -> None:
    """Derive rewards or advantages and keep them in the run."""
    from trajgym.cli._reward import run_reward

    run_reward(run, name, parse_settings(settings), explained=explain, plot=plot)


@app.command()
def annotate(
    run: RunPath,
    name: Annotated[str, typer.Option("--with", metavar="JUDGE", help="votes, hints.")],
    model: Annotated[str, typer.Option(help="The judge, at the endpoint.")],
    base_url: Annotated[Optional[str], typer.Option(help="OpenAI-compatible endpoint.")] = None,  # noqa: UP045
    votes: Annotated[int, typer.Option(help="How often each turn is judged.")] = 3,
    concurrency: Annotated[int, typer.Option(help="Turns judged at once.")] = 8,
    temperature: Annotated[float, typer.Option(help="Sampling temperature.")] = 1.0,
    api_key_env: Annotated[
        str, typer.Option(help="Environment variable that holds the API key.")
    ] = "OPENAI_API_KEY",
) -> None:
    """Let a model judge recorded turns; derivers read what it finds. The same command resumes."""
    from trajgym.cli._annotate import AnnotateOptions, run_annotate

    run_annotate(
        AnnotateOptions(
            run=run,
            judge=name,
            model=model,
            base_url=base_url,
            votes=votes,
            concurrency=concurrency,
            temperature=temperature,
            api_key_env=api_key_env,
        ),
    )


@app.command()
def export(
    run: RunPath,
    to: Annotated[
        str, typer.Option(help="sft, preference, rows, trl-grpo, verl, verl-sft, areal.")
    ],
    out: Annotated[Path, typer.Option(help="Directory for the files.")],
    rewards: Annotated[
        Optional[list[str]],  # noqa: UP045
        typer.Option("--with", metavar="DERIVER", help="Values for the rows; may be repeated."),
    ] = None,
    options: Annotated[
        Optional[list[str]],  # noqa: UP045
        typer.Option("--set", metavar="KEY=VALUE", help="Setting of the export."),
    ] = None,
) -> None:
    """Write a run in a trainer's form."""
    from trajgym.cli._reward import run_export

    run_export(run, to, out, rewards or [], parse_settings(options))


@app.command()
def lint(
    trainer: Annotated[str, typer.Argument(help="areal or verl.")],
    config: Annotated[Path, typer.Argument(metavar="CONFIG", help="The trainer's YAML file.")],
    data: Annotated[
        Optional[list[Path]],  # noqa: UP045
        typer.Option(metavar="FILE", help="Data that it will read; may be repeated."),
    ] = None,
    settings: Annotated[
        Optional[list[str]],  # noqa: UP045
        typer.Option("--set", metavar="KEY=VALUE", help="As on the trainer's command line."),
    ] = None,
) -> None:
    """Name the settings with which a trainer would train on the wrong thing in silence."""
    from trajgym.cli._lint import run_lint

    run_lint(trainer, config, data or [], parse_settings(settings))


@app.command()
def demo(
    out: Annotated[Path, typer.Option(help="Directory for the run and its exports.")] = Path(
        "runs/demo"
    ),
    samples: Annotated[int, typer.Option(help="Sessions per task.")] = 4,
    sandbox: Annotated[SandboxKind, typer.Option(help="Where code runs.")] = SandboxKind.auto,
    base_url: Annotated[Optional[str], typer.Option(help="OpenAI-compatible endpoint.")] = None,  # noqa: UP045
    model: Annotated[Optional[str], typer.Option(help="Model at that endpoint.")] = None,  # noqa: UP045
) -> None:
    """Real SWE tasks from collection to export, without a model key."""
    from trajgym.cli._demo import run_demo

    run_demo(out, samples=samples, sandbox=sandbox.value, base_url=base_url, model=model)


def parse_settings(pairs: list[str] | None) -> dict[str, Any]:
    """Return ``KEY=VALUE`` options as a dict; values are JSON where they parse, else text."""
    settings: dict[str, Any] = {}
    for pair in pairs or []:
        key, separator, text = pair.partition("=")
        if not separator or not key:
            raise typer.BadParameter(f"{pair!r} is not KEY=VALUE")
        try:
            settings[key] = json.loads(text)
        except ValueError:
            settings[key] = text
    return settings
