"""Recorded sessions in TRL's offline trainers, one step each."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from tests.adapters.build import TOOLS, exact_session, groups_of
from tests.trl.runs import ByTurn, Recorded
from trajgym.adapters import ExportReport
from trajgym.adapters.trl import (
    kto_dataset,
    preference_dataset,
    prm_dataset,
    reward_dataset,
    sft_dataset,
    sft_token_dataset,
)
from trajgym.rewards import TurnTable
from trajgym.trajectory import InvalidInput, UnsupportedModality, build_rows

if TYPE_CHECKING:
    from pathlib import Path

    from tests.trl.tiny import Tiny

COMMON = {
    "per_device_train_batch_size": 2,
    "max_steps": 1,
    "report_to": "none",
    "use_cpu": True,
    "bf16": False,
    "gradient_checkpointing": False,
    "save_strategy": "no",
    "disable_tqdm": True,
    "logging_steps": 1,
    "max_length": 2048,
}


@pytest.fixture
def mixed() -> Any:
    """Two groups, in each a session that passed and one that failed, with tools of two shapes."""
    trees = [
        exact_session("a1", 1.0, group="a", answers="right"),
        exact_session("a0", 0.0, group="a", answers="wrong"),
        exact_session("b1", 1.0, group="b", answers="right", turns=2),
        exact_session("b0", 0.25, group="b", answers="wrong", turns=2),
    ]
    return trees, groups_of(*trees)


def qwen(tiny: Tiny) -> Any:
    """Return the tiny model's tokenizer with the template that TRL knows how to mask."""
    from pathlib import Path

    import trl
    from transformers import AutoTokenizer

    made = AutoTokenizer.from_pretrained(tiny.path)
    templates = Path(trl.__file__).parent / "chat_templates"
    made.chat_template = (templates / "qwen2_5.jinja").read_text()
    return made


def loss_of(trainer: Any) -> float:
    trainer.train()
    loss = float(trainer.state.log_history[0]["loss"])
    assert np.isfinite(loss)
    return loss


def test_sft_conversations(tiny: Tiny, mixed: Any) -> None:
    """SFT with an assistant-only loss trains the agent's messages, and no observation."""
    import trl

    data = sft_dataset(*mixed, include="all")
    trainer = trl.SFTTrainer(
        model=tiny.model(),
        args=trl.SFTConfig("-", **COMMON, assistant_only_loss=True),
        train_dataset=data,
        processing_class=qwen(tiny),
    )
    one = trainer.train_dataset[0]
    text = tiny.tokenizer.decode([label for label in one["labels"] if label != -100])
    assert '"arguments": {"path": "/0"}' in text
    assert "step 2 right" in text
    assert "ok 0" not in text
    assert "do it" not in text
    assert loss_of(trainer) > 0


def test_tool_arguments_survive_arrow(mixed: Any, tmp_path: Path) -> None:
    """Arguments of different shapes come back as they went in, also from disk; no nulls appear."""
    from datasets import Dataset, load_from_disk

    trees, groups = mixed
    data = sft_dataset(trees, groups, include="all")
    data.save_to_disk(str(tmp_path / "arrow"))
    data.to_parquet(str(tmp_path / "x.parquet"))
    for found in (
        data,
        load_from_disk(str(tmp_path / "arrow")),
        Dataset.from_parquet(str(tmp_path / "x.parquet")),
    ):
        for row, tree in zip(found, trees, strict=True):
            said = [m for m in row["messages"] if m["role"] == "assistant"]
            for message, turn in zip(said, tree.turns, strict=True):
                (call,) = turn.message["tool_calls"]
                wanted = json.loads(call["function"]["arguments"])
                assert message["tool_calls"][0]["function"]["arguments"] == wanted
                assert message.keys() == turn.message.keys()
            assert json.loads(row["tools"]) == TOOLS


def test_sft_token_ids(tiny: Tiny, recorded: Recorded) -> None:
    """SFT on ids trains exactly the sampled tokens: its loss is their mean log-prob."""
    import torch
    import trl

    trees = [t for t in recorded.trees if t.attempts[0].status.scored][:2]
    data = sft_token_dataset(trees, recorded.groups, include="all")
    trainer = trl.SFTTrainer(
        model=tiny.model(),
        args=trl.SFTConfig("-", **COMMON),
        train_dataset=data,
        processing_class=tiny.tokenizer,
    )
    rows = [row for tree in trees for row in build_rows(tree).rows]
    assert [list(r["input_ids"]) for r in trainer.train_dataset] == [
        row.input_ids.tolist() for row in rows
    ]
    recorded_loss = -np.concatenate([row.logprobs[row.loss_mask] for row in rows]).mean()
    assert loss_of(trainer) == pytest.approx(recorded_loss, abs=1e-3)
    del torch


def test_dpo_pairs(tiny: Tiny, mixed: Any) -> None:
    """DPO answers one history in two ways: no observation is in either answer."""
    import trl

    data = preference_dataset(*mixed)
    assert len(data) == 2
    for row in data:
        assert [m["role"] for m in row["chosen"]] == ["assistant"]
        assert [m["role"] for m in row["rejected"]] == ["assistant"]
        assert row["prompt"][-1]["role"] == "tool"
    trainer = trl.DPOTrainer(
        model=tiny.model(),
        args=trl.DPOConfig("-", **COMMON),
        train_dataset=data,
        processing_class=qwen(tiny),
    )
    assert loss_of(trainer) == pytest.approx(np.log(2), abs=1e-2)
    chosen = tiny.tokenizer.decode(trainer.train_dataset[0]["chosen_ids"])
    assert "right" in chosen
    assert "ok" not in chosen


def test_a_margin_drops_close_pairs(mixed: Any) -> None:
    """A pair whose scores are closer than the margin is left out by name."""
    report = ExportReport("x")
    assert len(preference_dataset(*mixed, margin=0.8, report=report)) == 1
    assert [d.reason for d in report.dropped] == [
        "best and worst attempt of its group differ by less than 0.8"
    ]
    with pytest.raises(InvalidInput, match="nothing to train on"):
        preference_dataset(*mixed, margin=2.0)


def test_kto_labels(tiny: Tiny, mixed: Any) -> None:
    """KTO gets each side of a pair with its label."""
    import trl

    data = kto_dataset(*mixed, margin=0.5)
    assert data["label"] == [True, False, True, False]
    trainer = trl.KTOTrainer(
        model=tiny.model(),
        ref_model=tiny.model(),
        args=trl.KTOConfig("-", **COMMON),
        train_dataset=data,
        processing_class=qwen(tiny),
    )
    loss_of(trainer)


def test_reward_pairs(tiny: Tiny, mixed: Any) -> None:
    """A reward model learns from the same pairs; the margin is the difference of the scores."""
    import trl
    from transformers import AutoModelForSequenceClassification

    data = reward_dataset(*mixed)
    assert data["margin"] == [1.0, 0.75]
    model = AutoModelForSequenceClassification.from_pretrained(tiny.path, num_labels=1)
    trainer = trl.RewardTrainer(
        model=model,
        args=trl.RewardConfig("-", **COMMON),
        train_dataset=data,
        processing_class=qwen(tiny),
    )
    loss_of(trainer)


def test_process_rewards(tiny: Tiny, recorded: Recorded) -> None:
    """Each turn's last token carries whether the turn was worth more than the threshold."""
    from transformers import (
        AutoModelForTokenClassification,
        DataCollatorForTokenClassification,
        Trainer,
        TrainingArguments,
    )

    values = ByTurn().derive(TurnTable.build(recorded.groups, recorded.trees))
    data = prm_dataset(recorded.trees, recorded.groups, values, threshold=0.1)
    row = build_rows(recorded.trees[0]).rows[0]
    labels = np.array(data[0]["labels"])
    wanted = values.of(recorded.trees[0].record.id) > 0.1
    assert labels[row.turn_ends].tolist() == wanted.astype(int).tolist()
    assert (np.delete(labels, row.turn_ends) == -100).all()
    model = AutoModelForTokenClassification.from_pretrained(tiny.path, num_labels=2)
    settings = {k: v for k, v in COMMON.items() if k != "max_length"}
    trainer = Trainer(
        model=model,
        args=TrainingArguments("-", **settings),
        train_dataset=data,
        data_collator=DataCollatorForTokenClassification(tiny.tokenizer),
    )
    loss_of(trainer)


@pytest.mark.parametrize("make", [sft_dataset, sft_token_dataset])
def test_images_are_refused_by_name(make: Any) -> None:
    """A session with screenshots raises an error; it is not exported without them."""
    tree = exact_session("shown", 1.0)
    (result,) = tree.turns[0].observation
    result["content"] = [{"type": "image_url", "image_url": {"url": "blob:" + "0" * 64}}]
    with pytest.raises(UnsupportedModality, match="image_url"):
        make([tree], groups_of(tree), include="all")
