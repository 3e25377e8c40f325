"""The Claude Agent SDK with the Claude Code that it contains: Messages, streamed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.server.agents.harness import (
    answers,
    assert_one_line,
    assert_two_sub_agents,
    offered,
    program,
    recorded,
    rules,
)
from tests.server.harness import shape
from trajgym.trajectory import build_rows

pytestmark = pytest.mark.agents
SAID = "Both were said by the shell, as was asked for."
SUMMARY = "The user wanted hi and there to be said, and the shell said both of them."


def bash(word: str) -> tuple[str, dict[str, str]]:
    return "Bash", {"command": f"echo {word}", "description": f"say {word}"}


def worker(body: dict[str, Any]) -> dict[str, Any]:
    """Two commands at once, then an answer."""
    if "Respond with TEXT ONLY" in str(body["messages"][-1]):
        return {"text": f"<analysis>short</analysis><summary>{SUMMARY}</summary>"}
    if answers(body) == 0:
        return {"text": "Run.", "reasoning": "let me see", "calls": [bash("hi"), bash("there")]}
    return {"text": SAID}


async def test_tools(tmp_path: Path) -> None:
    """Thinking, parallel calls, cache marks that move: one line, and one row."""
    text, tree = await recorded(tmp_path, lambda n, body: worker(body), *program("claude", "plain"))
    assert SAID in text
    assert_one_line(tree, 2)


async def test_asynchronous_sub_agents(tmp_path: Path) -> None:
    """Both are spawned by the turn that launched them, and return to later turns of the main agent.

    The SDK continues the main agent while they work, and reports each when it has finished.
    """
    launch = [
        (
            "Agent",
            {"description": word, "prompt": f"Say {word}", "subagent_type": "general-purpose"},
        )
        for word in ("one", "two")
    ]

    def script(n: int, body: dict[str, Any]) -> dict[str, Any]:
        if "ListAgents" in offered(body):  # which sub-agents are not offered
            if answers(body) == 0:
                return {"text": "Split.", "reasoning": "two helpers", "calls": launch}
            return {"text": "It goes on."}
        word = "one" if "Say one" in str(body["messages"]) else "two"
        if answers(body) == 0:
            return {"text": "Run.", "calls": [bash(word)]}
        return {"text": f"The number that I was asked for is {word}, and the shell said it."}

    text, tree = await recorded(tmp_path, script, *program("claude", "sub"))
    assert "It goes on." in text
    assert_two_sub_agents(tree)


async def test_compaction(tmp_path: Path) -> None:
    """The summary is a side call; the next prompt rewrites the context of the main agent."""
    _, tree = await recorded(tmp_path, lambda n, body: worker(body), *program("claude", "compact"))
    assert shape(tree) == [
        (None, "continue", "main"),
        (0, "continue", "main"),
        (1, "rewrite", "main"),
        (1, "rewrite", "main"),
    ]
    assert [turn.role for turn in tree.turns] == ["main", "main", "side:summary", "main"]
    assert rules(tree)[2] == "W2:dropped"
    assert tree.turns[3].wire is not None
    assert tree.turns[3].wire.links == {"summary": 2}
    assert [row.turns for row in build_rows(tree).rows] == [(0, 1), (3,)]
