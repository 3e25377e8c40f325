"""Arbitrary valid session trees of exact turns, for property tests."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from hypothesis import strategies as st

from trajgym.trajectory import (
    Attempt,
    CallResult,
    Outcome,
    Segment,
    SessionRecord,
    SessionTree,
    Status,
    Turn,
    TurnTokens,
)

_STATUSES = ["completed", "completed", "truncated:turns", "failed:env", "interrupted", "running"]


@st.composite
def turn_tokens(draw: st.DrawFn, kept: int, *, fresh: bool) -> TurnTokens:
    """One turn's ids after ``kept`` ids of its base: inserted runs, weight updates and all."""
    runs = draw(st.lists(st.tuples(st.integers(1, 4), st.booleans()), min_size=1, max_size=3))
    segments = []
    for length, sampled in runs:
        low = draw(st.integers(0, 5)) if sampled else -1
        high = low + draw(st.integers(0, 2)) if sampled else -1
        segments.append(Segment(length, low, high, sampled))
    n_prompt = draw(st.integers(1 if fresh else 0, 4))
    n_response = sum(length for length, _ in runs)
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    sampled = np.repeat([s.sampled for s in segments], [s.length for s in segments])
    return TurnTokens(
        prompt_kept=kept,
        prompt_ids=rng.integers(0, 50, n_prompt, dtype=np.int32),
        response_ids=rng.integers(0, 50, n_response, dtype=np.int32),
        logprobs=np.where(sampled, -rng.random(n_response, dtype=np.float32), np.float32(0)),
        segments=tuple(segments),
    )


@dataclass
class _Builder:
    """Grows a tree turn by turn; keeps what the tree itself would need lookups for."""

    draw: st.DrawFn
    turns: list[Turn] = field(default_factory=list)
    sizes: list[int] = field(default_factory=list)
    tips: list[int] = field(default_factory=lambda: [-1])
    forks: list[int | None] = field(default_factory=lambda: [None])
    agents: int = 0

    def path(self, index: int) -> list[int]:
        path = [index]
        while (parent := self.turns[path[-1]].parent) is not None:
            path.append(parent)
        return path

    def last_of(self, index: int, agent: str) -> int | None:
        return next((i for i in self.path(index) if self.turns[i].agent == agent), None)

    def add(self, *, attempt: int, parent: int | None, edge: Any, agent: str, kept: int) -> None:
        index = len(self.turns)
        tokens = self.draw(turn_tokens(kept, fresh=kept == 0))
        self.turns.append(
            Turn(
                index=index,
                parent=parent,
                edge=edge,
                attempt=attempt,
                agent=agent,
                context=[{"role": "user", "content": f"q{index}"}] if kept == 0 else [],
                message={"role": "assistant", "content": f"a{index}"},
                observation=[{"role": "user", "content": f"o{index}"}],
                calls=[CallResult(call_id="c", name="f", status="ok")],
                reward=self.draw(st.sampled_from([None, 0.0, 0.25])),
                tokens=tokens,
            ),
        )
        self.sizes.append(kept + tokens.prompt_ids.size + tokens.response_ids.size)
        self.tips[attempt] = index

    def step(self) -> None:
        attempt = self.draw(st.integers(0, len(self.tips) - 1))
        tip = self.tips[attempt]
        if tip < 0:
            self.add(attempt=attempt, parent=None, edge="continue", agent="main", kept=0)
            return
        agent = self.turns[tip].agent
        kinds = ["continue", "continue", "continue", "rewrite", "spawn", "fork"]
        kind = self.draw(st.sampled_from([*kinds, "return"] if agent != "main" else kinds))
        if kind == "fork":
            self.fork(tip)
        elif kind == "spawn":
            self.agents += 1
            new = f"helper-{self.agents}"
            self.add(attempt=attempt, parent=tip, edge="spawn", agent=new, kept=0)
        elif kind == "return":
            home = self.last_of(tip, "main")
            assert home is not None
            kept = self.sizes[home]
            self.add(attempt=attempt, parent=tip, edge="return", agent="main", kept=kept)
        else:
            full = self.sizes[tip]
            kept = full if kind == "continue" else self.draw(st.integers(0, full - 1))
            self.add(attempt=attempt, parent=tip, edge=kind, agent=agent, kept=kept)

    def fork(self, tip: int) -> None:
        at = self.draw(st.sampled_from(self.path(tip)))
        attempt = len(self.tips)
        self.tips.append(at)
        self.forks.append(at)
        agent, kept = self.turns[at].agent, self.sizes[at]
        self.add(attempt=attempt, parent=at, edge="alternative", agent=agent, kept=kept)


@st.composite
def exact_trees(
    draw: st.DrawFn, *, max_turns: int = 12, session: str = "s", group: str | None = "g"
) -> SessionTree:
    """Any session of exact turns: forks, rewrites, sub-agents, inserted ids, failures."""
    builder = _Builder(draw)
    for _ in range(draw(st.integers(0, max_turns))):
        builder.step()
    attempts = []
    for index, tip in enumerate(builder.tips):
        status = Status.parse(draw(st.sampled_from(_STATUSES)))
        score = draw(st.sampled_from([0.0, 0.5, 1.0]))
        attempts.append(
            Attempt(
                index=index,
                forked_at=builder.forks[index],
                leaf=None if tip < 0 else builder.last_of(tip, "main"),
                status=status,
                outcome=Outcome(score=score, passed=score == 1.0) if status.scored else None,
            ),
        )
    record = SessionRecord(id=session, task="t", env={"id": "e", "config": {}}, group=group)
    return SessionTree(record, builder.turns, attempts)
