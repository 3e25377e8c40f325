"""Agents from the package index, unmodified, with the tree that each has to give.

They run as separate programs that are given only a base URL.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.server.harness import World, shape, world
from trajgym.trajectory import SessionTree, build_rows

pytestmark = pytest.mark.agents
HERE = Path(__file__).parent
TWICE = [("add", {"a": 2, "b": 3}), ("add", {"a": 4, "b": 5})]


def offered(body: dict[str, Any]) -> set[str]:
    return {tool["function"]["name"] for tool in body.get("tools") or ()}


def results(body: dict[str, Any]) -> int:
    return sum(message["role"] == "tool" for message in body["messages"])


def adds(n: int, body: dict[str, Any]) -> dict[str, Any]:
    """Two calls at once, one more, then text."""
    if results(body) == 0:
        return {"text": "Let me compute.", "calls": TWICE}
    if results(body) == 2:
        return {"calls": [("add", {"a": 5, "b": 9})]}
    return {"text": "The sum is 14."}


async def run(w: World, *words: str, **more: str) -> str:
    """Run an agent against the proxy; return what it printed."""
    base = await w.create()
    process = await asyncio.create_subprocess_exec(
        *words,
        env={
            **os.environ,
            "BASE": base,
            "OPENAI_API_KEY": "k",
            "OPENAI_API_BASE": base,
            "OPENAI_BASE_URL": base,
            **more,
        },
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    try:
        said, _ = await asyncio.wait_for(process.communicate(), 240)
    finally:
        if process.returncode is None:
            process.kill()
    text = said.decode("utf-8", "replace")
    assert process.returncode == 0, text[-4000:]
    return text


async def recorded(tmp_path: Path, script: Any, name: str, kind: str) -> tuple[str, SessionTree]:
    async with world(tmp_path, script) as w:
        text = await run(w, sys.executable, str(HERE / f"{name}.py"), kind)
        await w.close(score=1.0)
        return text, w.tree()


def assert_one_line(tree: SessionTree, turns: int) -> None:
    """One agent, every turn on the one before, all of it one row."""
    chain = [(i - 1 if i else None, "continue", "main") for i in range(turns)]
    assert shape(tree) == chain
    (row,) = build_rows(tree).rows
    assert row.turns == tuple(range(turns))


@pytest.mark.parametrize("kind", ["chat", "responses", "messages"])
async def test_pydantic_ai(tmp_path: Path, kind: str) -> None:
    """Arguments serialised again, items without ids: still one line, and one row."""
    text, tree = await recorded(tmp_path, adds, "pydai", kind)
    assert "14" in text
    assert_one_line(tree, 3)


async def test_langgraph(tmp_path: Path) -> None:
    """A plain agent is one line."""
    text, tree = await recorded(tmp_path, adds, "lang", "plain")
    assert "14" in text
    assert_one_line(tree, 3)


async def test_langgraph_with_summarisation(tmp_path: Path) -> None:
    """The summary is a side call; what follows is the main agent with an edited context."""

    def script(n: int, body: dict[str, Any]) -> dict[str, Any]:
        if not offered(body):
            return {"text": "Summary: the user wants two sums, which are 5 and 9."}
        return adds(n, body) if n < 2 else {"text": "The sum is 14."}

    _, tree = await recorded(tmp_path, script, "lang", "compact")
    roles = [turn.role for turn in tree.turns]
    assert roles.count("side:summary") == 1
    summary = roles.index("side:summary")
    after = tree.turns[-1]
    assert after.edge == "rewrite"
    assert after.wire is not None
    assert after.wire.links == {"summary": summary}
    assert {turn.agent for turn in tree.turns if turn.role == "main"} == {"main"}


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

    text, tree = await recorded(tmp_path, script, "openai_agents", kind)
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

    text, tree = await recorded(tmp_path, script, "smol", "tool")
    assert "14" in text
    assert shape(tree) == [
        (None, "continue", "main"),
        (0, "rewrite", "main"),
        (1, "rewrite", "main"),
    ]
    assert {turn.wire.rule for turn in tree.turns[1:] if turn.wire} == {"W1:echo-edited"}


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

    _, tree = await recorded(tmp_path, script, "smol", "sub")
    sub = next(turn for turn in tree.turns if turn.agent != "main")
    assert (sub.parent, sub.edge) == (0, "spawn")
    main = [turn for turn in tree.turns if turn.agent == "main" and turn.role == "main"]
    assert main[-1].returns


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

    async with world(tmp_path / "run", script) as w:
        mini = str(Path(sys.executable).parent / "mini")
        words = ["-m", "openai/fake", "-t", "say hi", "-y", "--exit-immediately"]
        work = tmp_path / "work"
        work.mkdir()
        words += ["-o", str(work / "trajectory.json")]
        await run(
            w,
            mini,
            *words,
            MSWEA_SILENT_STARTUP="1",
            MSWEA_CONFIGURED="true",
            MSWEA_COST_TRACKING="ignore_errors",
            MSWEA_GLOBAL_CONFIG_DIR=str(work),
            LITELLM_LOCAL_MODEL_COST_MAP="True",
            HOME=str(work),
        )
        await w.close(score=1.0)
        tree = w.tree()
    assert shape(tree) == [
        (None, "continue", "main"),
        (0, "continue", "main"),
        (1, "rewrite", "main"),
    ]
    assert tree.turns[2].wire is not None
    assert tree.turns[2].wire.rule == "W2:dropped"
