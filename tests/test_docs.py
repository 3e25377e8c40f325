"""README and docs: every snippet runs from the wheel, and every link has a target."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import pytest

from tests.test_package import PACKAGES

ROOT = Path(__file__).parent.parent
PAGES = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md")),
    *sorted((ROOT / "docs").glob("*.md")),
]
FENCE = re.compile(r"^ *```(\w+)\n(.*?)^ *```", re.M | re.S)


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


def run_python(page: Path, folder: Path, python: Path) -> None:
    """Run a page's Python snippets as one program in a folder."""
    file = folder / "snippets.py"
    file.write_text("\n".join(blocks(page, "python")))
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        [python, file], cwd=folder, env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr


def run_command(line: str, folder: Path, python: Path) -> None:
    """Run a trajgym command in a folder, with the command that is installed beside a Python."""
    environment = {**os.environ, "PATH": f"{python.parent}:{os.environ['PATH']}"}
    environment.pop("PYTHONPATH", None)
    command = [python.parent / "trajgym", *shlex.split(line)[1:]]
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=600
    )
    assert done.returncode == 0, f"{line}\n{done.stdout}{done.stderr}"


@pytest.mark.parametrize("page", cases(WITH_CODE))
def test_python_snippets_run_in_order(page: Path, tmp_path: Path, installed: Path) -> None:
    """The snippets of a page, one after the other, run as they stand, without a checkout."""
    run_python(page, tmp_path, installed)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.name))
def test_no_snippet_is_a_fragment(page: Path) -> None:
    """Python is fenced as `python`, and therefore run; `py` would not be."""
    assert not blocks(page, "py")


def commands(page: Path) -> list[str]:
    lines = [line for block in blocks(page, "sh", "console") for line in block.splitlines()]
    stripped = [line.removeprefix("$ ").split(" #")[0].strip() for line in lines]
    return [line for line in stripped if line]


@pytest.mark.timeout(900)
@pytest.mark.parametrize("page", cases(PAGES))
def test_commands_of_a_page_run_in_order(page: Path, tmp_path: Path, installed: Path) -> None:
    """The trajgym commands of a page run; other targets and scripts that it names exist."""
    targets = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.M))
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"][
        "optional-dependencies"
    ]
    for line in commands(page):
        words = shlex.split(line)
        if words[0] == "trajgym":
            run_command(line, tmp_path, installed)
        elif words[0] == "make":
            assert words[1] in targets, line
        elif words[:2] == ["pip", "install"]:
            asked = re.findall(r"trajgym\[([\w,-]+)\]", line)
            assert set(filter(None, ",".join(asked).split(","))) <= set(extras), line
        else:
            script = words[1] if words[0] == "python" else words[0]
            assert (ROOT / script).is_file(), f"no test knows how to check: {line}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    """Relative links point at files of this repository."""
    for target in re.findall(r"\]\(([^)#]+)[^)]*\)", page.read_text()):
        if not target.startswith("http"):
            assert (page.parent / target).exists(), f"{page.name} links to {target}"


def test_the_site_has_every_page_and_every_public_package() -> None:
    """The navigation names each page, and the reference has a page for each package."""
    named = set(re.findall(r": ([\w./-]+\.md)$", (ROOT / "mkdocs.yml").read_text(), re.M))
    pages = {str(page.relative_to(ROOT / "docs")) for page in (ROOT / "docs").rglob("*.md")}
    assert named | {"reference/index.md"} == pages
    described = "".join(page.read_text() for page in (ROOT / "docs" / "reference").glob("*.md"))
    for name in PACKAGES:
        assert f"::: trajgym.{name}\n" in described, name
