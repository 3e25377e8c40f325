"""A small HTTP server on loopback that stands in for an inference endpoint with faults."""

from __future__ import annotations

import asyncio
import json
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import AsyncIterator


@dataclass
class Answer:
    """What one request gets."""

    status: int = 200
    body: Any = None
    headers: dict[str, str] = field(default_factory=dict)
    hang: bool = False
    drop: bool = False


@dataclass
class Endpoint:
    """Answers requests in order, the last answer again and again."""

    answers: list[Answer]
    url: str = ""
    requests: list[dict[str, Any]] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)
    paths: list[str] = field(default_factory=list)
    connections: int = 0
    models: Answer = field(default_factory=lambda: Answer(404, {}))
    """What GET requests get; they are not counted."""
    asked: asyncio.Event = field(default_factory=asyncio.Event)
    _serving: set[asyncio.Task[Any]] = field(default_factory=set)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        task = asyncio.current_task()
        assert task is not None
        self._serving.add(task)
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                lines = head.decode().split("\r\n")[1:]
                headers = {k.lower(): v.strip() for k, _, v in (x.partition(":") for x in lines)}
                if head.startswith(b"GET"):
                    writer.write(_response(self.models))
                    continue
                body = await reader.readexactly(int(headers.get("content-length", 0)))
                self.headers.append(headers)
                self.paths.append(head.split()[1].decode())
                self.requests.append(json.loads(body))
                self.asked.set()
                answer = self.answers[min(len(self.requests), len(self.answers)) - 1]
                if answer.drop:
                    break
                if answer.hang:
                    await reader.read()  # until the client goes away
                    break
                writer.write(_response(answer))
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()
            self._serving.discard(task)

    async def received(self, count: int) -> None:
        """Wait until so many requests have come."""
        async with asyncio.timeout(60):
            while len(self.requests) < count:
                await asyncio.sleep(0.01)

    async def ended(self) -> None:
        """Wait until every client has gone."""
        while self._serving:
            await asyncio.wait(self._serving, timeout=5)


def _response(answer: Answer) -> bytes:
    text = answer.body if isinstance(answer.body, str) else json.dumps(answer.body)
    data = text.encode()
    fields = {"content-type": "application/json", "content-length": str(len(data))}
    lines = [f"{name}: {value}" for name, value in (fields | answer.headers).items()]
    return "\r\n".join([f"HTTP/1.1 {answer.status} X", *lines, "", ""]).encode() + data


@asynccontextmanager
async def endpoint(*answers: Answer) -> AsyncIterator[Endpoint]:
    """Serve these answers while the block runs."""
    made = Endpoint(list(answers))
    server = await asyncio.start_server(made.serve, "127.0.0.1", 0)
    made.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1"
    try:
        yield made
    finally:
        server.close()
        await made.ended()


def completion(message: Any, *, finish: str = "stop", choice: Any = None, **fields: Any) -> Answer:
    """Return a chat completion with one choice."""
    one = {"index": 0, "message": message, "finish_reason": finish, **(choice or {})}
    usage = {"prompt_tokens": 5, "completion_tokens": 2, "total_tokens": 7}
    body = {"id": "c", "object": "chat.completion", "created": 0, "model": "m", "usage": usage}
    return Answer(body={**body, "choices": [one], **fields})


def said(content: Any = "hi", **fields: Any) -> dict[str, Any]:
    """Return an assistant message as endpoints send it."""
    return {"role": "assistant", "content": content, **fields}
