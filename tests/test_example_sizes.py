"""What a user writes for a trainer, beside the environment and the trainer's own configuration."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parent.parent / "examples"
MOST = 15
SCRIPTS = {
    "trl_sync_grpo.py": ("train", "StepGRPOTrainer"),
    "trl_async_grpo.py": ("train", "AsyncGRPOTrainer"),
    "areal/train.py": ("arguments main", ""),
    "verl/prepare.py": ("main", ""),
}
"""By script, the functions that train or prepare, and the trainer that they construct."""


@pytest.mark.parametrize("script", SCRIPTS)
def test_an_example_needs_few_lines(script: str) -> None:
    """Not counted are imports, docstrings, options of the command line, and the trainer's call."""
    names, trainer = SCRIPTS[script]
    tree = ast.parse((EXAMPLES / script).read_text())
    functions = {one.name: one for one in tree.body if isinstance(one, ast.FunctionDef)}
    counted: set[int] = set()
    for name in names.split():
        for node in ast.walk(functions[name]):
            if isinstance(node, ast.stmt) and not _is_free(node):
                last = node.body[0].lineno - 1 if hasattr(node, "body") else node.end_lineno
                counted |= set(range(node.lineno, (last or node.lineno) + 1))
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and trainer and ast.unparse(node.func) == trainer:
            counted -= set(range(node.lineno, (node.end_lineno or 0) + 1))
    assert 2 <= len(counted) <= MOST


def _is_free(node: ast.stmt) -> bool:
    text = ast.unparse(node)
    docstring = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    definition = isinstance(node, ast.FunctionDef | ast.Import | ast.ImportFrom)
    return docstring or definition or text.startswith("parser") or ".parse_args(" in text
