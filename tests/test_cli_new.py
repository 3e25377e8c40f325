"""The newcomer's commands: a first environment, what is registered, conformance, evaluation."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from tests import worlds
from trajgym.cli import app
from trajgym.envs import Env, register
from trajgym.rewards import list_derivers
from trajgym.trajectory import InvalidInput, Run, Task, TrajgymError

assert worlds.Counter


def invoke(*arguments: object) -> Result:
    result = CliRunner(env={"COLUMNS": "160"}).invoke(app, [str(a) for a in arguments])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


@register("test/moody")
class Moody(Env):
    """Opens in another way each time."""

    openings = 0

    def reset(self, task: Task, seed: int | None) -> str:
        Moody.openings += 1
        return f"opening {Moody.openings}"

    def verify(self) -> bool:
        return False


def in_project(project: Path, *command: str) -> subprocess.CompletedProcess[str]:
    """Run a command in a project as an installation would see it."""
    env = os.environ | {"PYTHONPATH": os.pathsep.join([str(project), *sys.path[:1]])}
    env["PYTHONPATH"] = os.pathsep.join([str(project), str(Path(__file__).parent.parent)])
    return subprocess.run(
        [sys.executable, *command], cwd=project, env=env, capture_output=True, text=True
    )


@pytest.mark.parametrize(
    "variant",
    ["", pytest.param("--sandbox", marks=pytest.mark.docker), "--images"],
)
def test_a_new_project_works_as_printed(tmp_path: Path, variant: str) -> None:
    """`init` writes a project whose tests pass and whose tasks its script collects."""
    project = tmp_path / "my_env"
    said = invoke("init", project, *filter(None, [variant])).output
    assert "pip install -e '.[test]'" in said
    tests = in_project(project, "-m", "pytest", "-q", "-p", "no:cacheprovider")
    assert "2 passed" in tests.stdout, tests.stdout + tests.stderr
    collect = ["collect", "--env", "my_env:MyEnv", "--tasks", "my_env/tasks.jsonl"]
    done = in_project(
        project, "-m", "trajgym.cli", *collect, "--samples", "2", "--out", "runs/first"
    )
    assert done.returncode == 0, done.stderr
    with Run(project / "runs" / "first") as run:
        passed = [s.attempts[0].outcome for s in run.summaries()]
        solved = [outcome.passed for outcome in passed if outcome is not None]
    assert len(solved) == len(passed)
    assert sum(solved) * 2 == len(solved)


def test_init_refuses_what_it_would_spoil(tmp_path: Path) -> None:
    """A directory with files, and a name that no module can have, are refused."""
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").touch()
    with pytest.raises(InvalidInput, match="not empty"):
        invoke("init", tmp_path / "full")
    with pytest.raises(InvalidInput, match="is not a valid project name"):
        invoke("init", tmp_path / "My Env")
    assert invoke("init", tmp_path / "new", "--sandbox", "--images").exit_code == 2


def test_an_environment_without_a_script_stops_before_its_first_session(tmp_path: Path) -> None:
    """The default policy needs a script: the error names the options, and no run is made."""
    tasks = tmp_path / "tasks.jsonl"
    tasks.write_text('{"id": "a"}\n')
    with pytest.raises(InvalidInput, match="--base-url URL --model NAME, or --policy local"):
        invoke("collect", "--env", "test/echo", "--tasks", tasks, "--out", tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--set", "nonsense=1"), "invalid configuration"),
        (("--tasks", "empty.jsonl"), "there is no task"),
        (("--env", "json:JSONDecoder"), "no environment"),
    ],
)
def test_wrong_usage_stops_before_anything_is_written(
    tmp_path: Path, tasks: Path, arguments: tuple[str, str], message: str
) -> None:
    """A setting, a task file or a class that can't work is named, and no run is made."""
    (tmp_path / "empty.jsonl").touch()
    given = {"--env": "test/counter", "--tasks": str(tasks), "--out": str(tmp_path / "run")}
    given |= {arguments[0]: arguments[1].replace("empty.jsonl", str(tmp_path / "empty.jsonl"))}
    with pytest.raises(TrajgymError, match=message):
        invoke("collect", *(part for pair in given.items() for part in pair))
    assert not (tmp_path / "run").exists()


def test_no_samples_is_wrong_usage(tmp_path: Path, tasks: Path) -> None:
    """`--samples 0` is refused with status 2."""
    asked = ("--env", "test/counter", "--tasks", tasks, "--out", tmp_path / "run")
    assert invoke("collect", *asked, "--samples", 0).exit_code == 2


def test_errors_print_text_as_it_is(tmp_path: Path) -> None:
    """An error of the program has status 2, one line, brackets kept, and no traceback."""
    command = [sys.executable, "-m", "trajgym.cli", "show", str(tmp_path / "[bold]none:m:")]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 2
    assert "[bold]none:m:" in done.stderr
    assert "Traceback" not in done.stderr


def test_exports_carry_what_reward_kept(tmp_path: Path, tasks: Path) -> None:
    """Without --with, an export takes the kept values, settings included, and names them."""
    run = tmp_path / "run"
    asked = ("--env", "test/counter", "--tasks", tasks, "--samples", 4, "--policy", "fake")
    invoke("collect", *asked, "--out", run)
    kept = invoke("reward", run, "--with", "grpo", "--set", "variant=mean_only", "--json")
    settings = json.loads(kept.stdout)["settings"]
    export = ("export", run, "--to", "trl-grpo", "--set", "allow=synthetic")
    said = invoke(*export, "--out", tmp_path / "out", "--json")
    document = json.loads(said.stdout)
    assert document["values"][0]["deriver"] == "grpo"
    assert document["values"][0]["settings"] == settings
    assert document["written"] == 8
    invoke("reward", run, "--with", "rloo")
    with pytest.raises(InvalidInput, match="choose with --with"):
        invoke(*export, "--out", tmp_path / "out")
    chosen = invoke(*export, "--out", tmp_path / "two", "--with", "grpo")
    assert 'variant="mean_only"' in chosen.output


def test_lists_name_what_is_registered() -> None:
    """Environments, derivers and exports are listed with a line and their settings."""
    derivers = json.loads(invoke("derivers", "--json").output)
    assert [entry["name"] for entry in derivers] == list_derivers()
    assert all(entry["about"] for entry in derivers)
    gigpo = next(entry for entry in derivers if entry["name"] == "gigpo")
    assert gigpo["settings"]["gamma"] == "0.95"
    exports = {entry["name"]: entry for entry in json.loads(invoke("exports", "--json").output)}
    assert exports["sft"]["settings"]["include"] == "'passed'"
    plain = invoke("envs").output
    assert "swe\t" in plain
    assert "sandbox='auto'" in plain


def test_conformance_from_the_command_line() -> None:
    """What keeps its contract passes with status 0, what does not fails with 1."""
    good = invoke("check-env", "test/echo")
    assert good.exit_code == 0
    assert "ok  equal seeds and messages give equal observations" in good.output
    assert invoke("check-env", "test/moody").exit_code == 1
    assert "conforms to the contract" in invoke("check-deriver", "grpo").output


def evaluate(tasks: Path, out: Path, *more: object) -> Result:
    asked = ("--env", "test/counter", "--tasks", tasks, "--samples", 4, "--policy", "fake")
    return invoke("eval", *asked, "--out", out, *more)


@pytest.fixture
def tasks(tmp_path: Path) -> Path:
    file = tmp_path / "tasks.jsonl"
    lines = [{"id": name, "data": {"kind": kind}} for name, kind in [("a", "x"), ("b", "y")]]
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return file


def test_eval_reports_and_compares(tmp_path: Path, tasks: Path) -> None:
    """Shares with intervals, by group, against an earlier run, as JSON and as Markdown."""
    report = tmp_path / "report.md"
    first = evaluate(tasks, tmp_path / "one", "--by", "kind", "--markdown", report)
    assert first.exit_code == 0
    assert "25.0%" in first.output
    lines = report.read_text().splitlines()
    assert lines[0].startswith("| environment | tasks | attempts | solved (95%) | pass@2")
    assert len(lines) == 5
    again = evaluate(tasks, tmp_path / "two", "--against", tmp_path / "one", "--json")
    document = json.loads(again.stdout)
    assert document["groups"][0]["solved"]["value"] == 0.25
    assert document["groups"][0]["pass_at"]["4"] == 1.0
    assert document["against"][0]["value"] == 0.0


def test_eval_mixes_no_runs(tmp_path: Path, tasks: Path) -> None:
    """A resumed evaluation refuses other settings and other tasks of the same ids."""
    out = tmp_path / "one"
    assert evaluate(tasks, out).exit_code == 0
    with pytest.raises(InvalidInput, match=r"budgets\.turns 20, not 9.*--allow-changes budgets"):
        evaluate(tasks, out, "--turns", 9)
    tasks.write_text(tasks.read_text().replace('"x"', '"z"'))
    with pytest.raises(InvalidInput, match=r"task 'a': data\.kind"):
        evaluate(tasks, out)
    assert evaluate(tasks, out, "--allow-changes", "tasks").exit_code == 0


def test_eval_of_several_environments(tmp_path: Path, tasks: Path) -> None:
    """One TOML file names several environments; each gets a run, the report has all."""
    suite = tmp_path / "suite.toml"
    suite.write_text(
        f'[[eval]]\nname = "one"\nenv = "test/counter"\ntasks = "{tasks}"\n'
        f'[[eval]]\nname = "two"\nenv = "test/counter"\ntasks = "{tasks}"\nsamples = 2\n'
    )
    out = tmp_path / "out"
    done = invoke("eval", "--suite", suite, "--samples", 4, "--policy", "fake", "--out", out)
    assert done.exit_code == 0
    counts = []
    for name in ("one", "two"):
        with Run(out / name) as run:
            counts.append(sum(1 for _ in run.summaries()))
    assert counts == [8, 4]
    suite.write_text('[[eval]]\nenv = "test/counter"\n')
    with pytest.raises(InvalidInput, match="tasks is missing"):
        invoke("eval", "--suite", suite, "--out", out)


def test_eval_without_a_scored_attempt_fails(tmp_path: Path) -> None:
    """Where every session failed, the status is 1 and the causes are counted."""
    stuck = tmp_path / "tasks.jsonl"
    stuck.write_text('{"id": "stuck"}\n')
    done = evaluate(stuck, tmp_path / "run")
    assert done.exit_code == 1
    assert "4 x failed:env: " in done.output
    document = json.loads(evaluate(stuck, tmp_path / "run", "--keep-failed", "--json").stdout)
    assert list(document["groups"][0]["failures"].values()) == [4]
