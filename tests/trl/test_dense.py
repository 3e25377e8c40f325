"""Per-turn advantages in a trainer that takes one number per sample: the gradient is the same."""

from __future__ import annotations

import dataclasses
import queue
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from tests.gradient import families
from tests.trl import cpu
from tests.trl.runs import ByTurn, Recorded, farthest, gradients, token_loss
from trajgym.adapters.trl import rollout_samples
from trajgym.rewards import GRPO
from trajgym.trajectory import InvalidInput, TrainingRow

if TYPE_CHECKING:
    from pathlib import Path


class Stub:
    """A worker whose samples are there already."""

    def __init__(self, samples: list[Any]) -> None:
        self.rollout_buffer: queue.Queue[Any] = queue.Queue()
        self.metrics_queue: queue.Queue[Any] = queue.Queue()
        for sample in samples * 2:  # the data loader reads one batch ahead
            self.rollout_buffer.put(sample)

    def start(self) -> None: ...

    def stop(self) -> None: ...

    def update_model_version(self, model_version: int) -> None: ...

    def check_health(self, stale_after_s: float) -> None:
        raise AssertionError("the trainer wants more samples than there are")


class Untouched:
    """A weight transfer that goes nowhere."""

    def init_weight_transfer(self) -> None: ...
    def pause(self) -> None: ...
    def send_weights(self, iterator: Any) -> None: ...
    def resume(self) -> None: ...
    def destroy(self) -> None: ...


def trained(
    tiny: Any, folder: Path, samples: list[Any], **options: Any
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Let TRL take one optimizer step; return the gradient that it used, and its log."""
    from transformers import TrainerCallback

    settings = {"max_steps": 1, "max_grad_norm": 0.0, "max_staleness": 1000, **options}
    args = cpu.config(folder, **settings)
    trainer = cpu.trainer(tiny, args, Stub(samples), Untouched())
    found: dict[str, Any] = {}

    class Catch(TrainerCallback):  # type: ignore[misc]
        def on_pre_optimizer_step(self, *_: Any, **__: Any) -> None:
            for name, parameter in trainer.model.named_parameters():
                found[name] = parameter.grad.clone()

    trainer.add_callback(Catch())
    trainer.train()
    return found, trainer.state.log_history[0]


def moved(row: TrainingRow) -> TrainingRow:
    """Return the row as if an older policy had sampled it: ratios leave 1, some are clipped."""
    shift = np.sin(np.arange(len(row), dtype=np.float32)) * 0.4
    shifted = np.where(row.loss_mask, np.minimum(row.logprobs + shift, 0), 0)
    return dataclasses.replace(row, logprobs=shifted.astype(np.float32))


@pytest.fixture
def pairs(recorded: Recorded) -> list[Any]:
    """Six sessions whose turns have advantages of their own."""
    return [(tree, list(map(moved, rows))) for tree, rows in recorded.rows(ByTurn(), most=6)]


def samples_of(pairs: list[Any], form: Any = "auto") -> list[Any]:
    return [s for tree, rows in pairs for s in rollout_samples(tree, rows, form=form)]


def test_the_gradient_is_that_of_advantages_per_token(
    tiny: Any, pairs: list[Any], tmp_path: Path, monkeypatch: Any
) -> None:
    """A sample for each turn trains exactly as a loss that knows every token's advantage."""
    cpu.patch(monkeypatch.setattr)
    samples = samples_of(pairs)
    assert len(samples) > len(pairs)
    model = tiny.model()
    losses = [token_loss(model, row) for _, rows in pairs for row in rows]
    tokens = sum(loss.numel() for loss in losses)
    wanted = gradients(model, sum(loss.sum() for loss in losses) / tokens)
    got, log = trained(tiny, tmp_path, samples, per_device_train_batch_size=len(samples))
    assert farthest(got, wanted) < 1e-4
    assert log["batch/trained_tokens_per_step"] == tokens
    assert log["clip_ratio/region_mean"] > 0
    # The shared prefixes are computed once: less than half of what the samples add up to.
    assert log["batch/packing_ratio"] > 1.5


def spanned(row: TrainingRow) -> TrainingRow:
    """Return the row with two advantages in each turn, as values over spans give them."""
    advantage = np.array(row.advantage)
    place = np.arange(len(row))
    inside = row.loss_mask & (place % 3 == 1)
    return dataclasses.replace(row, advantage=advantage + np.where(inside, np.float32(0.75), 0))


def test_the_gradient_is_that_of_advantages_over_spans(
    tiny: Any, pairs: list[Any], tmp_path: Path, monkeypatch: Any
) -> None:
    """Tokens of one turn with several advantages (ToolPO, hints over spans) keep each its own."""
    cpu.patch(monkeypatch.setattr)
    dense = [(tree, list(map(spanned, rows))) for tree, rows in pairs]
    samples = samples_of(dense)
    model = tiny.model()
    losses = [token_loss(model, row) for _, rows in dense for row in rows]
    wanted = gradients(model, sum(one.sum() for one in losses) / sum(map(len, losses)))
    got, log = trained(tiny, tmp_path, samples, per_device_train_batch_size=len(samples))
    assert farthest(got, wanted) < 1e-4
    assert log["batch/trained_tokens_per_step"] == sum(map(len, losses))
    with pytest.raises(InvalidInput, match="have the advantages"):
        samples_of(dense, "row")


@pytest.mark.parametrize("family", ["spans", "hints", "turns"])
def test_the_gradient_of_a_derivers_own_advantages(
    family: str, tiny: Any, tmp_path: Path, monkeypatch: Any
) -> None:
    """ToolPO, hints over spans and GiGPO, with a session of two rows and a failed member."""
    cpu.patch(monkeypatch.setattr)
    given, build, _ = families.derived(family)
    words = len(tiny.tokenizer)
    for tree in given.sessions:
        for turn in tree.turns:
            assert turn.tokens is not None
            turn.tokens = dataclasses.replace(
                turn.tokens,
                prompt_ids=turn.tokens.prompt_ids % words,
                response_ids=turn.tokens.response_ids % words,
            )
    found = build(given)
    samples = samples_of(found.sessions)
    model = tiny.model()
    losses = [token_loss(model, row) for row in found.rows]
    wanted = gradients(model, sum(one.sum() for one in losses) / sum(map(len, losses)))
    got, _ = trained(tiny, tmp_path, samples, per_device_train_batch_size=len(samples))
    assert farthest(got, wanted) < 1e-4


def test_with_a_budget_of_tokens(
    tiny: Any, pairs: list[Any], tmp_path: Path, monkeypatch: Any
) -> None:
    """Batches by tokens, TRL's default, are means over their tokens too."""
    cpu.patch(monkeypatch.setattr)
    samples = samples_of(pairs)
    model = tiny.model()
    losses = [token_loss(model, row) for _, rows in pairs for row in rows]
    tokens = sum(loss.numel() for loss in losses)
    wanted = gradients(model, sum(loss.sum() for loss in losses) / tokens)
    filler = dataclasses.replace(samples[0], input_ids=np.full(1900, 5, np.int64))
    filler.completion_mask = np.ones(1900, np.int64)
    filler.old_log_probs = np.full(1900, -1.0, np.float32)
    budget = {"token_budget": 2000}
    got, _ = trained(tiny, tmp_path, [*samples, filler], **budget)
    assert farthest(got, wanted) < 1e-4


def test_accumulated_batches_are_means_of_their_own(
    tiny: Any, pairs: list[Any], tmp_path: Path, monkeypatch: Any
) -> None:
    """TRL averages over the tokens of each micro-batch, then over micro-batches; nothing else."""
    cpu.patch(monkeypatch.setattr)
    first, second = samples_of(pairs[:3], "turn"), samples_of(pairs[3:], "turn")
    assert len(first) == len(second) == 9
    model = tiny.model()
    means = []
    for part in (pairs[:3], pairs[3:]):
        losses = [token_loss(model, row) for _, rows in part for row in rows]
        means.append(sum(loss.sum() for loss in losses) / sum(loss.numel() for loss in losses))
    wanted = gradients(model, (means[0] + means[1]) / 2)
    settings = {"per_device_train_batch_size": 9, "gradient_accumulation_steps": 2}
    got, _ = trained(tiny, tmp_path, [*first, *second], **settings)
    assert farthest(got, wanted) < 1e-4


def test_only_the_intended_tokens_train(
    tiny: Any, pairs: list[Any], tmp_path: Path, monkeypatch: Any
) -> None:
    """With one turn's advantage left, the gradient is that turn's alone, of the same mean."""
    cpu.patch(monkeypatch.setattr)
    tree, (row,) = pairs[0]
    alone = np.where(row.turn_ids == row.turns[1], row.advantage, 0).astype(np.float32)
    pair = (tree, [dataclasses.replace(row, advantage=alone)])
    model = tiny.model()
    loss = token_loss(model, row)
    kept = row.turn_ids[row.loss_mask] == row.turns[1]
    wanted = gradients(model, loss[kept].sum() / loss.numel())
    samples = samples_of([pair])
    got, _ = trained(tiny, tmp_path, samples, per_device_train_batch_size=len(samples))
    assert farthest(got, wanted) < 1e-4


def test_equal_advantages_make_one_sample(
    tiny: Any, recorded: Recorded, tmp_path: Path, monkeypatch: Any
) -> None:
    """Where a row's turns agree it is one sample, and trains as one for each turn would."""
    cpu.patch(monkeypatch.setattr)
    pairs = recorded.rows(GRPO(), most=4)
    whole, turns = samples_of(pairs, "row"), samples_of(pairs, "turn")
    assert len(whole) == 4
    assert len(turns) == 12
    assert samples_of(pairs)[0].input_ids.size == whole[0].input_ids.size
    one, _ = trained(tiny, tmp_path / "a", whole, per_device_train_batch_size=4)
    other, _ = trained(tiny, tmp_path / "b", turns, per_device_train_batch_size=12)
    assert farthest(other, one) < 1e-4


def test_one_number_for_different_turns_is_refused(pairs: list[Any]) -> None:
    """Scalar samples can't carry advantages that differ within a row."""
    with pytest.raises(InvalidInput, match="form='auto'"):
        samples_of(pairs, "row")


def test_samples_carry_the_sessions_oldest_version(recorded: Recorded) -> None:
    """All samples of a session have its oldest version, even if only its first turn was old."""
    tree, (row,) = recorded.rows(ByTurn(), most=1)[0]
    low = np.where(row.turn_ids == row.turns[0], 3, 5).astype(np.int32)
    low[~row.loss_mask] = -1
    aged = dataclasses.replace(row, version_low=low, version_high=np.maximum(low, row.version_high))
    samples = rollout_samples(tree, [aged])
    assert [s.model_version for s in samples] == [3, 3, 3]
    assert len({s.group_id for s in samples}) == 1
    for sample, turn in zip(samples, tree.turns, strict=True):
        size = sample.input_ids.size
        assert sample.input_ids.tolist() == row.input_ids[:size].tolist()
        assert sample.completion_mask.sum() == turn.tokens.response_ids.size
        assert (sample.old_log_probs[sample.completion_mask == 0] == 0).all()
        assert sample.completion == [turn.message]
        assert sample.prompt == tree.context(turn)
