"""Seconds per turn of verifiers 0.1.14: `MultiTurnEnv` with a client in the same process.

64 concurrent rollouts of 20 turns each use `run_rollout`, which `generate` calls for each row:
rollout, one constant reward, the output record. The client immediately returns a prepared message
with a tool call; `env_response` parses the arguments and awaits a trivial async tool. There is one
warm-up round, then the median of three.

Not included: a model, HTTP, tokens (the client returns none), a store (none is written), the
progress bar and running averages of `generate`, logging.

Usage: python verifiers_classic.py, with an interpreter that has verifiers 0.1.14.
"""

from __future__ import annotations

import asyncio
import json
import logging
import statistics
import time
from typing import Any

import verifiers as vf
from datasets import Dataset
from verifiers.types import Response, ResponseMessage, ToolCall, ToolMessage

CONCURRENT = 64
TURNS = 20
ROUNDS = 3


def reply(turn: int) -> Response:
    text = f"line {turn} of a conversation that goes on for a while"
    call = ToolCall(id=f"c{turn}", name="echo", arguments=json.dumps({"text": text}))
    said = ResponseMessage(
        content="Let me say this.",
        tool_calls=[call],
        finish_reason="tool_calls",
        is_truncated=False,
    )
    return Response(id=f"r{turn}", created=0, model="canned", message=said)


class CannedClient(vf.Client):
    """A client that returns the n-th prepared response in turn n; conversions do nothing."""

    def __init__(self, replies: list[Response]) -> None:
        super().__init__(None)
        self.replies = replies

    def setup_client(self, config: object) -> None: ...

    async def to_native_tool(self, tool: Any) -> Any:
        return tool

    async def to_native_prompt(self, messages: Any) -> tuple[Any, dict[str, Any]]:
        return messages, {}

    async def get_native_response(self, prompt: list[Any], *_: Any, **__: Any) -> Response:
        return self.replies[len(prompt) // 2]

    async def raise_from_native_response(self, response: Any) -> None: ...

    async def from_native_response(self, response: Response) -> Response:
        return response

    async def close(self) -> None: ...


async def echo(text: str) -> str:
    return f"you said {text}"


class Echo(vf.MultiTurnEnv):
    """An environment that answers a tool call with a short text."""

    async def env_response(self, messages: Any, *_: Any, **__: Any) -> list[ToolMessage]:
        call = messages[-1].tool_calls[0]
        said = await echo(**json.loads(call.arguments))
        return [ToolMessage(tool_call_id=call.id, content=said)]


def always() -> float:
    return 1.0


async def measure() -> float:
    """Return seconds per turn, the median over rounds."""
    prompt = [{"role": "user", "content": "Say something."}]
    data = Dataset.from_list([{"prompt": prompt, "answer": ""}])
    env = Echo(dataset=data, max_turns=TURNS, rubric=vf.Rubric(funcs=[always]))
    row, client = env.get_dataset()[0], CannedClient([reply(i) for i in range(TURNS)])
    samples = []
    for _ in range(ROUNDS + 1):
        started = time.perf_counter()
        runs = (env.run_rollout(row, client, "canned", {}) for _ in range(CONCURRENT))
        outputs = await asyncio.gather(*runs)
        samples.append((time.perf_counter() - started) / (CONCURRENT * TURNS))
        turns = {output["metrics"]["num_turns"] for output in outputs}
        if turns != {TURNS}:
            raise SystemExit(f"expected rollouts of {TURNS} turns, got {turns}")
    return statistics.median(samples[1:])


if __name__ == "__main__":
    logging.disable(logging.CRITICAL)
    print(asyncio.run(measure()))
