"""Determines which paths of an agent's change are graded."""

from __future__ import annotations

import re
import sys
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Container, Iterable

__all__ = ["Change", "is_test_path", "parse_raw_diff", "refusal"]

_TEST_DIRS = frozenset({"test", "tests", "testing"})
_TEST_FILE = re.compile(r"^(test_.*|.*_test|tests?)\.py$", re.IGNORECASE)
_RUNNER_FILES = frozenset({
    "conftest.py", "pytest.ini", ".pytest.ini", "pytest.toml", ".pytest.toml", "tox.ini",
    "setup.cfg", "pyproject.toml", "noxfile.py", ".coveragerc",
})  # fmt: skip
_STARTUP = re.compile(
    r"(^|/)((site|user)customize(\.py|/|$)|[^/]*\.(pth|egg-link)$)", re.IGNORECASE
)
_SHADOWED = frozenset({"pytest", "_pytest", "pluggy", "py", "iniconfig", "packaging", "pygments"})
_COMPILED = (".pyc", ".pyo", ".so", ".pyd")
_REGULAR = frozenset({"000000", "100644", "100755"})


class Change(NamedTuple):
    """One changed path: ``status`` is A, M, D or T; modes are git's, in octal."""

    path: bytes
    status: str
    old_mode: str
    new_mode: str

    @property
    def text(self) -> str:
        """The path as text, for messages and records."""
        return self.path.decode("utf-8", "backslashreplace")


def parse_raw_diff(output: bytes) -> list[Change]:
    """Read ``git diff --raw -z --no-renames``."""
    parts = iter(output.split(b"\0"))
    changes = []
    for head in parts:
        if head.startswith(b":"):
            old_mode, new_mode, _, _, status = head[1:].decode("ascii").split(" ")
            changes.append(Change(next(parts), status[:1], old_mode, new_mode))
    return changes


def is_test_path(path: str) -> bool:
    """Return whether a path is a test by its own name or that of a parent folder."""
    folders = path.lower().split("/")
    return bool(_TEST_DIRS.intersection(folders)) or bool(_TEST_FILE.match(folders[-1]))


def refusal(
    change: Change,
    import_roots: Iterable[str],
    task_tests: Iterable[str],
    sources: Container[str] = (),
) -> str | None:
    """Return why a change is left out of grading, or None if it is graded.

    Args:
        change: one path of the agent's change.
        import_roots: folders on the import path, relative to the repository (``""`` or ``src``).
        task_tests: paths that the task's own test patch writes.
        sources: paths that the gold patch changes; they are not tests, regardless of their names.
    """
    path = change.text
    if {change.old_mode, change.new_mode} - _REGULAR:
        return "not a regular file"
    for test in task_tests:
        if path == test or test.startswith(f"{path}/") or path.startswith(f"{test}/"):
            return "test"
    folders = path.lower().split("/")
    name = folders[-1]
    if is_test_path(path) and path not in sources:
        return "test"
    if name in _RUNNER_FILES:
        return "test configuration"
    if _STARTUP.search(path):
        return "interpreter start-up"
    if any(folder.endswith((".dist-info", ".egg-info")) for folder in folders):
        return "package metadata"
    if name.endswith(_COMPILED) or "__pycache__" in folders:
        return "compiled"
    if ".git" in folders:
        return "git"
    if change.status == "A" and _shadows(path, import_roots):
        return "shadows the test runner"
    return None


def _shadows(path: str, import_roots: Iterable[str]) -> bool:
    """Return whether the runner would import this top-level module instead of its own."""
    for root in import_roots:
        prefix = f"{root}/" if root else ""
        if path.startswith(prefix):
            top = path[len(prefix) :].split("/")[0].removesuffix(".py")
            if top in _SHADOWED or top in sys.stdlib_module_names:
                return True
    return False
