"""Run examples/trl_async_grpo.py for two updates on a CPU, with a tiny model and server."""

from __future__ import annotations

import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path

import trl_async_grpo as example

from tests.trl import cpu
from tests.trl.server import Transfer, serving
from tests.trl.tiny import make

SMALL = {
    "use_cpu": True,
    "bf16": False,
    "token_budget": 4096,
    "num_generations": 4,
    "gradient_accumulation_steps": 1,
}

if __name__ == "__main__":
    cpu.patch()
    with ExitStack() as stack:
        scratch = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        tiny = make(scratch / "model", words=("3", "7", "12", "18"))
        server = stack.enter_context(serving(tiny))
        paths = [
            "--model",
            tiny.path,
            "--store",
            str(scratch / "run"),
            "--out",
            str(scratch / "out"),
        ]
        options = ["--served", "tiny", "--server", server.url, "--steps", "2", "--stream"]
        given = example.parser().parse_args([*paths, *options, *sys.argv[1:]])
        example.train(given, Transfer(server), **SMALL)
