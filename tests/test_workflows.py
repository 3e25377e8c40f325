"""Continuous integration, hooks and the release: what they name exists, and runs what CI runs."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[1]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
HOOKS = ROOT / ".pre-commit-config.yaml"


def recipes() -> dict[str, str]:
    """Return the recipe of each make target, as make would print it."""
    text = (ROOT / "Makefile").read_text()
    targets = re.findall(r"^([a-z][a-z-]*):(?!=)", text, re.MULTILINE)
    return {target: expanded(target) for target in targets}


def expanded(*words: str) -> str:
    # These tests may run under a make that has been given variables.
    given = {"MAKEFLAGS", "MAKELEVEL", "MAKEOVERRIDES", "WORKERS"}
    done = subprocess.run(
        ["make", "--dry-run", "--always-make", *words],
        cwd=ROOT,
        env={name: value for name, value in os.environ.items() if name not in given},
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout


def make_targets(command: str) -> set[str]:
    """Return the targets of every ``make`` in a shell script."""
    found: set[str] = set()
    for line in command.splitlines():
        for part in re.split(r"&&|\|\||;|[<>|&]", line):
            words = shlex.split(part, comments=True)
            if words[:2] == ["nice", "-n"]:
                words = words[3:]
            if words[:1] == ["make"]:
                found |= {word for word in words[1:] if not word.startswith("-")}
    return found


def jobs(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load(path.read_text())["jobs"]
    return found


def steps(path: Path) -> list[str]:
    """Return the command of every ``run:`` step, once for each value of the job's matrix."""
    commands = []
    for job in jobs(path).values():
        matrix = job.get("strategy", {}).get("matrix", {})
        runs = [step["run"] for step in job["steps"] if "run" in step]
        for run in runs:
            for name, values in matrix.items():
                holder = f"${{{{ matrix.{name} }}}}"
                if holder in run:
                    commands += [run.replace(holder, value) for value in values]
                    break
            else:
                commands.append(run)
    return commands


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_workflows_are_valid(path: Path) -> None:
    """The public CI service's own schema accepts every workflow."""
    checker = [sys.executable, "-m", "check_jsonschema", "--builtin-schema"]
    subprocess.run([*checker, "vendor.github-workflows", str(path)], check=True)


def test_workflows_run_the_targets_of_ci() -> None:
    """The workflows and ``.ci/run`` run the same make targets, and each of them exists."""
    run = {target for path in WORKFLOWS for step in steps(path) for target in make_targets(step)}
    assert run == make_targets((ROOT / ".ci" / "run").read_text())
    assert run <= recipes().keys()


@pytest.mark.parametrize(
    ("path", "step"),
    [(path, step) for path in WORKFLOWS for step in steps(path)],
    ids=lambda value: value.name if isinstance(value, Path) else value.split("\n")[0][:40],
)
def test_workflow_steps_parse(path: Path, step: str) -> None:
    """The shell can parse every step, and no matrix value is left open in it."""
    assert "${{" not in step, path
    subprocess.run(["sh", "-n", "-c", step], check=True)


def test_hooks_run_what_lint_runs() -> None:
    """Every hook is a local one, with a command of ``make lint``; only fixes are added."""
    repos = yaml.safe_load(HOOKS.read_text())["repos"]
    assert {repo["repo"] for repo in repos} == {"local"}
    lint = {line.removesuffix(" .") for line in expanded("lint").splitlines()}
    for hook in (hook for repo in repos for hook in repo["hooks"]):
        command = hook["entry"].replace(" --fix", "").replace(" --force-exclude", "")
        assert {command, f"{command} --check"} & lint, hook["id"]


def test_make_targets_name_what_exists() -> None:
    """Every script, module and benchmark in a recipe is in the checkout."""
    for target, recipe in recipes().items():
        for name in re.findall(r"(?:scripts|benchmarks|tests)/[\w./-]+", recipe):
            assert (ROOT / name).exists(), f"make {target}: {name}"


def test_the_suite_runs_in_as_many_workers_as_asked() -> None:
    """``make test`` starts two workers, another number with WORKERS, and none for one."""
    assert "pytest -n 2 --dist worksteal\n" in expanded("test")
    assert "pytest -n 4 --dist worksteal\n" in expanded("test", "WORKERS=4")
    assert expanded("test", "WORKERS=1").splitlines()[-1].split()[-1] == "pytest"


def test_a_release_starts_from_a_clean_tree(tmp_path: Path) -> None:
    """Uncommitted changes, and a version that the changelog lacks, stop a release."""
    subprocess.run(["git", "init", "--quiet", tmp_path], check=True)
    (tmp_path / "scripts").mkdir()
    script = tmp_path / "scripts" / "release.sh"
    script.write_text((ROOT / "scripts" / "release.sh").read_text())
    (tmp_path / "pyproject.toml").write_text('[project]\nname = "x"\nversion = "9.9"\n')
    (tmp_path / "CHANGELOG.md").write_text("## [Unreleased]\n")

    def release() -> str:
        return subprocess.run(
            ["sh", str(script)],
            env={"PYTHON": sys.executable, "PATH": "/usr/bin:/bin"},
            capture_output=True,
            text=True,
            check=False,
        ).stderr

    assert "uncommitted changes" in release()
    git = ["git", "-C", str(tmp_path), "-c", "user.name=x", "-c", "user.email=x@example.org"]
    subprocess.run([*git, "add", "."], check=True)
    subprocess.run([*git, "commit", "--quiet", "--message=x"], check=True)
    assert "no section [9.9]" in release()
