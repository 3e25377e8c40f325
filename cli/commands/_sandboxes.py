"""``trajgym sandboxes``: check, prepare and clean up sandboxes."""

from __future__ import annotations

import asyncio
from typing import Annotated

import typer
from rich.console import Console

__all__ = ["sandboxes_app"]

sandboxes_app = typer.Typer(help="Check, prepare and clean up sandboxes.", no_args_is_help=True)

_MARKS = {"good": "[green]ok[/]", "limited": "[yellow]limited[/]", "missing": "[red]missing[/]"}


@sandboxes_app.command()
def doctor() -> None:
    """Check Docker and the embedded sandbox, and suggest fixes.

    The exit status is 1 if neither works.
    """
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


@sandboxes_app.command()
def prepare(
    force: Annotated[bool, typer.Option("--force", help="Rebuild the image.")] = False,
) -> None:
    """Build the base image of Docker sandboxes, unless it exists.

    The image is based on debian:bookworm-slim from the engine or a registry. If neither has it, a
    minimal Debian is built from the package mirror, which needs root on Debian.
    """
    from trajgym.envs.sandbox import build_base_image

    build_base_image(force=force)


@sandboxes_app.command()
def clean() -> None:
    """Remove sandboxes and snapshots whose process has exited."""
    from trajgym.envs.sandbox import clean_sandboxes

    console = Console()
    counts = asyncio.run(clean_sandboxes())
    if not counts:
        console.print("no kind of sandbox is available on this host")
    for kind, count in counts.items():
        console.print(f"{kind}: {count} sandboxes removed", highlight=False)
