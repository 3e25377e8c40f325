"""Compare the time of the same updates in synchronous and asynchronous training.

    CUDA_VISIBLE_DEVICES=0 python examples/gpu/train_sync.py --model SFT --out RESULTS \
        --work SCRATCH --steps 30

All runs have batches of the same number of sessions, and no evaluation between updates. In the
synchronous run, generation, training and the transfer of weights alternate: the sessions of a
version begin when the server has its weights. There are three asynchronous runs: with several
worker processes, with one, and with a thread of the trainer's process.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from lab import SAMPLES
from train_async import Lab, parser, release

if TYPE_CHECKING:
    import argparse

_SEED = 7
_TOLD = ("processes", "steps", "wall_seconds", "seconds_per_update", "waiting_share", "sync_share")
_TOLD += ("fwd_bwd_share", "trainer_idle_share", "sessions_per_s", "engine", "staleness")


def compare(given: argparse.Namespace, transfer: Any = None) -> bool:
    """Do all runs, write the comparison, and return whether all of them completed."""
    given.eval_at, given.keep = (), ()
    lab = Lab(given, transfer)
    groups = given.batch * given.accumulate // SAMPLES
    in_turns = {"groups": groups, "max_staleness": 0}
    found, steps = {}, given.steps
    for name, processes, options in (
        ("sync", given.processes, in_turns),
        ("async", given.processes, {}),
        ("async-1", 1, {}),
        ("async-thread", 0, {}),
    ):
        if time.time() > given.deadline:
            break
        given.processes = processes
        given.steps = steps if processes > 1 else -(-steps // 2)  # slower, so fewer suffice
        found[name] = lab.run(name, "outcome", _SEED, token_budget=-1, **options)
        release()
    lab.results.write(
        "compared",
        sessions_per_update=groups * SAMPLES,
        runs={name: {key: one[key] for key in _TOLD} for name, one in found.items()},
    )
    return len(found) == 4 and not any(one["cut"] for one in found.values())


if __name__ == "__main__":
    made = parser()
    made.set_defaults(steps=30)
    compare(made.parse_args())
