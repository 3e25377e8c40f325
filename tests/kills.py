"""Collections in real sandboxes that are ended by signals at random moments, and resumed."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
import uuid
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from tests import boxes
from trajgym.envs.sandbox import close_shared_providers, shared_provider
from trajgym.trajectory import Run

__all__ = ["Tally", "containers", "kill_and_resume"]

ROOT = Path(__file__).parent.parent

COLLECT = """
import asyncio, sys
from tests.boxes import Box
from trajgym.cli._signals import end_like_ctrl_c
from trajgym.envs import EnvSpec
from trajgym.rollout import ScriptedPolicy, collect
from trajgym.trajectory import Task

class Answering(ScriptedPolicy):
    # Stops after some calls, until the process is ended; never if they are -1.

    left = int(sys.argv[4])

    async def sample(self, request):
        if self.left == 0:
            await asyncio.Event().wait()
        self.left -= 1
        return await super().sample(request)

def answer(request):
    said = sum(m["role"] == "assistant" for m in request.messages)
    return Box.script(request.task, request.sample)[said]

def note(event):
    if event.kind == "turn":
        print(event.session, flush=True)

end_like_ctrl_c()
spec = EnvSpec(id="test/box", config={"sandbox": sys.argv[2]})
tasks = [Task(id=f"t{i}") for i in range(int(sys.argv[3]))]
policy = Answering(answer)
asyncio.run(collect(spec, tasks, policy, sys.argv[1], samples=2, concurrency=4, on_progress=note))
print("complete", flush=True)
"""


@dataclass
class Tally:
    """What a series of kills left.

    Args:
        kills: processes that were ended.
        turns: turns that were acknowledged, over all processes.
        statuses: how the sessions of the run ended.
        seconds: from each process's start to its first acknowledged turn, sandboxes included.
    """

    kills: int = 0
    turns: int = 0
    statuses: Counter[str] = field(default_factory=Counter)
    seconds: list[float] = field(default_factory=list)


def containers(mark: str) -> list[str]:
    """Return the containers that carry a test's mark."""
    command = ["docker", "ps", "-aq", "--filter", f"label={boxes.MARK}={mark}"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()


async def kill_and_resume(
    out: Path, kind: str, number: signal.Signals, kills: int, tasks: int
) -> Tally:
    """End a collection ``kills`` times, let it finish, and check that nothing was lost.

    Every acknowledged turn is in the store, every sample is scored exactly once, no container is
    left: after SIGTERM at once, after SIGKILL when the next process has begun. Sessions that
    were cut read interrupted (SIGKILL) or cancelled (SIGTERM), and nothing else. Every second
    process ignores SIGINT, as shells let the background jobs of a script do.
    """
    mark = os.environ["TRAJGYM_TEST_MARK"] = uuid.uuid4().hex
    chance = random.Random(f"{kind} {number}")
    acknowledged: Counter[str] = Counter()
    tally = Tally()
    lines: list[str] = []
    while "complete\n" not in lines:
        killed = tally.kills < kills
        wanted = chance.randint(1, 5) if killed else 1
        # A slow test must not let the collection end: a few turns more, and no other.
        most = wanted + 2 if killed else -1
        command = [sys.executable, "-c", COLLECT, str(out), kind, str(tasks), str(most)]
        in_background = ["sh", "-c", "trap '' INT; exec \"$@\"", "sh", *command]
        begun = time.monotonic()
        worker = subprocess.Popen(
            in_background if tally.kills % 2 else command,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=ROOT,
        )
        assert worker.stdout is not None
        lines = [worker.stdout.readline()]
        tally.seconds.append(time.monotonic() - begun)
        if killed:
            lines += [worker.stdout.readline() for _ in range(wanted - 1)]
            worker.send_signal(number)
            tally.kills += 1
        rest, said = worker.communicate(timeout=600 if killed else None)
        lines += rest.splitlines(keepends=True)
        acknowledged.update(line.strip() for line in lines if line.endswith("\n"))
        # An interrupt that is not caught ends Python by SIGINT, whichever signal it came from, or
        # with the status of that where SIGINT has no effect.
        by_kill, by_interrupt = {-signal.SIGKILL}, {-signal.SIGINT, 128 + signal.SIGINT}
        ended = by_kill if number == signal.SIGKILL else by_interrupt
        assert worker.returncode in (ended if killed else {0}), said
        if kind == "docker" and number == signal.SIGTERM:
            assert containers(mark) == []
    provider = await shared_provider(kind)  # which removes what dead processes left
    await close_shared_providers()
    assert provider.name == kind
    if kind == "docker":
        assert containers(mark) == []
    del acknowledged["complete"]
    tally.turns = acknowledged.total()
    with Run(out) as run:
        assert run.check() == []
        for session, turns in acknowledged.items():
            assert len(run.session(session).turns) >= turns
        summaries = list(run.summaries())
        groups = list(run.groups())
    scored = [s for s in summaries if s.attempts[0].status.scored]
    assert len({(s.record.task, s.record.sample) for s in scored}) == len(scored) == 2 * tasks
    assert all(s.attempts[0].outcome and s.attempts[0].outcome.passed for s in scored)
    assert all(group.sealed and len(group.counted) == 2 for group in groups)
    tally.statuses = Counter(str(s.attempts[0].status) for s in summaries)
    cut = "interrupted" if number == signal.SIGKILL else "cancelled"
    assert set(tally.statuses) <= {"completed", cut}
    return tally
