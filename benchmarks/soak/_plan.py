"""What a soak does: sizes, and how often each part fails."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Self


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """A soak.

    Rates are for each chance that a part has to fail; ``every`` counts sessions that ended.

    Args:
        sessions: samples to collect, without those that are run again.
        samples: of each task.
        processes: of the fleet.
        concurrency: sessions at the same time, in all processes.
        sandbox: ``embedded`` or ``docker``.
        seed: all failures are drawn from it.
        retries: further tries of a sample that failed.
        error: share of the engine's answers that are a status 500.
        cut: share of the engine's answers whose connection is closed in the middle.
        slow: share of the engine's answers that take seconds.
        refused: share of the sessions that the engine rejects (400), which no retry helps.
        raises: share of the calls of reset, of a tool and of verify that raise.
        engine_every: the engine is killed and started again.
        sandbox_every: a sandbox is killed, or its container removed.
        kill_every: a worker is killed.
        stop_every: a worker is stopped.
        parent_at: share of the sessions after which the fleet's own process is killed, once; 0 for
            never. The run is then resumed.
        answer: seconds after which the fleet replaces a worker that does not answer.
    """

    sessions: int = 10_000
    samples: int = 4
    processes: int = 4
    concurrency: int = 16
    sandbox: str = "embedded"
    seed: int = 0
    retries: int = 2
    error: float = 0.01
    cut: float = 0.01
    slow: float = 0.005
    refused: float = 0.003
    raises: float = 0.005
    engine_every: int = 400
    sandbox_every: int = 40
    kill_every: int = 200
    stop_every: int = 1500
    parent_at: float = 0.1
    answer: float = 60.0

    @property
    def tasks(self) -> int:
        """Number of tasks."""
        return max(1, self.sessions // self.samples)

    def to_json(self) -> str:
        """Return it as JSON."""
        return json.dumps(asdict(self))

    @classmethod
    def of_json(cls, text: str) -> Self:
        """Read what :meth:`to_json` wrote."""
        return cls(**json.loads(text))
