"""Run every benchmark in a small size, to check that it still runs; the figures mean nothing.

Usage: python benchmarks/smoke.py [NAME...]

A benchmark that needs something that this machine lacks (an image, a package) is left out, and the
reason is printed. A new benchmark needs a line in ``SIZES``. The exit status is 1 if a benchmark
fails.
"""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

FOLDER = Path(__file__).parent
SECONDS = 170.0

SIZES = {
    "async": "--steps 1 --lengths agent --eta 0 1",
    "bounding": "--sizes 1000000 --rounds 2",
    "dataset": "--sessions 80 --turns 3",
    "desktop": "--repeats 2",
    "engines": (
        "--model tiny --gpus cpu --dtype float32 --enforce-eager --cache-gib 0.25 --sessions 2 "
        "--tokens 2 --total 2 --servers 2 --clients 1 --seconds 160 --check-tokens 100"
    ),
    "export": "--sessions 20 --to sft,rows",
    "fleet": "--sessions 60 --processes 2 --rounds 1",
    "gui": "--rounds 1 --count 2",
    "import": "--runs 1",
    "kills": "--kills 1 --kinds embedded --signals SIGKILL",
    "remote": "--turns 5 --rounds 1",
    "long": "--most 10000 --rounds 1 --tokenizer {tokenizer}",
    "render": "--tokenizer {tokenizer}",
    "rewards": "--turns 20000 --large 40000 --repeat 1",
    "rows": "--sessions 50",
    "sandbox": "--repeats 5",
    "scale": "--most-sandboxes 100 --calibrate 8",
    "search": "--passages 2000 --queries 20",
    "search_quality": "--queries 20",
    "server": "--seconds 0.2 --rounds 1",
    "session": "--sessions 8 --rounds 1",
    "show": "--sessions 50 --turns 2 --rounds 1",
    "soak": "--sessions 24 --processes 2 --concurrency 4",
    "swe": "--rounds 1",
    "tensors": "--sessions 20 --batch 8 --rounds 1",
    "trees": (
        "--kinds embedded --expansions Tree-GRPO --ways restored --trees 1 --rounds 1 "
        "--policy-seconds 0"
    ),
    "view": "--sessions 64 --turns 3 --long 40 --rounds 2",
}
"""Arguments of the small size, by benchmark."""

IMAGES = {"desktop": "trajgym/desktop:bookworm", "gui": "trajgym/browser:bookworm"}
"""Docker images that a benchmark requires; see scripts/setup-system.sh."""

MODULES = {
    "long": "transformers",
    "render": "transformers",
    "search": "bm25s",
    "search_quality": "Stemmer",
    "dataset": "pyarrow",
    "engines": "vllm",
    "export": "pyarrow",
    "tensors": "torch",
}
"""Modules that a benchmark requires; Stemmer is in PyStemmer, vllm in an extra of its own, torch
in the trainers' environments (``make test-areal`` runs that benchmark), the others in ``dev``."""


def lacking(name: str) -> str:
    """Return what a benchmark needs and this machine lacks, empty if nothing."""
    module, image = MODULES.get(name), IMAGES.get(name)
    if module and importlib.util.find_spec(module) is None:
        return f"the package {module}"
    if image:
        try:
            command = ["docker", "image", "inspect", image]
            subprocess.run(command, capture_output=True, check=True, timeout=30)
        except (OSError, subprocess.SubprocessError):
            return f"a Docker engine with the image {image}"
    return ""


def tokenizer(folder: Path) -> Path:
    """Save a small tokenizer with the chat template of Qwen."""
    sys.path.insert(0, str(FOLDER.parent))
    from tests.rollout.tokenizers import tokenizer as small

    small("qwen").save_pretrained(folder)
    return folder


def run(name: str) -> bool:
    """Run one benchmark, and return whether it succeeded."""
    with tempfile.TemporaryDirectory() as scratch:
        arguments = SIZES[name]
        if "{tokenizer}" in arguments:
            arguments = arguments.format(tokenizer=tokenizer(Path(scratch)))
        command = [sys.executable, str(FOLDER / f"bench_{name}.py"), *arguments.split()]
        begun = time.monotonic()
        try:
            done = subprocess.run(
                command,
                env={**os.environ, "PYTHONPATH": str(FOLDER.parent)},
                capture_output=True,
                text=True,
                timeout=SECONDS,
            )
            said, ok = done.stdout + done.stderr, done.returncode == 0
        except subprocess.TimeoutExpired:
            said, ok = f"still running after {SECONDS:g} s", False
    print(f"{name:14} {'ok' if ok else 'FAILED'} {time.monotonic() - begun:6.1f} s", flush=True)
    for line in said.splitlines() if not ok else []:
        print(f"    {line}")
    for line in said.splitlines():
        if ok and line.strip().startswith("left out"):
            print(f"    {line.strip()}")
    return ok


def main() -> None:
    """Run the benchmarks named on the command line, by default all."""
    found = sorted(path.stem.removeprefix("bench_") for path in FOLDER.glob("bench_*.py"))
    if unknown := set(found) ^ set(SIZES):
        sys.exit(f"benchmarks and SIZES in {__file__} differ: {', '.join(sorted(unknown))}")
    failed = []
    for name in sys.argv[1:] or found:
        if why := lacking(name):
            print(f"{name:14} left out: needs {why}")
        elif not run(name):
            failed.append(name)
    if failed:
        sys.exit(f"failed: {', '.join(failed)}")


if __name__ == "__main__":
    main()
