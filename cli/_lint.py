"""`trajgym lint`: a trainer's settings checked before the GPUs are paid for."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.markup import escape

from trajgym.adapters import lint

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

__all__ = ["run_lint"]


def run_lint(trainer: str, config: Path, data: Sequence[Path], overrides: dict[str, Any]) -> None:
    """Print what is wrong; exit status 1 if something is."""
    findings = lint(trainer, config, data, overrides=overrides)
    console = Console()
    for found in findings:
        console.print(
            f"[bold red]{found.code}[/] [bold]{escape(found.where)}[/]\n"
            f"  {escape(found.problem)}\n  [green]fix:[/] {escape(found.fix)}",
            highlight=False,
            soft_wrap=True,
        )
    if findings:
        sys.exit(1)
    console.print(f"{config}: nothing to say", highlight=False, markup=False, soft_wrap=True)
