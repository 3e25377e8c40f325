"""Compare a recorded run with the engine's answers, the log of updates, and saved weights.

CUDA_VISIBLE_DEVICES=0 python examples/gpu/exactness.py --model SFT --run SCRATCH/outcome-0 \
        --out RESULTS
"""

from __future__ import annotations

import argparse
import json
from collections import Counter, defaultdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from lab import Call, Results, load_calls

from trajgym.trajectory import Run, TrainingRow, build_rows

if TYPE_CHECKING:
    from trajgym.trajectory import SessionTree, Turn

_ROWS = 400
"""Maximum number of rows of a version whose log-probs are compared."""


def check_turns(
    trees: list[SessionTree], calls: dict[str, list[Call]], updates: list[dict[str, float]]
) -> dict[str, Any]:
    """Compare every recorded turn with the server's answer and the log of updates."""
    found: Counter[str] = Counter()
    gap = 0.0
    for tree in trees:
        answered = calls.get(tree.record.id, [])
        found["sessions"] += 1
        for turn in tree.turns:
            found["turns"] += 1
            tokens = turn.tokens
            if tokens is None or turn.index >= len(answered):
                found["turns_without_answer"] += 1
                continue
            call = answered[turn.index]
            same = tokens.response_ids.tolist() == call.ids
            found["tokens"] += len(call.ids)
            found["turns_same_ids" if same else "turns_other_ids"] += 1
            found["prompts_other_length"] += tree.prompt(turn).size != call.prompt
            if same:
                apart = np.abs(tokens.logprobs - np.array(call.logprobs, dtype=np.float32))
                gap = max(gap, float(apart.max()))
            found.update(_versions(turn, call, updates))
    return dict(found) | {"largest_logprob_difference": gap}


def check_rows(trees: list[SessionTree], calls: dict[str, list[Call]]) -> dict[str, int]:
    """Compare the trained ids of training rows with the server's answers."""
    found: Counter[str] = Counter()
    for tree in trees:
        if not tree.attempts[0].status.scored:
            found["sessions_not_scored"] += 1
            continue
        rows, dropped = build_rows(tree)
        found["sessions"] += 1
        found["rows"] += len(rows)
        found["dropped"] += len(dropped)
        wanted = [i for call in calls[tree.record.id][: len(tree.turns)] for i in call.ids]
        trained = [i for row in rows for i in row.input_ids[row.loss_mask].tolist()]
        found["trained_tokens"] += len(trained)
        found["sessions_same_ids" if trained == wanted else "sessions_other_ids"] += 1
    return dict(found)


def _versions(turn: Turn, call: Call, updates: list[dict[str, float]]) -> list[str]:
    """Compare a turn's recorded versions with those that can have sampled it; return counter keys.

    A single version must be in the possible range by the log of updates; a range must overlap it.
    """
    assert turn.tokens is not None
    # Between the first and the last byte of an update the server may hold either version.
    low = sum(u["sent"] <= call.begun for u in updates)
    high = sum(u["begun"] <= call.ended for u in updates)
    segments = turn.tokens.segments
    first = min(s.version_low for s in segments)
    last = max(s.version_high for s in segments)
    notes = ["ranges"]
    if first == last:
        notes.append("ranges_of_one_version")
        notes.append("boundary_agrees" if low <= first <= high else "boundary_disagrees")
    else:
        notes.append("boundary_agrees" if first <= high and low <= last else "boundary_disagrees")
    if len(segments) > 1:
        notes.append("turns_with_a_boundary")
    return notes


def rows_by_version(trees: list[SessionTree]) -> dict[int, list[TrainingRow]]:
    """Return the rows that were sampled by a single version, by version."""
    found: dict[int, list[TrainingRow]] = defaultdict(list)
    for tree in trees:
        if not tree.attempts[0].status.scored:
            continue
        for row in build_rows(tree).rows:
            low, high = row.version_low[row.loss_mask], row.version_high[row.loss_mask]
            if low.min() == high.max():
                found[int(low[0])].append(row)
    return found


def gaps(model: Any, rows: list[TrainingRow], *, autocast: bool) -> dict[str, float]:
    """Return statistics of the difference (nats) of a model's log-probs to the recorded ones."""
    import torch

    every, ratios = [], []
    for row in rows:
        ids = torch.tensor(row.input_ids[None].astype(np.int64), device=model.device)
        with (
            torch.no_grad(),
            torch.autocast(model.device.type, dtype=torch.bfloat16, enabled=autocast),
        ):
            logits = model(input_ids=ids).logits[0, :-1].float()
        chosen = (logits / (row.temperature or 1.0)).log_softmax(-1)
        new = chosen.gather(1, ids[0, 1:, None])[:, 0].cpu().numpy()
        mask = row.loss_mask[1:]
        apart = new[mask] - row.logprobs[1:][mask]
        every.append(np.abs(apart))
        ratios.append(np.exp(apart))
    all_gaps, all_ratios = np.concatenate(every), np.concatenate(ratios)
    return {
        "tokens": int(all_gaps.size),
        "mean": float(all_gaps.mean()),
        "p99": float(np.quantile(all_gaps, 0.99)),
        "max": float(all_gaps.max()),
        "ratio_mean": float(all_ratios.mean()),
    }


def check_weights(given: argparse.Namespace, trees: list[SessionTree], results: Results) -> None:
    """Compare log-probs of every version whose weights were saved; version 1 is the first model."""
    import torch
    from transformers import AutoModelForCausalLM

    by_version = rows_by_version(trees)
    held = {int(p.stem.partition("-")[2]): p for p in given.run.glob("version-*.pt")}
    device = "cuda" if torch.cuda.is_available() else "cpu"
    for version in sorted({1, *held} & by_version.keys()):
        rows = by_version[version][:_ROWS]
        forms = {"engine_weights_bfloat16": torch.bfloat16, "weights_float32_autocast": None}
        for name, dtype in forms.items():
            loaded = AutoModelForCausalLM.from_pretrained(given.model, dtype=torch.float32)
            if version in held:
                weights = torch.load(held[version], map_location="cpu", weights_only=True)
                loaded.load_state_dict(weights, strict=False)
            model = loaded.to(device, dtype or torch.float32).eval()
            autocast = dtype is None and device == "cuda"
            found = gaps(model, rows, autocast=autocast)
            results.write("logprobs", version=version, model=name, rows=len(rows), **found)


def check(given: argparse.Namespace) -> None:
    """Do all comparisons, and write their results."""
    results = Results(given.out)
    calls: dict[str, list[Call]] = defaultdict(list)
    for call in load_calls(given.run):
        calls[call.session].append(call)
    updates = json.loads((given.run / "updates.json").read_text())
    with Run(given.run / "run") as run:
        problems = run.check()
        trees = [run.session(s.record.id) for s in run.summaries()]
    results.write("turns_against_engine", run=given.run.name, **check_turns(trees, calls, updates))
    results.write("rows_against_engine", run=given.run.name, **check_rows(trees, calls))
    results.write("store", run=given.run.name, problems=problems)
    check_weights(given, trees, results)


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    made.add_argument("--model", required=True, help="the model with which the run began")
    made.add_argument("--run", type=Path, required=True, help="a run's directory of train_async.py")
    made.add_argument("--out", type=Path, default=Path("results"))
    return made


if __name__ == "__main__":
    check(parser().parse_args())
