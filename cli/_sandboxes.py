"""``trajgym sandboxes``: what this host offers, and removing what killed runs left."""

from __future__ import annotations

import asyncio

import typer
from rich.console import Console

__all__ = ["app"]

app = typer.Typer(help="Look after sandboxes.", no_args_is_help=True)

_MARKS = {"good": "[green]ok[/]", "limited": "[yellow]limited[/]", "missing": "[red]missing[/]"}


@app.command()
def doctor() -> None:
    """Check Docker and the embedded sandbox, and say what to do. Status 1 if neither works."""
    from trajgym.envs.sandbox import examine_sandboxes

    console = Console()
    findings = asyncio.run(examine_sandboxes())
    for finding in findings:
        console.print(f"{_MARKS[finding.level]} {finding.part}: ", end="", highlight=False)
        console.print(finding.said, markup=False, highlight=False, soft_wrap=True)
        if finding.advice:
            console.print(f"   -> {finding.advice}", markup=False, highlight=False, soft_wrap=True)
    if not any(finding.level == "good" for finding in findings):
        raise typer.Exit(1)


@app.command()
def clean() -> None:
    """Remove sandboxes and snapshots whose process lives no more; nothing else is touched."""
    from trajgym.envs.sandbox import clean_sandboxes

    console = Console()
    counts = asyncio.run(clean_sandboxes())
    if not counts:
        console.print("no kind of sandbox works here: nothing to clean")
    for kind, count in counts.items():
        console.print(f"{kind}: {count} sandboxes removed", highlight=False)
