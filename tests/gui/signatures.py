"""The signatures of pyautogui's functions, read from its source.

The package can't be imported without a display. ``python -m tests.gui.signatures FILE VERSION``
prints the table that is recorded in ``pyautogui.json`` for ``pyautogui/__init__.py``.
"""

from __future__ import annotations

import ast
import json
import sys
from pathlib import Path

RECORDED = Path(__file__).with_name("pyautogui.json")


def signatures(source: str) -> dict[str, list[str]]:
    """Return the parameters of public functions in order; required ones end with ``!``.

    Variable arguments are written with their asterisks. Aliases (``write = typewrite``) are
    included.
    """
    body = ast.parse(source).body
    found = {
        node.name: _parameters(node.args)
        for node in body
        if isinstance(node, ast.FunctionDef) and not node.name.startswith("_")
    }
    for node in body:
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Name):
            for target in node.targets:
                if isinstance(target, ast.Name) and node.value.id in found:
                    found[target.id] = found[node.value.id]
    return found


def _parameters(given: ast.arguments) -> list[str]:
    required = len(given.args) - len(given.defaults)
    names = [one.arg + "!" * (at < required) for at, one in enumerate(given.args)]
    names += [f"*{given.vararg.arg}"] if given.vararg else []
    return [*names, *([f"**{given.kwarg.arg}"] if given.kwarg else [])]


if __name__ == "__main__":
    table = signatures(Path(sys.argv[1]).read_text())
    print(json.dumps({"version": sys.argv[2], "functions": table}, indent=1))
