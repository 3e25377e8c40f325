"""What the SDK costs, measured on this machine in CPU time, which other load hardly changes."""

from __future__ import annotations

import asyncio
import json
import resource
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, ClassVar

from trajgym.envs import Budgets, Env, EnvSpec, ToolResult, tool
from trajgym.rollout import FakeEngine, Policy, TokenPolicy, call, collect
from trajgym.rollout.fleet import collect_in_processes
from trajgym.trajectory import Run, Task, build_rows

__all__ = ["Costs", "measure"]

_RESULTS = Path(__file__).parents[1] / "results"
_SHORT, _LONG = 4, 24
_SAMPLES = 8


@dataclass(frozen=True, slots=True)
class Costs:
    """Measured figures of one core; seconds unless stated otherwise.

    Args:
        turn: CPU of a collecting process for an exact turn, written durably.
        session: CPU of a collecting process for a session apart from its turns.
        delivery: CPU of the process that a fleet delivers to, for a session of ``delivered`` turns.
        delivered: turns of such a session.
        rows: CPU for the training rows of such a session.
        turn_bytes: of the run's files, for a turn (bytes).
        start: a sandbox's start, alone.
        starts: sandboxes that a node's engine starts in a second, 200 at once.
        command: what a command in a sandbox takes besides itself.
    """

    turn: float
    session: float
    delivery: float
    delivered: int
    rows: float
    turn_bytes: float
    start: dict[str, float]
    starts: dict[str, float]
    command: dict[str, float]

    def to_json(self) -> dict[str, Any]:
        """Return the fields."""
        return asdict(self)


class Echo(Env):
    """Answers as many calls as its task says."""

    budgets: ClassVar[Budgets] = Budgets(turns=None, seconds=None, seconds_per_turn=None)

    async def reset(self, task: Task, seed: int | None) -> str:  # noqa: ARG002
        self.left = int(task.data["turns"])
        return "Say something."

    @tool
    async def echo(self, text: str) -> ToolResult:
        """Repeat.

        Args:
            text: what to repeat.
        """
        self.left -= 1
        return ToolResult(content=f"you said {text}", done=self.left == 0)

    async def verify(self) -> float:
        return 1.0


def _exact() -> Policy:
    """Exact turns of an engine that costs little."""
    engine = FakeEngine([call("echo", text="line 1")] * _LONG)
    return TokenPolicy(engine, engine.renderer)


_SPEC = EnvSpec(id=f"{__name__}:Echo")


def _tasks(sessions: int, turns: int) -> list[Task]:
    return [Task(id=f"t{i}", data={"turns": turns}) for i in range(sessions // _SAMPLES)]


def _collected(sessions: int, turns: int, out: str) -> float:
    """Collect in this process; return the CPU seconds it took."""
    begun = time.process_time()
    asyncio.run(collect(_SPEC, _tasks(sessions, turns), _exact(), out, samples=_SAMPLES))
    return time.process_time() - begun


def _delivered(sessions: int, turns: int, out: str) -> float:
    """Collect in another process; return the CPU seconds of this one."""
    begun = resource.getrusage(resource.RUSAGE_SELF)
    asyncio.run(
        collect_in_processes(
            _SPEC, _tasks(sessions, turns), _exact, out, processes=1, samples=_SAMPLES
        )
    )
    now = resource.getrusage(resource.RUSAGE_SELF)
    return now.ru_utime + now.ru_stime - begun.ru_utime - begun.ru_stime


def measure(sessions: int = 240) -> Costs:
    """Measure on this machine; figures of sandboxes are those of ``results/``.

    Args:
        sessions: of each run; a multiple of 8.
    """
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        _collected(_SAMPLES, 2, str(place / "warm"))
        short = _collected(sessions, _SHORT, str(place / "short")) / sessions
        long = _collected(sessions, _LONG, str(place / "long")) / sessions
        turn = (long - short) / (_LONG - _SHORT)
        size = sum(file.stat().st_size for file in (place / "long").rglob("*") if file.is_file())
        begun = time.process_time()
        with Run(place / "long") as run:
            for tree in run.sessions():
                build_rows(tree)
        rows = (time.process_time() - begun) / sessions
        few = _delivered(sessions, _LONG, str(place / "few"))
        many = _delivered(3 * sessions, _LONG, str(place / "many"))
    idle = json.loads((_RESULTS / "sandbox-idle.json").read_text())["rows"]
    alone = json.loads((_RESULTS / "sandbox.json").read_text())["rows"]
    return Costs(
        turn=turn,
        session=max(0.0, short - _SHORT * turn),
        delivery=max(0.0, many - few) / (2 * sessions),
        delivered=_LONG,
        rows=rows,
        turn_bytes=size / (sessions * _LONG),
        start=_figures(alone, "start", 1e-3),
        starts=_figures(idle, "200 starts at once", 1.0),
        command=_figures(idle, "command among them", 1e-3),
    )


def _figures(rows: list[dict[str, Any]], what: str, unit: float) -> dict[str, float]:
    return {one["kind"]: one["value"] * unit for one in rows if one["what"] == what}
