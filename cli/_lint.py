"""`trajgym lint`: check the settings of a trainer."""

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
    """Print the problems found; exit with status 1 if there are any."""
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
    console.print(f"{config}: no problems found", highlight=False, markup=False, soft_wrap=True)
