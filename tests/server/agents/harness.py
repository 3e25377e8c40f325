"""Agents as separate programs, which are given a base URL and no other way out."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.server.harness import World, shape, world
from trajgym.trajectory import SessionTree, build_rows

HERE = Path(__file__).parent
SECONDS = 840.0
"""Some agents import for a quarter of a minute on an idle machine."""
QUIET = {
    # litellm would fetch a list of prices.
    "LITELLM_LOCAL_MODEL_COST_MAP": "True",
    "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
    "DO_NOT_TRACK": "1",
    "OTEL_SDK_DISABLED": "true",
}


def offered(body: dict[str, Any]) -> set[str]:
    """Return the names of the tools in a request."""
    return {tool["function"]["name"] for tool in body.get("tools") or ()}


def results(body: dict[str, Any]) -> int:
    """Return how many tool results a request has."""
    return sum(message["role"] == "tool" for message in body["messages"])


def answers(body: dict[str, Any]) -> int:
    """Return how many answers a request has."""
    return sum(message["role"] == "assistant" for message in body["messages"])


def installed(name: str, pattern: str) -> str:
    """Return a file of an environment that ``scripts/test-agents.sh`` makes; skip without it."""
    directory = Path(sys.prefix, name)
    for found in sorted(directory.glob(pattern)):
        return str(found)
    pytest.skip(f"{directory}/{pattern} is missing: scripts/test-agents.sh installs it")


@asynccontextmanager
async def no_way_out() -> AsyncIterator[dict[str, str]]:
    """Yield variables that name a proxy for all addresses but loopback; fail if it is asked."""
    asked: list[str] = []

    async def refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            asked.append((await reader.readline()).decode("latin-1").strip())
            writer.write(
                b"HTTP/1.1 403 Forbidden\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"
            )
            await writer.drain()
        except ConnectionError:
            pass
        finally:
            writer.close()

    async with await asyncio.start_server(refuse, "127.0.0.1", 0) as server:
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        names = ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY")
        proxies = {n: url for name in names for n in (name, name.lower())}
        yield proxies | dict.fromkeys(("NO_PROXY", "no_proxy"), "127.0.0.1,localhost")
    assert not asked, f"the agent asked for other addresses: {asked}"


async def run(w: World, home: Path, *words: str, **more: str) -> str:
    """Run an agent in a new home directory against the proxy; return what it printed."""
    base = await w.create()
    work = home / "work"
    work.mkdir(parents=True)
    async with no_way_out() as proxies:
        process = await asyncio.create_subprocess_exec(
            *words,
            cwd=work,
            env={
                **os.environ,
                **proxies,
                **QUIET,
                "HOME": str(home),
                "BASE": base,
                "OPENAI_API_KEY": "k",
                "OPENAI_API_BASE": base,
                "OPENAI_BASE_URL": base,
                "ANTHROPIC_API_KEY": "k",
                "ANTHROPIC_BASE_URL": base.removesuffix("/v1"),
                **more,
            },
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        try:
            said, _ = await asyncio.wait_for(process.communicate(), SECONDS)
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
    text = said.decode("utf-8", "replace")
    assert process.returncode == 0, text[-4000:]
    return text


async def recorded(
    tmp_path: Path, script: Any, *words: str, **more: str
) -> tuple[str, SessionTree]:
    """Run an agent with scripted answers; return what it printed, and its session."""
    async with world(tmp_path / "run", script) as w:
        text = await run(w, tmp_path / "home", *words, **more)
        await w.close(score=1.0)
        return text, w.tree()


def program(name: str, kind: str, python: str = sys.executable) -> tuple[str, ...]:
    """Return the words that run one of the programs in this directory."""
    return (python, str(HERE / f"{name}.py"), kind)


def rules(tree: SessionTree) -> list[str]:
    """Return the joining rule of every turn."""
    return [turn.wire.rule if turn.wire else "" for turn in tree.turns]


def assert_one_line(tree: SessionTree, turns: int) -> None:
    """One agent, every turn on the one before, all of it one row."""
    chain = [(i - 1 if i else None, "continue", "main") for i in range(turns)]
    assert shape(tree) == chain
    assert all(turn.exact for turn in tree.turns)
    (row,) = build_rows(tree).rows
    assert row.turns == tuple(range(turns))


def assert_two_sub_agents(tree: SessionTree) -> None:
    """Both are spawned by the first turn, and each returns once to a turn of the main agent.

    How many turns the main agent has in the meantime depends on the time.
    """
    main = [turn for turn in tree.turns if turn.agent == "main"]
    assert [turn.edge for turn in main] == ["continue"] * len(main)
    assert [turn.parent for turn in main] == [None, *(turn.index for turn in main[:-1])]
    spawned = [turn for turn in tree.turns if turn.edge == "spawn"]
    assert [turn.parent for turn in spawned] == [0, 0]
    assert len({turn.agent for turn in spawned}) == 2
    ends = {turn.agent: turn.index for turn in tree.turns if turn.agent != "main"}
    assert sorted(i for turn in main for i in turn.returns) == sorted(ends.values())
    assert {turn.role for turn in tree.turns} == {"main"}
    assert all(turn.exact for turn in tree.turns)
    assert sorted(row.turns for row in build_rows(tree).rows) == sorted(
        tuple(turn.index for turn in tree.turns if turn.agent == agent) for agent in ["main", *ends]
    )
