"""`trajgym import` and `trajgym formats`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from trajgym.adapters.interchange import get_format, import_run, list_formats
from trajgym.cli._reward import lost_lines
from trajgym.cli._terminal import print_json, say

if TYPE_CHECKING:
    from pathlib import Path

    from trajgym.adapters.interchange import Format

__all__ = ["run_import", "show_formats"]


def run_import(name: str, path: Path, out: Path, *, as_json: bool) -> None:
    """Import files, and print what was made and what was lost."""
    report = import_run(name, path, out)
    if as_json:
        print_json(
            {
                "format": report.format,
                "path": str(out),
                "files": report.files,
                "sessions": report.sessions,
                "turns": report.turns,
                "exact_turns": report.exact,
                "tasks": report.tasks,
                "lost": report.lost,
            }
        )
        return
    kind = f"{report.exact} exact" if report.exact else "all text turns"
    say(
        f"{out}: {report.sessions} sessions of {report.tasks} tasks from {report.files} files, "
        f"{report.turns} turns ({kind})"
    )
    for line in lost_lines(report.lost):
        say(f"  {line}", style="yellow")


def show_formats(name: str | None, *, as_json: bool) -> None:
    """Print what formats are, and what an import and an export lose."""
    forms = [get_format(one) for one in ([name] if name else list_formats())]
    if as_json:
        print_json([_plain(form) for form in forms])
        return
    for form in forms:
        say(f"{form.name}: {form.about}", style="bold")
        say(f"  in a directory: {', '.join(form.files)}")
        if form.drops:
            say("  lost by an import:")
        for what, about in form.drops.items():
            say(f"    {what}: {about}")
        if form.writes:
            say(f"  lost by an export: {', '.join(form.lost)}")
        if form.note:
            say(f"  {form.note}")


def _plain(form: Format) -> dict[str, Any]:
    return {
        "name": form.name,
        "about": form.about,
        "files": form.files,
        "lost_by_import": dict(form.drops),
        "lost_by_export": form.lost if form.writes else None,
        "note": form.note,
    }
