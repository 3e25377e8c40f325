"""TRL's side: one step of its AsyncGRPOTrainer. Run as a module: folder, file."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from tests.gradient.case import load, save


def main(folder: Path, out: Path) -> None:
    """Write the gradient that the trainer used."""
    from transformers import AutoTokenizer

    from tests.trl import cpu
    from tests.trl.test_dense import trained
    from tests.trl.tiny import Tiny
    from trajgym.adapters.trl import rollout_samples
    from trajgym.rewards import apply
    from trajgym.trajectory import build_rows

    cpu.patch()
    case = load(folder)
    samples = []
    for tree in case.trees:
        samples += rollout_samples(tree, apply(build_rows(tree).rows, case.values))
    path = str(folder / "model")
    tiny = Tiny(path, AutoTokenizer.from_pretrained(path))
    with tempfile.TemporaryDirectory() as work:
        size = {"per_device_train_batch_size": len(samples), "token_budget": -1}
        gradient, _ = trained(tiny, Path(work), samples, **size)
    save(gradient, out)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
