"""Candidates for tasks in a source tree: hunks between two releases, and places for bugs."""

from __future__ import annotations

import difflib
import hashlib
from typing import TYPE_CHECKING, Any, NamedTuple

from trajgym.envs.swe._mutate import edits_of
from trajgym.envs.swe._paths import is_test_path

if TYPE_CHECKING:
    from pathlib import Path

    from trajgym.envs.swe._releases import Layout

__all__ = ["Hunk", "differ", "hunks_between", "places", "put_back", "python_files"]

_CONTEXT = 2


class Hunk(NamedTuple):
    """Lines ``base`` of the older file correspond to lines ``fixed`` of the newer; from 0."""

    base: tuple[int, int]
    fixed: tuple[int, int]

    @property
    def line(self) -> int:
        """Line number of the hunk in the newer file, as a diff without context gives it."""
        return self.fixed[0] + (self.fixed[1] > self.fixed[0])


def hunks_between(base: bytes, fixed: bytes) -> list[Hunk]:
    """Return the hunks between two files; changes at most four lines apart are merged."""
    old, new = base.splitlines(keepends=True), fixed.splitlines(keepends=True)
    matcher = difflib.SequenceMatcher(None, old, new, autojunk=False)
    hunks = []
    for group in matcher.get_grouped_opcodes(_CONTEXT):
        changes = [change for change in group if change[0] != "equal"]
        if changes:
            first, last = changes[0], changes[-1]
            hunks.append(Hunk((first[1], last[2]), (first[3], last[4])))
    return hunks


def python_files(tree: Path, layout: Layout) -> list[str]:
    """Return the source files of a tree without its tests."""
    found = []
    for source in layout.sources:
        path = tree / source
        files = path.rglob("*.py") if path.is_dir() else [path]
        found += [str(file.relative_to(tree)) for file in files if file.is_file()]
    tests = tuple(f"{test}/" for test in layout.tests)
    return sorted(file for file in found if not file.startswith(tests))


def differ(one: Path, other: Path) -> bool:
    contents = [path.read_bytes() if path.is_file() else None for path in (one, other)]
    return contents[0] != contents[1]


def put_back(before: bytes, after: bytes, hunk: Hunk) -> bytes:
    old, new = before.splitlines(keepends=True), after.splitlines(keepends=True)
    kept = [*new[: hunk.fixed[0]], *old[slice(*hunk.base)], *new[hunk.fixed[1] :]]
    return b"".join(kept)


def places(tree: Path, layout: Layout, seed: int) -> list[tuple[str, Any]]:
    """Return every place for a bug, in an order that depends on the seed only."""
    places = []
    for file in python_files(tree, layout):
        if is_test_path(file):
            continue  # a change of such a path would be left out of grading
        for edit in edits_of((tree / file).read_bytes()):
            key = hashlib.sha256(f"{seed} {file} {edit[:4]}".encode()).hexdigest()
            places.append((key, file, edit))
    return [(file, edit) for _, file, edit in sorted(places, key=lambda place: place[0])]
