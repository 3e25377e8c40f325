"""The SDK of OpenHands with its terminal and its condenser."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.server.agents.harness import (
    answers,
    assert_one_line,
    installed,
    offered,
    program,
    recorded,
    rules,
)
from tests.server.harness import shape
from trajgym.trajectory import SessionTree, build_rows

pytestmark = pytest.mark.agents
SUMMARY = "Summary: the user wants hi to be said, and the terminal said it a few times."


def terminal(command: str) -> tuple[str, dict[str, str]]:
    return "terminal", {"command": command, "summary": "say hi", "security_risk": "LOW"}


FINISH = ("finish", {"message": "Done.", "summary": "finish", "security_risk": "LOW"})


async def openhands(tmp_path: Path, script: Any, kind: str) -> tuple[str, SessionTree]:
    python = installed("openhands", "bin/python")
    return await recorded(tmp_path, script, *program("hands", kind, python))


async def test_terminal(tmp_path: Path) -> None:
    """Over Messages. Strings become blocks, and cache marks move: one line, and one row."""

    def script(n: int, body: dict[str, Any]) -> dict[str, Any]:
        if answers(body) == 0:
            return {"text": "Look.", "calls": [terminal("echo hi"), terminal("echo there")]}
        return {"calls": [FINISH]}

    _, tree = await openhands(tmp_path, script, "messages")
    assert_one_line(tree, 2)
    said = [str(message["content"]) for message in tree.context(tree.turns[1])[-2:]]
    assert "hi" in said[0]
    assert "there" in said[1]


async def test_condenser(tmp_path: Path) -> None:
    """Over chat. The condenser's call is a side call, and the main agent continues with less."""

    def script(n: int, body: dict[str, Any]) -> dict[str, Any]:
        if not offered(body):
            return {"text": SUMMARY}
        return {"calls": [FINISH if n > 8 else terminal(f"echo hi {n}")]}

    _, tree = await openhands(tmp_path, script, "compact")
    summary = next(turn.index for turn in tree.turns if turn.role == "side:summary")
    last = len(tree.turns) - 1
    assert 0 < summary < last - 1
    chain = [(i - 1 if i else None, "continue", "main") for i in range(summary)]
    after = [(i - 1, "continue", "main") for i in range(summary + 2, last + 1)]
    alone = (None, "continue", tree.turns[summary].agent)
    assert shape(tree) == [*chain, alone, (summary - 1, "rewrite", "main"), *after]
    assert rules(tree)[summary + 1] == "W4:compaction"
    assert tree.turns[summary + 1].wire is not None
    assert tree.turns[summary + 1].wire.links == {"summary": summary}
    first, second = (row.turns for row in build_rows(tree).rows)
    assert (first, second) == (tuple(range(summary)), tuple(range(summary + 1, last + 1)))
