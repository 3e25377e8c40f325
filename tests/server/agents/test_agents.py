"""Agents from the package index, unmodified, with the tree that each has to give.

They run as separate programs that are given only a base URL.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from tests.server.agents.harness import (
    assert_one_line,
    offered,
    program,
    recorded,
    results,
    rules,
)
from tests.server.harness import shape
from trajgym.trajectory import build_rows

pytestmark = pytest.mark.agents
TWICE = [("add", {"a": 2, "b": 3}), ("add", {"a": 4, "b": 5})]


def adds(n: int, body: dict[str, Any]) -> dict[str, Any]:
    """Two calls at once, one more, then text."""
    if results(body) == 0:
        return {"text": "Let me compute.", "calls": TWICE}
    if results(body) == 2:
        return {"calls": [("add", {"a": 5, "b": 9})]}
    return {"text": "The sum is 14."}


@pytest.mark.parametrize("kind", ["chat", "responses", "messages"])
async def test_pydantic_ai(tmp_path: Path, kind: str) -> None:
    """Arguments serialised again, items without ids: still one line, and one row."""
    text, tree = await recorded(tmp_path, adds, *program("pydai", kind))
    assert "14" in text
    assert_one_line(tree, 3)


async def test_langgraph(tmp_path: Path) -> None:
    """A plain agent is one line."""
    text, tree = await recorded(tmp_path, adds, *program("lang", "plain"))
    assert "14" in text
    assert_one_line(tree, 3)


async def test_langgraph_with_summarisation(tmp_path: Path) -> None:
    """The summary is a side call; what follows is the main agent with an edited context."""

    def script(n: int, body: dict[str, Any]) -> dict[str, Any]:
        if not offered(body):
            return {"text": "Summary: the user wants two sums, which are 5 and 9."}
        return adds(n, body) if n < 2 else {"text": "The sum is 14."}

    _, tree = await recorded(tmp_path, script, *program("lang", "compact"))
    assert shape(tree) == [
        (None, "continue", "main"),
        (0, "continue", "main"),
        (None, "continue", "agent-1"),
        (1, "rewrite", "main"),
    ]
    assert [turn.role for turn in tree.turns] == ["main", "main", "side:summary", "main"]
    assert tree.turns[3].wire is not None
    assert tree.turns[3].wire.links == {"summary": 2}
    assert [row.turns for row in build_rows(tree).rows] == [(0, 1), (3,)]


@pytest.mark.parametrize("kind", ["chat", "responses"])
async def test_openai_agents_with_parallel_sub_agents(tmp_path: Path, kind: str) -> None:
    """Two helpers are spawned by one turn, work at the same time, and return to the next."""

    def script(n: int, body: dict[str, Any]) -> dict[str, Any]:
        if "helper" in offered(body):
            if results(body):
                return {"text": "14"}
            return {"calls": [("helper", {"input": "2+3"}), ("helper", {"input": "4+5"})]}
        asked = body["messages"][1]["content"]
        a, b = asked.split("+")
        if results(body):
            return {"text": str(int(a) + int(b))}
        return {"calls": [("add", {"a": int(a), "b": int(b)})]}

    text, tree = await recorded(tmp_path, script, *program("openai_agents", kind))
    assert "14" in text
    assert len(tree.turns) == 6
    spawned = [turn for turn in tree.turns if turn.edge == "spawn"]
    assert [turn.parent for turn in spawned] == [0, 0]
    assert len({turn.agent for turn in spawned}) == 2
    last = tree.turns[-1]
    assert (last.agent, last.parent, last.edge) == ("main", 0, "continue")
    ends = {turn.agent: turn.index for turn in tree.turns if turn.agent != "main"}
    assert sorted(last.returns) == sorted(ends.values())
    assert len(build_rows(tree).rows) == 3


async def test_smolagents(tmp_path: Path) -> None:
    """Calls become text and ids vanish: each turn rewrites the one before."""

    def script(n: int, body: dict[str, Any]) -> dict[str, Any]:
        if n == 2:
            return {"calls": [("final_answer", {"answer": "14"})]}
        return {"text": "Adding.", "calls": [("add", {"a": 2, "b": 3})]}

    text, tree = await recorded(tmp_path, script, *program("smol", "tool"))
    assert "14" in text
    assert shape(tree) == [
        (None, "continue", "main"),
        (0, "rewrite", "main"),
        (1, "rewrite", "main"),
    ]
    assert rules(tree)[1:] == ["W1:echo-edited"] * 2


async def test_smolagents_with_a_managed_agent(tmp_path: Path) -> None:
    """The managed agent is spawned by the call whose argument it opens with, and returns."""

    def script(n: int, body: dict[str, Any]) -> dict[str, Any]:
        if "adder" in offered(body):
            if n == 0:
                return {"text": "Ask.", "calls": [("adder", {"task": "add 2 and 3, please do it"})]}
            return {"calls": [("final_answer", {"answer": "5"})]}
        if offered(body):
            answer = "the sum of two and three is five"
            return {"calls": [("final_answer", {"answer": answer})]}
        return {"text": "side"}

    _, tree = await recorded(tmp_path, script, *program("smol", "sub"))
    assert shape(tree) == [
        (None, "continue", "main"),
        (0, "spawn", "agent-1"),
        (0, "rewrite", "main"),  # its calls became text
    ]
    assert rules(tree)[1:] == ["S2:argument", "W1:echo-edited"]
    assert [turn.returns for turn in tree.turns] == [[], [], [1]]


async def test_mini_swe_agent(tmp_path: Path) -> None:
    """An answer without a call is dropped by the agent; what follows is a rewrite of it."""
    finish = "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"

    def script(n: int, body: dict[str, Any]) -> dict[str, Any]:
        if n == 0:
            calls = [("bash", {"command": "echo hi"}), ("bash", {"command": "echo there"})]
            return {"text": "Look.", "calls": calls}
        if n == 1:
            return {"text": "Oops, no call."}
        return {"text": "Done.", "calls": [("bash", {"command": finish})]}

    words = [str(Path(sys.executable).parent / "mini"), "-m", "openai/fake", "-t", "say hi"]
    words += ["-y", "--exit-immediately", "-o", str(tmp_path / "trajectory.json")]
    _, tree = await recorded(
        tmp_path,
        script,
        *words,
        MSWEA_SILENT_STARTUP="1",
        MSWEA_CONFIGURED="true",
        MSWEA_COST_TRACKING="ignore_errors",
        MSWEA_GLOBAL_CONFIG_DIR=str(tmp_path),
    )
    assert shape(tree) == [
        (None, "continue", "main"),
        (0, "continue", "main"),
        (1, "rewrite", "main"),
    ]
    assert rules(tree)[2] == "W2:dropped"
