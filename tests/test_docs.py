"""README and docs: every snippet runs, every command exists, every link leads somewhere."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
FENCE = re.compile(r"^```(\w+)\n(.*?)^```", re.M | re.S)


def blocks(page: Path, *kinds: str) -> list[str]:
    return [code for kind, code in FENCE.findall(page.read_text()) if kind in kinds]


WITH_CODE = [page for page in PAGES if blocks(page, "python")]
WITH_DOCKER = {"desktop.md"}
"""Pages whose examples need a Docker engine; TRAJGYM_TEST_DOCKER=0 leaves them out."""


def cases(pages: list[Path]) -> list[Any]:
    off = os.environ.get("TRAJGYM_TEST_DOCKER") == "0"
    marks = [pytest.mark.docker, pytest.mark.skipif(off, reason="TRAJGYM_TEST_DOCKER=0")]
    return [
        pytest.param(page, marks=marks if page.name in WITH_DOCKER else [], id=page.name)
        for page in pages
    ]


@pytest.mark.parametrize("page", cases(WITH_CODE))
def test_python_snippets_run_in_order(page: Path, tmp_path: Path) -> None:
    """The snippets of a page, one after the other, run as they stand."""
    code = "\n".join(blocks(page, "python"))
    file = tmp_path / "snippets.py"
    file.write_text(code)
    done = subprocess.run([sys.executable, str(file)], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def commands(page: Path) -> list[str]:
    lines = [line for block in blocks(page, "sh", "console") for line in block.splitlines()]
    stripped = [line.removeprefix("$ ").split(" #")[0].strip() for line in lines]
    return [line for line in stripped if line]


@pytest.mark.timeout(900)
@pytest.mark.parametrize("page", cases(PAGES))
def test_commands_of_a_page_run_in_order(page: Path, tmp_path: Path) -> None:
    """The trajgym commands of a page do what they say; what else it names exists."""
    targets = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.M))
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"][
        "optional-dependencies"
    ]
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    for line in commands(page):
        words = shlex.split(line)
        if words[0] == "trajgym":
            done = subprocess.run(
                words, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=600
            )
            assert done.returncode == 0, f"{line}\n{done.stdout}{done.stderr}"
        elif words[0] == "make":
            assert words[1] in targets, line
        elif words[:2] == ["pip", "install"]:
            asked = re.findall(r"trajgym\[([\w,-]+)\]", line)
            assert set(",".join(asked).split(",")) <= set(extras), line
        else:
            script = words[1] if words[0] == "python" else words[0]
            assert (ROOT / script).is_file(), f"no test knows how to check: {line}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    """Relative links point at files of this repository."""
    for target in re.findall(r"\]\(([^)#]+)[^)]*\)", page.read_text()):
        if not target.startswith("http"):
            assert (page.parent / target).exists(), f"{page.name} links to {target}"
