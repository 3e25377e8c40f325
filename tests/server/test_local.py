"""A real small model behind the proxy: what is recorded is what it sampled, for real agents."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path
from typing import Any

import aiohttp
import numpy as np
import pytest

from trajgym.server import App, Upstream, running
from trajgym.trajectory import SessionTree, Store, build_rows

pytest.importorskip("torch", reason="install trajgym[local]")

from tests.server.local_engine import LocalServer

pytestmark = [
    pytest.mark.local,
    pytest.mark.filterwarnings("ignore"),
    pytest.mark.timeout(900),
]
SMOL = Path(__file__).parent / "agents" / "smol.py"


@pytest.fixture(scope="module")
def model() -> LocalServer:
    return LocalServer()


def same(tree: SessionTree, model: LocalServer) -> None:
    """Check that each turn is exactly one answer of the model, in order."""
    assert len(tree.turns) == len(model.sampled)
    for turn, (prompt, ids, logprobs) in zip(tree.turns, model.sampled, strict=True):
        assert turn.tokens is not None, turn.wire
        np.testing.assert_array_equal(tree.prompt(turn), prompt)
        np.testing.assert_array_equal(turn.tokens.response_ids, ids)
        np.testing.assert_allclose(turn.tokens.logprobs, logprobs, rtol=1e-6)


async def openai_agent(url: str, *, stream: bool) -> None:
    """Have a conversation of three turns with the openai SDK."""
    from openai import AsyncOpenAI

    messages: list[Any] = [{"role": "user", "content": "Name a colour."}]
    async with AsyncOpenAI(base_url=url, api_key="none") as client:
        for number in range(3):
            asked = {"model": "smollm2", "messages": messages, "max_tokens": 12}
            if stream:
                text = ""
                async for chunk in await client.chat.completions.create(**asked, stream=True):
                    text += (chunk.choices[0].delta.content or "") if chunk.choices else ""
            else:
                answer = await client.chat.completions.create(**asked)
                text = answer.choices[0].message.content or ""
            messages.append({"role": "assistant", "content": text})
            messages.append({"role": "user", "content": f"Another one, number {number}."})


@pytest.mark.parametrize("mode", ["engine", "tokens", "stream"])
async def test_the_openai_sdk_is_recorded_exactly(
    model: LocalServer, tmp_path: Path, mode: str
) -> None:
    """In every mode the record is what the model sampled; in token mode it is one row."""
    model.sampled.clear()
    async with model.up():
        tokens = mode != "engine"
        upstream = Upstream(base_url=model.url, renderer=model.renderer, tokens=tokens)
        with Store(tmp_path) as store:
            async with running(App(store, upstream)) as url, aiohttp.ClientSession() as http:
                await http.post(f"{url}/api/sessions", json={"id": "s"})
                await openai_agent(f"{url}/sessions/s/v1", stream=mode == "stream")
                await http.post(f"{url}/api/sessions/s/close", json={"score": 1.0})
            with store.read() as run:
                tree = run.session("s")
    assert tree.turns
    same(tree, model)
    if tokens:
        assert [turn.edge for turn in tree.turns] == ["continue"] * 3
        (row,) = build_rows(tree).rows
        assert row.loss_mask.sum() == sum(len(ids) for _, ids, _ in model.sampled)


@pytest.mark.parametrize("tokens", [False, True], ids=["engine", "tokens"])
async def test_smolagents_is_recorded_exactly(
    model: LocalServer, tmp_path: Path, tokens: bool
) -> None:
    """An unmodified agent program on a model that talks nonsense: every call is one exact turn."""
    pytest.importorskip("smolagents", reason="install smolagents")
    model.sampled.clear()
    async with model.up():
        upstream = Upstream(base_url=model.url, renderer=model.renderer, tokens=tokens)
        with Store(tmp_path) as store:
            async with running(App(store, upstream)) as url, aiohttp.ClientSession() as http:
                await http.post(f"{url}/api/sessions", json={"id": "s"})
                agent = await asyncio.create_subprocess_exec(
                    sys.executable,
                    str(SMOL),
                    "plain",
                    env={**os.environ, "BASE": f"{url}/sessions/s/v1", "STEPS": "1"},
                )
                try:
                    async with asyncio.timeout(800):
                        await agent.wait()  # it may give up: the model can't do what it asks
                finally:
                    if agent.returncode is None:
                        agent.kill()
                        await agent.wait()
                await http.post(f"{url}/api/sessions/s/close", json={"score": 0.0})
            with store.read() as run:
                tree = run.session("s")
    assert tree.turns
    same(tree, model)
