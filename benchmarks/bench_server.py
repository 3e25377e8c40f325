"""Recorded calls through `trajgym serve`: added latency, calls and streams per second, CPU time.

One run compares, in alternating rounds, the same load on

- the fake engine itself (``direct``),
- a bare proxy (``bare``: Starlette, uvicorn, aiohttp) that passes bytes on and records nothing:
  what a Python proxy costs at least with the usual libraries,
- the recording proxy (``ours``): every turn is in the store, durable against a kill of the
  process, before the last byte of its answer is sent, and
- peers, with ``--peers``: interpreters in whose environments they are installed (``openenv``,
  ``agentlightning`` and ``litellm[proxy]``; those that are missing are left out). None of them is
  durable: OpenEnv's capture server and Agent Lightning's gateway record in memory, LiteLLM does
  not record (and gets answers without ids and log-probs, which it refuses).

The load is agents that have conversations of ten turns, each in a session of its own, which is
created in the measured time. Engine, proxies and load generator are processes of their own. So that
the generator is not what is measured on two cores, it is an asyncio protocol that writes request
bodies made of messages that are serialised once, finds the end of an answer and parses nothing; it
has no HTTP library. ``direct`` shows what generator and engine can do by themselves.

CPU time per call is the process's own user and system time, sessions included. It is the figure to
compare on a machine that is also busy with other work. After the run the store is read: it must
hold a turn for every answer.

Usage: python benchmarks/bench_server.py [--json FILE] [--peers PYTHON...] [--seconds S]
           [--rounds N]
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import importlib.metadata
import json
import os
import platform
import socket
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

import uvloop

from trajgym.trajectory import Run

if TYPE_CHECKING:
    from collections.abc import Callable

TURNS = 10
"""Turns of a conversation."""
CHUNKS = 100
"""Chunks of a streamed answer."""
GOAL_ADDED_MS, GOAL_PER_S = 0.5, 3000
KEY = "sk-benchmark"
"""What LiteLLM requires."""
ME = Path(__file__).resolve()
WORKLOADS = (("one connection", 1, False), ("64 connections", 64, False), ("streams", 16, True))
IDS = list(range(100, 160))


# The engine -------------------------------------------------------------------------------


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
            streamed = b'"stream":true' in body or b'"stream": true' in body
            answers = TEXT_ANSWERS if b"/text/" in head.split(b"\r\n")[0] else ANSWERS
            self.transport.write(answers[streamed])


def _stream(*, ids: bool) -> bytes:
    head = {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "fake"}
    events = []
    for i in range(CHUNKS):
        choice: dict[str, Any] = {
            "index": 0,
            "delta": {"content": "word "},
            "finish_reason": "stop" if i == CHUNKS - 1 else None,
        }
        if ids:
            choice["token_ids"] = [i]
            choice["logprobs"] = {"content": [{"token": "w", "logprob": -0.5}]}
        more = {"prompt_token_ids": list(range(400))} if ids and not i else {}
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


def _whole(*, ids: bool) -> bytes:
    message = {"role": "assistant", "content": "word " * 60}
    choice: dict[str, Any] = {"index": 0, "message": message, "finish_reason": "stop"}
    usage = {"prompt_tokens": 400, "completion_tokens": len(IDS), "total_tokens": 400 + len(IDS)}
    answer = {"id": "chatcmpl-0", "object": "chat.completion", "created": 1, "model": "fake"}
    if ids:
        choice["token_ids"] = IDS
        choice["logprobs"] = {"content": [{"token": "w", "logprob": -0.5} for _ in IDS]}
    more = {"prompt_token_ids": list(range(400))} if ids else {}
    body = json.dumps({**answer, **more, "choices": [choice], "usage": usage}).encode()
    head = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n"
    return head % len(body) + body


ANSWERS = {False: _whole(ids=True), True: _stream(ids=True)}
TEXT_ANSWERS = {False: _whole(ids=False), True: _stream(ids=False)}
"""Without ids and log-probs, for LiteLLM, which refuses them."""


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


# The load ---------------------------------------------------------------------------------


class Client(asyncio.Protocol):
    """One connection that keeps alive; knows no more of HTTP than where an answer ends."""

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.data = b""
        self.answer: asyncio.Future[bytes] | None = None

    def connection_made(self, transport: Any) -> None:
        self.transport = transport

    def connection_lost(self, error: Exception | None) -> None:
        if self.answer is not None and not self.answer.done():
            self.answer.set_exception(ConnectionError(f"connection closed: {error}"))

    def data_received(self, data: bytes) -> None:
        self.data = self.data + data if self.data else data
        end = self.data.find(b"\r\n\r\n")
        if end < 0 or self.answer is None:
            return
        head = self.data[:end].lower()
        _, found, length = head.partition(b"content-length: ")
        if found:
            complete = len(self.data) == end + 4 + int(length.split(b"\r\n", 1)[0])
        else:
            complete = self.data.endswith(b"0\r\n\r\n")
        if complete:
            answer, self.data = self.data, b""
            if answer[9:12] in {b"200", b"201"}:
                self.answer.set_result(answer[end + 4 :])
            else:
                self.answer.set_exception(RuntimeError(f"{answer[:600]!r}"))

    async def post(self, path: bytes, headers: bytes, body: bytes) -> bytes:
        self.answer = self.loop.create_future()
        self.transport.write(
            b"POST %s HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n%s"
            b"content-length: %d\r\n\r\n%s" % (path, headers, len(body), body)
        )
        return await self.answer


def message(role: str, content: str) -> bytes:
    return json.dumps({"role": role, "content": content}).encode()


SYSTEM = message("system", "You are an agent. " * 40)
SAID = {False: message("assistant", "word " * 60), True: message("assistant", "word " * CHUNKS)}
WORDS = "Some words of context. " * 50
GO_ON = [message("user", f"Go on, {i}.") for i in range(TURNS)]


@dataclass
class Target:
    """What the load is sent to.

    ``open`` returns, for the name of a session, path, headers and body of the request that opens it
    (None for the engine), and path and headers of its calls.
    """

    name: str
    port: int
    open: Callable[[str], tuple[tuple[bytes, bytes, bytes] | None, bytes, bytes]]
    pid: int = 0
    streams: bool = True
    answers: int = 0


async def load(target: Target, connections: int, seconds: float, *, stream: bool) -> list[float]:
    """Have conversations for some seconds; return how long each call took."""
    times: list[float] = []
    until = time.perf_counter() + seconds
    start = b'{"model":"fake","stream":%s,"messages":[' % (b"true" if stream else b"false")
    clock = time.perf_counter

    async def talk() -> None:
        loop = asyncio.get_running_loop()
        transport, client = await loop.create_connection(Client, "127.0.0.1", target.port)
        while clock() < until:
            name = f"s{os.urandom(8).hex()}"
            opening, path, headers = target.open(name)
            if opening is not None:
                await client.post(*opening)
            body = start + SYSTEM + b"," + message("user", f"Question {name}. {WORDS}")
            for i in range(TURNS):
                begun = clock()
                await client.post(path, headers, body + b"]}")
                times.append(clock() - begun)
                if clock() >= until:
                    break
                body = b"%s,%s,%s" % (body, SAID[stream], GO_ON[i])
        transport.close()

    await asyncio.gather(*(talk() for _ in range(connections)))
    target.answers += len(times)
    return times


def cpu_of(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


async def measured(target: Target, connections: int, seconds: float, stream: bool) -> Any:
    """Return median and p99 (ms), calls per second and CPU time (ms) per call."""
    cpu = cpu_of(target.pid) if target.pid else 0.0
    begun = time.perf_counter()
    times = sorted(await load(target, connections, seconds, stream=stream))
    spent = time.perf_counter() - begun
    used = (cpu_of(target.pid) if target.pid else 0.0) - cpu
    return {
        "calls": len(times),
        "p50_ms": 1000 * median(times),
        "p99_ms": 1000 * times[int(0.99 * len(times))],
        "per_s": len(times) / spent,
        "cpu_ms": 1000 * used / len(times),
        "load": os.getloadavg()[0],
    }


# The processes ----------------------------------------------------------------------------


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as bound:
        return int(bound.getsockname()[1])


async def up(port: int, process: subprocess.Popen[bytes], seconds: float = 120.0) -> None:
    until = time.monotonic() + seconds
    while time.monotonic() < until and process.poll() is None:
        try:
            _, writer = await asyncio.open_connection("127.0.0.1", port)
        except OSError:
            await asyncio.sleep(0.05)
        else:
            writer.close()
            return
    raise TimeoutError(f"no server listens on port {port}")


def ours_or_bare(name: str) -> tuple[tuple[bytes, bytes, bytes], bytes, bytes]:
    body = json.dumps({"id": name}).encode()
    return (b"/api/sessions", b"", body), b"/sessions/%s/v1/chat/completions" % name.encode(), b""


def openenv(name: str) -> tuple[tuple[bytes, bytes, bytes], bytes, bytes]:
    body = json.dumps({"session_id": name, "metadata": {}}).encode()
    key = b"authorization: Bearer %s\r\n" % name.encode()
    return (b"/sessions", b"", body), b"/v1/chat/completions", key


def agentlightning(name: str) -> tuple[tuple[bytes, bytes, bytes], bytes, bytes]:
    body = json.dumps([{"rollout_id": name, "input": "x"}]).encode()
    path = b"/proxy/rollout/%s/attempt/0/mode/train/openai/v1/chat/completions" % name.encode()
    return (b"/api/rollouts", b"", body), path, b""


def without_sessions(name: str) -> tuple[None, bytes, bytes]:
    del name
    return None, b"/v1/chat/completions", b"authorization: Bearer %s\r\n" % KEY.encode()


@dataclass
class Processes:
    """The servers of a run, ended with it."""

    directory: Path
    running: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def start(
        self, name: str, *command: str, cwd: Path | None = None, **environment: str
    ) -> subprocess.Popen[bytes]:
        env = {**os.environ, **environment}
        with (self.directory / f"{name}.log").open("wb") as log:
            process = subprocess.Popen(command, stdout=log, stderr=log, cwd=cwd, env=env)
        self.running.append(process)
        return process

    def end(self) -> None:
        for process in self.running:
            process.terminate()
        for process in self.running:
            process.wait()


def interpreter_of(package: str, pythons: list[str]) -> str | None:
    """Return the first interpreter in whose environment a package is installed."""
    check = f"import importlib.util as u; raise SystemExit(not u.find_spec({package!r}))"
    for python in pythons:
        if not subprocess.run([python, "-c", check], capture_output=True, check=False).returncode:
            return python
    return None


async def peers(pythons: list[str], url: str, processes: Processes) -> list[Target]:
    """Start the peers that are installed."""
    found = []
    for name, start in (
        ("openenv", _start_openenv),
        ("agentlightning", _start_agentlightning),
        ("litellm", _start_litellm),
    ):
        python = interpreter_of(name, pythons)
        if python is None:
            print(f"{name}: not installed, left out")
            continue
        try:
            found.append(await start(python, url, processes))
        except (TimeoutError, ConnectionError, RuntimeError) as error:
            log = (processes.directory / f"{name}.log").read_text()
            print(f"{name}: not measured: {error}\n{log[-2000:]}", file=sys.stderr)
    return found


async def _start_openenv(python: str, url: str, processes: Processes) -> Target:
    port = free_port()
    options = ["--llm-url", url, "--model", "fake", "--port", str(port)]
    module = "openenv.core.harness.capture.server"
    # Unknown keys are accepted, so that the load needs no answer to name a session.
    more = ["--capture-level", "tokens", "--allow-unregistered"]
    process = processes.start("openenv", python, "-m", module, *options, *more)
    await up(port, process)
    return Target("openenv", port, openenv, process.pid)


async def _start_agentlightning(python: str, url: str, processes: Processes) -> Target:
    port = free_port()
    options = ["host=127.0.0.1", f"port={port}", "default_proxy.model_name=fake"]
    process = processes.start(
        "agentlightning",
        python,
        "-m",
        "agentlightning.server",
        *options,
        cwd=processes.directory,
    )
    await up(port, process)
    loop = asyncio.get_running_loop()
    transport, client = await loop.create_connection(Client, "127.0.0.1", port)
    served = json.dumps([{"model": "fake", "endpoint": f"{url}/v1"}]).encode()
    await client.post(b"/api/models", b"", served)
    transport.close()
    return Target("agentlightning", port, agentlightning, process.pid, streams=False)


async def _start_litellm(python: str, url: str, processes: Processes) -> Target:
    port = free_port()
    config = processes.directory / "litellm.yaml"
    named = {"model": "openai/fake", "api_base": f"{url}/text/v1", "api_key": "x"}
    served = {"model_list": [{"model_name": "fake", "litellm_params": named}]}
    config.write_text(json.dumps(served))  # JSON is YAML
    script = Path(python).with_name("litellm")
    options = ["--config", str(config), "--port", str(port), "--host", "127.0.0.1"]
    process = processes.start("litellm", str(script), *options, LITELLM_MASTER_KEY=KEY)
    await up(port, process)
    return Target("litellm", port, without_sessions, process.pid)


# The run ----------------------------------------------------------------------------------


async def run(options: argparse.Namespace, directory: Path) -> dict[str, Any]:
    processes = Processes(directory)
    store = directory / "store"
    port, url = free_port(), ""
    try:
        me = str(ME)
        fake = processes.start("engine", sys.executable, me, "--engine", str(port))
        url = f"http://127.0.0.1:{port}"
        targets = [Target("direct", port, without_sessions)]
        await up(port, fake)
        port = free_port()
        process = processes.start("bare", sys.executable, me, "--bare", str(port), url)
        targets.append(Target("bare", port, ours_or_bare, process.pid))
        await up(port, process)
        port = free_port()
        command = [sys.executable, "-m", "trajgym.cli", "serve", str(store), "--upstream", url]
        process = processes.start("ours", *command, "--port", str(port))
        ours = Target("ours", port, ours_or_bare, process.pid)
        targets.append(ours)
        await up(port, process)
        if options.peers:
            targets += await peers(options.peers, url, processes)
        for target in targets:
            await load(target, 4, 0.5, stream=False)
        gc.collect()
        gc.disable()
        found = await rounds(options, targets)
    finally:
        processes.end()
    with Run(store) as read:
        stored = sum(summary.turns for summary in read.summaries())
    if stored != ours.answers:
        raise SystemExit(f"{ours.answers} answers, but {stored} turns in the store")
    print(f"{stored} answers, all of them in the store")
    return found


async def rounds(options: argparse.Namespace, targets: list[Target]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, connections, stream in WORKLOADS:
        served = [target for target in targets if target.streams or not stream]
        taken: dict[str, list[Any]] = {target.name: [] for target in served}
        for _ in range(options.rounds):
            for target in served:
                taken[target.name].append(
                    await measured(target, connections, options.seconds, stream)
                )
        found[name] = {kind: summary_of(values, taken["direct"]) for kind, values in taken.items()}
    return found


def summary_of(values: list[Any], direct: list[Any]) -> dict[str, Any]:
    """Return medians over the rounds, the best round, and the rounds themselves."""
    middle = {k: median(v[k] for v in values) for k in ("p50_ms", "p99_ms", "per_s", "cpu_ms")}
    return {
        **middle,
        "added_p50_ms": median(
            v["p50_ms"] - d["p50_ms"] for v, d in zip(values, direct, strict=True)
        ),
        "added_p99_ms": median(
            v["p99_ms"] - d["p99_ms"] for v, d in zip(values, direct, strict=True)
        ),
        "best_per_s": max(v["per_s"] for v in values),
        "least_cpu_ms": min(v["cpu_ms"] for v in values),
        "rounds": values,
    }


def show(found: dict[str, Any]) -> None:
    for name, kinds in found.items():
        print(f"\n{name}")
        for kind, one in kinds.items():
            print(
                f"  {kind:15} added p50 {one['added_p50_ms']:8.2f} ms, p99 "
                f"{one['added_p99_ms']:8.2f} ms; {one['per_s']:6.0f}/s (best "
                f"{one['best_per_s']:6.0f}); CPU {one['cpu_ms']:6.3f} ms/call (least "
                f"{one['least_cpu_ms']:6.3f})"
            )
    added = found["one connection"]["ours"]["added_p50_ms"]
    rate = found["64 connections"]["ours"]["best_per_s"]
    print(
        f"\nadded latency {added:.2f} ms (goal {GOAL_ADDED_MS}), "
        f"{rate:.0f} durable calls/s (goal {GOAL_PER_S})"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path, help="where to write the results")
    parser.add_argument("--peers", nargs="+", help="interpreters that have the peers")
    parser.add_argument("--seconds", type=float, default=3.0, help="of load per measurement")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--engine", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--bare", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.engine:
        uvloop.run(engine(options.engine))
        return
    if options.bare:
        bare(int(options.bare[0]), options.bare[1])
        return
    before = os.getloadavg()
    with tempfile.TemporaryDirectory() as directory:
        found = uvloop.run(run(options, Path(directory)))
    show(found)
    if options.json:
        named = ("trajgym", "uvicorn", "httptools", "uvloop", "orjson", "starlette", "aiohttp")
        machine = {
            "cpus": os.cpu_count(),
            "load_before": before,
            "load_after": os.getloadavg(),
            "python": platform.python_version(),
            "versions": {name: importlib.metadata.version(name) for name in named},
        }
        record = {"machine": machine, "date": time.strftime("%Y-%m-%d"), "results": found}
        options.json.write_text(json.dumps(record, indent=2) + "\n")


if __name__ == "__main__":
    main()
