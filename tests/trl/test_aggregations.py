"""Every loss of TRL over every family of advantages, compared with a reference token by token."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from tests.gradient import families
from tests.gradient.settings import Setting, settings
from tests.trl.test_sync import step_trainer
from tests.trl.tiny import SPEC, Tiny, tasks
from trajgym.adapters.trl import GRPORollouts
from trajgym.adapters.trl._rollouts import played
from trajgym.adapters.trl._step import _placed
from trajgym.trajectory import TrainingRow

pytestmark = pytest.mark.timeout(900)
LENGTH = 256
"""``max_completion_length`` of the trainer."""
GAP = 0.6
"""Difference between a sampler and the trainer at each token (nats)."""


def bounded(ratio: Any, advantage: Any) -> Any:
    """CISPO: the ratio is a bounded weight."""
    return -np.minimum(ratio, 0.2) * advantage  # epsilon_high, which TRL takes as the bound itself


def soft(ratio: Any, advantage: Any) -> Any:
    """SAPO: a sigmoid in place of the clip."""
    temperature = np.where(advantage > 0, 1.0, 1.05)
    gate = 1 / (1 + np.exp(-temperature * (ratio - 1)))
    return -4 * gate * (1 - gate) * ratio * advantage


def gamma(ratio: Any, advantage: Any) -> Any:
    """VESPO: a weight of the whole sequence's ratio (tokens that don't train have a ratio of 1)."""
    whole = ratio.prod()
    k, scale = np.where(advantage >= 0, 2.0, 3.0), np.where(advantage >= 0, 3.0, 2.0)
    return -np.exp(scale + k * np.log(whole) - scale * whole) * advantage


LOSSES: dict[str, tuple[str, Any]] = {
    "grpo": ("sessions of means", families.clipped),
    "sapo": ("sessions of means", soft),
    "luspo": ("sessions", families.clipped),
    "dr_grpo": ("sessions/length", families.clipped),
    "bnpo": ("tokens", families.clipped),
    "dapo": ("tokens", families.clipped),
    "cispo": ("tokens", bounded),
    "vespo": ("tokens", gamma),
}


@pytest.fixture(scope="module")
def trainer(tiny: Tiny, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """A trainer whose loss type can be changed."""
    folder = tmp_path_factory.mktemp("trainer")
    with GRPORollouts(SPEC, tasks(4), folder / "run", samples=4, deriver="grpo") as spec:
        made = step_trainer(tiny, spec, folder, max_completion_length=LENGTH)
        made.current_gradient_accumulation_steps = 1
        made.model.train()
        yield made


def batch_of(samples: list[Any]) -> dict[str, Any]:
    """Pad samples as TRL does: prompts on the left, completions on the right."""
    import torch

    left = max(len(one.prompt_ids) for one in samples)
    right = max(len(one.completion_ids) for one in samples)
    shape = (len(samples), right)
    batch: dict[str, Any] = {
        "prompt_ids": torch.zeros(len(samples), left, dtype=torch.int64),
        "prompt_mask": torch.zeros(len(samples), left, dtype=torch.int64),
        "completion_ids": torch.zeros(shape, dtype=torch.int64),
        "completion_mask": torch.zeros(shape, dtype=torch.int64),
        "tool_mask": torch.zeros(shape, dtype=torch.int64),
        "old_per_token_logps": torch.zeros(shape, dtype=torch.float64),
    }
    for i, one in enumerate(samples):
        size = len(one.completion_ids)
        batch["prompt_mask"][i, left - len(one.prompt_ids) :] = 1
        batch["completion_mask"][i, :size] = 1
        batch["tool_mask"][i, :size] = torch.tensor(one.mask)
        batch["old_per_token_logps"][i, :size] = torch.tensor(one.logprobs, dtype=torch.float64)
    batch["advantages"] = _placed([one.advantage for one in samples], batch["completion_ids"])
    batch["num_items_in_batch"] = batch["tool_mask"].sum()
    return batch


@pytest.mark.parametrize("family", families.FAMILIES)
@pytest.mark.parametrize("loss_type", LOSSES)
def test_the_gradient_is_the_references(
    trainer: Any, loss_type: str, family: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a failed member's filler in the batch, and sessions that count once."""
    import torch

    given, build, rows = families.derived(family)
    samples, left = played(given, build, 0, 5)
    assert left["failed:env"] == 1
    assert samples[4].session == ""
    trained = [_row_of(rows, one) for one in samples[:4]]
    batch = batch_of(samples)
    ratios = torch.zeros(batch["completion_ids"].shape, dtype=torch.float64)
    for i, row in enumerate(trained):
        start = int(row.loss_mask.argmax())
        ratios[i, : len(row) - start] = torch.from_numpy(families.log_ratios(row)[start:])
    now = (batch["old_per_token_logps"] + ratios).requires_grad_()
    monkeypatch.setattr(trainer, "loss_type", loss_type)
    monkeypatch.setattr(
        trainer,
        "_get_per_token_logps_and_entropies",
        lambda *_, **__: (now, torch.zeros_like(now), None),
    )
    trainer._scale_windows([batch])
    trainer._compute_loss(trainer.model, batch).backward()
    assert now.grad is not None
    mean, slope = LOSSES[loss_type]
    wanted = families.reference(trained, mean, slope, LENGTH)
    for i, (row, gradient) in enumerate(zip(trained, wanted, strict=True)):
        start = int(row.loss_mask.argmax())
        got = now.grad[i, : len(row) - start].numpy()
        np.testing.assert_allclose(got, gradient[start:], atol=1e-6)
    assert not now.grad[4].any()
    assert any(gradient.any() for gradient in wanted)


def test_every_loss_type_of_trl_is_compared() -> None:
    """A loss type that a later TRL adds is noticed here."""
    from trl import GRPOConfig

    (field,) = (f for f in GRPOConfig.__dataclass_fields__.values() if f.name == "loss_type")
    for name in LOSSES:
        assert name in field.metadata["help"]
    with_quotes = set(re.findall(r"`'?\"?(\w+)\"?'?`", field.metadata["help"]))
    assert {name for name in with_quotes if name.endswith("po")} <= set(LOSSES)


def _row_of(rows: list[TrainingRow], sample: Any) -> TrainingRow:
    """Return the row that a sample trains: the last one of its session."""
    size = len(sample.prompt_ids) + len(sample.completion_ids)
    found = [row for row in rows if row.session == sample.session and len(row) == size]
    return found[-1]


SETTINGS = settings("trl", "gradient")
OF_SAMPLERS = [one for one in SETTINGS if one.given]


@pytest.mark.parametrize(
    "setting", [one for one in SETTINGS if not one.given], ids=lambda one: str(one.name)
)
def test_a_setting_that_lint_reports_changes_the_gradient(
    trainer: Any, setting: Setting, monkeypatch: pytest.MonkeyPatch
) -> None:
    """TRL's masks and ratios, as in docs/settings.md."""
    given, build, _ = families.derived("turns")
    samples, _ = played(given, build, 0, 5)
    plain = _token_gradient(trainer, batch_of(samples), monkeypatch)
    batch = batch_of(samples)
    if setting.name == "mask_truncated_completions":
        # TRL's rule: a row whose last id is not the tokenizer's EOS is truncated, and masked.
        eos = trainer.processing_class.eos_token_id
        cut = [one.completion_ids[-1] != eos for one in samples[:4]]
        assert all(cut)  # these turns end with a tool call's stop id
        batch["completion_mask"][:4] = 0
    else:
        monkeypatch.setattr(trainer, setting.name, setting.value)
    changed = _token_gradient(trainer, batch, monkeypatch)
    assert float((changed - plain).abs().max()) > 1e-4


def _token_gradient(trainer: Any, batch: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return the gradient of TRL's loss by the log-probs of a batch."""
    import torch

    now = batch["old_per_token_logps"].clone().requires_grad_()
    entropies = torch.linspace(0, 1, now.numel()).reshape(now.shape)
    monkeypatch.setattr(
        trainer, "_get_per_token_logps_and_entropies", lambda *_, **__: (now, entropies, None)
    )
    trainer._compute_loss(trainer.model, batch).backward()
    assert now.grad is not None
    return now.grad


@pytest.mark.parametrize("setting", OF_SAMPLERS, ids=lambda one: str(one.value))
def test_with_vllm_a_setting_that_lint_reports_changes_the_gradient(
    trainer: Any, setting: Setting, monkeypatch: pytest.MonkeyPatch
) -> None:
    """TRL's own correction for vLLM: by tokens as documented, lost or by sessions as reported.

    The recorded log-probs are those of a sampler that differs by `GAP` at each token.
    """
    monkeypatch.setattr(trainer, "use_vllm", True)
    monkeypatch.setattr(trainer, "parity_tolerance", None)
    monkeypatch.setattr(trainer, "vllm_importance_sampling_mode", "token_truncate")
    monkeypatch.setattr(trainer, "_last_loaded_step", 0, raising=False)
    ratios = []
    for change in ({}, {setting.name: setting.value}):
        for name, value in change.items():
            monkeypatch.setattr(trainer, name, value)
        ratios.append(_weights(trainer, monkeypatch))
    by_token, changed = ratios
    np.testing.assert_allclose(by_token, np.exp(GAP), rtol=1e-3)
    assert all(abs(one - np.exp(GAP)) > 0.3 for one in changed)


def _weights(trainer: Any, monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Return the factor of the gradient of each session's first token."""
    sample = trainer.rollout_func
    held: dict[str, Any] = {}

    def differ(prompts: list[Any], trainer: Any) -> dict[str, Any]:
        found: dict[str, Any] = sample(prompts, trainer)
        masks = found["env_mask"]
        for logprobs, mask in zip(found["logprobs"], masks, strict=True):
            logprobs[:] = [p - GAP * m for p, m in zip(logprobs, mask, strict=True)]
        found["trajgym_advantage"] = [[float(m) for m in mask] for mask in masks]
        return found

    with monkeypatch.context() as patch:
        patch.setattr(trainer, "rollout_func", differ)
        rows = [dict(trainer.train_dataset[0]) for _ in range(trainer.num_generations)]
        out = trainer._generate_and_score_completions(rows)
        logps = trainer._get_per_token_logps_and_entropies

        def hold(*args: Any, **options: Any) -> Any:
            found, *rest = logps(*args, **options)
            held["now"] = found.detach().requires_grad_()
            return held["now"], *rest

        patch.setattr(trainer, "_get_per_token_logps_and_entropies", hold)
        trainer._compute_loss(trainer.model, out).backward()
    mask = out["completion_mask"] * out["tool_mask"]
    factors = -held["now"].grad * mask.sum()
    return [float(one[at]) for one, at in zip(factors, mask.argmax(1), strict=True)]
