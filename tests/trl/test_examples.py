"""The examples as a reader starts them, in their smoke mode; and the page about TRL."""

from __future__ import annotations

import ast
import importlib
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent


def smoke(name: str, folder: Path, *more: str) -> str:
    """Run an example and return what it printed."""
    command = [sys.executable, str(ROOT / "examples" / name), "--smoke", "--out", "out", *more]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def numbers(text: str, name: str) -> list[float]:
    """Return the values that a trainer logged under a name."""
    return [float(value) for value in re.findall(rf"'{name}': '([^']+)'", text)]


def test_sft(tmp_path: Path) -> None:
    """An expert's games become conversations, the model learns from them, and is saved."""
    text = smoke("trl_sft.py", tmp_path)
    losses = numbers(text, "loss")
    assert len(losses) == 3
    assert losses[-1] < losses[0]
    assert (tmp_path / "out" / "model.safetensors").exists()


@pytest.mark.parametrize("processes", ["0", "2"])
def test_async_grpo(tmp_path: Path, processes: str) -> None:
    """Two updates come from sessions with different scores, and move the weights."""
    text = smoke("trl_async_grpo.py", tmp_path, "--processes", processes)
    assert "2 updates from" in text
    assert any(value > 0 for value in numbers(text, "grad_norm"))
    assert numbers(text, "ratio")[0] == pytest.approx(1.0, abs=1e-3)


def test_the_pages_snippets_name_what_exists() -> None:
    """Every import in the page's snippets works, and every snippet is Python."""
    page = (ROOT / "docs" / "trl.md").read_text()
    snippets = re.findall(r"^```py\n(.*?)^```", page, re.M | re.S)
    assert snippets
    for snippet in snippets:
        for node in ast.walk(ast.parse(snippet)):
            if isinstance(node, ast.ImportFrom) and node.module:
                module = importlib.import_module(node.module)
                for alias in node.names:
                    assert hasattr(module, alias.name), f"{node.module}.{alias.name}"
