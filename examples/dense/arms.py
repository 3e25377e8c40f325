"""The compared derivers: outcomes alone, and several ways to reward and credit single turns."""

from __future__ import annotations

from dataclasses import replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

from trajgym.envs import Budgets, EnvSpec
from trajgym.envs.swe.small import SmallSweEnv
from trajgym.rewards import (
    GRPO,
    MSGRPO,
    Deriver,
    Estimated,
    GiGPO,
    OutcomeReward,
    SignalProgress,
    Stepwise,
    ToolPO,
    TreeGRPO,
    WeightedSum,
)
from trajgym.rollout import TreeExpansion

if TYPE_CHECKING:
    from collections.abc import Mapping

SPEC = EnvSpec(id="trajgym.envs.swe.small:SmallSweEnv", config={"sandbox": "embedded"})
MAX_TOKENS = 120
"""Maximum number of response tokens of a turn."""


def budgets(bugs: int) -> Budgets:
    """Return the limits of a session: a check, three turns for each bug, and one to submit."""
    own = SmallSweEnv.budgets
    return replace(own, turns=max(own.turns or 0, 2 + 3 * bugs))


PROGRESS = SignalProgress()
"""What a check shows as repaired since the last one, over what was wrong at first."""


def dense() -> WeightedSum:
    """Return the sum of the outcome, on the last turn, and of progress."""
    return WeightedSum(derivers=(OutcomeReward(), PROGRESS))


class Arm(NamedTuple):
    """A compared method.

    Attributes:
        deriver: computes the advantages.
        samples: sessions of a task.
        settings: further arguments of the runner.
    """

    deriver: Deriver
    samples: int = 8
    settings: Mapping[str, Any] = MappingProxyType({})


ARMS: dict[str, Arm] = {
    # The outcome alone, for all turns.
    "outcome": Arm(GRPO()),
    # The outcome alone, discounted, and compared between attempts that reached the same state.
    "gigpo": Arm(GiGPO(earn="outcome")),
    # Four trees with two forks each, which sample as many turns as eight chains.
    "tree": Arm(TreeGRPO(), 4, {"expansion": TreeExpansion(nodes=2)}),
    # Successful calls, on the tokens of calls.
    "toolpo": Arm(ToolPO()),
    # Outcome and progress, summed over the attempt: denser, but the same for all turns.
    "episode": Arm(Estimated(estimator=MSGRPO(), rewards=dense())),
    # The discounted sum of progress alone: the outcome is not used.
    "progress": Arm(Estimated(estimator=Stepwise(gamma=0.95), rewards=PROGRESS)),
    # The discounted sum of outcome and progress from each turn on.
    "steps": Arm(Estimated(estimator=Stepwise(gamma=0.95), rewards=dense())),
    # The same, with GiGPO.
    "gigpo_steps": Arm(Estimated(estimator=GiGPO(gamma=0.95), rewards=dense())),
}
