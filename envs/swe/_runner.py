"""The packages that a sandbox needs to run tests: pytest and a task's pinned ones, all pure Python.

One folder serves every provider and every Python from 3.11 on, so images are built without network
and without pip.
"""

from __future__ import annotations

import json
import shutil
from functools import cache
from importlib import metadata, resources
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trajgym.envs.swe._archives import unpack_sdist, unpack_wheel
from trajgym.envs.swe._cache import build_once, cache_root, content_key
from trajgym.envs.swe._errors import InvalidTask, SourceUnavailable
from trajgym.envs.swe._index import IndexFile, fetch

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["runner_folder"]

_SCRIPTS = {
    "pytest": '#!/bin/sh\nexec python3 -m pytest "$@"\n',
    "python": '#!/bin/sh\nexec python3 "$@"\n',
}


def runner_folder(needs: Iterable[str], cache_dir: Path | None = None) -> Path:
    """Return a folder with ``site`` (for the import path) and ``bin`` (for ``PATH``).

    Args:
        needs: names of pinned packages besides pytest.
        cache_dir: instead of the user's cache.

    Raises:
        InvalidTask: a package is not among the pinned ones.
        SourceUnavailable: a package can't be fetched from the index nor, for pytest, copied from
            this Python's installation.
    """
    wanted = sorted(set(needs))
    pinned = _pinned()
    if unknown := [name for name in wanted if name not in pinned["packages"]]:
        raise InvalidTask(
            f"install_config.needs: {unknown} are not pinned; known: {sorted(pinned['packages'])}"
        )
    target = cache_root(cache_dir) / "runner" / content_key(pinned, wanted, _SCRIPTS)

    def build(work: Path) -> None:
        site = work / "site"
        site.mkdir()
        _add_pytest(pinned["pytest"], site, cache_dir)
        for name in wanted:
            _add(pinned["packages"][name], site, cache_dir)
        (work / "bin").mkdir()
        for name, text in _SCRIPTS.items():
            script = work / "bin" / name
            script.write_text(text)
            script.chmod(0o755)

    return build_once(target, build)


@cache
def _pinned() -> Any:
    text = resources.files("trajgym.envs.swe").joinpath("data/runner.json").read_text("utf-8")
    return json.loads(text)


def _add_pytest(pins: list[dict[str, str]], site: Path, cache_dir: Path | None) -> None:
    try:
        for pin in pins:
            _add(pin, site, cache_dir)
    except SourceUnavailable as error:
        shutil.rmtree(site)
        site.mkdir()
        _copy_installed([pin["project"] for pin in pins], site, error)


def _add(pin: dict[str, str], site: Path, cache_dir: Path | None) -> None:
    file = fetch(IndexFile(pin["project"], pin["filename"], pin["sha256"]), cache_dir)
    if file.suffix == ".whl":
        unpack_wheel(file, site)
    else:
        folder = site / Path(pin["folder"]).name
        folder.mkdir()
        unpack_sdist(file, folder, only=pin["folder"])


def _copy_installed(projects: list[str], site: Path, cause: SourceUnavailable) -> None:
    """Copy packages from this Python's installation, as a fallback without an index."""
    for project in projects:
        try:
            files = metadata.distribution(project).files or []
        except metadata.PackageNotFoundError:
            raise SourceUnavailable(f"{cause}; or install {project} in this environment") from cause
        for file in files:
            if ".." in file.parts or "__pycache__" in file.parts:
                continue
            target = site.joinpath(*file.parts)
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(str(file.locate()), target)
