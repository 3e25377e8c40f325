"""Rewards of recorded sessions: computed, judged by models, scored again."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from trajgym.cli._options import (
    ApiKeyEnv,
    ApiKeyFile,
    AsJson,
    BaseUrl,
    ExtraBody,
    MaxTokens,
    MissingSignals,
    Outcomes,
    RunPath,
    Temperature,
    parse_settings,
)

__all__ = ["annotate", "derivers", "rescore", "reward"]


def reward(
    run: RunPath,
    name: Annotated[
        str,
        typer.Option(
            "--with", metavar="DERIVER", help="Name of the deriver; `trajgym derivers` lists them."
        ),
    ],
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Setting of the deriver; may be repeated."),
    ] = None,
    explain: Annotated[
        str | None,
        typer.Option(metavar="SESSION", help="Print the terms of each turn's value."),
    ] = None,
    plot: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Plot a group's values (.png, .svg); with --explain, that session's tree.",
        ),
    ] = None,
    outcomes: Outcomes = None,
    missing_signals: MissingSignals = "error",
    as_json: AsJson = False,
) -> None:
    """Compute rewards or advantages and store them in the run."""
    from trajgym.cli._reward import run_reward

    given = parse_settings(settings)
    run_reward(
        run,
        name,
        given,
        explained=explain,
        plot=plot,
        outcomes=outcomes,
        missing_signals=missing_signals,
        as_json=as_json,
    )


def derivers(as_json: AsJson = False) -> None:
    """List the registered derivers and their settings."""
    from trajgym.cli._registered import show_registered

    show_registered("derivers", as_json=as_json)


def rescore(
    run: RunPath,
    rubric: Annotated[
        str | None,
        typer.Option(metavar="MODULE:NAME", help="Instead of the environment's own rubric."),
    ] = None,
    name: Annotated[
        str | None,
        typer.Option(help="Under which the outcomes are kept; the rubric's name by default."),
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(help="Judge that is asked first for the parts that need one."),
    ] = None,
    base_url: BaseUrl = None,
    api_key_env: ApiKeyEnv = "OPENAI_API_KEY",
    concurrency: Annotated[int, typer.Option(help="Attempts judged at once.")] = 8,
    as_json: AsJson = False,
) -> None:
    """Score attempts again by a rubric, beside the recorded outcomes; status 1 if one can't be."""
    given = dict(locals())
    from trajgym.cli._rescore import RescoreOptions, run_rescore

    raise typer.Exit(run_rescore(RescoreOptions(**given)))


def annotate(
    run: RunPath,
    name: Annotated[str, typer.Option("--with", metavar="JUDGE", help="votes, hints or lessons.")],
    model: Annotated[str, typer.Option(help="Model of the judge.")],
    base_url: BaseUrl = None,
    votes: Annotated[int, typer.Option(help="Votes per turn.")] = 3,
    concurrency: Annotated[int, typer.Option(help="Turns judged concurrently.")] = 8,
    temperature: Temperature = 1.0,
    max_tokens: MaxTokens = None,
    extra_body: ExtraBody = None,
    api_key_env: ApiKeyEnv = None,
    api_key_file: ApiKeyFile = None,
) -> None:
    """Let a model judge recorded turns, for derivers that read its signals. Can be resumed."""
    given = dict(locals())
    from trajgym.cli._annotate import AnnotateOptions, run_annotate
    from trajgym.cli._endpoint import EndpointOptions

    endpoint = EndpointOptions.of(given)
    run_annotate(
        AnnotateOptions(
            run=run, judge=name, endpoint=endpoint, votes=votes, concurrency=concurrency
        ),
    )
