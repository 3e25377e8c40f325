"""A server of completions that answers by a script and has faults, as a program.

It speaks as much of vLLM's protocol as :class:`trajgym.rollout.VLLMEngine` uses. The agent is a
function of the prompt: it runs two cells and answers with what the second one printed.

Usage: python -m benchmarks.soak._engine PORT PLAN
"""

from __future__ import annotations

import asyncio
import json
import logging
import random
import re
import sys
from typing import Any

from aiohttp import web

from benchmarks.soak._plan import Plan
from benchmarks.soak._world import CELLS, DOUBLED, drawn
from trajgym.rollout import call
from trajgym.rollout.engines import FakeCall, FakeEngine
from trajgym.rollout.rendering import ByteRenderer
from trajgym.trajectory import Message, Sampling

_RESULT = re.compile(r"<\|tool\|>(.*?)<\|end\|>", re.DOTALL)
_SPECIAL = {259: "<|tool|>", 260: "<|end|>"}
_PIECES = 3


def answered(prompt: FakeCall) -> Message:
    """Return what the agent does next."""
    if prompt.turn < len(CELLS):
        return call("python", code=CELLS[prompt.turn])
    text = "".join(_SPECIAL.get(i, chr(i) if i < 256 else " ") for i in prompt.prompt_ids)
    shown = _RESULT.findall(text)
    printed = shown[-1].split("\n")[0].strip() if shown else ""
    if printed.isdigit() and DOUBLED in text:
        printed = str(int(printed) * 2)
    return call("answer", answer=printed or "nothing")


class Engine:
    """Answers requests, or fails to.

    Args:
        plan: has the rates.
    """

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.fake = FakeEngine(answered, seed=plan.seed)
        self.stops = ByteRenderer().stop_ids
        self.chance = random.Random(plan.seed)

    async def models(self, _: web.Request) -> web.Response:
        """Describe the model."""
        return web.json_response({"data": [{"id": "soak", "max_model_len": 1 << 20}]})

    async def complete(self, request: web.Request) -> web.StreamResponse:
        """Sample, and stream the ids in a few pieces."""
        body: dict[str, Any] = await request.json()
        session = request.headers.get("x-session-id", "")
        plan, number = self.plan, self.chance.random()
        if drawn(plan.seed, "engine", session) < plan.refused:
            return web.json_response({"error": "drawn: this session is rejected"}, status=400)
        if number < plan.error:
            return web.json_response({"error": "drawn"}, status=500)
        number -= plan.error
        if number < plan.slow:
            await asyncio.sleep(self.chance.uniform(1.0, 4.0))
        number -= plan.slow
        made = await self.fake.generate(
            body["prompt"],
            sampling=Sampling(temperature=body["temperature"], seed=body.get("seed")),
            max_tokens=body["max_tokens"],
            stop_ids=self.stops,
            session=session,
        )
        response = web.StreamResponse(headers={"content-type": "text/event-stream"})
        await response.prepare(request)
        size = max(1, -(-len(made.ids) // _PIECES))
        cut = self.chance.randrange(_PIECES) if 0 <= number < plan.cut else -1
        for at in range(0, len(made.ids), size):
            if at == cut * size:
                assert request.transport is not None
                request.transport.close()
                return response
            ended = at + size >= len(made.ids)
            choice = {
                "token_ids": list(map(int, made.ids[at : at + size])),
                "logprobs": {"token_logprobs": list(map(float, made.logprobs[at : at + size]))},
                "finish_reason": made.finish if ended else None,
            }
            await response.write(b"data: " + json.dumps({"choices": [choice]}).encode() + b"\n\n")
        await response.write(b"data: [DONE]\n\n")
        return response


def main() -> None:
    port, plan = int(sys.argv[1]), Plan.of_json(sys.argv[2])
    logging.getLogger("aiohttp.server").setLevel(logging.CRITICAL)  # it cuts its own answers
    engine, app = Engine(plan), web.Application(client_max_size=1 << 26)
    app.add_routes([web.get("/v1/models", engine.models)])
    app.add_routes([web.post("/v1/completions", engine.complete)])
    web.run_app(app, host="127.0.0.1", port=port, print=None, reuse_address=True)


if __name__ == "__main__":
    main()
