"""Conversion of session trees to training rows, compared with numpy and with verifiers 0.4.0.

    python benchmarks/bench_rows.py [--verifiers-python PATH_TO_A_PYTHON_WITH_VERIFIERS]

1,000 sessions of 10 turns: 1,540 tokens, 800 of them sampled. The lower bound is a plain numpy
concatenation of prepared pieces to the same six arrays. verifiers makes Python lists of ids, mask
and log-probs (no versions, no turn ids) from `Trace.branches`; it runs in its own interpreter,
after ours.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import time
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable

SESSIONS, TURNS, PROMPT, SAMPLED, OBSERVED = 1000, 10, 110, 80, 70

VERIFIERS = """
import json, time
from verifiers.v1.graph import MessageNode
from verifiers.v1.trace import Trace
from verifiers.v1.types import AssistantMessage, UserMessage
SESSIONS, TURNS, PROMPT, SAMPLED, OBSERVED = {sizes}

def trace():
    nodes = []
    for turn in range(TURNS):
        n = OBSERVED if turn else PROMPT
        nodes.append(MessageNode(
            parent=len(nodes) - 1 if nodes else None, message=UserMessage(content="x"),
            token_ids=list(range(n)), mask=[False] * n))
        nodes.append(MessageNode(
            parent=len(nodes) - 1, message=AssistantMessage(content="y"), sampled=True,
            token_ids=list(range(SAMPLED)), mask=[True] * SAMPLED, logprobs=[-0.5] * SAMPLED))
    return Trace.model_construct(nodes=nodes, calls=[], mm_token_type_id_map={{}})

traces = [trace() for _ in range(SESSIONS)]
best = 1e9
for _ in range(5):
    start = time.perf_counter()
    for item in traces:
        for branch in item.branches:
            ids, mask, logprobs = branch.token_ids, branch.sampled_mask, branch.logprobs
    best = min(best, time.perf_counter() - start)
assert len(ids) == len(mask) == len(logprobs) == PROMPT + (TURNS - 1) * OBSERVED + TURNS * SAMPLED
print(json.dumps(SESSIONS / best))
"""


def sessions(count: int) -> list[object]:
    from trajgym.trajectory import (
        Attempt,
        Outcome,
        Segment,
        SessionRecord,
        SessionTree,
        Status,
        Turn,
        TurnTokens,
    )

    rng = np.random.default_rng(0)
    trees = []
    for i in range(count):
        turns, kept = [], 0
        for t in range(TURNS):
            n = OBSERVED if t else PROMPT
            tokens = TurnTokens(
                prompt_kept=kept,
                prompt_ids=rng.integers(0, 32000, n, dtype=np.int32),
                response_ids=rng.integers(0, 32000, SAMPLED, dtype=np.int32),
                logprobs=-rng.random(SAMPLED, dtype=np.float32),
                segments=(Segment(SAMPLED, 3, 3),),
            )
            message = {"role": "assistant", "content": "y"}
            observation = [{"role": "user", "content": "x"}]
            parent = t - 1 if t else None
            turns.append(
                Turn(
                    index=t, parent=parent, message=message, observation=observation, tokens=tokens
                )
            )
            kept += n + SAMPLED
        done = Attempt(
            leaf=TURNS - 1, status=Status("completed"), outcome=Outcome(score=1.0, passed=True)
        )
        record = SessionRecord(id=f"s{i}", task="t", env={"id": "e", "config": {}}, group="g")
        trees.append(SessionTree(record, turns, [done]))
    return trees


def plain_pieces(tree: object) -> list[list[np.ndarray]]:
    """Return the pieces by turn of a session's six arrays, ready to be concatenated."""
    columns: list[list[np.ndarray]] = [[] for _ in range(6)]
    for turn in tree.turns:  # type: ignore[attr-defined]
        tokens = turn.tokens
        for ids, sampled in ((tokens.prompt_ids, False), (tokens.response_ids, True)):
            n = ids.size
            version = np.full(n, 3 if sampled else -1, np.int32)
            columns[0].append(ids)
            columns[1].append(np.full(n, sampled))
            columns[2].append(tokens.logprobs if sampled else np.zeros(n, np.float32))
            columns[3].append(version)
            columns[4].append(version.copy())
            columns[5].append(np.full(n, turn.index if sampled else -1, np.int32))
    return columns


def rate(work: Callable[[], object], count: int) -> float:
    start = time.perf_counter()
    work()
    return count / (time.perf_counter() - start)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--verifiers-python", help="an interpreter that can import verifiers 0.4.0")
    parser.add_argument("--sessions", type=int, default=SESSIONS)
    options = parser.parse_args()
    count = options.sessions

    from trajgym.trajectory import SessionTree, build_rows, validate_row

    trees = [tree for tree in sessions(count) if isinstance(tree, SessionTree)]
    pieces = [plain_pieces(tree) for tree in trees]
    row = build_rows(trees[0]).rows[0]
    validate_row(row)
    names = ("input_ids", "loss_mask", "logprobs", "version_low", "version_high", "turn_ids")
    for name, column in zip(names, pieces[0], strict=True):
        assert np.array_equal(getattr(row, name), np.concatenate(column)), name

    best = {"build_rows": 0.0, "build_rows + validate_row": 0.0, "plain concatenate": 0.0}
    for _ in range(7):
        timings = {
            "build_rows": rate(lambda: [build_rows(tree) for tree in trees], count),
            "build_rows + validate_row": rate(
                lambda: [validate_row(row) for tree in trees for row in build_rows(tree).rows],
                count,
            ),
            "plain concatenate": rate(
                lambda: [[np.concatenate(column) for column in columns] for columns in pieces],
                count,
            ),
        }
        best = {name: max(best[name], value) for name, value in timings.items()}
    if options.verifiers_python:
        code = VERIFIERS.format(sizes=(count, TURNS, PROMPT, SAMPLED, OBSERVED))
        output = subprocess.run(
            [options.verifiers_python, "-c", code], capture_output=True, text=True, check=True
        ).stdout
        best["verifiers Trace.branches"] = json.loads(output.splitlines()[-1])
    else:
        print("left out: verifiers (no interpreter was given)")

    for name, value in best.items():
        ratio = best["build_rows"] / value
        print(
            f"{name:28} {value:9,.0f} sessions/s   {1e6 / value:6.1f} us"
            f"   build_rows is {ratio:4.2f}x as fast"
        )
    print(f"build_rows / plain concatenate: {best['plain concatenate'] / best['build_rows']:.2f}x")


if __name__ == "__main__":
    main()
