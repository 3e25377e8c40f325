"""Look at runs: as text, figures, images and pages; also while they are collected."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from trajgym.cli._kinds import PlotFormat
from trajgym.cli._options import AsJson, MissingSignals, Outcomes, PricesFile, RunPath

__all__ = ["frames", "plot", "show", "stats", "top", "view", "watch"]


def show(
    run: RunPath,
    session: Annotated[
        str | None, typer.Argument(help="Session id, or a unique prefix of it.")
    ] = None,
    full: Annotated[
        bool, typer.Option("--full", help="Don't shorten texts; show tracebacks of failures.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Show the sessions of a run, or the turns of one session."""
    from trajgym.cli._show import show_run, show_session

    if session is None:
        show_run(run, as_json=as_json)
    else:
        show_session(run, session, full=full, as_json=as_json)


def view(
    run: Annotated[
        Path, typer.Argument(metavar="RUN", help="Run directory, or a directory of runs.")
    ],
    session: Annotated[
        str | None, typer.Argument(help="Session id, or a unique prefix of it: open this one.")
    ] = None,
    html: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Write the session to one self-contained file."),
    ] = None,
    rewards: Annotated[
        list[str] | None,
        typer.Option(
            "--with", metavar="DERIVER", help="Deriver whose values the file has; may be repeated."
        ),
    ] = None,
    tokenizer: Annotated[
        str | None, typer.Option(help="Tokenizer (name or directory) that token ids are shown by.")
    ] = None,
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port to listen on; 0 for a free one.")] = 8300,
    open_browser: Annotated[
        bool, typer.Option("--open", help="Open the page in the default browser.")
    ] = False,
) -> None:
    """Show runs, groups and sessions in a browser: a local page, live and read-only."""
    from trajgym.cli._view import ViewOptions, run_view

    run_view(
        ViewOptions(
            run=run,
            session=session,
            html=html,
            derivers=rewards or [],
            tokenizer=tokenizer,
            host=host,
            port=port,
            open_browser=open_browser,
        )
    )


def stats(run: RunPath, prices: PricesFile = None, as_json: AsJson = False) -> None:
    """Count sessions, outcomes, turns, tokens and costs of a run."""
    from trajgym.cli._stats import show_stats

    show_stats(run, prices=prices, as_json=as_json)


def top(
    run: RunPath,
    interval: Annotated[
        float, typer.Option(help="Seconds between two looks.", min=0.1, max=3600)
    ] = 1.0,
    once: Annotated[bool, typer.Option("--once", help="Print the figures once.")] = False,
    metrics: Annotated[
        int | None,
        typer.Option(
            metavar="PORT", help="Also serve http://127.0.0.1:PORT/metrics for Prometheus."
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Show the figures of a run while it is collected: states, rates, staleness, failures."""
    from trajgym.cli._top import run_top

    run_top(run, interval=interval, once=once, as_json=as_json, metrics=metrics)


def watch(
    run: Annotated[Path, typer.Argument(help="Run directory; it need not exist yet.")],
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port to listen on; 0 for a free one.")] = 8200,
) -> None:
    """Show the screens of running sessions on a local page, with the agents' actions."""
    from trajgym.cli.watch import watch_run

    watch_run(run, host=host, port=port)


def frames(
    run: RunPath,
    out: Annotated[Path, typer.Option(help="Directory for the images.")],
    session: Annotated[
        str | None, typer.Argument(help="Session id, or a unique prefix of it.")
    ] = None,
    plain: Annotated[
        bool, typer.Option("--plain", help="Don't draw actions on the images.")
    ] = False,
    video: Annotated[bool, typer.Option("--video", help="One video per attempt instead.")] = False,
    form: Annotated[
        str, typer.Option("--format", help="Of the video: webp (animated), mp4 or webm.")
    ] = "webp",
    seconds: Annotated[float, typer.Option(help="How long a video shows each image.")] = 1.0,
) -> None:
    """Write the images that agents saw, with their actions drawn on them."""
    from trajgym.cli._frames import write_frames, write_videos
    from trajgym.cli._video import video_form

    if video:
        chosen = video_form(form)
        write_videos(run, out, session, plain=plain, seconds=seconds, form=chosen)
    else:
        write_frames(run, out, session, plain=plain)


def plot(
    run: RunPath,
    out: Annotated[
        Path | None, typer.Option(help="Directory for the files; RUN/plots by default.")
    ] = None,
    form: Annotated[PlotFormat, typer.Option("--format", help="Of the files.")] = PlotFormat.png,
    derivers: Annotated[
        list[str] | None,
        typer.Option(
            "--with",
            metavar="DERIVER",
            help="Show its values beside those stored in the run; may be repeated.",
        ),
    ] = None,
    outcomes: Outcomes = None,
    missing_signals: MissingSignals = "error",
    as_json: AsJson = False,
) -> None:
    """Plot success, rewards, lengths, staleness, tools, tasks, groups, advantages and failures."""
    from trajgym.cli._plot import run_plot

    run_plot(
        run,
        out=out,
        form=form.value,
        derivers=derivers or [],
        outcomes=outcomes,
        missing_signals=missing_signals,
        as_json=as_json,
    )
