"""Terminus 2 of harbor: answers of JSON text, typed into a real tmux."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.server.agents.harness import (
    HERE,
    answers,
    installed,
    recorded,
    rules,
)
from tests.server.harness import shape
from trajgym.trajectory import SessionTree, build_rows

pytestmark = pytest.mark.agents
TOLD = "SUMMARY: hi was said in the terminal, and nothing more is to be done."
ASKED = "QUESTIONS: what was said in the terminal before, and was anything left?"
REPLIED = "ANSWERS: only hi was said in the terminal before, and nothing was left."


def typed(*, done: bool, words: int = 1) -> dict[str, Any]:
    commands = [{"keystrokes": "echo hi\n", "duration": 0.1}]
    step = {"analysis": "look " * words, "plan": "say it", "commands": commands}
    return {"text": json.dumps(step | {"task_complete": done})}


async def terminus(tmp_path: Path, script: Any) -> tuple[str, SessionTree]:
    if shutil.which("tmux") is None:
        pytest.skip("tmux is missing: scripts/test-agents.sh installs it")
    python = installed("terminus", "bin/python")
    sockets = tmp_path / "tmux"  # a tmux server of its own
    sockets.mkdir()
    own = {"TMUX_TMPDIR": str(sockets)}
    try:
        return await recorded(tmp_path, script, python, str(HERE / "terminus.py"), **own)
    finally:
        end = await asyncio.create_subprocess_exec(
            "tmux", "kill-server", env={**os.environ, **own}, stderr=subprocess.DEVNULL
        )
        await end.wait()


async def test_handing_over_to_a_new_agent(tmp_path: Path) -> None:
    """Its summary and its answers are side calls; questions and work are the main agent's.

    It reads the screen at a fixed time after each command, so it asks until the answer is there.
    """
    read: list[int] = []

    def script(n: int, body: dict[str, Any]) -> dict[str, Any]:
        last = str(body["messages"][-1]["content"])
        if "hand off your work" in last:
            return {"text": TOLD}
        if "picking up work from a previous AI agent" in last:
            return {"text": ASKED}
        if "has a few questions for you" in last:
            return {"text": REPLIED}
        if n > 4 and "echo hi\nhi\n" in last:
            read.append(n)
        return typed(done=bool(read), words=1500 if answers(body) == 0 else 1)

    _, tree = await terminus(tmp_path, script)
    said = [tree.conversation(turn)[-1]["content"] for turn in tree.turns[1:4]]
    assert said == [TOLD, ASKED, REPLIED]
    assert shape(tree) == [
        (None, "continue", "main"),
        (0, "continue", "main"),
        (0, "rewrite", "main"),
        (1, "continue", "main"),
        (2, "rewrite", "main"),
        *((i, "continue", "main") for i in range(4, len(tree.turns) - 1)),
    ]
    roles = ["main", "side:summary", "main", "side:summary"]
    assert [turn.role for turn in tree.turns] == roles + ["main"] * (len(tree.turns) - 4)
    assert len(tree.turns) == read[0] + 2  # it is asked once more whether it is done
    assert [rules(tree)[i] for i in (2, 4)] == ["W4:compaction"] * 2
    links = [turn.wire.links if turn.wire else {} for turn in tree.turns]
    assert (links[2], links[4]) == ({"summary": 1}, {"summary": 3})
    assert "echo hi\nhi\n" in str(tree.context(tree.turns[read[0]])[-1]["content"])
    assert all(turn.exact for turn in tree.turns)
    assert [row.turns for row in build_rows(tree).rows] == [
        (0,),
        (2,),
        tuple(range(4, len(tree.turns))),
    ]
