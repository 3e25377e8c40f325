"""Time that the recording proxy adds to a call, compared with direct calls and a bare proxy.

The engine, the proxies and the load generator are separate processes. The recording proxy stores
every call durably (the last byte of an answer waits for the commit). The bare proxy (Starlette,
uvicorn, aiohttp) passes bytes on and records nothing; it is the lower bound of a Python proxy, and
the ratio to it is the figure that can be compared between machines.

Usage: python benchmarks/bench_server.py [--json FILE]
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import resource
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

IDS = list(range(100, 160))
ANSWER = json.dumps(
    {
        "id": "chatcmpl-0",
        "object": "chat.completion",
        "created": 1,
        "model": "fake",
        "prompt_token_ids": list(range(400)),
        "choices": [
            {
                "index": 0,
                "message": {"role": "assistant", "content": "word " * 60},
                "finish_reason": "stop",
                "token_ids": IDS,
                "logprobs": {"content": [{"token": "w", "logprob": -0.5} for _ in IDS]},
            }
        ],
        "usage": {"prompt_tokens": 400, "completion_tokens": 60, "total_tokens": 460},
    }
).encode()
CHUNKS = 100


class Engine(asyncio.Protocol):
    """A server that answers as fast as Python can, whole or as a stream of 100 chunks."""

    def connection_made(self, transport: Any) -> None:
        self.transport = transport
        self.data = b""

    def data_received(self, data: bytes) -> None:
        self.data += data
        while (end := self.data.find(b"\r\n\r\n")) >= 0:
            head = self.data[:end].lower()
            length = int(head.partition(b"content-length:")[2].split(b"\r\n")[0] or 0)
            if len(self.data) < end + 4 + length:
                return
            body, self.data = self.data[end + 4 : end + 4 + length], self.data[end + 4 + length :]
            if b'"stream":true' in body.replace(b" ", b""):
                self.transport.write(STREAM)
            else:
                self.transport.write(WHOLE)


def _stream() -> bytes:
    head = {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "fake"}
    events = []
    for i in range(CHUNKS):
        choice: dict[str, Any] = {
            "index": 0,
            "delta": {"content": "word "},
            "finish_reason": "stop" if i == CHUNKS - 1 else None,
            "token_ids": [i],
            "logprobs": {"content": [{"token": "w", "logprob": -0.5}]},
        }
        more = {} if i else {"prompt_token_ids": list(range(400))}
        events.append({**head, **more, "choices": [choice]})
    usage = {"prompt_tokens": 400, "completion_tokens": CHUNKS, "total_tokens": 500}
    events.append({**head, "choices": [], "usage": usage})
    out = b""
    for event in [*map(json.dumps, events), "[DONE]"]:
        data = f"data: {event}\n\n".encode()
        out += b"%x\r\n%s\r\n" % (len(data), data)
    start = (
        b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
    )
    return start + out + b"0\r\n\r\n"


WHOLE = (
    b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n" % len(ANSWER)
    + ANSWER
)
STREAM = _stream()


async def engine(port: int) -> None:
    server = await asyncio.get_running_loop().create_server(Engine, "127.0.0.1", port)
    await server.serve_forever()


def bare(port: int, upstream: str) -> None:
    """Run a proxy that only passes bytes on."""
    import aiohttp
    import uvicorn
    from starlette.applications import Starlette
    from starlette.responses import Response, StreamingResponse
    from starlette.routing import Route

    clients: list[aiohttp.ClientSession] = []

    async def create(request: Any) -> Response:
        await request.body()
        return Response(b"{}", 201)

    async def call(request: Any) -> Response:
        if not clients:
            clients.append(aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)))
        body = await request.body()
        got = await clients[0].post(f"{upstream}/v1/chat/completions", data=body)
        if got.content_type == "text/event-stream":
            return StreamingResponse(got.content.iter_any(), media_type=got.content_type)
        return Response(await got.read(), media_type=got.content_type)

    routes = [
        Route("/api/sessions", create, methods=["POST"]),
        Route("/sessions/{id}/v1/chat/completions", call, methods=["POST"]),
    ]
    uvicorn.run(Starlette(routes=routes), port=port, log_level="warning", access_log=False)


class Client:
    """An HTTP client with one keep-alive connection."""

    def __init__(self, port: int) -> None:
        self.port = port

    async def open(self) -> None:
        self.reader, self.writer = await asyncio.open_connection("127.0.0.1", self.port)

    async def post(self, path: str, body: bytes) -> bytes:
        self.writer.write(
            b"POST %s HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n%s"
            % (path.encode(), len(body), body)
        )
        head = (await self.reader.readuntil(b"\r\n\r\n")).lower()
        assert b" 200 " in head or b" 201 " in head, head
        if b"transfer-encoding: chunked" in head:
            parts = b""
            while size := int(await self.reader.readline(), 16):
                parts += (await self.reader.readexactly(size + 2))[:-2]
            await self.reader.readexactly(2)
            return parts
        length = int(head.partition(b"content-length: ")[2].split(b"\r\n")[0])
        return await self.reader.readexactly(length)


TURNS = 10
"""Turns of a conversation; each conversation has its own session."""


def request(messages: list[Any], *, stream: bool) -> bytes:
    return json.dumps({"model": "fake", "messages": messages, "stream": stream}).encode()


def opening(number: int) -> list[Any]:
    return [
        {"role": "system", "content": "You are an agent. " * 40},
        {"role": "user", "content": f"Question {number}. " + "Some words of context. " * 50},
    ]


async def load(
    port: int, connections: int, calls: int, *, proxied: bool, stream: bool
) -> list[float]:
    """Run agents that have conversations, and return the seconds of every call."""
    times: list[float] = []
    said = {"role": "assistant", "content": "word " * (CHUNKS if stream else 60)}

    async def one(number: int) -> None:
        client = Client(port)
        await client.open()
        path = "/v1/chat/completions"
        messages: list[Any] = []
        for i in range(calls):
            if i % TURNS == 0:
                messages = opening(number * calls + i)
                if proxied:
                    name = f"s{os.urandom(8).hex()}"
                    await client.post("/api/sessions", json.dumps({"id": name}).encode())
                    path = f"/sessions/{name}/v1/chat/completions"
            body = request(messages, stream=stream)
            begun = time.perf_counter()
            await client.post(path, body)
            times.append(time.perf_counter() - begun)
            messages += [said, {"role": "user", "content": f"Go on, {i}."}]
        client.writer.close()

    await asyncio.gather(*(one(i) for i in range(connections)))
    return times


def cpu_of(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as bound:
        return int(bound.getsockname()[1])


async def up(port: int) -> None:
    for _ in range(3000):
        try:
            _, writer = await asyncio.open_connection("127.0.0.1", port)
        except OSError:
            await asyncio.sleep(0.02)
        else:
            writer.close()
            return
    raise TimeoutError(f"no server listens on port {port}")


async def proxied(
    port: int, pid: int, connections: int, calls: int, *, stream: bool
) -> dict[str, float]:
    """Return median and p99 (ms), calls per second and CPU time (ms) per call of a proxy."""
    cpu, begun = cpu_of(pid), time.perf_counter()
    times = await load(port, connections, calls, proxied=True, stream=stream)
    spent, used = time.perf_counter() - begun, cpu_of(pid) - cpu
    return {
        "p50_ms": 1000 * median(times),
        "p99_ms": 1000 * sorted(times)[int(0.99 * len(times))],
        "per_s": len(times) / spent,
        "cpu_ms": 1000 * used / len(times),
    }


async def measure(direct: int, proxies: dict[str, tuple[int, int]], scale: float) -> dict[str, Any]:
    for port, _ in proxies.values():
        await load(port, 4, 50, proxied=True, stream=False)
    found: dict[str, Any] = {}
    for name, connections, calls, stream in (
        ("one connection", 1, max(1, int(600 * scale)), False),
        ("64 connections", 64, max(1, int(60 * scale)), False),
        ("streams, 16 connections", 16, max(1, int(20 * scale)), True),
    ):
        begun = time.perf_counter()
        plain = await load(direct, connections, calls, proxied=False, stream=stream)
        seconds = time.perf_counter() - begun
        ordered = sorted(plain)
        found[name] = {
            "direct": {
                "p50_ms": 1000 * median(plain),
                "p99_ms": 1000 * ordered[int(0.99 * len(plain))],
                "per_s": len(plain) / seconds,
            },
            **{
                kind: await proxied(port, pid, connections, calls, stream=stream)
                for kind, (port, pid) in proxies.items()
            },
        }
    return found


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--json", type=Path)
    parser.add_argument("--scale", type=float, default=1.0)
    parser.add_argument("--engine", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--bare", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.engine:
        asyncio.run(engine(options.engine))
        return
    if options.bare:
        bare(int(options.bare[0]), options.bare[1])
        return
    direct, proxy, peer = free_port(), free_port(), free_port()
    processes = [subprocess.Popen([sys.executable, __file__, "--engine", str(direct)])]
    with tempfile.TemporaryDirectory() as directory:
        url = f"http://127.0.0.1:{direct}"
        command = [sys.executable, "-m", "trajgym.cli", "serve", directory, "--upstream", url]
        processes.append(subprocess.Popen([*command, "--port", str(proxy)]))
        processes.append(subprocess.Popen([sys.executable, __file__, "--bare", str(peer), url]))
        try:

            async def run() -> dict[str, Any]:
                await up(direct)
                await up(proxy)
                await up(peer)
                served = {"bare": (peer, processes[2].pid), "ours": (proxy, processes[1].pid)}
                return await measure(direct, served, options.scale)

            found = asyncio.run(run())
        finally:
            for process in processes:
                process.terminate()
                process.wait()
    for name, values in found.items():
        for kind, one in values.items():
            cpu = f"  CPU {one['cpu_ms']:.2f} ms/call" if "cpu_ms" in one else ""
            print(
                f"{name:24} {kind:7} p50 {one['p50_ms']:7.2f} ms  p99 {one['p99_ms']:7.2f} ms  "
                f"{one['per_s']:6.0f}/s{cpu}"
            )
        ours, least = values["ours"], values["bare"]
        print(
            f"{name:24} ours adds {ours['p50_ms'] - values['direct']['p50_ms']:.2f} ms; "
            f"{ours['cpu_ms'] / max(least['cpu_ms'], 1e-3):.2f} x the bare proxy's CPU time, "
            f"{ours['per_s'] / least['per_s']:.2f} x its rate"
        )
    if options.json:
        machine = {
            "cpus": os.cpu_count(),
            "load": os.getloadavg(),
            "python": platform.python_version(),
            "peak_kib": resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss,
        }
        record = {"machine": machine, "date": time.strftime("%Y-%m-%d"), "results": found}
        options.json.write_text(json.dumps(record, indent=2) + "\n")


if __name__ == "__main__":
    main()
