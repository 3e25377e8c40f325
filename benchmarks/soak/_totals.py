"""Whether the totals of a soak add up, and whether it left anything behind."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.soak._faults import containers
from benchmarks.soak._world import CELLS, expected, make_tasks
from trajgym.trajectory import Run

if TYPE_CHECKING:
    from benchmarks.soak._machine import Machine
    from benchmarks.soak._plan import Plan
    from trajgym.trajectory import SessionTree


_VARYING = re.compile(r"\b[0-9a-f]{12}\.[0-9a-f.]+-sandbox-[0-9a-f]+|127[0-9.:]+")
"""Names of sandboxes, and the address of the engine."""


@dataclass(slots=True)
class Acknowledged:
    """What the fleet reported.

    Args:
        turns: indices of the turns, by session.
        ended: statuses, by session.
        twice: reports that came again.
        cut: sessions that had begun and not ended when the fleet's own process was killed.
    """

    turns: dict[str, set[int]] = field(default_factory=lambda: defaultdict(set))
    ended: dict[str, str] = field(default_factory=dict)
    twice: int = 0
    killed: bool = False

    def note(self, line: str) -> None:
        """Read a line of the fleet."""
        kind, session, value = line.split()
        if kind == "turn":
            self.twice += int(value) in self.turns[session]
            self.turns[session].add(int(value))
        else:
            self.twice += session in self.ended
            self.ended[session] = value


def compare(
    out: Path, plan: Plan, seen: Acknowledged, *, stopped: bool
) -> tuple[dict[str, Any], list[str]]:
    """Return the totals of a run, and what is wrong with them.

    Args:
        out: the run directory.
        plan: of the soak.
        seen: what the fleet reported.
        stopped: whether it ended before all tasks were begun.
    """
    wrong: list[str] = []
    tasks = {task.id: task for task in make_tasks(plan.seed, plan.tasks)}
    scored: Counter[tuple[str, int]] = Counter()
    last: dict[tuple[str, int], tuple[int, str, str]] = {}
    statuses: Counter[str] = Counter()
    causes: Counter[str] = Counter()
    turns = unreported = 0
    with Run(out) as run:
        wrong += [f"check: {one}" for one in run.check()]
        for tree in run.sessions():
            name, first = tree.record.id, tree.attempts[0]
            place = tree.record.task, tree.record.sample or 0
            statuses[str(first.status)] += 1
            turns += len(tree.turns)
            stored = {turn.index for turn in tree.turns}
            if lost := seen.turns.get(name, set()) - stored:
                wrong.append(f"{name}: acknowledged turns {lost} are not stored")
            if stored - seen.turns.get(name, set()) or name not in seen.ended:
                unreported += 1
                if not seen.killed:
                    wrong.append(f"{name}: it was not reported completely")
            if name in seen.ended and seen.ended[name] != str(first.status):
                wrong.append(f"{name}: reported as {seen.ended[name]}, stored as {first.status}")
            wrong += _turns(tree)
            if first.status.scored:
                scored[place] += 1
                score = None if first.outcome is None else first.outcome.score
                if score != expected(tasks[place[0]]):
                    wrong.append(f"{name}: score {score}, status {first.status}: {_said(tree)}")
            elif not first.cause:
                wrong.append(f"{name}: {first.status} without a cause")
            else:
                cause = _VARYING.sub("#", first.cause.splitlines()[0])
                causes[f"{first.status}: {cause[:60]}"] += 1
            number = int(name.partition(".")[2] or 0)
            last[place] = max(last.get(place, (-1, "", "")), (number, str(first.status), name))
        groups = list(run.groups())
        if stopped:
            tasks = {task.id: task for task in run.tasks()}
    wanted = {(name, sample) for name in tasks for sample in range(plan.samples)}
    missing = wanted - set(last)
    wrong += [f"{place}: no session" for place in sorted(missing)]
    wrong += [f"{place}: scored {n} times" for place, n in scored.items() if n > 1]
    failed = {place: end for place, end in last.items() if place not in scored}
    wrong += [
        f"{place}: its last session {name} is {status}"
        for place, (_, status, name) in failed.items()
        if not status.startswith("failed:")
    ]
    if not all(group.sealed for group in groups) or len(groups) != len(tasks):
        wrong.append(f"{sum(g.sealed for g in groups)} of {len(groups)} groups are sealed")
    counted = sum(len(group.counted) for group in groups)
    if counted != len(scored):
        wrong.append(f"{len(scored)} samples are scored, {counted} count in their groups")
    if gone := (set(seen.turns) | set(seen.ended)) - set(_names(out)):
        wrong.append(f"reported sessions that are not stored: {sorted(gone)[:5]}")
    if seen.twice:
        wrong.append(f"{seen.twice} events were reported twice")
    totals = {
        "samples": len(wanted),
        "scored": len(scored),
        "failed_by_name": len(failed),
        "sessions": statuses.total(),
        "statuses": dict(statuses.most_common()),
        "causes": dict(causes.most_common(25)),
        "turns": turns,
        "acknowledged_turns": sum(map(len, seen.turns.values())),
        "sessions_unreported_by_the_killed_parent": unreported,
    }
    return totals, wrong


def _names(out: Path) -> list[str]:
    with Run(out) as run:
        return [summary.record.id for summary in run.summaries()]


def _turns(tree: SessionTree) -> list[str]:
    """Return which turns are not what the engine sampled, whole and with its log-probs."""
    wrong = []
    for turn, code in zip(tree.turns, CELLS, strict=False):
        calls = turn.message.get("tool_calls") or []
        said = [one["function"]["arguments"] for one in calls]
        if not any(code in str(one) for one in said) or turn.tokens is None:
            wrong.append(f"{tree.record.id}: turn {turn.index} is {turn.message}")
    return wrong


def _said(tree: SessionTree) -> str:
    observed = tree.turns[-2].observation if len(tree.turns) > 1 else []
    return str([one["content"] for one in observed])[:200]


def left_behind(machine: Machine, workers: set[int], sandbox: str) -> list[str]:
    """Return what is still there of a fleet that has ended.

    Args:
        machine: of the fleet.
        workers: pids of all workers that there were.
        sandbox: kind of sandbox.
    """
    found = [f"worker {pid}" for pid in workers if Path(f"/proc/{pid}").exists()]
    for folder in (machine.sandboxes, machine.temporary):
        if folder.is_dir():
            found += [str(path.relative_to(folder.parent)) for path in folder.iterdir()]
    pids = {str(pid) for pid in workers}
    for group in Path("/sys/fs/cgroup").glob("**/trajgym/*"):
        if group.is_dir() and group.name.split(".")[3:4] and group.name.split(".")[3] in pids:
            found.append(f"control group {group.name}")
    mounts = Path("/proc/self/mountinfo").read_text().splitlines()
    found += [f"mount {line}" for line in mounts if str(machine.sandboxes) in line]
    if sandbox == "docker":
        found += [f"container {name}" for name, owner in containers() if owner in workers]
    return found
