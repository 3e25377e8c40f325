"""Inference servers without a model, in the place of verl's client."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

from tests.rollout.tokenizers import tokenizer
from trajgym.rollout import FakeEngine, derive_seed
from trajgym.rollout.engines import FakeCall
from trajgym.rollout.rendering import TemplateRenderer
from trajgym.trajectory import Message, Sampling

Script = Callable[[FakeCall], "str | Message"]


def talk(call: FakeCall) -> str:
    """Say a long word in as many turns as the session's number, and short ones then."""
    sample = int(call.session.rpartition("-")[2].partition(".")[0])
    return "maybe" if call.turn < sample else "a"


def one_of_all(call: FakeCall) -> str | Message:
    """As :func:`talk`, but the second turn calls a tool."""
    if call.turn != 1:
        return talk(call)
    function = {"name": "note", "arguments": json.dumps({"text": "x"})}
    tool = {"id": "c0", "type": "function", "function": function}
    return {"role": "assistant", "content": "", "tool_calls": [tool]}


class FakeServers:
    """Answers ``generate`` as verl 0.9.1's ``LLMServerClient`` does; travels to Ray's workers.

    Args:
        script: what is said.
        version: of the weights; None reports none, as servers do that don't know.
        span: how many versions newer the last token is.
        logprobs: whether they are reported.
        delay: seconds before each answer.
    """

    def __init__(
        self,
        script: Script = talk,
        *,
        version: int | None = 3,
        span: int = 0,
        logprobs: bool = True,
        delay: float = 0.0,
    ) -> None:
        self.script, self.version, self.span = script, version, span
        self.logprobs, self.delay = logprobs, delay
        self.requests: list[tuple[str, list[int], dict[str, Any]]] = []
        self._engine: FakeEngine | None = None

    async def generate(
        self, request_id: str, *, prompt_ids: list[int], sampling_params: dict[str, Any], **_: Any
    ) -> Any:
        from verl.workers.rollout.replica import TokenOutput

        self.requests.append((request_id, list(prompt_ids), dict(sampling_params)))
        if self.delay:
            await asyncio.sleep(self.delay)
        if self._engine is None:
            self._engine = FakeEngine(self.script, renderer=TemplateRenderer(tokenizer("qwen")))
        asked = sum(name == request_id for name, _, _ in self.requests)
        seed = derive_seed(asked, request_id.rpartition("-")[2])
        made = await self._engine.generate(
            prompt_ids,
            sampling=Sampling(temperature=sampling_params["temperature"], seed=seed),
            max_tokens=sampling_params["max_tokens"],
            stop_ids=sampling_params["stop_token_ids"],
            session=request_id,
        )
        newest = None if self.version is None else self.version + self.span
        steps = {"min_global_steps": self.version, "max_global_steps": newest}
        return TokenOutput(
            token_ids=list(made.ids),
            log_probs=list(made.logprobs) if self.logprobs else None,
            stop_reason="completed",
            extra_fields={"global_steps": newest, **steps},
        )
