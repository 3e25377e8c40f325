"""TRL's GRPO trainer with per-token advantages. Importing this module imports TRL."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

import torch
from trl import GRPOTrainer

from trajgym.adapters.trl._check import check_trainer
from trajgym.adapters.trl._errors import need_trl
from trajgym.trajectory import ConformanceError, InvalidInput

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["StepGRPOTrainer"]

need_trl()
_SCALE = "trajgym_scale"
_MEAN_OVER_ROWS = {"grpo", "sapo", "luspo", "dr_grpo"}
_MEAN_OVER_MICRO_BATCHES = {"bnpo"}
_log = logging.getLogger(__name__)


class StepGRPOTrainer(GRPOTrainer):  # type: ignore[misc]
    """``GRPOTrainer`` for the rows of :attr:`GRPORollouts.rollout_func`.

    It replaces TRL's advantage of each row by the deriver's advantage of each token, and uses the
    recorded behaviour log-probs as the denominator of the ratio. A row is a whole session, so loss
    types that average over rows count each session once. Failed sessions are rows without a trained
    token in TRL's batches; the loss is scaled so that they count in no denominator.

    At the first batch it compares the trainer's log-probs with the recorded ones.

    Args:
        *args: as for ``GRPOTrainer``.
        parity_tolerance: largest difference allowed at the first batch (nats); None allows any,
            for engines of lower precision. The difference is always logged.
        **options: as for ``GRPOTrainer``.

    Raises:
        InvalidInput: settings that silently change or prevent training, see
            :func:`check_trainer`; or, in training, a row with several advantages under ratios of
            sequences.
        ConformanceError: at the first batch, if the recorded log-probs are not those of the
            trainer's model.
    """

    def __init__(self, *args: Any, parity_tolerance: float | None = 0.01, **options: Any) -> None:
        super().__init__(*args, **options)
        check_trainer(self)
        self.parity_tolerance = parity_tolerance
        self.parity: float | None = None
        """Largest difference at the first batch (nats)."""

    def _generate_and_score_completions(self, inputs: list[dict[str, Any]]) -> dict[str, Any]:
        out: dict[str, Any] = super()._generate_and_score_completions(inputs)
        behaviour = out.get("sampling_per_token_logps")
        if behaviour is None or "trajgym_advantage" not in inputs[0]:
            raise InvalidInput(
                "StepGRPOTrainer needs rollout_func=spec.rollout_func of a GRPORollouts"
            )
        given = [row["trajgym_advantage"] for row in inputs]
        if any(given):
            out["advantages"] = _placed(given, out["completion_ids"])
            if self.importance_sampling_level == "sequence":
                _check_equal(out["advantages"], _trained(out))
        if not self.use_vllm:  # with vLLM, TRL itself corrects for the sampler
            out["old_per_token_logps"] = behaviour
        if self.parity is None:
            self._compare(out, behaviour)
        return out

    def _prepare_inputs(self, generation_batch: Any) -> Any:
        before = self._buffered_inputs
        inputs = super()._prepare_inputs(generation_batch)
        if self.model.training and self._buffered_inputs is not before:
            self._scale_windows(self._buffered_inputs)
        return inputs

    def _scale_windows(self, batches: list[dict[str, Any]]) -> None:
        """Store in each micro-batch the factor that undoes the effect of fillers on the loss."""
        window = self.args.gradient_accumulation_steps
        for start in range(0, len(batches), window):
            step = batches[start : start + window]
            real = [_trained_rows(batch) for batch in step]
            if self.loss_type in _MEAN_OVER_ROWS:
                counts = torch.tensor([sum(map(len, real)), sum(int(r.sum()) for r in real)])
            elif self.loss_type in _MEAN_OVER_MICRO_BATCHES:
                counts = torch.tensor([len(real), sum(bool(r.any()) for r in real)])
            else:  # a mean over the tokens of the whole batch
                counts = torch.ones(2, dtype=torch.int64)
            device = self.accelerator.device
            every, trained = self.accelerator.gather(counts[None].to(device)).sum(0).tolist()
            for batch in step:
                batch[_SCALE] = every / trained if trained else 1.0

    def _compute_loss(self, model: Any, inputs: dict[str, Any]) -> Any:
        loss = super()._compute_loss(model, inputs)
        return loss * inputs.get(_SCALE, 1.0)

    def _compare(self, out: dict[str, Any], behaviour: Any) -> None:
        mask = _trained(out)
        if not bool(mask.any()):
            return  # only failures; compare with the next batch
        ids = torch.cat([out["prompt_ids"], out["completion_ids"]], dim=1)
        attention = torch.cat([out["prompt_mask"], out["completion_mask"]], dim=1)
        with torch.no_grad():
            logps, _, _ = self._get_per_token_logps_and_entropies(
                self.model, ids, attention, out["completion_ids"].size(1), batch_size=1
            )
        gap = float(((logps - behaviour).abs() * mask).max())
        self.parity = gap
        self._metrics["train"]["trajgym/logprob_gap_max"].append(gap)
        if self.parity_tolerance is not None and not gap <= self.parity_tolerance:
            raise ConformanceError(
                f"log-probs of trainer and sampler differ by up to {gap:.3g} nats (allowed "
                f"{self.parity_tolerance:g}): compare temperature, log-prob mode and weights",
            )


def _trained(batch: dict[str, Any]) -> Any:
    """Return ``[B, T]``: 1 where a token is trained."""
    return batch["completion_mask"] * batch.get("tool_mask", 1)


def _trained_rows(batch: dict[str, Any]) -> Any:
    """Return bool ``[B]``: whether a row has a trained token."""
    return _trained(batch).sum(1) > 0


def _check_equal(advantages: Any, mask: Any) -> None:
    """Refuse rows whose trained tokens have several advantages.

    Raises:
        InvalidInput: there is such a row.
    """
    on = mask.bool()
    most = advantages.masked_fill(~on, -torch.inf).amax(1)
    least = advantages.masked_fill(~on, torch.inf).amin(1)
    if bool((most > least).any()):
        raise InvalidInput(
            "importance_sampling_level is 'sequence': with one ratio for each row, tokens with "
            "several advantages would be trained with their mean; set it to 'token', or use a "
            "deriver with one advantage for each attempt",
        )


def _placed(given: Sequence[Sequence[float]], like: Any) -> Any:
    """Return float32 ``[B, T]``: each row's advantages, padded with 0."""
    placed = torch.zeros(like.shape, dtype=torch.float32, device=like.device)
    for i, values in enumerate(given):
        placed[i, : len(values)] = torch.tensor(values, dtype=torch.float32, device=like.device)
    return placed
