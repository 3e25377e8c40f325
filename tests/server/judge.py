"""A judge's endpoint on loopback that can die and come back at the same address."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

Verdict = Callable[[str], str]


def verdict(shown: str) -> str:
    """Vote by what happened next; write a hint for what failed."""
    after = shown.partition("WHAT HAPPENED NEXT")[2]
    return r"It failed. \boxed{-1}" if "error" in after else r"It worked. \boxed{1}"


def hint(shown: str) -> str:
    after = shown.partition("WHAT HAPPENED NEXT")[2]
    found = r"<hint>Both numbers have to be positive.</hint> \boxed{1}"
    return found if "error" in after else r"\boxed{-1}"


@dataclass
class Judge:
    """Answers Chat Completions while it is up."""

    port: int
    say: Verdict = verdict
    asked: list[str] = field(default_factory=list)
    auth: list[str] = field(default_factory=list)
    most: int = 0
    """Most requests at the same time."""
    gate: asyncio.Event = field(default_factory=asyncio.Event)
    status: Callable[[str], int] = lambda shown: 200
    _open: int = 0

    def __post_init__(self) -> None:
        self.gate.set()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/v1"

    async def complete(self, request: web.Request) -> web.Response:
        body: Any = json.loads(await request.read())
        system, user = (message["content"] for message in body["messages"])
        self.asked.append(user)
        self.auth.append(request.headers.get("authorization", ""))
        self._open += 1
        self.most = max(self.most, self._open)
        try:
            await self.gate.wait()
        finally:
            self._open -= 1
        if (status := self.status(user)) != 200:
            return web.json_response({"error": {"message": "no"}}, status=status)
        text = hint(user) if "<hint>" in system else self.say(user)
        message = {"role": "assistant", "content": text}
        choice = {"index": 0, "message": message, "finish_reason": "stop"}
        head = {"id": "j", "object": "chat.completion", "created": 1, "model": body["model"]}
        return web.json_response({**head, "choices": [choice]})

    @asynccontextmanager
    async def up(self) -> AsyncIterator[None]:
        """Listen while the block runs."""
        app = web.Application()
        app.router.add_post("/v1/chat/completions", self.complete)
        runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0.1)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", self.port, reuse_address=True).start()
        try:
            yield
        finally:
            await runner.cleanup()
