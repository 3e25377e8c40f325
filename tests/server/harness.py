"""A proxy over a fake engine, and a plain client."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp

from tests.server.fake import RENDERER, Engine, Trouble, serving
from trajgym.server import App, Judges, Limits, ServerConfig, Upstream, running
from trajgym.trajectory import SessionTree, Store

ADD = {
    "type": "function",
    "function": {
        "name": "add",
        "description": "Add.",
        "parameters": {
            "type": "object",
            "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}},
        },
    },
}


@dataclass
class World:
    """Everything that a test needs."""

    engine: Engine
    app: App
    url: str
    http: aiohttp.ClientSession

    async def create(self, name: str = "s", **fields: Any) -> str:
        async with self.http.post(f"{self.url}/api/sessions", json={"id": name, **fields}) as got:
            assert got.status == 201, await got.text()
            return str((await got.json())["base_url"])

    async def close(self, name: str = "s", **fields: Any) -> dict[str, Any]:
        url = f"{self.url}/api/sessions/{name}/close"
        async with self.http.post(url, json=fields) as got:
            assert got.status == 200, await got.text()
            return dict(await got.json())

    async def post(
        self, path: str, body: Any, *, status: int = 200, headers: Any = None
    ) -> dict[str, Any]:
        async with self.http.post(self.url + path, json=body, headers=headers) as got:
            data = await got.read()
            assert got.status == status, data
            return dict(json.loads(data))

    async def chat(self, messages: Any, name: str = "s", **fields: Any) -> dict[str, Any]:
        headers = fields.pop("headers", None)
        status = fields.pop("status", 200)
        body = {"model": "fake", "messages": messages, **fields}
        path = f"/sessions/{name}/v1/chat/completions"
        return await self.post(path, body, headers=headers, status=status)

    async def say(self, messages: list[Any], name: str = "s", **fields: Any) -> dict[str, Any]:
        """Chat, append the answer, return its message."""
        answer = await self.chat(messages, name, **fields)
        message = dict(answer["choices"][0]["message"])
        messages.append(message)
        return message

    async def events(self, path: str, body: Any, headers: Any = None) -> list[dict[str, Any]]:
        async with self.http.post(self.url + path, json=body, headers=headers) as got:
            assert got.status == 200, await got.text()
            lines = (await got.read()).decode().splitlines()
        data = [line[6:] for line in lines if line.startswith("data: ")]
        return [json.loads(one) for one in data if one != "[DONE]"]

    async def sealed(self, group: str) -> None:
        """Return once a group is stored as sealed, maybe before the feed has read it."""
        async with asyncio.timeout(240):
            while True:
                async with self.http.get(f"{self.url}/api/groups/{group}") as got:
                    if (await got.json())["sealed"]:
                        return
                await asyncio.sleep(0.01)

    def tree(self, name: str = "s") -> SessionTree:
        self.app.settings.store.set_meta("test.read", name).wait()  # behind all earlier writes
        with self.app.settings.store.read() as run:
            return run.session(name)


@asynccontextmanager
async def world(
    path: Path,
    script: Any,
    *troubles: Trouble,
    limits: Limits | None = None,
    config: ServerConfig | None = None,
    upstream: dict[str, Any] | None = None,
    judges: Judges | None = None,
    **engine: Any,
) -> AsyncIterator[World]:
    """Run a fake engine, a store and a server in this loop."""
    steps = script if callable(script) else lambda n, body: script[min(n, len(script) - 1)]
    async with serving(Engine(steps, list(troubles), **engine)) as fake:
        with Store(path) as store:
            given = Upstream(base_url=fake.url, renderer=RENDERER, **(upstream or {}))
            config = config or ServerConfig(limits=limits or Limits())
            app = App(store, given, config, judges=judges)
            async with running(app) as url, aiohttp.ClientSession() as http:
                yield World(fake, app, url, http)


def shape(tree: SessionTree) -> list[tuple[Any, ...]]:
    """Return parent, edge and agent of every turn."""
    return [(turn.parent, turn.edge, turn.agent) for turn in tree.turns]


def result(call: dict[str, Any], text: str) -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": call["id"], "content": text}
