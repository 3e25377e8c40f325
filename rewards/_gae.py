"""Generalised advantage estimation, over tokens and over turns."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, ClassVar, NamedTuple

import numpy as np
from pydantic import Field

from trajgym.rewards._estimator import Estimator
from trajgym.rewards._scan import scan_back, shift_back
from trajgym.trajectory import InvalidInput, Stamp

if TYPE_CHECKING:
    import numpy.typing as npt

    from trajgym.rewards._table import Doubles, Flags, Ints, Scope, TurnTable
    from trajgym.trajectory import TrainingRow

__all__ = ["GAE", "TurnGAE", "adaptive_lambda", "gae", "gae_row", "whiten"]


class GAE(NamedTuple):
    """The result of `gae`; float64, 0 where masked."""

    advantages: Doubles
    value_targets: Doubles
    lambda_policy: Doubles
    """``[s]``, the lambda used for each sequence."""


def adaptive_lambda(alpha: float, length: npt.ArrayLike, *, clamp: bool = True) -> Doubles:
    """Return the length-adaptive lambda ``1 - 1 / (alpha * length)`` (VAPO, UI-TARS-2).

    Args:
        alpha: 0.05 in the papers, with which lengths up to 20 give a lambda of 0 or less.
        length: number of trained tokens (the papers do not specify whether observations count).
        clamp: raise ``alpha * length`` to at least 1, so that lambda is in [0, 1).

    Raises:
        InvalidInput: ``alpha`` or a length is not positive.
    """
    sizes = np.asarray(length, dtype=np.float64)
    if alpha <= 0 or (sizes <= 0).any():
        raise InvalidInput(f"adaptive lambda: alpha {alpha} and all lengths must be above 0")
    reach = alpha * sizes
    if clamp:
        reach = np.maximum(reach, 1.0)
    found: Doubles = 1.0 - 1.0 / reach
    return found


def gae(
    rewards: npt.ArrayLike,
    values: npt.ArrayLike,
    *,
    mask: npt.ArrayLike | None = None,
    starts: Ints | None = None,
    gamma: float = 1.0,
    lambda_policy: float = 0.95,
    lambda_critic: float = 1.0,
    alpha: float | None = None,
) -> GAE:
    """Return advantages and value targets, each with its own lambda (VC-PPO).

    ``delta_t = r_t + gamma * V_{t+1} - V_t`` and ``A_t = delta_t + gamma * lambda * A_{t+1}``,
    over the positions where the mask is set only: an observation between two of them is skipped, as
    if they were adjacent. After a sequence's last position V is 0. Not whitened: see `whiten`.

    Args:
        rewards: ``[n]``, sequence after sequence.
        values: ``[n]``, the critic's values, from the trainer.
        mask: ``[n]``, true where a token was sampled; None means everywhere.
        starts: int64 ``[s + 1]``, where sequences start; None for a single sequence.
        gamma: discount.
        lambda_policy: lambda of the advantages.
        lambda_critic: lambda of the value targets; 1 makes them Monte-Carlo returns.
        alpha: use the length-adaptive lambda (clamped) for the advantages instead.

    Raises:
        InvalidInput: shapes differ, or a value where the mask is set is not finite.
    """
    given, critic = (np.asarray(x, dtype=np.float64) for x in (rewards, values))
    on: Flags = np.ones(given.size, dtype=np.bool_) if mask is None else np.asarray(mask) != 0
    if not given.shape == critic.shape == on.shape or given.ndim != 1:
        raise InvalidInput(
            f"gae: rewards {given.shape}, values {critic.shape} and mask {on.shape} must be "
            "one-dimensional and of equal length",
        )
    given, critic = given[on], critic[on]
    if not (np.isfinite(given).all() and np.isfinite(critic).all()):
        raise InvalidInput("gae: rewards and values must be finite where the mask is set")
    bounds = np.array([0, on.size]) if starts is None else starts
    kept = np.r_[0, np.cumsum(on)][bounds]
    sizes = np.diff(kept)
    lam = np.full(sizes.size, lambda_policy)
    if alpha is not None:
        lam = adaptive_lambda(alpha, np.maximum(sizes, 1))
    delta = given + gamma * shift_back(critic, kept) - critic
    policy = scan_back(delta, gamma * lam, kept)
    targets = scan_back(delta, gamma * lambda_critic, kept) + critic
    return GAE(_placed(policy, on), _placed(targets, on), lam)


def _placed(values: Doubles, on: Flags) -> Doubles:
    everywhere = np.zeros(on.size)
    everywhere[on] = values
    return everywhere


def whiten(values: npt.ArrayLike, mask: npt.ArrayLike | None = None) -> Doubles:
    """Return values with mean 0 and (unbiased) variance 1 over the mask, 0 elsewhere.

    verl does the same after GAE (it adds 1e-8 to the variance). Fewer than two values give 0.
    """
    given = np.asarray(values, dtype=np.float64)
    on = np.ones(given.shape, dtype=np.bool_) if mask is None else np.asarray(mask) != 0
    inside = given[on]
    result = np.zeros_like(given)
    if inside.size > 1:
        result[on] = (inside - inside.mean()) / np.sqrt(inside.var(ddof=1) + 1e-8)
    return result


def gae_row(
    row: TrainingRow,
    values: npt.ArrayLike,
    *,
    gamma: float = 1.0,
    lambda_policy: float = 0.95,
    alpha: float | None = None,
) -> TrainingRow:
    """Return the row with token-level GAE advantages from its rewards and a critic's values.

    Args:
        row: a row with rewards.
        values: ``[T]``, the critic's at each token; read on trained tokens only.
        gamma: discount per token.
        lambda_policy: see `gae`.
        alpha: see `gae`.

    Raises:
        InvalidInput: the row has no rewards, or ``values`` has another shape.
    """
    if row.reward is None or row.reward_stamp is None:
        raise InvalidInput(f"session {row.session}: the row has no rewards; apply rewards first")
    found = gae(
        row.reward,
        values,
        mask=row.loss_mask,
        gamma=gamma,
        lambda_policy=lambda_policy,
        alpha=alpha,
    )
    settings = {
        "gamma": gamma,
        "lambda_policy": lambda_policy,
        "alpha": alpha,
        "rewards": row.reward_stamp._asdict(),
    }
    stamp = Stamp("gae", settings, row.group)
    return replace(row, advantage=found.advantages.astype(np.float32), advantage_stamp=stamp)


class TurnGAE(Estimator):
    """GAE over turns (Turn-PPO, arXiv 2512.17008): one value and one advantage per turn.

    Values are the critic's before each turn, from the signal ``value``. Turns shared by several
    attempts get the mean of their advantages.

    Attributes:
        gamma: discount per turn.
        lambda_policy: lambda.
        alpha: use the length-adaptive lambda over an attempt's turns instead.
    """

    name = "turn_gae"
    depends_on: ClassVar[Scope] = "session"
    annotations: ClassVar[tuple[str, ...]] = ("value",)

    gamma: Annotated[float, Field(ge=0, le=1)] = 0.99
    lambda_policy: Annotated[float, Field(ge=0, le=1)] = 0.9
    alpha: Annotated[float, Field(gt=0)] | None = None

    def estimate(self, table: TurnTable, rewards: Doubles) -> dict[str, Doubles]:
        """Return the single term ``gae``.

        Raises:
            InvalidInput: a scored turn has no value.
        """
        if (bare := table.scored & ~table.has_value).any():
            first = int(np.argmax(bare))
            raise InvalidInput(
                f"turn_gae: turn {table.turn[first]} of session "
                f"{table.sessions[table.session[first]]} has no signal 'value': record the "
                "critic's value of every turn",
            )
        found = gae(
            rewards,
            table.value[table.member_turn],
            starts=table.member_starts,
            gamma=self.gamma,
            lambda_policy=self.lambda_policy,
            alpha=self.alpha,
        )
        return {"gae": table.combine(found.advantages)}
