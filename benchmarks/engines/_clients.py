"""Clients: how one process reaches an engine, and measures it."""

from __future__ import annotations

import asyncio
import contextlib
import json
import tempfile
import time
from typing import TYPE_CHECKING, Any

from benchmarks.engines._load import ASKED, MOST_SECONDS, SEEN, TURNS, Counted
from trajgym.envs import EnvSpec
from trajgym.rollout import TokenPolicy, collect
from trajgym.rollout.engines import LocalVLLMEngine, VLLMEngine
from trajgym.trajectory import Sampling, Task

if TYPE_CHECKING:
    import argparse

    from trajgym.rollout.engines import TokenEngine

__all__ = ["Client", "Local", "Remote"]


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
