"""Run examples/trainers/trl for one update on a CPU, with a tiny model and server.

The folders examples/trainers/shared and examples/trainers/trl must be on the path:

    python -m tests.trl.small_swe_example SCRATCH
"""

from __future__ import annotations

import sys
from contextlib import ExitStack
from pathlib import Path

import sessions
import train as example

from tests.trl import cpu
from tests.trl.server import Transfer, serving
from tests.trl.tiny import make

SMALL = {
    "use_cpu": True,
    "bf16": False,
    "num_generations": 2,
    "per_device_train_batch_size": 2,
    "gradient_accumulation_steps": 1,
    "max_completion_length": 8,
    # Prompts of different tasks share most of their tokens, of which TRL counts each once.
    "token_budget": 1024,
}


def main(scratch: Path) -> None:
    """Train, and print the lines of sessions.py."""
    cpu.patch()
    with ExitStack() as stack:
        tiny = make(scratch / "model", words=("3", "7", "12", "18"))
        server = stack.enter_context(serving(tiny))
        store, out = scratch / "runs", scratch / "out"
        wanted = ["--model", tiny.path, "--store", str(store), "--out", str(out), "--steps", "1"]
        wanted += ["--served", "tiny", "--server", server.url, "--processes", "1"]
        example.train(example.parser().parse_args(wanted), Transfer(server), **SMALL)
        lines = scratch / "sessions.jsonl"
        sessions.main(sessions.parser().parse_args(["--store", str(store), "--out", str(lines)]))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
