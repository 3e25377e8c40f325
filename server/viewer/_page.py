"""The files of the page."""

from __future__ import annotations

from functools import lru_cache
from importlib.resources import files
from typing import NamedTuple

__all__ = ["PageFile", "page_files"]

_TYPES = {
    "css": "text/css; charset=utf-8",
    "html": "text/html; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "svg": "image/svg+xml",
}


class PageFile(NamedTuple):
    """A file of the page, as it is served."""

    data: bytes
    media_type: str


@lru_cache(maxsize=1)
def page_files() -> dict[str, PageFile]:
    """Return the files of the page by name."""
    found = {}
    for file in (files("trajgym.server.viewer") / "page").iterdir():
        ending = file.name.rpartition(".")[2]
        if ending in _TYPES:
            found[file.name] = PageFile(file.read_bytes(), _TYPES[ending])
    return found
