"""Derivers on a million turns, and two of them on ten million.

    python benchmarks/bench_rewards.py [--turns N] [--large N] [--repeat K]

The table is made of arrays: groups of 8 attempts, about 10 turns each, a fork in every fourth
session, two tool calls in every third turn, and states that recur within a group. Only ``derive``
is timed (the minimum of K runs), not the reading of sessions into a table. GRPO and the discounted
return are also computed by a plain Python loop, and GRPO by verl's estimator if verl is installed.
The time of similarity-based derivers (srl, gigpo with ``similarity``) depends on their texts; they
are left out, and ``--texts`` times the comparison of texts.
"""

from __future__ import annotations

import argparse
import time
from collections import defaultdict
from typing import TYPE_CHECKING, Any

import numpy as np

from trajgym.rewards import (
    GRPO,
    HGPO,
    IGPO,
    MSGRPO,
    MTGRPO,
    GiGPO,
    GRPORoC,
    InformationGain,
    OutcomeReturn,
    OutcomeReward,
    ReturnToGo,
    SoftOverlong,
    StepPenalty,
    Stepwise,
    ToolCalls,
    ToolPO,
    TreeGRPO,
    TreeRL,
    TurnGAE,
    TurnTable,
)
from trajgym.rewards.toolkit import similarity

if TYPE_CHECKING:
    from collections.abc import Callable

    from trajgym.rewards import Deriver

DERIVERS: dict[str, Deriver] = {
    "outcome": OutcomeReward(),
    "outcome_return": OutcomeReturn(),
    "grpo": GRPO(),
    "tree_grpo": TreeGRPO(),
    "tree_grpo official": TreeGRPO(variant="official"),
    "treerl": TreeRL(),
    "treerl official": TreeRL(variant="official"),
    "toolpo": ToolPO(),
    "grpo_roc": GRPORoC(),
    "mt_grpo": MTGRPO(),
    "ms_grpo": MSGRPO(),
    "gigpo": GiGPO(),
    "gigpo official": GiGPO(variant="official", mode="mean_std_norm"),
    "hgpo": HGPO(),
    "return_to_go": ReturnToGo(gamma=0.95),
    "stepwise": Stepwise(gamma=0.95),
    "soft_overlong": SoftOverlong(),
    "step_penalty": StepPenalty(),
    "tool_calls": ToolCalls(),
    "turn_gae": TurnGAE(),
    "information_gain": InformationGain(),
    "igpo": IGPO(),
}
LARGE = ("grpo", "return_to_go")
GROUP = 8


def made_up(turns: int, seed: int = 0) -> TurnTable:
    """Return a table of about so many turns: chains, with a fork in every fourth session."""
    rng = np.random.default_rng(seed)
    n_sessions = turns // 10
    sizes = rng.integers(5, 16, n_sessions)
    n = int(sizes.sum())
    starts = np.r_[0, np.cumsum(sizes)]
    session = np.repeat(np.arange(n_sessions), sizes)
    turn = np.arange(n) - starts[session]
    parent = np.where(turn > 0, np.arange(n) - 1, -1)
    forked = np.arange(n_sessions) % 4 == 0
    # In forked sessions the last two turns follow the second: a rival attempt.
    branch = starts[1:][forked] - 2
    parent[branch] = starts[:-1][forked] + 1
    depth = turn.copy()
    depth[branch], depth[branch + 1] = 2, 3
    lengths = np.where(forked, sizes - 2, sizes)
    attempts = [np.arange(n_sessions), np.flatnonzero(forked)]
    attempt_session = np.concatenate(attempts)
    first = starts[:-1]
    held = np.concatenate([lengths, np.full(int(forked.sum()), 4)])
    order = np.argsort(attempt_session, kind="stable")
    rival = np.r_[np.zeros(n_sessions, int), np.ones(int(forked.sum()), int)][order]
    attempt_session, held = attempt_session[order], held[order]
    member_starts = np.r_[0, np.cumsum(held)]
    holder = np.repeat(np.arange(held.size), held)
    index = np.arange(member_starts[-1]) - member_starts[holder]
    late = (rival[holder] == 1) & (index >= 2)
    own = attempt_session[holder]
    member_turn = np.where(late, starts[own + 1] - 4 + index, first[own] + index)
    leaf = member_turn[member_starts[1:] - 1]
    calls = np.where(np.arange(n) % 3 == 0, 2, 0)
    ok = rng.binomial(calls, 0.7)
    span_turn = np.repeat(np.arange(n), calls)
    k = span_turn.size
    second = np.arange(k) % 2
    last = np.zeros(n, dtype=bool)
    last[leaf] = True
    score = rng.integers(0, 2, held.size).astype(float)
    columns: dict[str, Any] = {
        "sessions": tuple(f"s{i}" for i in range(n_sessions)),
        "groups": tuple(f"g{i}" for i in range(n_sessions // GROUP + 1)),
        "starts": starts,
        "session_order": np.arange(n_sessions),
        "session": session,
        "group": session // GROUP,
        "turn": turn,
        "parent": parent,
        "depth": depth,
        "attempt": np.where(np.isin(np.arange(n), np.r_[branch, branch + 1]), 1, 0),
        "scored": np.ones(n, dtype=bool),
        "last": last,
        "env_reward": rng.integers(0, 3, n) / 4,
        "calls_ok": ok,
        "calls_failed": calls - ok,
        "prompt_tokens": np.full(n, 500),
        "response_tokens": rng.integers(20, 3000, n),
        "exact": np.ones(n, dtype=bool),
        "surprisal": rng.random(n),
        "format_ok": rng.random(n) < 0.95,
        "answers": last.astype(int),
        "value": rng.random(n),
        "has_value": np.ones(n, dtype=bool),
        "gold_before": -rng.random(n),
        "gold_after": -rng.random(n),
        "has_gold": np.ones(n, dtype=bool),
        "span_turn": span_turn,
        "span_kind": np.zeros(k, dtype=int),
        "span_start": 10 * second,
        "span_end": 10 * second + 8,
        "span_ok": np.ones(k, dtype=int),
        "span_starts": np.searchsorted(span_turn, np.arange(n + 1)),
        "attempt_session": attempt_session,
        "attempt_group": attempt_session // GROUP,
        "attempt_index": rival,
        "attempt_leaf": leaf,
        "attempt_scored": np.ones(held.size, dtype=bool),
        "attempt_score": score,
        "attempt_passed": score > 0,
        "attempt_direct": np.zeros(held.size),
        "attempt_folded": np.zeros(held.size),
        "member_turn": member_turn,
        "member_attempt": holder,
        "member_starts": member_starts,
        "state_codes": np.where(turn == 0, 0, rng.integers(1, 2 + 5 * depth)),
    }
    return TurnTable(**columns)


def best(run: Callable[[], object], repeat: int) -> float:
    """Return the minimum time of several runs, in seconds."""
    times = []
    for _ in range(repeat):
        start = time.perf_counter()
        run()
        times.append(time.perf_counter() - start)
    return min(times)


def plain_grpo(table: TurnTable) -> list[float]:
    """Compute GRPO's advantages (the mean for shared turns) with loops over lists."""
    scores, groups = table.attempt_score.tolist(), table.attempt_group.tolist()
    members = defaultdict(list)
    for score, group in zip(scores, groups, strict=True):
        members[group].append(score)
    stats = {}
    for group, own in members.items():
        mean = sum(own) / len(own)
        stats[group] = mean, (sum((x - mean) ** 2 for x in own) / len(own)) ** 0.5
    total, count = [0.0] * len(table), [0] * len(table)
    for turn, attempt in zip(
        table.member_turn.tolist(), table.member_attempt.tolist(), strict=True
    ):
        mean, std = stats[groups[attempt]]
        total[turn] += (scores[attempt] - mean) / std if std else 0.0
        count[turn] += 1
    return [t / c if c else 0.0 for t, c in zip(total, count, strict=True)]


def plain_returns(table: TurnTable, gamma: float) -> list[float]:
    """Compute discounted returns (the mean for shared turns) with loops over lists."""
    rewards, turns = table.env_reward.tolist(), table.member_turn.tolist()
    bounds, scores = table.member_starts.tolist(), table.attempt_score.tolist()
    total, count = [0.0] * len(table), [0] * len(table)
    for attempt, score in enumerate(scores):
        later = score
        for place in range(bounds[attempt + 1] - 1, bounds[attempt] - 1, -1):
            turn = turns[place]
            last = place == bounds[attempt + 1] - 1
            later = rewards[turn] + (score if last else gamma * later)
            total[turn] += later
            count[turn] += 1
    return [t / c if c else 0.0 for t, c in zip(total, count, strict=True)]


def against_python(table: TurnTable, repeat: int) -> None:
    """Compare the values of two derivers with those of plain loops, then the times."""
    pairs: list[tuple[str, Deriver, Callable[[], list[float]]]] = [
        ("grpo", GRPO(), lambda: plain_grpo(table)),
        ("return_to_go", ReturnToGo(gamma=0.95), lambda: plain_returns(table, 0.95)),
    ]
    for name, deriver, loop in pairs:
        assert np.allclose(deriver.derive(table).values, loop())
        ours, theirs = best(lambda d=deriver: d.derive(table), repeat), best(loop, 1)
        print(f"{name}: {ours:.3f} s, plain Python loop {theirs:.3f} s, ratio {theirs / ours:.1f}")


def against_verl(table: TurnTable, repeat: int) -> None:
    """Compare GRPO over attempts with verl's estimator, if verl is installed."""
    try:
        import torch
        from verl.trainer.ppo.core_algos import compute_grpo_outcome_advantage
    except ImportError:
        print("left out: verl (not installed here)")
        return
    scores = torch.tensor(table.attempt_score, dtype=torch.float32)[:, None]
    mask = torch.ones_like(scores)
    index = table.attempt_group
    theirs = best(lambda: compute_grpo_outcome_advantage(scores, mask, index), 1)
    ours = best(lambda: GRPO(variant="verl").derive(table), repeat)
    print(f"grpo: {ours:.3f} s, verl {theirs:.3f} s over attempts, ratio {theirs / ours:.1f}")


def texts() -> None:
    """Compare the time of ``similarity`` with difflib's on edits of source code."""
    from difflib import SequenceMatcher
    from pathlib import Path

    source = Path(__file__).read_text()
    for size in (100, 300, 1000, 5000):
        a, b = source[:size], source[20 : size // 2] + source[3000 : 3000 + size // 2]
        ours = best(lambda a=a, b=b: similarity(a, b), 5)
        theirs = best(lambda a=a, b=b: SequenceMatcher(None, a, b, autojunk=False).ratio(), 5)
        print(f"{size} characters: {ours * 1e3:.2f} ms, difflib {theirs * 1e3:.2f} ms")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--turns", type=int, default=1_000_000)
    parser.add_argument("--large", type=int, default=10_000_000)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--texts", action="store_true", help="also time the comparison of texts")
    options = parser.parse_args()
    table = made_up(options.turns)
    print(f"{len(table):,} turns, {table.attempt_score.size:,} attempts")
    rates = {}
    for name, deriver in DERIVERS.items():
        seconds = best(lambda d=deriver: d.derive(table), options.repeat)
        rates[name] = len(table) / seconds
        print(f"{name:20} {seconds:7.3f} s  {rates[name] / 1e6:7.2f} million turns/s")
    against_python(table, options.repeat)
    against_verl(table, options.repeat)
    if options.large:
        large = made_up(options.large)
        for name in LARGE:
            seconds = best(lambda d=DERIVERS[name]: d.derive(large), options.repeat)
            rate = len(large) / seconds
            print(
                f"{name:20} {len(large):,} turns: {seconds:.3f} s, {rate / 1e6:.2f} million "
                f"turns/s, {rate / rates[name]:.2f} x the rate of the smaller table"
            )
    if options.texts:
        texts()


if __name__ == "__main__":
    main()
