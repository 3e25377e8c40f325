"""The examples run as documented, with a tiny model on a CPU; and the page about TRL."""

from __future__ import annotations

import ast
import importlib
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.trl.tiny import make

if TYPE_CHECKING:
    from collections.abc import Sequence

pytestmark = pytest.mark.timeout(900)
ROOT = Path(__file__).parent.parent.parent


def output(folder: Path, *command: str, paths: Sequence[str] = ("examples",)) -> str:
    """Run a Python command, with these folders on its path, and return what it printed."""
    done = subprocess.run(
        [sys.executable, *command],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": ":".join([str(ROOT), *(str(ROOT / p) for p in paths)])},
        capture_output=True,
        text=True,
        timeout=800,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def numbers(text: str, name: str) -> list[float]:
    """Return the values that a trainer logged under a name."""
    return [float(value) for value in re.findall(rf"'{name}': '([^']+)'", text)]


def test_sft(tmp_path: Path) -> None:
    """An expert's games become conversations, the model learns from them, and is saved."""
    tiny = make(tmp_path / "model", words=("10", "15"))
    example = str(ROOT / "examples" / "trl_sft.py")
    size = ["--games", "8", "--steps", "3", "--rate", "1e-3", "--cpu"]
    text = output(tmp_path, example, "--model", tiny.path, "--out", "out", *size)
    losses = numbers(text, "loss")
    assert len(losses) == 3
    assert losses[-1] < losses[0]
    assert (tmp_path / "out" / "model.safetensors").exists()


@pytest.mark.parametrize("processes", ["0", "2"])
def test_async_grpo(tmp_path: Path, processes: str) -> None:
    """Two updates come from sessions with different scores, and move the weights."""
    text = output(tmp_path, "-m", "tests.trl.async_example", "--processes", processes)
    assert "2 updates from" in text
    assert any(value > 0 for value in numbers(text, "grad_norm"))
    assert numbers(text, "ratio")[0] == pytest.approx(1.0, abs=1e-3)


def test_small_swe(tmp_path: Path) -> None:
    """An update comes from sessions in the sandbox, each of which gets a line."""
    places = ("examples/trainers/trl", "examples/trainers/shared")
    text = output(tmp_path, "-m", "tests.trl.small_swe_example", str(tmp_path), paths=places)
    assert "1 updates from" in text
    lines = [json.loads(line) for line in (tmp_path / "sessions.jsonl").read_text().splitlines()]
    scored = [line for line in lines if line["score"] is not None]
    assert len(scored) >= 2
    assert all(line["turns"] > 0 and line["low"] == 1 for line in scored[:2])


def test_sync_grpo(tiny: Any, tmp_path: Path) -> None:
    """The whole script runs unchanged on a CPU: a step, printed counts, and a saved model."""
    command = [sys.executable, str(ROOT / "examples" / "trl_sync_grpo.py"), "--model", tiny.path]
    command += ["--cpu", "--steps", "1"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=800)
    assert done.returncode == 0, done.stderr[-3000:]
    assert "trained 1 steps; left out: {}" in done.stdout
    assert (tmp_path / "out" / "model.safetensors").exists()


def test_the_pages_snippets_name_what_exists() -> None:
    """Every import in the page's snippets works, and every snippet is Python."""
    page = (ROOT / "docs" / "trl.md").read_text()
    snippets = re.findall(r"^```(?:py|python)\n(.*?)^```", page, re.M | re.S)
    assert snippets
    for snippet in snippets:
        for node in ast.walk(ast.parse(snippet)):
            if isinstance(node, ast.ImportFrom) and node.module:
                module = importlib.import_module(node.module)
                for alias in node.names:
                    assert hasattr(module, alias.name), f"{node.module}.{alias.name}"


def test_examples_import_nothing_from_tests() -> None:
    """A reader who copies an example needs the package alone."""
    for file in (ROOT / "examples").rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            assert not any(name.partition(".")[0] == "tests" for name in names), file
