"""Paths inside a sandbox, the same for every provider."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from trajgym.envs.swe._record import SweRecord

__all__ = [
    "BASE_GIT",
    "PYTHON",
    "REPO",
    "RUNNER",
    "environment",
    "image_environment",
    "import_roots",
]

REPO = "/testbed"
RUNNER = "/opt/trajgym/runner"
BASE_GIT = "/opt/trajgym/base.git"
PYTHON = "/opt/trajgym/python"

_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

_PUBLISHED = "/testbed/.venv/bin:/opt/miniconda3/envs/testbed/bin:/opt/miniconda3/bin"
"""Paths of the repository's Python in published images."""

_COMMON = {
    "PYTHONHASHSEED": "0",
    "PYTHONDONTWRITEBYTECODE": "1",
    "LANG": "C.UTF-8",
    "TERM": "dumb",
    "PAGER": "cat",
    "GIT_PAGER": "cat",
}


def environment(record: SweRecord) -> dict[str, str]:
    """Return the variables of every command: the same for the agent and in grading."""
    return {
        "PATH": f"{RUNNER}/bin:{PYTHON}/bin:{_PATH}",
        "PYTHONPATH": f"{record.install.pythonpath}:{RUNNER}/site",
        **_COMMON,
    }


def image_environment() -> dict[str, str]:
    """Return the variables for a published image, which brings its own Python and packages."""
    return {"PATH": f"{_PUBLISHED}:{_PATH}", **_COMMON}


def import_roots(record: SweRecord) -> list[str]:
    """Return the folders on the import path, relative to the repository (``""`` is its root)."""
    folders = record.install.pythonpath.split(":")
    return [
        folder.removeprefix(REPO).strip("/")
        for folder in folders
        if folder == REPO or folder.startswith(f"{REPO}/")
    ]
