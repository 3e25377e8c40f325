"""Record what the trainers' engines answer, to compare it with what trajgym recorded.

Each process appends a line for each response to a file in the folder ``ANSWERS``; without that
variable nothing is written.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

FOLDER = os.environ.get("ANSWERS", "")


def note(session: str, prompt: int, ids: Sequence[int], logprobs: Sequence[float]) -> None:
    """Append a response.

    Args:
        session: the request's id, which is the session's.
        prompt: number of ids of the prompt.
        ids: the sampled ids.
        logprobs: their log-probs (nats).
    """
    if not FOLDER:
        return
    path = Path(FOLDER) / f"{os.getpid()}.jsonl"
    path.parent.mkdir(parents=True, exist_ok=True)
    line = {"session": session, "prompt": prompt, "ids": list(ids), "logprobs": list(logprobs)}
    with path.open("a") as file:
        file.write(json.dumps(line) + "\n")


def answers(folder: Path) -> dict[str, list[dict[str, Any]]]:
    """Return the responses of each session, in order."""
    found: dict[str, list[dict[str, Any]]] = {}
    for path in sorted(folder.glob("*.jsonl")):
        for line in path.read_text().splitlines():
            one = json.loads(line)
            found.setdefault(one["session"], []).append(one)
    return found
