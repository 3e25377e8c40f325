"""From stored sessions to the tensors of a trainer, compared with numpy's plain concatenation.

    python benchmarks/bench_tensors.py [--sessions 10000] [--batch 64] [--rounds 3] [--json OUT]

10,000 sessions of 10 turns are 100,000 stored turns and 15.4 million tokens, 8 million of them
sampled. A run is read, valued by GRPO, converted to rows, checked, and made into AReaL's tensors
(int32 ids, masks and versions, float32 log-probs and advantages, padded in batches). The lower
bound in the same pass is ``np.concatenate`` over prepared pieces of the same arrays, with neither
reading, values nor checks. Figures are CPU seconds of the fastest round. Needs torch.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import tempfile
import time
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from bench_export import PROMPT, SAMPLED, TURNS, write_run

from trajgym.adapters.areal import areal_tensors
from trajgym.rewards import GRPO, TurnTable, apply
from trajgym.trajectory import Run, build_rows

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trajgym.rewards import Advantages
    from trajgym.trajectory import SessionTree

Pieces = list[list[np.ndarray]]


def pieces(tree: SessionTree) -> Pieces:
    """Return the parts of a session's arrays by turn: ids, mask, log-probs, versions, values."""
    columns: Pieces = [[] for _ in range(5)]
    for turn in tree.turns:
        tokens = turn.tokens
        assert tokens is not None
        for ids, sampled in ((tokens.prompt_ids, False), (tokens.response_ids, True)):
            n = ids.size
            columns[0].append(ids)
            columns[1].append(np.full(n, sampled, np.int32))
            columns[2].append(tokens.logprobs if sampled else np.zeros(n, np.float32))
            columns[3].append(np.full(n, 1 if sampled else -1, np.int32))
            columns[4].append(np.zeros(n, np.float32))
    return columns


def joined(batch: Sequence[Pieces]) -> list[np.ndarray]:
    """Concatenate a batch's arrays; its sessions are equally long, so no padding is needed."""
    return [
        np.concatenate([part for columns in batch for part in columns[number]]).reshape(
            len(batch), -1
        )
        for number in range(5)
    ]


def one_pass(run: Run, values: Advantages, batch: int) -> dict[str, float]:
    """Convert a whole run, and return the CPU seconds of each step."""
    spent = dict.fromkeys(("read", "rows", "tensors", "concatenate"), 0.0)
    now = time.process_time
    begun = now()
    stored = run.sessions()
    while trees := list(islice(stored, batch)):
        read = now()
        rows = [row for tree in trees for row in apply(build_rows(tree).rows, values)]
        made = now()
        tensors = areal_tensors(rows)
        done = now()
        spent["read"] += read - begun
        spent["rows"] += made - read
        spent["tensors"] += done - made
        prepared = [pieces(tree) for tree in trees]
        begun = now()
        plain = joined(prepared)
        spent["concatenate"] += now() - begun
        names = ("input_ids", "loss_mask", "logprobs", "versions")
        for name, array in zip(names, plain, strict=False):
            assert np.array_equal(tensors[name].numpy(), array), name
        begun = now()
    return spent


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sessions", type=int, default=10_000)
    parser.add_argument("--batch", type=int, default=64, help="rows in a batch of tensors")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", type=Path, help="file for the figures")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory, "run")
        write_run(path, given.sessions)
        with Run(path) as run:
            begun = time.process_time()
            values = GRPO().derive(TurnTable.build(run.groups(), run.sessions()))
            derived = time.process_time() - begun
            rounds = [one_pass(run, values, given.batch) for _ in range(given.rounds)]
    spent = {"values": derived} | {name: min(r[name] for r in rounds) for name in rounds[0]}
    turns, tokens = given.sessions * TURNS, given.sessions * TURNS * (PROMPT + SAMPLED)
    ours = sum(spent.values()) - spent["concatenate"]
    print(f"{turns:,} stored turns, {tokens:,} tokens, batches of {given.batch}")
    for name, seconds in spent.items():
        print(f"  {name:12} {seconds:8.2f} s CPU {seconds / turns * 1e6:8.1f} us a turn")
    memory = spent["rows"] + spent["tensors"]
    print(
        f"stored turns to tensors {ours:.2f} s, {turns / ours:,.0f} turns/s: "
        f"{ours / spent['concatenate']:.1f} x plain concatenation; "
        f"rows and tensors alone {memory / spent['concatenate']:.1f} x"
    )
    if given.json is not None:
        found: dict[str, Any] = {"when": datetime.now(UTC).isoformat(timespec="seconds")}
        cpus = len(os.sched_getaffinity(0))
        found["machine"] = {"cpus": cpus, "python": platform.python_version()}
        found |= {"turns": turns, "tokens": tokens, "batch": given.batch, "cpu_seconds": spent}
        given.json.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
