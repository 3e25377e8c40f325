"""The search package as a whole: light to import, exports that match, documented names."""

from __future__ import annotations

from tests import test_package as package

HEAVY = {"bm25s", "httpx", "mcp", "numba", "pyarrow", "starlette", "torch", "uvicorn"}


def test_exports_and_documentation() -> None:
    """Public names, __all__ and docstrings agree."""
    package.test_exports_match_all("envs.search")
    package.test_public_names_are_documented("envs.search")


def test_search_imports_nothing_heavy() -> None:
    """Engines import what they need when they are made."""
    loaded = package.loaded_by("import trajgym.envs.search")
    assert loaded & (HEAVY | package.HEAVY) == set()
