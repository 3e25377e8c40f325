"""Token mode: prompts are ids on top of the ids before, and turns continue exactly."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import numpy as np
import pytest

from tests.server.harness import ADD, World, result, shape
from tests.server.token_engine import RENDERER, TokenEngine
from trajgym.rollout.rendering import ByteRenderer
from trajgym.server import App, Upstream, check_upstream, running
from trajgym.trajectory import InvalidInput, Store, build_rows

KINDS = pytest.mark.parametrize("kind", ["vllm", "sglang"])
STREAMS = pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
USER = {"role": "user", "content": "go"}


def call(number: int, prompt: list[int]) -> dict[str, Any]:
    arguments = json.dumps({"b": 2, "a": number})
    function = {"name": "add", "arguments": arguments}
    tool = {"id": "c", "type": "function", "function": function}
    return {"role": "assistant", "content": "Let me see.", "tool_calls": [tool]}


def text(number: int, prompt: list[int]) -> dict[str, Any]:
    return {"role": "assistant", "content": f"answer {number} with some words"}


@asynccontextmanager
async def tokens(
    path: Path, engine: TokenEngine, kind: Any, renderer: Any = RENDERER
) -> AsyncIterator[World]:
    async with engine.up():
        with Store(path) as store:
            upstream = Upstream(
                base_url=engine.url,
                kind=kind,
                renderer=renderer,
                tokens=True,
                logprob_mode="processed",
            )
            app = App(store, upstream)
            async with running(app) as url, aiohttp.ClientSession() as http:
                yield World(engine, app, url, http)  # type: ignore[arg-type]


async def say(w: World, messages: list[Any], *, stream: bool, **fields: Any) -> dict[str, Any]:
    """Chat, whole or as a stream; append the answer, and return its message."""
    if not stream:
        return await w.say(messages, **fields)
    body = {"model": "fake", "messages": messages, "stream": True, **fields}
    message: dict[str, Any] = {"role": "assistant", "content": ""}
    for chunk in await w.events("/sessions/s/v1/chat/completions", body):
        for choice in chunk["choices"]:
            delta = choice["delta"]
            message["content"] += delta.get("content") or ""
            for part in delta.get("tool_calls") or ():
                calls = message.setdefault("tool_calls", [])
                if "id" in part:
                    calls.append({"id": part["id"], "type": "function", "function": {}})
                    calls[-1]["function"] = {"name": part["function"]["name"], "arguments": ""}
                calls[part["index"]]["function"]["arguments"] += part["function"]["arguments"]
    messages.append(message)
    return message


@KINDS
@STREAMS
async def test_turns_continue_on_the_ids_before(tmp_path: Path, kind: str, stream: bool) -> None:
    """Every prompt starts with the ids so far, all turns are one row, and it is what was sampled.

    The agent serialises the arguments anew, which would break an engine's own rendering.
    """
    engine = TokenEngine(call)
    async with tokens(tmp_path, engine, kind) as w:
        await w.create()
        messages: list[Any] = [USER]
        for _ in range(3):
            said = await say(w, messages, stream=stream, tools=[ADD])
            function = said["tool_calls"][0]["function"]
            function["arguments"] = json.dumps(json.loads(function["arguments"]), indent=2)
            messages.append(result(said["tool_calls"][0], "3"))
        await w.close(score=1.0)
        tree = w.tree()
    assert shape(tree) == [
        (None, "continue", "main"),
        (0, "continue", "main"),
        (1, "continue", "main"),
    ]
    assert all(turn.exact and not (turn.wire and turn.wire.inexact) for turn in tree.turns)
    for turn, (prompt, ids, logprobs) in zip(tree.turns, engine.sampled, strict=True):
        assert turn.tokens is not None
        np.testing.assert_array_equal(tree.prompt(turn), prompt)
        np.testing.assert_array_equal(turn.tokens.response_ids, ids)
        np.testing.assert_allclose(turn.tokens.logprobs, logprobs)
        assert turn.finish == "tool_calls"
        assert turn.message["content"] == "Let me see."
    (row,) = build_rows(tree).rows
    assert row.loss_mask.sum() == sum(len(ids) for _, ids, _ in engine.sampled)


@KINDS
async def test_text_is_streamed_and_whole(tmp_path: Path, kind: str) -> None:
    """The streamed text is the stored message, and ids are shown to those who ask for them."""
    engine = TokenEngine(text)
    async with tokens(tmp_path, engine, kind) as w:
        await w.create()
        message = await say(w, [USER], stream=True)
        answer = await w.chat([USER, message, USER], return_token_ids=True, logprobs=True)
        first, second = w.tree().turns
    assert message["content"] == first.message["content"] == "answer 0 with some words"
    choice = answer["choices"][0]
    assert choice["token_ids"] == engine.sampled[1][1]
    assert answer["prompt_token_ids"] == engine.sampled[1][0]
    assert [one["logprob"] for one in choice["logprobs"]["content"]] == engine.sampled[1][2]
    assert answer["usage"]["completion_tokens"] == len(choice["token_ids"])
    assert second.parent == 0
    most = engine.bodies[0].get("sampling_params", {}).get("max_new_tokens")
    assert (most or engine.bodies[0]["max_tokens"]) > 90_000  # what is left of the context


async def test_stripped_reasoning_begins_a_row(tmp_path: Path) -> None:
    """A template that rewrites what came before can't be extended: a rewrite, rendered anew."""

    def think(number: int, prompt: list[int]) -> dict[str, Any]:
        return {"role": "assistant", "content": "done", "reasoning_content": f"hm {number}"}

    engine = TokenEngine(think)
    async with tokens(tmp_path, engine, "vllm", ByteRenderer(strip_reasoning=True)) as w:
        await w.create()
        messages: list[Any] = [USER]
        await w.say(messages)
        messages.append(USER)
        await w.say(messages)
        await w.close(score=1.0)
        tree = w.tree()
    assert [turn.edge for turn in tree.turns] == ["continue", "rewrite"]
    assert tree.turns[0].message["reasoning_content"] == "hm 0"
    assert len(build_rows(tree).rows) == 2


async def test_a_lost_stream_goes_on_after_its_last_id(tmp_path: Path) -> None:
    """The engine's connection breaks: the client has each word once, and the record each id."""
    engine = TokenEngine(text, drop_after=9)
    async with tokens(tmp_path, engine, "vllm") as w:
        await w.create()
        message = await say(w, [USER], stream=True)
        (turn,) = w.tree().turns
    assert message["content"] == turn.message["content"] == "answer 0 with some words"
    assert turn.tokens is not None
    assert turn.tokens.response_ids.tolist() == RENDERER.encode_response(text(0, []))


@KINDS
async def test_blocks_and_roles_of_clients_are_rendered(tmp_path: Path, kind: str) -> None:
    """Text blocks, null content and the developer role reach the template as it takes them."""
    engine = TokenEngine(text)
    async with tokens(tmp_path, engine, kind) as w:
        await w.create()
        blocks = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
        await w.chat([{"role": "developer", "content": "be kind"}, {**USER, "content": blocks}])
    shown = RENDERER.decode(engine.sampled[0][0])
    assert shown == "<|system|>be kind<|end|><|user|>ab<|end|><|assistant|>"


@KINDS
async def test_the_check_asks_in_ids(tmp_path: Path, kind: str) -> None:
    """`serve --check` in token mode requests what agents' calls will request."""
    engine = TokenEngine(call)
    async with engine.up():
        upstream = Upstream(base_url=engine.url, kind=kind, renderer=RENDERER, tokens=True)  # type: ignore[arg-type]
        try:
            assert await check_upstream(upstream) == []
            assert len(engine.bodies) == 2
        finally:
            await upstream.close()


def test_token_mode_needs_a_renderer() -> None:
    """Without one, and for hosted endpoints, it is an error before any agent runs."""
    for wrong in ({}, {"renderer": RENDERER, "kind": "hosted"}):
        with pytest.raises(InvalidInput, match="token mode"):
            Upstream(base_url="http://127.0.0.1:1", tokens=True, **wrong)  # type: ignore[arg-type]


async def test_sglang_streams_of_its_own_rendering_are_exact(tmp_path: Path) -> None:
    """Without token mode, SGLang's last chunk has the ids, which clients don't see."""
    from aiohttp import web

    bodies: list[Any] = []

    async def chat(request: web.Request) -> web.StreamResponse:
        bodies.append(await request.json())
        response = web.StreamResponse(headers={"content-type": "text/event-stream"})
        await response.prepare(request)
        head = {"id": "x", "object": "chat.completion.chunk", "created": 1, "model": "m"}

        def chunk(delta: Any, finish: Any = None, value: float | None = None) -> Any:
            entries = None if value is None else {"content": [{"token": "", "logprob": value}]}
            choice = {"index": 0, "delta": delta, "finish_reason": finish, "logprobs": entries}
            return {**head, "choices": [choice]}

        usage = {"prompt_tokens": 2, "completion_tokens": 3, "total_tokens": 5}
        for one in (
            chunk({"role": "assistant", "content": ""}),
            chunk({"content": "a"}, None, -0.5),
            chunk({"content": "b"}, None, -0.25),
            chunk({}, "stop", -0.125),
            {**head, "choices": [], "sglext": {"input_ids": [1, 2], "output_ids": [[97, 98, 256]]}},
            {**head, "choices": [], "usage": usage},
        ):
            await response.write(f"data: {json.dumps(one)}\n\n".encode())
        await response.write(b"data: [DONE]\n\n")
        return response

    fake = web.Application()
    fake.router.add_post("/v1/chat/completions", chat)
    runner = web.AppRunner(fake, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    try:
        with Store(tmp_path) as store:
            app = App(store, Upstream(base_url=url, kind="sglang", renderer=RENDERER))
            async with running(app) as at, aiohttp.ClientSession() as http:
                w = World(None, app, at, http)  # type: ignore[arg-type]
                await w.create()
                body = {"model": "m", "messages": [USER], "stream": True}
                chunks = await w.events("/sessions/s/v1/chat/completions", body)
                (turn,) = w.tree().turns
    finally:
        await runner.cleanup()
    assert "return_token_ids" not in bodies[0]
    assert bodies[0]["return_output_ids_in_sglext"]
    assert "sglext" not in json.dumps(chunks)
    assert turn.exact
    assert turn.tokens is not None
    assert turn.tokens.response_ids.tolist() == [97, 98, 256]
    assert turn.tokens.logprobs.tolist() == [-0.5, -0.25, -0.125]
