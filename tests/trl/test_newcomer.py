"""The newcomer's way as far as a training step: an own environment's export trains in TRL."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tests.test_newcomer import Desk, collecting, desk, model, url
from tests.trl.test_offline import COMMON, loss_of, qwen

if TYPE_CHECKING:
    from tests.trl.tiny import Tiny

__all__ = ["desk", "model", "url"]  # fixtures


def test_an_exported_run_trains_one_step(desk: Desk, url: str, tiny: Tiny) -> None:
    """`init`, collect over HTTP, `reward`, `export`; TRL reads the file and makes a step."""
    import trl
    from datasets import load_dataset

    desk.run(*collecting(f"{url}/v1", "runs/trl"))
    desk.run("reward", "runs/trl", "--with", "outcome")
    desk.run("export", "runs/trl", "--to", "sft", "--out", "trl")
    data: Any = load_dataset(
        "json", data_files=str(desk.project / "trl" / "sft.jsonl"), split="train"
    )
    assert len(data) == 4
    trainer = trl.SFTTrainer(
        model=tiny.model(),
        args=trl.SFTConfig("-", **COMMON, assistant_only_loss=True),
        train_dataset=data,
        processing_class=qwen(tiny),
    )
    one = trainer.train_dataset[0]
    learnt = tiny.tokenizer.decode([label for label in one["labels"] if label != -100])
    assert '"number"' in learnt
    assert "in mind" not in learnt
    before = [each.detach().clone() for each in trainer.model.parameters()]
    assert loss_of(trainer) > 0
    pairs = zip(before, trainer.model.parameters(), strict=True)
    assert any((old != new).any() for old, new in pairs)
