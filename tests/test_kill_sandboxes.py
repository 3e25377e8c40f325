"""Collections that hold real sandboxes, killed at random moments."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import uuid
from pathlib import Path

import pytest

from tests import boxes
from trajgym.envs.sandbox import close_shared_providers, shared_provider
from trajgym.trajectory import Run

ROOT = Path(__file__).parent.parent

COLLECT = """
import asyncio, sys
from tests.boxes import Box
from trajgym.envs import EnvSpec
from trajgym.rollout import ScriptedPolicy, collect
from trajgym.trajectory import Task

def answer(request):
    said = sum(m["role"] == "assistant" for m in request.messages)
    return Box.script(request.task, request.sample)[said]

def note(event):
    if event.kind == "turn":
        print(event.session, flush=True)

spec = EnvSpec(id="test/box", config={"sandbox": sys.argv[2]})
tasks = [Task(id=f"t{i}") for i in range(int(sys.argv[3]))]
policy = ScriptedPolicy(answer)
asyncio.run(collect(spec, tasks, policy, sys.argv[1], samples=2, concurrency=4, on_progress=note))
print("complete", flush=True)
"""


def containers(mark: str) -> list[str]:
    command = ["docker", "ps", "-aq", "--filter", f"label={boxes.MARK}={mark}"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()


@pytest.mark.parametrize(
    ("kind", "kills", "tasks"),
    [pytest.param("docker", 20, 12, marks=pytest.mark.docker), ("embedded", 20, 12)],
)
async def test_no_sandbox_outlives_a_killed_run(
    kind: str, kills: int, tasks: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SIGKILL 20 times: turns stay, sandboxes go at the next start, all is done once."""
    mark = uuid.uuid4().hex
    monkeypatch.setenv("TRAJGYM_TEST_MARK", mark)
    chance = random.Random(kind)
    acknowledged: dict[str, int] = {}
    killed = 0
    command = [sys.executable, "-c", COLLECT, str(tmp_path), kind, str(tasks)]
    while True:
        worker = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT)
        assert worker.stdout is not None
        lines: list[str] = []
        if killed < kills:
            for _ in range(chance.randint(1, 5)):
                lines.append(worker.stdout.readline())
            os.kill(worker.pid, signal.SIGKILL)
            killed += 1
        lines += worker.stdout.readlines()
        worker.wait()
        worker.stdout.close()
        for line in (one.strip() for one in lines if one.endswith("\n")):
            acknowledged[line] = acknowledged.get(line, 0) + 1
        provider = await shared_provider(kind)
        await provider.reap()
        await close_shared_providers()
        if kind == "docker":
            assert containers(mark) == []
        if "complete\n" in lines:
            break
    del acknowledged["complete"]
    assert killed == kills
    with Run(tmp_path) as run:
        assert run.check() == []
        for session, turns in acknowledged.items():
            assert len(run.session(session).turns) >= turns
        scored = [s for s in run.summaries() if s.attempts[0].status.scored]
        assert len({(s.record.task, s.record.sample) for s in scored}) == len(scored) == 2 * tasks
        assert all(s.attempts[0].outcome and s.attempts[0].outcome.passed for s in scored)
