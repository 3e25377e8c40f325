"""The page about AReaL, and the public names of its module."""

from __future__ import annotations

import ast
import importlib
import re
from pathlib import Path

from trajgym.adapters import areal

PAGE = Path(__file__).parent.parent.parent / "docs" / "areal.md"


def test_the_pages_snippets_name_what_exists() -> None:
    """Every import in the page's snippets works, and every workflow that it names is there."""
    text = PAGE.read_text()
    snippets = re.findall(r"^```(?:py|python)\n(.*?)^```", text, re.M | re.S)
    assert snippets
    for snippet in snippets:
        for node in ast.walk(ast.parse(snippet)):
            if isinstance(node, ast.ImportFrom) and node.module:
                module = importlib.import_module(node.module)
                for alias in node.names:
                    assert hasattr(module, alias.name), f"{node.module}.{alias.name}"
    named = re.findall(r'"trajgym\.adapters\.areal\.(\w+)"', text)
    assert len(named) >= 4
    assert set(named) <= set(areal.__all__)


def test_every_public_name_is_there_and_documented() -> None:
    """Names that import AReaL when they are asked for can be imported too."""
    for name in areal.__all__:
        assert getattr(areal, name).__doc__, name
