"""An engine that takes and returns ids: vLLM's completions and SGLang's generate, whole or not."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

from trajgym.rollout.rendering import ByteRenderer

RENDERER = ByteRenderer()
Say = Callable[[int, list[int]], Any]


@dataclass
class TokenEngine:
    """Answers prompts in ids; what it says comes from a script."""

    say: Say
    url: str = ""
    drop_after: int | None = None
    """Pieces of the first stream after which its connection is lost."""
    bodies: list[dict[str, Any]] = field(default_factory=list)
    sampled: list[tuple[list[int], list[int], list[float]]] = field(default_factory=list)
    """Prompt, ids and log-probs of each answer."""

    def _sample(self, prompt: list[int]) -> tuple[list[int], list[float]]:
        known = next(((p, i) for p, i, _ in self.sampled if _continues(prompt, p, i)), None)
        ids = RENDERER.encode_response(self.say(len(self.sampled), prompt))
        if known is not None:
            ids = known[1][len(prompt) - len(known[0]) :]
        logprobs = [-0.125 * (i % 8) for i in ids]
        self.sampled.append((prompt, ids, logprobs))
        return ids, logprobs

    async def completions(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        self.bodies.append(body)
        ids, logprobs = self._sample(body["prompt"])
        if not body.get("stream"):
            return web.json_response(self._vllm(ids, logprobs, "stop"))
        pieces = [self._vllm([i], [p], None) for i, p in zip(ids, logprobs, strict=True)]
        pieces[-1]["choices"][0]["finish_reason"] = "stop"
        return await self._stream(request, pieces)

    async def generate(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        self.bodies.append(body)
        ids, logprobs = self._sample(body["input_ids"])
        entries = [[p, i, ""] for i, p in zip(ids, logprobs, strict=True)]
        if not body.get("stream"):
            return web.json_response(self._sglang(entries, {"type": "stop", "matched": ids[-1]}))
        pieces = [self._sglang(entries[: n + 1], None) for n in range(len(ids))]
        pieces[-1]["meta_info"]["finish_reason"] = {"type": "stop"}
        return await self._stream(request, pieces)

    async def models(self, request: web.Request) -> web.Response:
        return web.json_response({"data": [{"id": "fake", "max_model_len": 100_000}]})

    @staticmethod
    def _vllm(ids: list[int], logprobs: list[float], finish: str | None) -> dict[str, Any]:
        choice = {"index": 0, "text": "", "token_ids": ids, "finish_reason": finish}
        return {"model": "fake", "choices": [choice | {"logprobs": {"token_logprobs": logprobs}}]}

    @staticmethod
    def _sglang(entries: list[Any], finish: Any) -> dict[str, Any]:
        meta = {"finish_reason": finish, "completion_tokens": len(entries)}
        return {
            "text": "",
            "output_ids": [entry[1] for entry in entries],
            "meta_info": meta | {"output_token_logprobs": entries, "weight_version": "default"},
        }

    async def _stream(self, request: web.Request, pieces: list[Any]) -> web.StreamResponse:
        response = web.StreamResponse(headers={"content-type": "text/event-stream"})
        await response.prepare(request)
        drop, self.drop_after = self.drop_after, None
        for number, piece in enumerate(pieces):
            if number == drop:
                assert request.transport is not None
                request.transport.abort()
                return response
            await response.write(f"data: {json.dumps(piece)}\n\n".encode())
        await response.write(b"data: [DONE]\n\n")
        return response

    @asynccontextmanager
    async def up(self) -> AsyncIterator[TokenEngine]:
        app = web.Application(client_max_size=64 << 20)
        app.router.add_post("/v1/completions", self.completions)
        app.router.add_post("/generate", self.generate)
        app.router.add_get("/v1/models", self.models)
        runner = web.AppRunner(app, shutdown_timeout=0.1)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        self.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        try:
            yield self
        finally:
            await runner.cleanup()


def _continues(prompt: list[int], before: list[int], ids: list[int]) -> bool:
    """Return whether a prompt ends within an answer that was given before."""
    more = prompt[len(before) :]
    return bool(more) and prompt[: len(before)] == before and more == ids[: len(more)]
