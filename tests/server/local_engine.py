"""A real small model behind HTTP, as vLLM serves it: chats that it renders, and prompts in ids."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from aiohttp import web

from trajgym.rollout.engines import LocalEngine, load_smollm2
from trajgym.rollout.rendering import TemplateRenderer
from trajgym.trajectory import Sampling


class LocalServer:
    """Answers with what SmolLM2 samples, and keeps the ids of every answer."""

    def __init__(self) -> None:
        model = load_smollm2()
        self.engine = LocalEngine(model.model)
        self.renderer = TemplateRenderer(model.tokenizer)
        self.sampled: list[tuple[list[int], list[int], list[float]]] = []
        self.url = ""

    async def _sample(self, prompt: list[int], body: dict[str, Any]) -> tuple[Any, Any]:
        made = await self.engine.generate(
            prompt,
            sampling=Sampling(temperature=body.get("temperature", 1.0), seed=len(self.sampled)),
            max_tokens=min(body.get("max_tokens") or 12, 12),
            stop_ids=self.renderer.stop_ids,
        )
        ids, logprobs = list(made.ids), [float(p) for p in made.logprobs]
        self.sampled.append((prompt, ids, logprobs))
        return made, self.renderer.parse(ids, prompt, body.get("tools") or ())

    async def chat(self, request: web.Request) -> web.Response:
        body = await request.json()
        tools = body.get("tools") or ()
        messages = [{**m, "content": _text(m.get("content"))} for m in body["messages"]]
        prompt = self.renderer.render(messages, tools)
        made, parsed = await self._sample(prompt, body)
        _, ids, logprobs = self.sampled[-1]
        content = [{"token": "", "logprob": value} for value in logprobs]
        choice = {
            "index": 0,
            "message": parsed.message,
            "finish_reason": parsed.finish if made.finish == "stop" else made.finish,
            "token_ids": ids,
            "logprobs": {"content": content},
        }
        usage = {"prompt_tokens": len(prompt), "completion_tokens": len(ids)}
        head = {"id": "x", "object": "chat.completion", "created": 1, "model": "smollm2"}
        usage["total_tokens"] = sum(usage.values())
        return web.json_response(
            {**head, "prompt_token_ids": prompt, "choices": [choice], "usage": usage}
        )

    async def completions(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        made, _ = await self._sample(body["prompt"], body)
        _, ids, logprobs = self.sampled[-1]
        if not body.get("stream"):
            return web.json_response(_piece(ids, logprobs, made.finish))
        response = web.StreamResponse(headers={"content-type": "text/event-stream"})
        await response.prepare(request)
        for n, (one, logprob) in enumerate(zip(ids, logprobs, strict=True), 1):
            piece = _piece([one], [logprob], made.finish if n == len(ids) else None)
            await response.write(f"data: {json.dumps(piece)}\n\n".encode())
        await response.write(b"data: [DONE]\n\n")
        return response

    async def models(self, request: web.Request) -> web.Response:
        return web.json_response({"data": [{"id": "smollm2", "max_model_len": 2048}]})

    @asynccontextmanager
    async def up(self) -> AsyncIterator[LocalServer]:
        app = web.Application()
        app.router.add_post("/v1/chat/completions", self.chat)
        app.router.add_post("/v1/completions", self.completions)
        app.router.add_get("/v1/models", self.models)
        runner = web.AppRunner(app, shutdown_timeout=0.1)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        self.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        try:
            yield self
        finally:
            await runner.cleanup()


def _text(content: Any) -> str:
    if isinstance(content, list):
        return "".join(part.get("text") or "" for part in content)
    return content or ""


def _piece(ids: list[int], logprobs: list[float], finish: str | None) -> dict[str, Any]:
    choice = {"index": 0, "text": "", "token_ids": ids, "finish_reason": finish}
    return {"model": "smollm2", "choices": [choice | {"logprobs": {"token_logprobs": logprobs}}]}
