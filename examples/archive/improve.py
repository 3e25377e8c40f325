"""A self-improving archive of agent programs, in the manner of the Darwin Gödel Machine.

    python examples/archive/improve.py --out RUNS

Each generation draws a parent by score and novelty, lets an editor change its code in a sandbox,
and evaluates the child on errands, as a program in the sandbox of each. Children that no longer
compile are not admitted; the others are, whatever they score. Run again, it adds generations. The
editor and the model are scripted (`stand_ins.py`); with an endpoint, both are policies like others.
"""

from __future__ import annotations

import argparse
import asyncio
import random
from pathlib import Path
from typing import NamedTuple

import worlds  # registers the environments
from archive import Archive, Member
from stand_ins import editor, model, pick

from trajgym.envs import EnvSpec
from trajgym.rollout import collect
from trajgym.server import AgentProgram, Upstream
from trajgym.trajectory import Run, Task

ERRAND, EDIT = EnvSpec(id="archive/errand"), EnvSpec(id="archive/edit")
FIRST = Path(__file__).with_name("first_agent.py")


class Child(NamedTuple):
    """The result of an edit session: no code if the child is not admitted."""

    code: str
    change: str
    """Description of the change, or the reason."""
    session: str


async def evaluate(code: str, url: str, out: Path) -> tuple[float, tuple[str, ...]]:
    """Return the mean score of an agent program on all errands, and which it solved.

    A program that fails has solved nothing: here its failures are its own.
    """
    script = saved(out / "agent.py", code)
    upstream = Upstream(base_url=url, kind="hosted", model="stand-in")
    agent = {"agent": "script", "script": str(script), "interpreter": "python3"}
    async with AgentProgram(upstream, **agent) as policy:
        await collect(ERRAND, worlds.ERRANDS, policy, out, concurrency=4)
    with Run(out) as run:
        ends = {tree.record.task: tree.attempts[0].outcome for tree in run.sessions()}
    solved = tuple(sorted(task for task, end in ends.items() if end is not None and end.passed))
    return len(solved) / len(worlds.ERRANDS), solved


async def edit(parent: Member, number: int, chance: random.Random, out: Path) -> Child:
    """Let the editor change a parent's code."""
    failed = [task.id for task in worlds.ERRANDS if task.id not in parent.solved]
    data = {"code": parent.code, "failed": failed, "change": pick(parent.code, chance)}
    task = Task(id=f"edit-{number}", data=data)
    await collect(EDIT, [task], editor(), out)
    with Run(out) as run:
        (tree,) = (tree for tree in run.sessions() if tree.record.task == task.id)
    (end,) = tree.attempts
    if end.outcome is None:
        return Child("", end.cause, tree.record.id)
    if not end.outcome.passed:
        return Child("", end.outcome.details["reason"].splitlines()[-1], tree.record.id)
    return Child(end.outcome.details["code"], data["change"], tree.record.id)


async def improve(out: Path, generations: int, seed: int) -> Archive:
    """Add generations to the archive in a directory, and return it."""
    archive = Archive(out / "archive.jsonl")
    first = edits_in(out / "edits")
    async with model() as url:
        if not archive.members:
            code = FIRST.read_text()
            score, solved = await evaluate(code, url, out / "first")
            archive.admit(Member(id=0, parent=None, code=code, score=score, solved=solved))
        for number in range(first, first + generations):
            chance = random.Random(f"{seed}/{number}")
            parent = archive.choose(chance)
            child = await edit(parent, number, chance, out / "edits")
            if not child.code:
                print(f"{number}: a child of {parent.id} is not admitted: {child.change}")
                continue
            score, solved = await evaluate(child.code, url, out / f"child-{number}")
            member = Member(
                id=len(archive.members),
                parent=parent.id,
                code=child.code,
                score=score,
                solved=solved,
                change=child.change,
                session=child.session,
            )
            archive.admit(member)
            print(f"{number}: {member.id}, child of {parent.id}: {score:.2f} ({child.change})")
    return archive


def saved(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def edits_in(out: Path) -> int:
    """Return how many edit sessions there have been."""
    if not out.exists():
        return 0
    with Run(out) as run:
        return sum(1 for _ in run.tasks())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--out", type=Path, required=True, help="run directories and the archive")
    parser.add_argument("--generations", type=int, default=10)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    archive = asyncio.run(improve(given.out, given.generations, given.seed))
    best = archive.best
    path = " -> ".join(str(member.id) for member in archive.lineage(best))
    print(f"{len(archive.members)} members; the best is {best.id} with {best.score:.2f}: {path}")


if __name__ == "__main__":
    main()
