"""The page about formats lists what the registry says."""

from __future__ import annotations

import os
import re
from pathlib import Path

from trajgym.adapters.interchange import get_format, list_formats

PAGE = Path(__file__).parents[2] / "docs" / "interchange.md"
MARKED = re.compile(r"(<!-- formats -->\n).*(<!-- /formats -->)", re.DOTALL)


def section() -> str:
    """Return the part of the page that follows from the registry."""
    parts = []
    for form in map(get_format, list_formats()):
        drops = "; ".join(f"**{what}** ({about})" for what, about in form.drops.items())
        files = ", ".join(f"`{one}`" for one in form.files)
        lines = [
            f"### {form.name}",
            "",
            f"{form.about}. Files of a directory: {files}. {form.note}",
            "",
            "| direction | lost |",
            "|---|---|",
            f"| import | {drops or 'nothing'} |",
            f"| export | {', '.join(form.lost) if form.writes else 'there is no export'} |",
            "",
        ]
        parts.append("\n".join(lines))
    return "\n" + "\n".join(parts) + "\n"


def test_the_page_lists_every_format() -> None:
    """With TRAJGYM_SNAPSHOTS=write, the page is written instead."""
    text = PAGE.read_text()
    wanted = MARKED.sub(lambda found: found[1] + section() + found[2], text)
    if os.environ.get("TRAJGYM_SNAPSHOTS") == "write":
        PAGE.write_text(wanted)
    assert PAGE.read_text() == wanted
