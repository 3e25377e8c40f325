"""Runs in the formats of trainers and of other projects."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from trajgym.cli._options import (
    AsJson,
    DecisionsFile,
    MissingSignals,
    Outcomes,
    Redact,
    RunPath,
    parse_settings,
)

__all__ = ["export", "exports", "formats", "import_"]


def export(
    run: RunPath,
    to: Annotated[
        str, typer.Option(help="A trainer's or a foreign format; `trajgym exports` lists them.")
    ],
    out: Annotated[Path, typer.Option(help="Directory for the files.")],
    rewards: Annotated[
        list[str] | None,
        typer.Option(
            "--with", metavar="DERIVER", help="Deriver of the rows' values; may be repeated."
        ),
    ] = None,
    options: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="KEY=VALUE",
            help="Setting of the export, or allow=REASON; may be repeated.",
        ),
    ] = None,
    outcomes: Outcomes = None,
    missing_signals: MissingSignals = "error",
    redact: Redact = False,
    decisions: DecisionsFile = None,
    as_json: AsJson = False,
) -> None:
    """Write a run in a trainer's format, with the values that `reward` stored, or a foreign one."""
    from trajgym.cli._redact import redacted
    from trajgym.cli._reward import run_export

    chosen = parse_settings(options)
    with redacted(run, out, wanted=redact, decisions=decisions) as (source, found):
        run_export(
            source,
            to,
            out,
            rewards or [],
            chosen,
            outcomes=outcomes,
            missing_signals=missing_signals,
            redaction=found,
            as_json=as_json,
        )


def exports(as_json: AsJson = False) -> None:
    """List the exports and their settings."""
    from trajgym.cli._registered import show_registered

    show_registered("exports", as_json=as_json)


def import_(
    form: Annotated[
        str, typer.Argument(metavar="FORMAT", help="Format; `trajgym formats` lists them.")
    ],
    path: Annotated[Path, typer.Argument(help="A file, or a directory of files.")],
    out: Annotated[Path, typer.Option(help="Directory of the new run.")],
    as_json: AsJson = False,
) -> None:
    """Make a run of trajectories in a foreign format; what is not kept is listed."""
    from trajgym.cli._interchange import run_import

    run_import(form, path, out, as_json=as_json)


def formats(
    name: Annotated[str | None, typer.Argument(metavar="FORMAT", help="Only this one.")] = None,
    as_json: AsJson = False,
) -> None:
    """List the formats of `import` and `export`, and what each loses."""
    from trajgym.cli._interchange import show_formats

    show_formats(name, as_json=as_json)
