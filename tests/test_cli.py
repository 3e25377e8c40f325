"""The command line: input and output."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from rich.cells import cell_len
from rich.text import Text
from typer.testing import CliRunner

from tests import worlds
from trajgym.cli import app, main
from trajgym.cli._terminal import print_table
from trajgym.trajectory import InvalidInput, Run, StoreError

ROOT = Path(__file__).parent.parent
assert worlds.Counter


@pytest.fixture
def tasks(tmp_path: Path) -> Path:
    """A task file with two tasks that work and one whose environment breaks."""
    file = tmp_path / "tasks.jsonl"
    file.write_text('{"id": "a"}\n{"id": "b", "prompt": "Count!"}\n\n{"id": "stuck"}\n')
    return file


def run(*arguments: object, status: int = 0) -> str:
    result = CliRunner(env={"COLUMNS": "160"}).invoke(app, [str(a) for a in arguments])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code == status, result.output
    return result.output


def collect(tasks: Path, out: Path, *more: object, status: int = 1) -> str:
    arguments = ("--env", "test/counter", "--tasks", tasks, "--out", out, "--samples", 4, *more)
    return run("collect", *arguments, status=status)  # 1: the task "stuck" only fails


def test_collect_show_stats_reward_export(tmp_path: Path, tasks: Path) -> None:
    """All commands in order: each prints its result and where its files are."""
    out = tmp_path / "run"
    said = collect(tasks, out, "--policy", "fake")
    assert "12 sessions (8 completed, 4 failed:env), 2 solved, 3 groups sealed" in said
    assert f"trajgym show {out}" in said
    assert "Every session of 1 task failed (stuck):" in said
    assert "  4 x failed:env: AttributeError: typo in the environment" in said
    said = collect(tasks, out, "--policy", "fake", "--keep-failed")
    assert "nothing was left to do" in said
    assert "4 x failed:env" in said

    table = run("show", out)
    assert table.count("failed:env") == 4
    assert table.count("solved") == 2
    assert "AttributeError: typo in the environment" in table
    name = next(line.split()[0] for line in table.splitlines() if "solved" in line)

    assert "grpo: 20 turns of 12 sessions, 16 not zero" in run("reward", out, "--with", "grpo")
    session = run("show", out, name)
    for text in ("Count to 3.", "add", '{"n": 3}', "now 3", "reward +0.1", "grpo +1.73", "solved"):
        assert text in session
    assert "synthetic" in session

    stats = run("stats", out)
    assert "8 completed, 4 failed:env" in stats
    assert "members that left: 4 failed:env" in stats
    assert "sound" in run("check", out)

    for to, records in (("rows", 8), ("verl", 8), ("areal", 8), ("trl-grpo", 8), ("sft", 2)):
        command = ("export", out, "--to", to, "--out", tmp_path / to)
        if to not in {"rows", "sft"}:
            assert "left out 8: synthetic" in run(*command)
        said = run(*command, "--set", "allow=synthetic")
        assert f"{records} records ({records} synthetic)" in said
        assert "left out 4" in said
        assert any((tmp_path / to).iterdir())


def test_scripted_sessions_are_text_and_never_rl_rows(tmp_path: Path, tasks: Path) -> None:
    """Scripted turns have no ids: they train as text, and row exports name them."""
    collect(tasks, tmp_path / "run")
    said = run("export", tmp_path / "run", "--to", "rows", "--out", tmp_path / "rows")
    assert "rows with outcome, grpo: 0 records" in said
    assert "text turn" in said
    run("export", tmp_path / "run", "--to", "sft", "--out", tmp_path / "sft")
    lines = (tmp_path / "sft" / "sft.jsonl").read_text().splitlines()
    assert [m["role"] for m in json.loads(lines[0])["messages"]][:3] == [
        "user",
        "assistant",
        "tool",
    ]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('{"prompt": "no id"}', "task field 'id': Field required"),
        ('{"id": "a"}\n{"id": "a"}', ":2: the task id 'a' is used twice"),
        ('{"id": "a"', "tasks.jsonl:1: not JSON"),
        ("[1]", "expected an object, got list"),
        ('{"id": "a", "extra": 1}', "task field 'extra'"),
    ],
)
def test_bad_task_file(tmp_path: Path, content: str, message: str) -> None:
    """A bad task file is refused with file, line and field, and nothing is collected."""
    file = tmp_path / "tasks.jsonl"
    file.write_text(content)
    with pytest.raises(InvalidInput) as caught:
        collect(file, tmp_path / "run")
    assert message in str(caught.value)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["show", "nowhere"], "no run here"),
        (
            ["collect", "--out", "x", "--tasks", "none.jsonl", "--env", "nope"],
            "no environment 'nope'",
        ),
        (["export", "nowhere", "--to", "sft", "--out", "y"], "no run here"),
    ],
)
def test_errors_are_one_clear_line(
    arguments: list[str], message: str, tmp_path: Path, capsys: Any, monkeypatch: Any
) -> None:
    """Our own errors end the program with status 2 and a sentence, not a traceback."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["trajgym", *arguments])
    monkeypatch.setattr(sys, "path", list(sys.path))
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2
    said = capsys.readouterr().err
    assert message in " ".join(said.split())
    assert "Traceback" not in said


def scored(out: Path) -> int:
    """Return how many sessions of a run have a score, if there is a run yet."""
    try:
        with Run(out) as run:
            return len([s for s in run.summaries() if s.attempts[0].status.scored])
    except StoreError:
        return 0


def test_ctrl_c_closes_cleanly_and_the_same_command_resumes(tmp_path: Path) -> None:
    """SIGINT records every running session as cancelled; running again completes the set."""
    tasks = tmp_path / "tasks.jsonl"
    tasks.write_text("".join(json.dumps({"id": f"t{i}"}) + "\n" for i in range(400)))
    command = [
        *(sys.executable, "-m", "trajgym.cli", "collect", "--env", "tests.worlds:Held"),
        *("--set", f"file={tmp_path / 'go'}"),
        *("--tasks", str(tasks), "--out", str(tmp_path / "run"), "--samples", "2"),
    ]
    first = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
    while scored(tmp_path / "run") < 10:
        assert first.poll() is None
        time.sleep(0.02)
    first.send_signal(signal.SIGINT)
    said, _ = first.communicate(timeout=240)
    (tmp_path / "go").touch()
    assert first.returncode == 130
    assert "The same command goes on where it stopped" in said
    with Run(tmp_path / "run") as stopped:
        kinds = {s.attempts[0].status.kind for s in stopped.summaries()}
        begun = len(list(stopped.summaries()))
    assert kinds <= {"completed", "cancelled"}
    assert 0 < begun < 800
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    assert "groups sealed" in done.stdout
    with Run(tmp_path / "run") as complete:
        assert len([s for s in complete.summaries() if s.attempts[0].status.scored]) == 800
        assert all(group.sealed for group in complete.groups())


def test_processes_write_one_run_that_every_command_reads(tmp_path: Path, tasks: Path) -> None:
    """Several processes give what one gives, through Ctrl-C and a resumption by one process."""
    out = tmp_path / "run"
    tasks.write_text("".join(json.dumps({"id": f"t{i}"}) + "\n" for i in range(150)))
    command = [
        *(sys.executable, "-m", "trajgym.cli", "collect", "--env", "tests.worlds:Held"),
        *("--set", f"file={tmp_path / 'go'}"),
        *("--tasks", str(tasks), "--out", str(out), "--samples", "2", "--policy", "fake"),
    ]
    first = subprocess.Popen(
        [*command, "--processes", "2"], cwd=ROOT, stdout=subprocess.PIPE, text=True
    )
    while len(list(out.glob("worker-*.sqlite"))) < 2 or scored(out) < 10:
        assert first.poll() is None
        time.sleep(0.02)
    first.send_signal(signal.SIGINT)
    said, _ = first.communicate(timeout=240)
    (tmp_path / "go").touch()
    assert first.returncode == 130
    assert "The same command goes on where it stopped" in said
    with Run(out) as stopped:
        kinds = {s.attempts[0].status.kind for s in stopped.summaries()}
    assert kinds <= {"completed", "cancelled"}
    begun = scored(out)
    assert begun < 300
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    assert f"{300 - begun} completed" in done.stdout
    stats = json.loads(run("stats", out, "--json"))
    assert stats["groups"]["sealed"] == stats["groups"]["all"] == 150
    run("reward", out, "--with", "outcome")
    assert "sound" in run("check", out)


def test_processes_end_with_the_same_summary_and_status(tmp_path: Path, tasks: Path) -> None:
    """Failures, totals and the exit status are those of one process."""
    said = collect(tasks, tmp_path / "run", "--policy", "fake", "--processes", 2)
    assert "12 sessions (8 completed, 4 failed:env), 2 solved, 3 groups sealed" in said
    assert "  4 x failed:env: AttributeError: typo in the environment" in said
    said = collect(tasks, tmp_path / "run", "--policy", "fake", "--processes", 3, "--keep-failed")
    assert "nothing was left to do" in said


def test_ray_that_is_not_installed_is_named(
    tmp_path: Path, tasks: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Before anything is written, with the command that installs it."""
    monkeypatch.setitem(sys.modules, "ray", None)
    out = tmp_path / "run"
    arguments = ["--env", "test/counter", "--tasks", str(tasks), "--out", str(out), "--ray", "auto"]
    monkeypatch.setattr(sys, "argv", ["trajgym", "collect", *arguments])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2
    assert "pip install 'trajgym[ray]'" in " ".join(capsys.readouterr().err.split())
    assert not out.exists()


def test_long_tables_lose_no_text(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a terminal, a cell that is wider than the first ones is folded; the lines fit."""
    monkeypatch.setenv("COLUMNS", "60")
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    cause = "日本 the end of\x1b[31m it " * 8
    rows: list[list[str | Text]] = [
        [f"s{n}", Text("solved", style="green"), str(n), "" if n < 1999 else cause]
        for n in range(2000)
    ]
    names = ["id", "status", "turns", "cause"]
    print_table(names, rows, right=["turns"], whole=names[:3])
    lines = [re.sub(r"\x1b\[[\d;]*m", "", line) for line in capsys.readouterr().out.splitlines()]
    assert lines[:2] == ["id    status  turns  cause", "s0    solved      0"]
    first = next(at for at, line in enumerate(lines) if line.startswith("s1999"))
    assert first == 2000
    assert len(lines) > 2001
    assert max(map(cell_len, lines)) <= 60
    start = lines[first].index("日")
    text = lines[first][start:] + "".join(line.strip() for line in lines[first + 1 :])
    assert text.replace(" ", "") == "日本theendof\ufffd[31mit" * 8


def test_a_table_of_many_rows_has_one_line_each(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The columns of later rows stand below those of the first ones."""
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    print_table(
        ["id", "n"], ([f"s{n}", str(n)] for n in range(5000)), right=["n"], whole=["id", "n"]
    )
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 5001
    assert [line.split() for line in lines[1:]] == [[f"s{n}", str(n)] for n in range(5000)]
    assert len({len(line) for line in lines[1:1000]}) == 1
