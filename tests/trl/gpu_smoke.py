"""Run all of examples/gpu on a CPU, with a tiny model and a stand-in for vLLM.

    python -m tests.trl.gpu_smoke [OUT]

It needs trajgym[trl,plot], and takes three minutes.
"""

from __future__ import annotations

import os
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TRL_EXPERIMENTAL_SILENCE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
sys.path.insert(0, str(Path(__file__).parents[2] / "examples" / "gpu"))

import driver
import plots

from tests.trl import cpu
from tests.trl.server import Transfer, serving
from tests.trl.tiny import make

SFT = "--games 24 --steps 4 --every 2 --batch 4 --enough 2 --concurrency 8 --eval-games 4"
TRAIN = (
    "--steps 3 --batch 8 --accumulate 2 --token-budget 1024 --concurrency 8 --eval-games 4 "
    "--eval-at 2 --keep 2 --waiting 32 --processes 2"
)


def main(keep: Path | None = None) -> None:
    cpu.patch()
    with ExitStack() as stack:
        scratch = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        tiny = make(scratch / "model", words=("up", "down", "left", "right"))
        server = stack.enter_context(serving(tiny))
        out = keep or scratch / "out"
        wanted = ["--base", tiny.path, "--work", str(scratch / "work"), "--out", str(out)]
        wanted += ["--phases", "prepare,timing,outcome:0,exactness,gigpo:0", "--prepare", SFT]
        wanted += [
            "--server",
            server.url,
            "--served",
            "tiny",
            "--timing-steps",
            "2",
            "--timing-batch",
            "0",
        ]
        given = driver.parser().parse_args([*wanted, "--", *TRAIN.split()])
        if not driver.Driver(given, Transfer(server)).all():
            sys.exit("a phase broke; see above")
        plots.main(["--out", str(out)])


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else None)
