"""Changes that `make docs` makes to pages before they are rendered."""

from __future__ import annotations

import re
from typing import Any

_OUTSIDE = re.compile(r"(?<!!)\[([^\]]+)\]\((?:\.\./)+[^)]+\)")


def on_page_markdown(markdown: str, *, page: Any, **_: Any) -> str:
    """Replace links to files outside ``docs/``, which the site does not have, by their text."""
    if page.file.src_uri.startswith("reference/"):
        return markdown
    return _OUTSIDE.sub(r"\1", markdown)
