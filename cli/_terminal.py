"""Output of commands: plain text, tables on terminals, tab-separated lines in pipes."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

__all__ = ["fail", "print_json", "print_table", "say"]


def say(*parts: str, style: str = "", error: bool = False) -> None:
    """Print a line that is not interpreted as markup, cut or wrapped.

    Args:
        *parts: joined by spaces.
        style: of the whole line, on a terminal.
        error: print it on standard error.
    """
    console = Console(stderr=error, highlight=False, markup=False, emoji=False, soft_wrap=True)
    console.print(Text(" ".join(parts), style=style))


def fail(message: str, *, status: int = 2) -> None:
    """Print an error and end the program."""
    say(f"error: {message}", style="red", error=True)
    sys.exit(status)


def print_json(value: Any) -> None:
    """Print a JSON document."""
    print(json.dumps(value, indent=2, ensure_ascii=False, default=str))


def print_table(
    header: Sequence[str],
    rows: Iterable[Sequence[str | Text]],
    *,
    right: Sequence[str] = (),
    whole: Sequence[str] = (),
) -> None:
    """Print a table on a terminal, and one tab-separated line per row in a pipe.

    Args:
        header: names of the columns, the first line in a pipe.
        rows: cells; their text is not interpreted as markup.
        right: right-justified columns.
        whole: columns that are not wrapped on a terminal; the others are folded to what is left.
    """
    if not sys.stdout.isatty():
        print("\t".join(header))
        for row in rows:
            cells = [cell if isinstance(cell, str) else cell.plain for cell in row]
            # Nearly all are printable, and need not be searched one by one for line breaks.
            clean = str.strip if "".join(cells).isprintable() else _one_line
            print("\t".join(map(clean, cells)))
        return
    table = Table(box=None, header_style="bold", pad_edge=False)
    for name in header:
        justify = "right" if name in right else "left"
        table.add_column(Text(name), justify=justify, overflow="fold", no_wrap=name in whole)  # type: ignore[arg-type]
    for row in rows:
        table.add_row(*(Text(cell) if isinstance(cell, str) else cell for cell in row))
    Console(highlight=False).print(table)


def _one_line(text: str) -> str:
    return " ".join(text.split()) if {"\n", "\t", "\r"} & set(text) else text.strip()
