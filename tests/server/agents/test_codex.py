"""Codex from the npm registry: Responses, streamed and without state at the server."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from tests.server.agents.harness import (
    answers,
    assert_one_line,
    assert_two_sub_agents,
    installed,
    offered,
    recorded,
    rules,
)
from tests.server.harness import shape
from trajgym.trajectory import SessionTree, build_rows

pytestmark = pytest.mark.agents
SUMMARY = "SUMMARY: hi was said by the shell, and nothing more is to be done."
LINE = """exec "$0" exec --skip-git-repo-check --dangerously-bypass-approvals-and-sandbox \
--disable plugins --disable apps -c analytics.enabled=false -c model_provider=proxy \
-c "model_providers.proxy={name='proxy', base_url='$BASE', env_key='OPENAI_API_KEY', \
wire_api='responses'}" -m fake "$@" "Do it." """
# Plug-ins and apps would be fetched from their maker.


async def codex(tmp_path: Path, script: Any, *options: str) -> tuple[str, SessionTree]:
    program = installed("codex", "node_modules/@openai/codex-*/vendor/*/bin/codex")
    return await recorded(tmp_path, script, "sh", "-c", LINE, program, *options)


def shell(word: str) -> tuple[str, dict[str, str]]:
    return "exec_command", {"cmd": f"echo {word}", "yield_time_ms": 30_000}


async def test_tools(tmp_path: Path) -> None:
    """Two calls at once, whose items come back with developer messages: one line, and one row."""

    def script(n: int, body: dict[str, Any]) -> dict[str, Any]:
        if answers(body) == 0:
            return {"text": "Look.", "reasoning": "hm", "calls": [shell("hi"), shell("there")]}
        return {"text": "hi there."}

    text, tree = await codex(tmp_path, script)
    assert text.endswith("hi there.\n")
    assert_one_line(tree, 2)
    said = [str(message["content"]) for message in tree.context(tree.turns[1])[-2:]]
    assert said[0].rstrip().endswith("hi")
    assert said[1].rstrip().endswith("there")


async def test_compaction(tmp_path: Path) -> None:
    """The summary is a side call; the conversation that opens with it continues the main agent."""

    def script(n: int, body: dict[str, Any]) -> dict[str, Any]:
        if not offered(body):
            return {"text": SUMMARY}
        return {"text": "Look.", "calls": [shell("hi")]} if n == 0 else {"text": "Done."}

    _, tree = await codex(tmp_path, script, "-c", "model_auto_compact_token_limit=1000")
    assert [turn.role for turn in tree.turns] == ["main", "side:summary", "main"]
    assert shape(tree) == [
        (None, "continue", "main"),
        (0, "rewrite", "main"),  # without tools, so the prompt begins differently
        (0, "rewrite", "main"),
    ]
    assert rules(tree)[2] == "W4:compaction"
    assert tree.turns[2].wire is not None
    assert tree.turns[2].wire.links == {"summary": 1}
    assert [row.turns for row in build_rows(tree).rows] == [(0,), (2,)]


async def test_sub_agents(tmp_path: Path) -> None:
    """Its sub-agents' tools are in a namespace; they are spawned by one turn, and return."""
    space = "multi_agent_v1__"

    def script(n: int, body: dict[str, Any]) -> dict[str, Any]:
        said = json.dumps(body["messages"])
        for word in ("one", "two"):
            if f'"Say {word}, please."' in said and "Do it." not in said:
                if answers(body) == 0:
                    return {"text": "Run.", "calls": [shell(word)]}
                return {"text": f"The number is {word}, and the shell said it."}
        if answers(body) == 0:
            names = [{"message": f"Say {word}, please."} for word in ("one", "two")]
            return {"text": "Split.", "calls": [(f"{space}spawn_agent", name) for name in names]}
        if "and the shell said it" in said:
            left = [word for word in ("one", "two") if f"number is {word}" not in said]
            if not left:
                return {"text": "Both done."}
        ids = sorted(set(re.findall(r'agent_id\\": *\\"([^"\\]+)', said)))
        return {"calls": [(f"{space}wait_agent", {"targets": ids, "timeout_ms": 60_000})]}

    text, tree = await codex(tmp_path, script)
    assert text.endswith("Both done.\n")
    assert_two_sub_agents(tree)
