"""Runs of exact sessions, small enough to read."""

from __future__ import annotations

import json
import zlib
from typing import Any

import numpy as np

from tests.conftest import GOLDEN_NAMES, load_golden
from trajgym.trajectory import (
    Attempt,
    CallResult,
    Group,
    Member,
    Outcome,
    Sampling,
    Segment,
    SessionRecord,
    SessionTree,
    Status,
    Turn,
    TurnTokens,
)

TOOLS: list[dict[str, Any]] = [
    {
        "type": "function",
        "function": {
            "name": "ls",
            "parameters": {"type": "object", "properties": {"path": {"type": "string"}}},
        },
    },
    {
        "type": "function",
        "function": {
            "name": "run",
            "parameters": {"type": "object", "properties": {"n": {"type": "integer"}}},
        },
    },
]


def exact_session(
    name: str,
    score: float,
    *,
    group: str | None = "g",
    sample: int = 0,
    turns: int = 3,
    answers: str = "",
    tokens: int = 4,
) -> SessionTree:
    """A chain of exact turns with tool calls; ``answers`` names what it says at the end."""
    rng = np.random.default_rng(zlib.crc32(name.encode()))
    kept = 0
    path = []
    for i in range(turns):
        arguments = {"path": f"/{i}"} if i % 2 == 0 else {"n": i, "deep": {"list": [1, None, "x"]}}
        call = {"name": ("ls", "run")[i % 2], "arguments": json.dumps(arguments)}
        content = f"step {i}" + (f" {answers}" if i == turns - 1 else "")
        path.append(
            Turn(
                index=i,
                parent=i - 1 if i else None,
                context=[] if i else [{"role": "user", "content": "do it"}],
                message={
                    "role": "assistant",
                    "content": content,
                    "tool_calls": [{"id": f"{name}-{i}", "type": "function", "function": call}],
                },
                observation=[{"role": "tool", "tool_call_id": f"{name}-{i}", "content": f"ok {i}"}],
                calls=[CallResult(call_id=f"{name}-{i}", name=call["name"], status="ok")],
                policy="engine:m",
                sampling=Sampling(temperature=1.0, logprob_mode="processed"),
                tokens=TurnTokens(
                    prompt_kept=kept,
                    prompt_ids=rng.integers(0, 99, 3, dtype=np.int32),
                    response_ids=rng.integers(0, 99, tokens, dtype=np.int32),
                    logprobs=-rng.random(tokens, dtype=np.float32),
                    segments=(Segment(tokens, 5 + i, 6 + i),),
                ),
            ),
        )
        kept += 3 + tokens
    outcome = Outcome(score=score, passed=score == 1.0)
    attempt = Attempt(leaf=turns - 1, status=Status("completed"), outcome=outcome)
    record = SessionRecord(
        id=name,
        task="t",
        env={"id": "e", "config": {}},
        group=group,
        sample=sample,
        tools=TOOLS,
    )
    return SessionTree(record, path, [attempt])


def groups_of(*sessions: SessionTree) -> list[Group]:
    """The sealed groups that the sessions name, in order."""
    groups: dict[str, Group] = {}
    for tree in sessions:
        if (name := tree.record.group) is not None:
            name = tree.record.group = name.replace("_", "")
            group = groups.setdefault(name, Group(id=name, task="t", planned=1, sealed=True))
            group.members.append(Member(tree.record.id, tree.record.sample))
    return list(groups.values())


def golden_run() -> tuple[list[SessionTree], list[Group]]:
    """Every hand-made session, each in a group of its own."""
    trees = [load_golden(name)[0] for name in GOLDEN_NAMES]
    return trees, groups_of(*trees)
