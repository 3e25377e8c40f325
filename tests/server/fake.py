"""A fake engine behind real HTTP: vLLM's chat and completions with ids, pauses, and bad days.

Ids are bytes, as the byte renderer has them. What a call says comes from a script; every request is
kept as it came.
"""

from __future__ import annotations

import asyncio
import json
import re
import uuid
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

from trajgym.rollout.rendering import ByteRenderer

RENDERER = ByteRenderer()
ROLES = {"system", "user", "assistant", "tool"}
Script = Callable[[int, dict[str, Any]], dict[str, Any]]


def encode(text: str) -> list[int]:
    return RENDERER._codec.encode(text)


def prompt_ids(body: dict[str, Any]) -> list[int]:
    pieces = [f"<|system|>{json.dumps(body['tools'])}<|end|>"] if body.get("tools") else []
    for message in body["messages"]:
        content = message.get("content") or ""
        if isinstance(content, list):
            content = "".join(p.get("text") or "[image]" for p in content)
        role = message["role"] if message["role"] in ROLES else "system"
        spoken = {
            "content": content,
            "tool_calls": message.get("tool_calls"),
            "reasoning_content": message.get("reasoning_content"),
        }
        body_text = content if role != "assistant" else said(spoken)
        pieces.append(f"<|{role}|>{body_text}<|end|>")
    return encode("".join([*pieces, "<|assistant|>"]))


def said(message: dict[str, Any]) -> str:
    ids = RENDERER.encode_response({"role": "assistant", **message})
    return RENDERER.decode(ids[:-1])


@dataclass
class Trouble:
    """What goes wrong in one call: ``call`` counts chat requests from 0."""

    call: int
    kind: str
    """``status``, ``drop`` (in mid-stream), ``gate`` (wait for :attr:`Engine.gate`), ``quiet``."""
    status: int = 500
    after: int = 2
    headers: dict[str, str] = field(default_factory=dict)
    message: str = "injected"


@dataclass
class Engine:
    """The fake engine's state."""

    script: Script
    troubles: list[Trouble] = field(default_factory=list)
    ids: bool = True
    url: str = ""
    refuses_in_pause: bool = False
    delay: float = 0.0
    """Seconds between two chunks."""
    requests: list[dict[str, Any]] = field(default_factory=list)
    paths: list[str] = field(default_factory=list)
    cancelled: int = 0
    open: int = 0
    gated: int = 0
    """Answers that wait after some of their pieces."""
    gate: asyncio.Event = field(default_factory=asyncio.Event)
    arrived: asyncio.Event = field(default_factory=asyncio.Event)
    running: asyncio.Event = field(default_factory=asyncio.Event)
    abort: asyncio.Event = field(default_factory=asyncio.Event)
    plans: dict[tuple[int, ...], list[int]] = field(default_factory=dict)
    chats: int = 0

    def __post_init__(self) -> None:
        self.running.set()

    def pause(self, mode: str) -> None:
        self.running.clear()
        if mode == "abort":
            self.abort.set()

    def resume(self) -> None:
        self.abort.clear()
        self.running.set()

    # Endpoints ------------------------------------------------------------------------------

    def app(self) -> web.Application:
        app = web.Application(client_max_size=64 << 20)
        app.router.add_get("/v1/models", self.models)
        app.router.add_post("/v1/chat/completions", self.chat)
        app.router.add_post("/v1/completions", self.completions)
        app.router.add_post("/pause", self.on_pause)
        app.router.add_post("/resume", self.on_resume)
        return app

    async def models(self, request: web.Request) -> web.Response:
        return web.json_response({"object": "list", "data": [{"id": "fake", "object": "model"}]})

    async def on_pause(self, request: web.Request) -> web.Response:
        self.pause(request.query.get("mode", "abort"))
        return web.json_response({"status": "paused"})

    async def on_resume(self, request: web.Request) -> web.Response:
        self.resume()
        return web.json_response({"status": "resumed"})

    async def chat(self, request: web.Request) -> web.StreamResponse:
        self.open += 1
        try:
            return await self._chat(request)
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        finally:
            self.open -= 1

    async def _chat(self, request: web.Request) -> web.StreamResponse:
        body = json.loads(await request.read())
        number, self.chats = self.chats, self.chats + 1
        self.requests.append(body)
        self.paths.append(request.headers.get("x-session-id", ""))
        self.arrived.set()
        trouble = next((t for t in self.troubles if t.call == number), Trouble(-1, ""))
        if trouble.kind == "status":
            error = {"error": {"message": trouble.message, "type": "server_error"}}
            return web.json_response(error, status=trouble.status, headers=trouble.headers)
        if trouble.kind == "gate":
            await self.gate.wait()
        if not self.running.is_set():
            if self.refuses_in_pause:
                return web.json_response({"error": {"message": "paused"}}, status=503)
            await self.running.wait()
        prompt = prompt_ids(body)
        plans = [self._plan(number, body) for _ in range(body.get("n") or 1)]
        self.plans[tuple(prompt)] = plans[0][1]
        if body.get("stream"):
            return await self._stream(request, body, prompt, plans, trouble)
        if trouble.kind == "gate_after":
            await self._gate_or_abort()
            if self.abort.is_set():
                plans = [self._cut(plans[0], trouble.after)]
        return web.json_response(self._whole(body, prompt, plans))

    @staticmethod
    def _cut(plan: Any, after: int) -> Any:
        """Return what an aborted answer looks like after some pieces."""
        pieces = plan[0][:after]
        deltas = [delta for _, delta in pieces]
        message: dict[str, Any] = {
            "role": "assistant",
            "content": "".join(delta.get("content") or "" for delta in deltas),
        }
        parts = [part for delta in deltas for part in delta.get("tool_calls") or ()]
        if parts:
            arguments = "".join(part["function"].get("arguments") or "" for part in parts)
            function = {**parts[0]["function"], "arguments": arguments}
            message["tool_calls"] = [{**parts[0], "function": function}]
        ids = [i for piece, _ in pieces for i in piece]
        return pieces, ids, message, "tool_calls" if parts else "abort"

    def _plan(
        self, number: int, body: dict[str, Any]
    ) -> tuple[list[tuple[list[int], dict[str, Any]]], list[int], dict[str, Any], str]:
        """Return pieces (ids and delta), all ids, the message and the finish reason."""
        step = self.script(number, body)
        message: dict[str, Any] = {"role": "assistant", "content": step.get("text") or ""}
        if step.get("reasoning"):
            message["reasoning_content"] = step["reasoning"]
        calls = [
            {
                "id": step.get("ids", {}).get(i) or f"call_{uuid.uuid4().hex[:16]}",
                "type": "function",
                "function": {"name": name, "arguments": json.dumps(arguments)},
            }
            for i, (name, arguments) in enumerate(step.get("calls") or ())
        ]
        if calls:
            message["tool_calls"] = calls
        ids = RENDERER.encode_response(message)
        pieces: list[tuple[list[int], dict[str, Any]]] = []
        if message.get("reasoning_content"):
            text = message["reasoning_content"]
            thought = encode(f"<think>{text}</think>")
            pieces.append((thought, {"reasoning_content": text}))
        for word in re.findall(r"\S+\s*|\s+", message["content"]):
            pieces.append((list(word.encode()), {"content": word}))
        rest = ids[sum(len(p) for p, _ in pieces) : -1]
        deltas: list[dict[str, Any]] = []
        for i, call in enumerate(calls):
            function = call["function"]
            half = len(function["arguments"]) // 2
            begin = {**call, "index": i, "function": {"name": function["name"], "arguments": ""}}
            deltas.append({"tool_calls": [begin]})
            for part in (function["arguments"][:half], function["arguments"][half:]):
                deltas.append({"tool_calls": [{"index": i, "function": {"arguments": part}}]})
        for k, delta in enumerate(deltas):
            share = rest[k * len(rest) // len(deltas) : (k + 1) * len(rest) // len(deltas)]
            pieces.append((share, delta))
        pieces.append((ids[-1:], {}))
        message["content"] = message["content"] or None
        return pieces, ids, message, "tool_calls" if calls else "stop"

    def _whole(self, body: dict[str, Any], prompt: list[int], plans: list[Any]) -> dict[str, Any]:
        choices = []
        for i, (_, ids, message, finish) in enumerate(plans):
            choice = {"index": i, "message": message, "finish_reason": finish, "logprobs": None}
            if self.ids and body.get("return_token_ids"):
                choice |= {"token_ids": ids, "logprobs": logprobs(ids)}
            choices.append(choice)
        made = sum(len(ids) for _, ids, _, _ in plans)
        answer = {
            "id": f"chatcmpl-{uuid.uuid4().hex}",
            "object": "chat.completion",
            "created": 1,
            "model": body.get("model"),
            "choices": choices,
            "usage": usage(prompt, made),
            "system_fingerprint": "kept",
        }
        if self.ids and body.get("return_token_ids"):
            answer["prompt_token_ids"] = prompt
        return answer

    async def _stream(
        self,
        request: web.Request,
        body: dict[str, Any],
        prompt: list[int],
        plans: list[Any],
        trouble: Trouble,
    ) -> web.StreamResponse:
        response = web.StreamResponse(headers={"content-type": "text/event-stream"})
        await response.prepare(request)
        head = {
            "id": f"chatcmpl-{uuid.uuid4().hex}",
            "object": "chat.completion.chunk",
            "created": 1,
            "model": body.get("model"),
        }
        exact = self.ids and body.get("return_token_ids")

        async def send(
            index: int, delta: Any, finish: Any = None, ids: Any = None, **more: Any
        ) -> None:
            choice = {"index": index, "delta": delta, "finish_reason": finish, "logprobs": None}
            if exact and ids is not None:
                choice |= {"token_ids": ids, "logprobs": logprobs(ids)}
            data = json.dumps({**head, "choices": [choice], **more})
            await response.write(f"data: {data}\n\n".encode())

        made = sent = 0
        for index, (pieces, _, _, finish) in enumerate(plans):
            more = {"prompt_token_ids": prompt} if exact and not index else {}
            await send(index, {"role": "assistant", "content": ""}, **more)
            called = False
            for number, (ids, delta) in enumerate(pieces):
                if self.abort.is_set():
                    finish = "tool_calls" if called else "abort"
                    await send(index, {}, finish, [])
                    break
                await self.running.wait()
                if trouble.kind == "drop" and sent >= trouble.after:
                    assert request.transport is not None
                    request.transport.abort()
                    return response
                if trouble.kind == "gate_after" and sent >= trouble.after:
                    self.arrived.set()
                    await self._gate_or_abort()
                    if self.abort.is_set():
                        await send(index, {}, "tool_calls" if called else "abort", [])
                        break
                last = number == len(pieces) - 1
                await send(index, delta, finish if last else None, ids)
                called = called or "tool_calls" in delta
                made, sent = made + len(ids), sent + 1
                await asyncio.sleep(self.delay)
        if (body.get("stream_options") or {}).get("include_usage"):
            tail = {**head, "choices": [], "usage": usage(prompt, made)}
            await response.write(f"data: {json.dumps(tail)}\n\n".encode())
        await response.write(b"data: [DONE]\n\n")
        await response.write_eof()
        return response

    async def _gate_or_abort(self) -> None:
        self.gated += 1
        waits = [asyncio.ensure_future(e.wait()) for e in (self.gate, self.abort)]
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        for wait in waits:
            wait.cancel()

    async def completions(self, request: web.Request) -> web.StreamResponse:
        body = json.loads(await request.read())
        self.requests.append(body)
        await self.running.wait()
        prompt = body["prompt"]
        if isinstance(prompt, str):
            plan = self._plan(self.chats, {"messages": [], **body})
            self.chats += 1
            given, rest = encode(prompt), plan[1]
        else:
            given, rest = prompt, self._rest(prompt)
        rest = rest[: body.get("max_tokens") or len(rest)]
        text = re.sub(r"<\|?/?\w+\|?>", "", RENDERER.decode(rest))
        done = bool(rest) and rest[-1] in RENDERER.stop_ids
        choice = {
            "index": 0,
            "text": text,
            "finish_reason": "stop" if done else "length",
            "token_ids": rest,
            "prompt_token_ids": given,
            "logprobs": {"token_logprobs": [lp["logprob"] for lp in logprobs(rest)["content"]]},
        }
        if not self.ids:
            for name in ("token_ids", "prompt_token_ids", "logprobs"):
                choice.pop(name)
        answer = {"id": "cmpl-1", "object": "text_completion", "created": 1, "model": "fake"}
        return web.json_response({**answer, "choices": [choice], "usage": usage(given, len(rest))})

    def _rest(self, prompt: list[int]) -> list[int]:
        for begin in range(len(prompt), 0, -1):
            plan = self.plans.get(tuple(prompt[:begin]))
            if plan is not None and plan[: len(prompt) - begin] == prompt[begin:]:
                return plan[len(prompt) - begin :]
        raise AssertionError("asked to continue what was never begun")


def logprobs(ids: list[int]) -> dict[str, Any]:
    return {"content": [{"token": str(i), "logprob": -0.125 * (i % 8)} for i in ids]}


def usage(prompt: list[int], made: int) -> dict[str, int]:
    given = len(prompt)
    return {"prompt_tokens": given, "completion_tokens": made, "total_tokens": given + made}


@asynccontextmanager
async def serving(engine: Engine, port: int = 0) -> AsyncIterator[Engine]:
    """Serve a fake engine on loopback."""
    runner = web.AppRunner(
        engine.app(), access_log=None, handler_cancellation=True, shutdown_timeout=0.5
    )
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", port)
    await site.start()
    engine.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    try:
        yield engine
    finally:
        await runner.cleanup()
