"""Write a line for each session of a trainer, and compare its turns with the engine's answers.

PYTHONPATH=examples/trainers/shared python examples/trainers/shared/sessions.py --store runs/areal \
    --answers runs/areal-answers --out results/areal.jsonl
"""

from __future__ import annotations

import argparse
import json
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from recording import answers

from trajgym.trajectory import Run

if TYPE_CHECKING:
    from trajgym.trajectory import SessionTree


def described(tree: SessionTree, answered: list[dict[str, Any]]) -> dict[str, Any]:
    """Return what is known of a session.

    ``same`` counts turns whose prompt length, ids and log-probs are the engine's. Responses of an
    attempt that was cancelled have no turn, so the engine may have answered more often.
    """
    attempt = tree.attempts[0]
    turns = [turn for turn in tree.turns if turn.tokens is not None]
    segments = [s for turn in turns if turn.tokens for s in turn.tokens.segments if s.sampled]
    outcome = attempt.outcome
    same = sum(_same(tree, i, answered) for i in range(len(turns)))
    return {
        "session": tree.record.id,
        "group": tree.record.group,
        "task": tree.record.task,
        "began": tree.record.created_at,
        "ended": attempt.ended_at,
        "status": str(attempt.status),
        "score": None if outcome is None else outcome.score,
        "mended": None if outcome is None else outcome.details.get("f2p"),
        "turns": len(tree.turns),
        "tokens": sum(s.length for s in segments),
        "low": min((s.version_low for s in segments), default=None),
        "high": max((s.version_high for s in segments), default=None),
        "policy_seconds": sum(turn.policy_seconds for turn in turns),
        "env_seconds": sum(turn.env_seconds for turn in turns),
        "answers": len(answered),
        "same": same,
    }


def _same(tree: SessionTree, i: int, answered: list[dict[str, Any]]) -> bool:
    tokens = tree.turns[i].tokens
    if tokens is None or i >= len(answered):
        return False
    told = answered[i]
    return (
        tokens.response_ids.tolist() == told["ids"]
        and tokens.prompt_kept + tokens.prompt_ids.size == told["prompt"]
        and np.array_equal(tokens.logprobs, np.array(told["logprobs"], dtype=np.float32))
    )


def main(given: argparse.Namespace) -> None:
    """Read the runs below the folder, write the lines, and print counts."""
    known = answers(given.answers) if given.answers else {}
    counts: Counter[str] = Counter()
    given.out.parent.mkdir(parents=True, exist_ok=True)
    with given.out.open("w") as file:
        for folder in sorted({path.parent for path in given.store.rglob("*.sqlite")}):
            with Run(folder) as run:
                for summary in run.summaries():
                    tree = run.session(summary.record.id)
                    line = described(tree, known.get(tree.record.id, []))
                    file.write(json.dumps(line) + "\n")
                    counts["sessions"] += 1
                    counts[line["status"]] += 1
                    counts["turns"] += line["turns"]
                    counts["turns_same"] += line["same"]
    print(json.dumps(dict(counts)))


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command-line options."""
    made = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    made.add_argument("--store", type=Path, required=True, help="runs, at any depth")
    made.add_argument("--answers", type=Path, help="folder written by recording.py")
    made.add_argument("--out", type=Path, required=True)
    return made


if __name__ == "__main__":
    main(parser().parse_args())
