"""TRL's GRPO trainer with an advantage for every token. Importing this imports TRL."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

import torch
from trl import GRPOTrainer

from trajgym.adapters._trl_errors import need_trl
from trajgym.trajectory import ConformanceError, InvalidInput

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["StepGRPOTrainer"]

need_trl()
_log = logging.getLogger(__name__)


class StepGRPOTrainer(GRPOTrainer):  # type: ignore[misc]
    """``GRPOTrainer`` for the rows of :attr:`GRPOSpec.rollout_func`.

    It puts the deriver's advantages, one for each token, where TRL has one for each row, and the
    recorded behaviour log-probs where TRL would take its own: the ratio in the loss is then the
    true one. Works with every loss type; a row is a whole session, so those that average over a
    row count each session once.

    With the first batch it compares the trainer's log-probs with the recorded ones.

    Args:
        *args: as for ``GRPOTrainer``.
        parity_tolerance: largest difference allowed at the first batch (nats); None allows any,
            for engines of lower precision. It is logged in any case.
        **options: as for ``GRPOTrainer``.

    Raises:
        ConformanceError: at the first batch: the log-probs are not those of the trainer's model.
    """

    def __init__(self, *args: Any, parity_tolerance: float | None = 0.01, **options: Any) -> None:
        super().__init__(*args, **options)
        self.parity_tolerance = parity_tolerance
        self.parity: float | None = None
        """Largest difference found at the first batch (nats)."""

    def _generate_and_score_completions(self, inputs: list[dict[str, Any]]) -> dict[str, Any]:
        out: dict[str, Any] = super()._generate_and_score_completions(inputs)
        behaviour = out.get("sampling_per_token_logps")
        if behaviour is None or "trajgym_advantage" not in inputs[0]:
            raise InvalidInput("StepGRPOTrainer needs rollout_func=spec.rollout_func of a GRPOSpec")
        given = [row["trajgym_advantage"] for row in inputs]
        if any(given):
            out["advantages"] = _placed(given, out["completion_ids"])
        if not self.use_vllm:  # with vLLM, TRL corrects for the sampler by itself
            out["old_per_token_logps"] = behaviour
        if self.parity is None:
            self._compare(out, behaviour)
        return out

    def _compare(self, out: dict[str, Any], behaviour: Any) -> None:
        mask = out["completion_mask"] * out.get("tool_mask", 1)
        if not bool(mask.any()):
            return  # only failures: the next batch will tell
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
                f"trainer and sampler disagree by up to {gap:.3g} nats on trained tokens (allowed "
                f"{self.parity_tolerance:g}): compare temperature, log-prob mode and weights",
            )


def _placed(given: Sequence[Sequence[float]], like: Any) -> Any:
    """Return float32 ``[B, T]``: each row's advantages, 0 behind its end."""
    placed = torch.zeros(like.shape, dtype=torch.float32, device=like.device)
    for i, values in enumerate(given):
        placed[i, : len(values)] = torch.tensor(values, dtype=torch.float32, device=like.device)
    return placed
