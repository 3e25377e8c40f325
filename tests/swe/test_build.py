"""New tasks from releases, hunks, commits and procedural bugs."""

from __future__ import annotations

import hashlib
import io
import json
import subprocess
import tarfile
from typing import TYPE_CHECKING, Any

import pytest
from typer.testing import CliRunner

from tests.swe.test_fetching import use_index
from trajgym.cli import app
from trajgym.envs.swe import (
    Builder,
    InvalidTask,
    build_task,
    corpus_names,
    corpus_recipes,
    load_tasks,
    validate_task,
    write_corpus,
)
from trajgym.envs.swe._corpus import expand
from trajgym.envs.swe._index import _pip_settings
from trajgym.envs.swe._releases import is_permissive, layout_of
from trajgym.trajectory import Task

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from trajgym.envs.sandbox import SandboxProvider

INFO = "Metadata-Version: 2.1\nName: tiny\nLicense: MIT\nClassifier: License :: X :: MIT License\n"
CORE = """\
def clamp(value, low, high):
    if value < low:
        return low
    return {top}


def words(text):
    return [word for word in text.split(" ") if word]


def pad(text, width):
    return text.{way}just(width)
"""
TESTS = """\
from tiny import core
def test_inside():
    assert core.clamp(2, 1, 3) == 2
def test_low():
    assert core.clamp(0, 1, 3) == 1
def test_words():
    assert core.words(" a  b") == ["a", "b"]
"""
NEW_TESTS = """\
def test_high():
    assert core.clamp(9, 1, 3) == 3
def test_pad():
    assert core.pad("a", 3) == "a  "
"""
OLD = {
    "PKG-INFO": INFO,
    "setup.py": "",
    "tiny/__init__.py": "",
    "tiny/core.py": CORE.format(top="value", way="r"),
    "tests/test_core.py": TESTS,
}
NEW = {
    **OLD,
    "tiny/core.py": CORE.format(top="min(value, high)", way="l"),
    "tests/test_core.py": TESTS + NEW_TESTS,
}


def sdist(path: Path, top: str, files: dict[str, str]) -> str:
    with tarfile.open(path, "w:gz") as tar:
        for name, text in files.items():
            entry = tarfile.TarInfo(f"{top}/{name}")
            entry.size = len(text.encode())
            tar.addfile(entry, io.BytesIO(text.encode()))
    return hashlib.sha256(path.read_bytes()).hexdigest()


@pytest.fixture
def tiny(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A package on an index of folders, with two releases."""
    folder = tmp_path / "simple" / "tiny"
    folder.mkdir(parents=True)
    links = ""
    for version, files in (("1.0", OLD), ("1.1", NEW)):
        name = f"tiny-{version}.tar.gz"
        sha = sdist(folder / name, f"tiny-{version}", files)
        links += f'<a href="{name}#sha256={sha}">{name}</a>'
    (folder / "index.html").write_text(links)
    use_index(monkeypatch, (tmp_path / "simple").as_uri())
    yield "tiny"
    _pip_settings.cache_clear()


async def test_two_releases_become_a_task(tiny: str, sandboxes: SandboxProvider) -> None:
    """Tests that the newer release added are the problem; its source change is the solution."""
    recipe = await Builder(sandboxes, runs=1).release(tiny, "1.0", "1.1")
    assert recipe["FAIL_TO_PASS"] == [
        "tests/test_core.py::test_high",
        "tests/test_core.py::test_pad",
    ]
    assert len(recipe["PASS_TO_PASS"]) == 3
    assert recipe["provenance"]["licence"] == "MIT"
    assert recipe["provenance"]["permissive"]
    assert "min(value" not in json.dumps(recipe)
    task = build_task(recipe)
    assert "min(value, high)" in task.data["patch"]
    assert "test_high" in task.data["test_patch"]
    found = await validate_task(task, sandboxes, repeats=2)
    assert (found.problems, found.runs) == ((), 3)


async def test_hunks_become_tasks_of_one_fix_each(tiny: str, sandboxes: SandboxProvider) -> None:
    """Each hunk that some test detects is a task with those tests."""
    told: dict[str, str] = {}
    builder = Builder(sandboxes, runs=1, on_candidate=told.__setitem__)
    recipes = [recipe async for recipe in builder.hunks(tiny, "1.0", "1.1")]
    by_id = {recipe["instance_id"]: recipe["FAIL_TO_PASS"] for recipe in recipes}
    assert by_id == {
        "hunk-tiny-1.1-tiny_core-L4": ["tests/test_core.py::test_high"],
        "hunk-tiny-1.1-tiny_core-L12": ["tests/test_core.py::test_pad"],
    }
    assert set(told.values()) == {""}


async def test_bugs_are_kept_if_some_tests_tell_them(
    tiny: str, sandboxes: SandboxProvider, tmp_path: Path
) -> None:
    """Bugs that no test detects or that break most of the suite are no tasks; others validate."""
    told: dict[str, str] = {}
    builder = Builder(sandboxes, runs=1, on_candidate=told.__setitem__)
    recipes = [recipe async for recipe in builder.mutations(tiny, "1.1", count=2, seed=1)]
    assert len(recipes) == 2
    assert list(told.values()).count("") == 2
    same = Builder(sandboxes, runs=1).mutations(tiny, "1.1", count=1, seed=1)
    assert [recipe async for recipe in same] == recipes[:1]
    assert all(recipe["FAIL_TO_PASS"] for recipe in recipes)
    found = await validate_task(build_task(recipes[0]), sandboxes, repeats=1)
    assert found.sound, found
    (file,) = write_corpus(recipes, tmp_path / "corpus")
    document = json.loads(file.read_text())
    assert sorted(expand(document), key=str) == sorted(recipes, key=str)
    assert "def " not in file.read_text()
    assert {task.id for task in load_tasks(file.parent)} == {r["instance_id"] for r in recipes}


async def test_recipe_of_another_file_is_refused(tiny: str, sandboxes: SandboxProvider) -> None:
    """A mutation that gives other bytes than the recipe's hash is an error, never another task."""
    (recipe,) = [r async for r in Builder(sandboxes, runs=1).mutations(tiny, "1.1", count=1)]
    recipe["source"]["mutation"]["sha256"] = "0" * 64
    with pytest.raises(InvalidTask, match="another file than the recipe's"):
        build_task(recipe)


@pytest.fixture
def history(tmp_path: Path) -> Path:
    """A repository: a feature, a fix with tests, a change of words."""
    repo = tmp_path / "history"
    repo.mkdir()
    steps: list[tuple[str, dict[str, str]]] = [
        ("start", OLD),
        ("Clamp at the upper end too", NEW),
        ("words", {"README.md": "words"}),
    ]
    git = ["git", "-c", "user.name=a", "-c", "user.email=a@b"]
    subprocess.run([*git, "init", "-q", "-b", "main"], cwd=repo, check=True, timeout=60)
    for message, files in steps:
        for name, text in files.items():
            (repo / name).parent.mkdir(parents=True, exist_ok=True)
            (repo / name).write_text(text)
        subprocess.run([*git, "add", "-A"], cwd=repo, check=True, timeout=60)
        subprocess.run([*git, "commit", "-qm", message], cwd=repo, check=True, timeout=60)
    return repo


async def test_commits_with_tests_become_tasks(history: Path, sandboxes: SandboxProvider) -> None:
    """A commit that fixes source and adds tests is a task; others are reported with the reason."""
    told: list[str] = []
    builder = Builder(sandboxes, runs=1, on_candidate=lambda _, why: told.append(why))
    recipes = [r async for r in builder.commits(str(history), "main~2..main", "MIT")]
    assert [recipe["problem_statement"] for recipe in recipes] == ["Clamp at the upper end too"]
    assert told == ["", "does not change both sources and tests"]
    task = build_task(recipes[0])
    found = await validate_task(task, sandboxes, repeats=1)
    assert found.sound, found


async def test_unsound_tasks_are_told(sandboxes: SandboxProvider, spans: Task) -> None:
    """Gold that does not solve, tests that pass already, tests that fail anyway: each is named."""
    data = spans.data
    f2p, p2p = data["FAIL_TO_PASS"], data["PASS_TO_PASS"]
    changes = {
        "gold does not solve it": {"patch": data["patch"].split("diff --git")[0] + "\n"},
        "pass without a change": {"FAIL_TO_PASS": p2p[:1], "PASS_TO_PASS": p2p[1:]},
        "fail without a change": {"FAIL_TO_PASS": f2p[:1], "PASS_TO_PASS": f2p[1:]},
        "can't be graded here": {"test_patch": "nonsense"},
    }
    for said, change in changes.items():
        task = Task(id=spans.id, data={**data, **change})
        (problem,) = (await validate_task(task, sandboxes, repeats=1)).problems
        assert said in problem


def test_command_builds_validates_and_writes(tiny: str, tmp_path: Path) -> None:
    """`trajgym swe build` leaves recipes that load as tasks, and a report of the yield."""
    out, report = tmp_path / "out", tmp_path / "report.json"
    arguments = ["swe", "build", "--out", str(out), "--report", str(report), "--repeats", "1"]
    done = CliRunner().invoke(app, [*arguments, "--pypi", tiny, "1.0", "1.1"])
    assert done.exit_code == 0, done.output
    (file,) = out.glob("*.json")
    (task,) = load_tasks(file)
    assert task.id == "tiny-1.0-to-1.1"
    assert json.loads(report.read_text())["tasks"] == 1
    checked = CliRunner().invoke(
        app, ["swe", "validate", "--tasks", str(file), "--sandbox", "embedded", "--repeats", "1"]
    )
    assert "1 of 1 tasks are sound" in checked.output, checked.output


def test_layouts_of_source_trees(tmp_path: Path) -> None:
    """Import root, packages and tests are found; modules called tests, docs and setup are not."""

    def tree(*files: str) -> Path:
        root = tmp_path / str(len(list(tmp_path.iterdir())))
        for name in files:
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            (root / name).touch()
        return root

    plain = layout_of(tree("a/__init__.py", "tests/test_a.py", "setup.py", "docs/__init__.py"))
    assert plain == (["a"], ["tests"], "/testbed")
    nested = layout_of(tree("src/a/__init__.py", "src/a/tests.py", "src/a/test/test_x.py"))
    assert nested == (["src/a"], ["src/a/test"], "/testbed/src")
    single = layout_of(tree("mod.py", "test_mod.py"))
    assert single == (["mod.py"], ["test_mod.py"], "/testbed")
    with pytest.raises(InvalidTask, match="no tests"):
        layout_of(tree("a/__init__.py"))


@pytest.mark.parametrize(
    ("licence", "permissive"),
    [("MIT License", True), ("BSD-3-Clause", True), ("Apache 2.0", True), ("GPL-3.0", False),
     ("LGPL, MIT", False), ("", False)],
)  # fmt: skip
def test_permissive_licences(licence: str, permissive: bool) -> None:
    """Only licences of the MIT, BSD and Apache kind count."""
    assert is_permissive(licence) == permissive


def test_shipped_corpus_is_facts_alone() -> None:
    """At least 60 tasks from 5 packages under permissive licences, without the packages' source."""
    recipes = corpus_recipes()
    assert len(corpus_names()) >= 60
    assert len({recipe["provenance"]["package"] for recipe in recipes.values()}) >= 5
    allowed: dict[str, set[str]] = {"place": {"file", "mutation", "base_lines", "fixed_lines"}}
    for name, recipe in recipes.items():
        assert recipe["provenance"]["permissive"], name
        place: dict[str, Any] = recipe["source"]
        assert set(place) <= {"kind", "package", "base", "fixed"} | allowed["place"]
        assert not set(recipe["FAIL_TO_PASS"]) & set(recipe["PASS_TO_PASS"])
        assert recipe["FAIL_TO_PASS"]
    seen = [(r["source"]["fixed"]["sha256"], r["source"]["mutation"]["sha256"])
            for r in recipes.values() if "mutation" in r["source"]]  # fmt: skip
    assert len(set(seen)) == len(seen)
