"""A policy whose tokens have the versions that a task names."""

from __future__ import annotations

import numpy as np

from tests.worlds import call
from trajgym.envs import Reply, Sampled
from trajgym.rollout import Policy, PolicyRequest
from trajgym.trajectory import Segment

__all__ = ["Versioned"]


class Versioned(Policy):
    """Finishes at once; ``task.data["versions"]`` has the version of each sampled token."""

    name = "test:versioned"

    async def sample(self, request: PolicyRequest) -> Reply:
        assert request.task is not None
        versions = request.task.data["versions"]
        return Reply(
            message=call(("finish", "{}")),
            sampled=Sampled(
                prompt_ids=np.array([1, 2], dtype=np.int32),
                response_ids=np.arange(3, 3 + len(versions), dtype=np.int32),
                logprobs=np.full(len(versions), -0.5, dtype=np.float32),
                segments=tuple(Segment(1, version, version) for version in versions),
            ),
        )
