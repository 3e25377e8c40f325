"""What the three trainers share: the environment, the tasks, and the limits of a session."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from trajgym.envs import EnvSpec
from trajgym.envs.swe.small import small_tasks

if TYPE_CHECKING:
    from trajgym.trajectory import Task

SPEC = EnvSpec(id="trajgym.envs.swe.small:SmallSweEnv", config={"sandbox": "embedded"})
BUGS = int(os.environ.get("BUGS", "3"))
"""Wrong functions of a package."""
GROUPS, SAMPLES = 6, 8
"""Tasks of an update, and sessions of a task."""
MAX_TOKENS, CONTEXT = 120, 3584
"""Maximum number of response tokens of a turn, and of all tokens of a session."""
_SEED = 1


def tasks(n: int) -> list[Task]:
    """Return the training tasks; none of their packages is used for fine-tuning."""
    return small_tasks(n, bugs=BUGS, seed=_SEED)
