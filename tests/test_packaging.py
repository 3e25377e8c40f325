"""What users install: an editable checkout that editors understand, a complete wheel and sdist."""

from __future__ import annotations

import json
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

from tests.installing import ROOT, install, new_venv, run, tracked
from tests.workers import made_once

pytestmark = pytest.mark.timeout(600)

USE = """\
import trajgym.cli
from trajgym.envs import Env, EnvSpec
from trajgym.envs.sandbox import Limits
from trajgym.rewards.tokens import gae
from trajgym.trajectory import Task

task: Task = Task(id="t")
spec: EnvSpec = EnvSpec(id="x")
limits: Limits = Limits(memory=1)
wrong: int = spec.id
"""

MYPY = """\
[mypy]
follow_imports = skip
[mypy-trajgym.*,pydantic.*,pydantic_core.*,annotated_types.*,typing_extensions.*,numpy.*]
follow_imports = normal
"""
"""Only what the mistake depends on: with all that trajgym imports, mypy takes ten times as long."""


@pytest.fixture(scope="module")
def editable(checkout: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The Python of a fresh environment with an editable install of the copy."""

    def make(folder: Path) -> None:
        install(new_venv(folder / "venv"), "--editable", checkout)

    folder = made_once(tmp_path_factory, "editable", make)
    python = folder / "venv" / "bin" / "python"
    found = run(python, "-c", "import trajgym.envs as e; print(e.__file__)", cwd=python.parent)
    assert Path(found.strip()).is_relative_to(checkout)
    return python


@pytest.fixture
def elsewhere(tmp_path: Path) -> Path:
    """A user's directory with a module that imports trajgym and has one mistake of its own."""
    (tmp_path / "use.py").write_text(USE)
    return tmp_path


def test_pyright_resolves_an_editable_install(editable: Path, elsewhere: Path) -> None:
    """Pyright finds every import and sees the types: it reports the one mistake, no other."""
    command = [sys.executable, "-m", "pyright", "--pythonpath", editable, "--outputjson", "use.py"]
    found = json.loads(run(*command, cwd=elsewhere, ok=False))["generalDiagnostics"]
    assert [(each["rule"], each["range"]["start"]["line"]) for each in found] == [
        ("reportAssignmentType", len(USE.splitlines()) - 1)
    ]


def test_mypy_resolves_an_editable_install(editable: Path, elsewhere: Path) -> None:
    """Mypy does the same."""
    (elsewhere / "mypy.ini").write_text(MYPY)
    options = ["--python-executable", editable, "--no-error-summary", "--cache-dir", "cache"]
    said = run(sys.executable, "-m", "mypy", *options, "use.py", cwd=elsewhere, ok=False)
    lines = [line for line in said.splitlines() if ": error:" in line]
    assert len(lines) == 1, said
    assert lines[0].startswith(f"use.py:{len(USE.splitlines())}:")
    assert "[assignment]" in lines[0]


def test_archives_hold_every_file_of_the_packages(archives: tuple[Path, Path]) -> None:
    """What is tracked in the package folders is in the sdist and in the wheel, and nothing else."""
    packages = sorted(link.name for link in (ROOT / "trajgym").iterdir() if link.is_symlink())
    wanted = {f"trajgym/{name}" for name in tracked(*packages)}
    wanted |= {name for name in tracked("trajgym") if not (ROOT / name).is_symlink()}
    sdist, wheel = archives
    with tarfile.open(sdist) as archive:
        members = {name.partition("/")[2] for name in archive.getnames()}
        files = {m.name.partition("/")[2] for m in archive.getmembers() if m.isfile()}
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
    assert wanted - files == set()
    assert {"README.md", "LICENSE", "pyproject.toml"} <= members
    assert wanted - names == set()
    assert {name for name in names - wanted if ".dist-info/" not in name} == set()


def test_a_wheel_works_when_installed(installed: Path, tmp_path: Path) -> None:
    """The command runs and every entry point loads, outside of any checkout."""
    assert "collect" in run(installed.parent / "trajgym", "--help", cwd=tmp_path)
    code = """
from importlib.metadata import distribution
points = distribution("trajgym").entry_points
for point in points:
    if point.group != "verl.plugins":  # needs verl
        point.load()
print(len([p for p in points if p.group.startswith("trajgym.")]))
import trajgym.envs
print(trajgym.envs.__file__)
"""
    count, where = run(installed, "-c", code, cwd=tmp_path).split()
    assert int(count) > 30
    assert Path(where).is_relative_to(installed.parent.parent)


def test_an_installed_wheel_serves_the_viewer(installed: Path, tmp_path: Path) -> None:
    """The page, its styles and all modules that it imports come from the installed package."""
    code = """
import re
from starlette.testclient import TestClient
from pathlib import Path
from trajgym.server.viewer import Viewer
client = TestClient(Viewer(Path("runs"), "secret"))
page = client.get("/").text
wanted = re.findall(r'(?:src|href)="(page/[^"]+)"', page)
seen = []
while wanted:
    name = wanted.pop()
    if name not in seen:
        seen.append(name)
        answer = client.get("/" + name)
        assert answer.status_code == 200, name
        wanted += ["page/" + one for one in re.findall(r'from "\\./([^"]+)"', answer.text)]
print(len(seen))
"""
    assert int(run(installed, "-c", code, cwd=tmp_path)) > 12
