"""Train the small policy of `game.py` with several arms and seeds, for an initial success rate.

python examples/dense/compare.py --start 0.03 --arms outcome,steps --seeds 10 --out RESULTS
"""

from __future__ import annotations

import argparse
import asyncio
import random
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import numpy as np
from arms import ARMS
from common import Batches, Log, credited, seen
from game import SPEC, Adam, Table, choices, tasks

from trajgym.rollout import Runner
from trajgym.trajectory import Store

_EVAL_SEED = 90
_REPEATS = 8
"""Games of each held-out task."""


def skill_for(start: float, bugs: int) -> float:
    """Return the probability of the right edit at which about that share of games is solved."""
    held_out = tasks(200, bugs, seed=_EVAL_SEED, held_out=True)
    low, high = 0.05, 0.93
    for _ in range(12):
        middle = (low + high) / 2
        solved = np.mean([Table(middle, s).success(held_out, 4, s) for s in range(5)])
        low, high = (middle, high) if solved < start else (low, middle)
    return (low + high) / 2


def run(arm: str, seed: int, skill: float, given: argparse.Namespace) -> None:
    """Train one policy; write its updates and evaluations."""
    asyncio.run(_run(arm, seed, skill, given))


async def _run(arm: str, seed: int, skill: float, given: argparse.Namespace) -> None:
    about = {"arm": arm, "seed": seed, "start": given.start, "bugs": given.bugs,
             "rate": given.learning_rate}  # fmt: skip
    name = f"{arm}-{seed}-{given.bugs}-{given.start:g}-{given.learning_rate:g}.jsonl"
    log = Log(given.out / name, **about)
    table, adam = Table(skill, seed), Adam(given.learning_rate)
    held_out = tasks(given.eval, given.bugs, seed=_EVAL_SEED, held_out=True)
    planned = given.updates * given.groups
    batches = Batches(tasks(planned, given.bugs, seed=1 + seed))
    chosen = ARMS[arm]
    sampled = 0

    def evaluate(update: int) -> None:
        scores = table.success(held_out, _REPEATS, 1000 * seed + update)
        log.write("eval", update=update, sampled=sampled, success=float(np.mean(scores)),
                  scores=scores if update == given.updates else None)  # fmt: skip

    with tempfile.TemporaryDirectory() as folder:
        async with (
            Store(folder) as store,
            Runner(
                SPEC,
                batches.read(),
                table.policy(random.Random(seed)),
                store=store,
                samples=chosen.samples,
                concurrency=16,
                seed=seed,
                **chosen.settings,
            ) as runner,
        ):
            evaluate(0)
            for update in range(1, given.updates + 1):
                batches.more(given.groups)
                sealed = [await anext(runner) for _ in range(given.groups)]
                values = credited(arm, sealed)
                facts = seen(sealed, values)
                turns = [
                    (state, word, float(value))
                    for one in sealed
                    for tree in one.sessions
                    for (state, word), value in zip(
                        choices(tree), values.of(tree.record.id), strict=True
                    )
                ]
                table.step(turns, adam)
                runner.set_version(update)
                sampled += facts["turns"]
                kept = ("success", "share_mended", "groups", "turns", "credit_of", "statuses")
                log.write("update", update=update, **{name: facts[name] for name in kept})
                if update % given.eval_every == 0 or update == given.updates:
                    evaluate(update)


def main(given: argparse.Namespace) -> None:
    """Run all arms and seeds in a few processes."""
    began = time.time()
    skill = skill_for(given.start, given.bugs)
    print(f"start {given.start}, {given.bugs} bugs: skill {skill:.3f}", flush=True)
    jobs = [(arm, seed) for seed in range(given.seeds) for arm in given.arms.split(",")]
    with ProcessPoolExecutor(given.processes) as pool:
        for one in [pool.submit(run, arm, seed, skill, given) for arm, seed in jobs]:
            one.result()
    print(f"{len(jobs)} runs in {time.time() - began:.0f} s", flush=True)


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    made.add_argument("--start", type=float, default=0.03, help="initial success rate")
    made.add_argument("--bugs", type=int, default=4)
    made.add_argument("--arms", default="outcome,progress,steps,gigpo,tree")
    made.add_argument("--seeds", type=int, default=10)
    made.add_argument("--updates", type=int, default=30)
    made.add_argument("--groups", type=int, default=6, help="tasks of an update")
    made.add_argument("--learning-rate", type=float, default=0.1, help="of Adam")
    made.add_argument("--eval", type=int, default=200, help="held-out tasks")
    made.add_argument("--eval-every", type=int, default=5, help="updates")
    made.add_argument("--processes", type=int, default=2)
    made.add_argument("--out", type=Path, default=Path("results"))
    return made


if __name__ == "__main__":
    main(parser().parse_args())
