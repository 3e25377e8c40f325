"""Output of commands: plain text, tables on terminals, tab-separated lines in pipes."""

from __future__ import annotations

import json
import sys
from itertools import chain, islice
from typing import TYPE_CHECKING, Any

from rich.cells import cell_len, chop_cells
from rich.console import Console
from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

__all__ = ["fail", "print_json", "print_table", "say"]


_LAID_OUT = 1000
"""Rows from which a table is laid out as a whole; of a longer one, these determine the widths."""
_NARROWEST = 8
"""Least width of a folded column of a long table."""
_WRITTEN = 256
"""Lines that are written at once to a pipe."""
_GAP = "  "
"""Between two columns of a long table."""


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
        lines = map(_tabbed, rows)
        while some := list(islice(lines, _WRITTEN)):
            print("\n".join(some))
        return
    rows = iter(rows)
    first = list(islice(rows, _LAID_OUT))
    if len(first) == _LAID_OUT:
        print_long_table(header, first, rows, right=right, whole=whole)
        return
    table = Table(box=None, header_style="bold", pad_edge=False)
    for name in header:
        justify = "right" if name in right else "left"
        table.add_column(Text(name), justify=justify, overflow="fold", no_wrap=name in whole)  # type: ignore[arg-type]
    for row in first:
        table.add_row(*(Text(cell) if isinstance(cell, str) else cell for cell in row))
    Console(highlight=False).print(table)


def print_long_table(
    header: Sequence[str],
    first: Sequence[Sequence[str | Text]],
    rest: Iterable[Sequence[str | Text]],
    *,
    right: Sequence[str],
    whole: Sequence[str],
) -> None:
    """Print a table line by line, in columns as wide as its first rows need.

    Rich reads a whole table before it prints, at 0.7 ms per row.

    Args:
        header: names of the columns.
        first: the first rows.
        rest: the others, which are not kept.
        right: right-justified columns.
        whole: columns that are not folded; a longer cell widens its column from there on.
    """
    console = Console(highlight=False)
    widths = [
        max(cell_len(_plain(text)) for text in (name, *(row[at] for row in first)))
        for at, name in enumerate(header)
    ]
    folded = [at for at, name in enumerate(header) if name not in whole]
    room = console.width - sum(widths) - len(_GAP) * (len(widths) - 1)
    while room < 0 and folded:
        widest = max(folded, key=widths.__getitem__)
        if widths[widest] <= _NARROWEST:
            break
        widths[widest] -= 1
        room += 1
    for at in folded:  # later rows may need more
        extra = max(0, room if at == folded[-1] else min(room, _NARROWEST))
        widths[at] += extra
        room -= extra
    styled: dict[tuple[str, str], str] = {}

    def shown(cell: str | Text, text: str) -> str:
        """Return a line of a cell with the escape sequences of its style."""
        if isinstance(cell, str) or not cell.style:
            return text
        key = str(cell.style), text
        if key not in styled:
            with console.capture() as captured:
                console.print(Text(text, style=cell.style), end="", soft_wrap=True)
            styled[key] = captured.get()
        return styled[key]

    def lines(row: Sequence[str | Text]) -> Iterator[str]:
        texts = [_plain(cell) for cell in row]
        for at, text in enumerate(texts):
            more = (len(text) if text.isascii() else cell_len(text)) - widths[at]
            if more > 0 and at not in folded:
                widths[at] += more
                if folded:
                    widths[folded[-1]] = max(_NARROWEST, widths[folded[-1]] - more)
        parts = [
            _folded(text, widths[at]) if at in folded else [text] for at, text in enumerate(texts)
        ]
        for number in range(max(map(len, parts))):
            line = []
            for at, (cell, part) in enumerate(zip(row, parts, strict=True)):
                text = part[number] if number < len(part) else ""
                space = " " * (widths[at] - (len(text) if text.isascii() else cell_len(text)))
                text = shown(cell, text)
                line.append(space + text if header[at] in right else text + space)
            yield _GAP.join(line).rstrip()

    titles = [Text(name, style="bold") for name in header]
    for row in chain([titles], first, rest):
        sys.stdout.write("\n".join(lines(row)) + "\n")


def _tabbed(row: Sequence[str | Text]) -> str:
    """Return a row's cells in one line, separated by tabs."""
    cells = [cell if type(cell) is str else _text(cell) for cell in row]
    # Nearly all are printable, and need not be searched one by one for line breaks.
    clean = str.strip if "".join(cells).isprintable() else _one_line
    return "\t".join(map(clean, cells))


def _text(cell: str | Text) -> str:
    return cell if isinstance(cell, str) else cell.plain


def _plain(cell: str | Text) -> str:
    """Return a cell's text in one line, without characters that a terminal interprets."""
    text = _text(cell)
    if text.isprintable():
        return text
    text = _one_line(text)
    return "".join(sign if sign.isprintable() else "\ufffd" for sign in text)


def _folded(text: str, width: int) -> list[str]:
    """Return a text in lines of at most so many columns."""
    if text.isascii():
        return [text[at : at + width] for at in range(0, len(text), width)] or [""]
    return chop_cells(text, width) or [""]


def _one_line(text: str) -> str:
    return " ".join(text.split()) if {"\n", "\t", "\r"} & set(text) else text.strip()
