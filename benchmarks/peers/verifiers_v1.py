"""Seconds per turn of verifiers 0.4.0: `Agent.run` through its interception server.

64 concurrent rollouts of 20 turns each. The harness is a coroutine in this process: it posts the
conversation to the interception server over one keep-alive connection, awaits a trivial tool for
the returned tool call, and posts again; the time of its client is included. The server forwards
requests to an upstream in a separate process that answers immediately. The rollouts share one box
(unused) and the default elastic pool of servers. There is one warm-up round, then the median of
three.

Not included: a model, tokens, tool definitions, `traces.jsonl`, a box for each rollout, logging.

Usage: python verifiers_v1.py, with an interpreter that has verifiers 0.4.0.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import re
import statistics
import sys
import time
from pathlib import Path
from subprocess import PIPE, Popen
from typing import Any

import aiohttp
import verifiers.v1 as vf
from verifiers.v1.interception import ElasticInterceptionPool
from verifiers.v1.runtimes import ProgramResult

__all__ = ["InProcessHarness"]  # verifiers finds a harness by its module's name

CONCURRENT, TURNS, ROUNDS = 64, 20, 3
TEXT = json.dumps({"text": "a line of a conversation that goes on for a while"})
CALL = {"id": "c", "type": "function", "function": {"name": "echo", "arguments": TEXT}}
SAID = {"role": "assistant", "content": "Let me say this.", "tool_calls": [CALL]}
CHOICE = {"index": 0, "finish_reason": "tool_calls", "message": SAID}
REPLY = {"id": "r", "object": "chat.completion", "created": 0, "model": "m", "choices": [CHOICE]}


async def upstream() -> None:
    """Print the port, and answer every request with the same completion."""
    body = json.dumps(REPLY)
    head = "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: "
    answer = f"{head}{len(body)}\r\n\r\n{body}".encode()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(asyncio.IncompleteReadError):  # the client has disconnected
            while asked := await reader.readuntil(b"\r\n\r\n"):
                length = re.search(rb"content-length: (\d+)", asked, re.IGNORECASE)
                await reader.readexactly(int(length[1]) if length else 0)
                writer.write(answer)
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        print(server.sockets[0].getsockname()[1], flush=True)
        await server.serve_forever()


async def echo(text: str) -> str:
    return f"you said {text}"


class InProcessHarness(vf.Harness[vf.HarnessConfig]):
    NEEDS_CONTAINER = False

    async def launch(self, ctx: Any, *where: Any) -> ProgramResult:
        _, _, endpoint, secret, _, task = where
        messages: list[dict[str, Any]] = [{"role": "user", "content": task.prompt}]
        async with aiohttp.ClientSession(headers={"Authorization": f"Bearer {secret}"}) as http:
            for _ in range(TURNS):
                asked = {"model": ctx.model, "messages": messages}
                async with http.post(f"{endpoint}/chat/completions", json=asked) as answer:
                    said = (await answer.json())["choices"][0]["message"]
                call = said["tool_calls"][0]
                heard = await echo(**json.loads(call["function"]["arguments"]))
                messages += [said, {"role": "tool", "tool_call_id": call["id"], "content": heard}]
        return ProgramResult(exit_code=0, stdout="", stderr="")


class Echo(vf.Task[vf.TaskData]):
    @vf.reward
    async def always(self) -> float:
        return 1.0


async def measure(port: int) -> float:
    """Return seconds per turn, the median over rounds."""
    client = vf.EvalClientConfig(base_url=f"http://127.0.0.1:{port}/v1", api_key_var="NO_KEY")
    harness, runtime = vf.HarnessConfig(id=Path(__file__).stem), vf.SubprocessConfig()
    config = vf.AgentConfig(harness=harness, runtime=runtime, model="m", client=client)
    task, samples = Echo(vf.TaskData(prompt="Say something.")), []
    async with ElasticInterceptionPool() as pool:
        agent = vf.Agent(config, interception=pool)
        async with agent.provision(task) as box:
            for _ in range(ROUNDS + 1):
                started = time.perf_counter()
                runs = (agent.run(task, runtime=box) for _ in range(CONCURRENT))
                traces = await asyncio.gather(*runs)
                samples.append((time.perf_counter() - started) / (CONCURRENT * TURNS))
                if any((t.num_turns, t.ok, t.reward) != (TURNS, True, 1.0) for t in traces):
                    raise SystemExit(f"a rollout didn't finish its {TURNS} turns")
    return statistics.median(samples[1:])


def main() -> None:
    with Popen([sys.executable, __file__, "--upstream"], stdout=PIPE) as server:
        try:
            assert server.stdout is not None
            print(asyncio.run(measure(int(server.stdout.readline()))))
        finally:
            server.terminate()


if __name__ == "__main__":
    logging.disable(logging.CRITICAL)
    asyncio.run(upstream()) if "--upstream" in sys.argv else main()
