"""Many sessions at once, bodies of a gigabyte, and an engine that is restarted, with processes."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp

from tests.ports import free_port
from tests.server.engine_process import WORDS
from tests.server.fake import Engine, serving
from tests.server.harness import ADD, result
from tests.server.test_process import server
from trajgym.trajectory import Run, build_rows

ROOT = Path(__file__).parent.parent.parent
USER = {"role": "user", "content": "go"}
CALL = {"text": "so", "calls": [("add", {"a": 1, "b": 2})]}
SESSIONS = 500


@asynccontextmanager
async def client(port: int) -> AsyncIterator[Any]:
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(connector=connector) as http:

        async def post(path: str, body: Any) -> Any:
            async with http.post(f"http://127.0.0.1:{port}{path}", json=body) as got:
                assert got.status in {200, 201}, await got.text()
                return json.loads(await got.read())

        yield post


async def test_five_hundred_sessions_at_once(tmp_path: Path) -> None:
    """All of them are open and asking at the same time; each is recorded exactly, in its tree."""
    port = free_port()
    async with (
        serving(Engine(lambda n, body: CALL)) as fake,
        server(tmp_path, fake.url, port),
        client(port) as post,
    ):
        everyone = asyncio.Barrier(SESSIONS)

        async def agent(i: int) -> None:
            await post("/api/sessions", {"id": f"s{i}"})
            messages: list[Any] = [{"role": "user", "content": f"go {i}"}]
            for _ in range(2):
                await everyone.wait()
                body = {"model": "fake", "messages": messages, "tools": [ADD]}
                answer = await post(f"/sessions/s{i}/v1/chat/completions", body)
                said = answer["choices"][0]["message"]
                messages += [said, *(result(call, "3") for call in said["tool_calls"])]
            await post(f"/api/sessions/s{i}/close", {"score": 1.0})

        await asyncio.gather(*(agent(i) for i in range(SESSIONS)))
    with Run(tmp_path) as run:
        trees = list(run.sessions())
    assert len(trees) == SESSIONS
    for tree in trees:
        assert [(t.parent, t.edge, t.delivery) for t in tree.turns] == [
            (None, "continue", "delivered"),
            (0, "continue", "delivered"),
        ]
        assert len(build_rows(tree).rows) == 1


def resident(pid: int) -> int:
    """Return a process's largest resident size so far (bytes)."""
    lines = Path(f"/proc/{pid}/status").read_text(encoding="utf-8").splitlines()
    return int(next(line.split()[1] for line in lines if line.startswith("VmHWM"))) << 10


async def test_a_gigabyte_does_not_grow_the_server(tmp_path: Path) -> None:
    """A client that sends a gigabyte without a length is refused within the body's limit."""
    port, sent = free_port(), 0
    chunk = b"x" * (1 << 20)
    head = b"POST /sessions/s/v1/chat/completions HTTP/1.1\r\nhost: x\r\n"
    async with (
        serving(Engine(lambda n, body: CALL)) as fake,
        server(tmp_path, fake.url, port) as process,
        client(port) as post,
    ):
        await post("/api/sessions", {"id": "s"})
        before = resident(process.pid)
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(head + b"transfer-encoding: chunked\r\n\r\n")
        try:
            async with asyncio.timeout(120):
                for _ in range(1024):
                    writer.write(b"%x\r\n%b\r\n" % (len(chunk), chunk))
                    await writer.drain()
                    sent += len(chunk)
                data = await reader.read(12)
        except ConnectionError:
            data = b""  # it closed the connection while we still sent
        writer.close()
        grown = resident(process.pid) - before
        answer = await post("/sessions/s/v1/chat/completions", {"model": "m", "messages": [USER]})
    assert data in {b"", b"HTTP/1.1 413"}
    assert sent < 1 << 29
    assert grown < 3 * (64 << 20)
    assert answer["choices"]


@asynccontextmanager
async def engine(port: int, after: int = 0) -> AsyncIterator[subprocess.Popen[bytes]]:
    command = [sys.executable, "-m", "tests.server.engine_process", str(port), str(after)]
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE)
    try:
        assert process.stdout is not None
        assert await asyncio.to_thread(process.stdout.readline) == b"ready\n"
        yield process
    finally:
        process.kill()
        process.communicate()


async def test_an_engine_is_restarted_in_mid_stream(tmp_path: Path) -> None:
    """SIGKILL of the engine during a stream: its next process goes on; the client sees one answer.

    The row has each id once, in the order of sampling.
    """
    port, own = free_port(), free_port()
    body = {"model": "fake", "messages": [USER], "stream": True}
    text = ""
    async with server(tmp_path, f"http://127.0.0.1:{own}", port), client(port) as post:
        await post("/api/sessions", {"id": "s"})
        async with aiohttp.ClientSession() as http, asyncio.timeout(120):
            async with engine(own, after=8) as first:
                url = f"http://127.0.0.1:{port}/sessions/s/v1/chat/completions"
                got = await http.post(url, json=body)
                assert got.status == 200
                while "word3" not in text:
                    text += content(await got.content.readline())
                first.send_signal(signal.SIGKILL)
            async with engine(own):
                async for line in got.content:
                    text += content(line)
        await post("/api/sessions/s/close", {"score": 1.0})
    with Run(tmp_path) as run:
        (turn,) = run.session("s").turns
    assert text == WORDS
    assert turn.exact
    assert turn.tokens is not None
    assert bytes(turn.tokens.response_ids[:-1].tolist()).decode() == WORDS
    assert turn.wire is not None
    assert turn.wire.tries


def content(line: bytes) -> str:
    """Return the text of an event."""
    if not line.startswith(b"data: {"):
        return ""
    choices = json.loads(line[6:])["choices"]
    return str(choices[0]["delta"].get("content") or "") if choices else ""
