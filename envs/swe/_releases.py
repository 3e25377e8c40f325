"""Facts about a release for builders: its archive, its licence, its sources and tests."""

from __future__ import annotations

import re
import tarfile
from email.parser import BytesParser
from typing import TYPE_CHECKING, NamedTuple

from trajgym.envs.swe._errors import InvalidTask
from trajgym.envs.swe._index import IndexFile, archives_of, fetch
from trajgym.envs.swe._paths import is_test_path
from trajgym.envs.swe._record import Archive

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["Layout", "find_release", "is_permissive", "layout_of", "licence_of"]

_NO_SOURCE = frozenset({
    "docs", "doc", "examples", "example", "benchmarks", "benchmark", "scripts", "tools", "build",
    "artwork", "requirements", "extras", "misc", "ci",
})  # fmt: skip
_NO_MODULE = frozenset({
    "setup.py", "conftest.py", "noxfile.py", "tasks.py", "fabfile.py", "versioneer.py",
    "benchmark.py",
})  # fmt: skip
_PERMISSIVE = re.compile(r"\b(MIT|BSD|Apache|ISC|PSF|0BSD|Unlicense|Zlib)\b", re.IGNORECASE)
_RESTRICTIVE = re.compile(r"\b(A?L?GPL|GNU|MPL|Mozilla|EUPL|Proprietary)", re.IGNORECASE)


class Layout(NamedTuple):
    """Layout of a source tree: paths relative to it."""

    sources: list[str]
    tests: list[str]
    pythonpath: str


def find_release(package: str, version: str, cache_dir: Path | None = None) -> tuple[Archive, Path]:
    """Return a release's source archive and its path in the cache.

    Raises:
        SourceUnavailable: the index can't be reached.
        InvalidTask: it has no source archive of that version, or one without a hash.
    """
    wanted = f"-{version}.tar.gz"
    found = {name: sha for name, sha in archives_of(package).items() if name.endswith(wanted)}
    if not found:
        raise InvalidTask(f"{package} {version}: the index has no source archive (.tar.gz) of it")
    name, sha = next(iter(found.items()))
    if not sha:
        raise InvalidTask(f"{name}: the index gives no sha256 for it")
    return Archive(filename=name, sha256=sha), fetch(IndexFile(package, name, sha), cache_dir)


def licence_of(archive: Path) -> str:
    """Return the licence from a source archive's metadata; empty if there is none."""
    with tarfile.open(archive, "r:gz") as tar:
        for member in tar:
            parts = member.name.split("/")
            if member.isfile() and parts[1:] == ["PKG-INFO"]:
                file = tar.extractfile(member)
                message = BytesParser().parsebytes(file.read() if file else b"")
                named = message.get("License-Expression") or message.get("License") or ""
                classified = [
                    value.rpartition("::")[2].strip()
                    for value in message.get_all("Classifier", [])
                    if value.startswith("License ::")
                ]
                first = str(named).strip().split("\n")[0][:80]
                return first or ", ".join(classified)
    return ""


def is_permissive(licence: str) -> bool:
    """Return whether a licence is of the MIT, BSD or Apache kind."""
    return bool(_PERMISSIVE.search(licence)) and not _RESTRICTIVE.search(licence)


def layout_of(tree: Path) -> Layout:
    """Find the import root, the packages and the tests of a source tree.

    Raises:
        InvalidTask: it has no tests, or no package.
    """
    root = tree / "src" if (tree / "src").is_dir() else tree
    sources = sorted(
        str(path.relative_to(tree))
        for path in root.iterdir()
        if not is_test_path(path.name) and _is_importable(path)
    )
    tests = _tests_of(tree)
    if not tests:
        raise InvalidTask(f"{tree.name}: no tests (folders test, tests, or files test_*.py)")
    if not sources:
        raise InvalidTask(f"{tree.name}: no package or module")
    pythonpath = "/testbed/src" if root != tree else "/testbed"
    return Layout(sources, tests, pythonpath)


def _is_importable(path: Path) -> bool:
    if path.name.lower() in _NO_SOURCE or path.name.startswith("."):
        return False
    if path.is_dir():
        return (path / "__init__.py").is_file()
    return path.suffix == ".py" and path.name not in _NO_MODULE


def _tests_of(tree: Path) -> list[str]:
    """Return the test folders nearest to the top, else test files there."""
    folders = [
        path
        for path in tree.rglob("*")
        if path.is_dir() and is_test_path(path.name) and any(map(_is_test, path.rglob("*.py")))
    ]
    usable = [path for path in folders if not _NO_SOURCE & set(path.relative_to(tree).parts)]
    if usable:
        depth = min(len(path.parts) for path in usable)
        found = [path for path in usable if len(path.parts) == depth]
    else:
        found = [path for path in tree.glob("*.py") if _is_test(path)]
    return sorted(str(path.relative_to(tree)) for path in found)


def _is_test(path: Path) -> bool:
    return path.name.startswith("test_") or path.name.endswith("_test.py")
