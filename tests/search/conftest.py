"""Fixtures of the search tests."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from trajgym.envs.search import build_bm25, builtin_index

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(scope="session", autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cache of our own, so that no index of another run is met."""
    folder = tmp_path_factory.mktemp("cache")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TRAJGYM_CACHE", str(folder))
        yield folder


@pytest.fixture(scope="session")
def index(cache: Path) -> Path:
    """The built-in corpus with the files of bm25."""
    path = builtin_index()
    build_bm25(path)
    return path
