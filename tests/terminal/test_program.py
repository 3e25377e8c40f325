"""Agent programs in the containers of terminal tasks, with a fake engine behind the proxy."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from tests.server.programs.harness import LOOP, case
from tests.terminal.test_terminal import HARBOR, TERMINAL_BENCH, folder_of, spec
from trajgym.envs.sandbox import close_shared_providers
from trajgym.envs.terminal import load_tasks, read_task
from trajgym.trajectory import build_rows

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

pytestmark = pytest.mark.docker
PYTHON = {"agent": "script", "script": LOOP, "interpreter": "python3"}


@pytest.fixture(autouse=True)
async def no_provider_stays() -> AsyncIterator[None]:
    yield
    await close_shared_providers()


def saying(*commands: str) -> Any:
    """Return the answers that run some commands, one after the other."""

    def script(n: int, body: dict[str, Any]) -> dict[str, Any]:
        done = sum(message["role"] == "assistant" for message in body["messages"])
        if done == len(commands):
            return {"text": "Done."}
        return {"text": "Next.", "calls": [("bash", {"command": commands[done]})]}

    return script


async def test_a_program_solves_task_folders_of_both_formats(tmp_path: Path) -> None:
    """It is asked the instruction, works in the task's container, and the task's tests grade it."""
    folder_of(tmp_path / "tasks", "count", HARBOR)
    folder_of(tmp_path / "tasks", "hello", TERMINAL_BENCH)
    tasks = load_tasks(str(tmp_path / "tasks"))
    work = "cd /app; wc -l < words.txt > count.txt; echo hello > hello.txt; ls /tests"
    async with case(tmp_path, saying("pwd", work)) as c:
        report = await c.collect(spec(), tasks, PYTHON)
        trees = c.trees()
        asked = [request["messages"][0]["content"] for request in c.engine.requests]
    assert report.statuses == {"completed": 2}
    assert report.solved == 2
    for tree in trees:
        (attempt,) = tree.attempts
        assert attempt.outcome is not None
        assert attempt.outcome.score == 1.0, attempt.outcome
        assert attempt.outcome.details["agent"]["exit"] == 0
        first, second = (str(tree.context(turn)[-1]["content"]) for turn in tree.turns[1:])
        assert first == "/app\n"
        assert "cannot access '/tests'" in second
        (row,) = build_rows(tree).rows
        assert row.turns == (0, 1, 2)
    assert any("number of lines of words.txt" in text for text in asked)
    assert not any("submit" in text for text in asked)


async def test_what_a_program_started_is_there_when_the_tests_run(tmp_path: Path) -> None:
    """A service outlives the program; an attempt that leaves none scores 0."""
    tests = (
        "echo 0 > /logs/verifier/reward.txt\n"
        "python3 -c 'import urllib.request as u; u.urlopen(\"http://127.0.0.1:8123\").read()' "
        "&& echo 1 > /logs/verifier/reward.txt\n"
    )
    task = read_task(folder_of(tmp_path, "serve", HARBOR, **{"tests/test.sh": tests}))
    start = "setsid nohup python3 -m http.server 8123 > /dev/null 2>&1 &"
    connect = 'import socket as s; s.create_connection(("127.0.0.1", 8123))'
    wait = f"until python3 -c '{connect}'; do :; done"
    for name, commands, score in (("serves", [start, wait], 1.0), ("idle", ["true"], 0.0)):
        async with case(tmp_path / name, saying(*commands)) as c:
            await c.collect(spec(), [task], PYTHON)
            (attempt,) = c.tree().attempts
        assert str(attempt.status) == "completed", attempt
        assert attempt.outcome is not None
        assert attempt.outcome.score == score
