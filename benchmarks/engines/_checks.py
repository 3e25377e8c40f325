"""Checks of the engine in this process: weights are replaced while it samples."""

from __future__ import annotations

import asyncio
import time
import traceback
from typing import TYPE_CHECKING, Any

from trajgym.rollout.engines import LocalVLLMEngine
from trajgym.trajectory import Sampling

if TYPE_CHECKING:
    from pathlib import Path

    from trajgym.rollout.engines import Generation, TokenEngine
    from trajgym.rollout.rendering import TemplateRenderer

__all__ = ["Checks"]


class Checks:
    """Replaces weights and cancels calls, and reports what was seen.

    Args:
        engine: the engine in this process.
        renderer: of its model.
        model: folder of its model.
        long: tokens of a long response.
    """

    def __init__(
        self, engine: LocalVLLMEngine, renderer: TemplateRenderer, model: Path, long: int
    ) -> None:
        self._engine = engine
        self._renderer = renderer
        self._model = model
        self._long = long

    async def run(self) -> dict[str, Any]:
        """Return what was seen, by check."""
        found: dict[str, Any] = {}
        keep = LocalVLLMEngine.over(self._engine._llm, updates="keep", name="keep")
        for engine in (self._engine, keep):
            for act in (self._reloaded, self._replaced, self._cancelled):
                key = f"{engine._updates} {act.__name__.strip('_')}"
                try:
                    async with asyncio.timeout(60):
                        found[key] = await act(engine)
                except Exception:  # noqa: BLE001 - the other checks go on
                    found[key] = {"error": traceback.format_exc()[-3000:]}
        return found

    async def _greedy(self, engine: TokenEngine, tokens: int = 24) -> Generation:
        prompt = self._renderer.render([{"role": "user", "content": "Name three colours."}])
        sampling = Sampling(temperature=0.0)
        return await engine.generate(prompt, sampling=sampling, max_tokens=tokens, stop_ids=())

    async def _reloaded(self, engine: LocalVLLMEngine) -> dict[str, Any]:
        """Reload the same weights in the middle of long responses."""
        before = await self._greedy(engine)
        version = engine.version
        prompt = self._renderer.render([{"role": "user", "content": "Tell a long story."}])
        sampling = Sampling(temperature=1.0, seed=5)
        jobs = [
            asyncio.create_task(
                engine.generate(prompt, sampling=sampling, max_tokens=self._long, stop_ids=())
            )
            for _ in range(16)
        ]
        await asyncio.sleep(0.3)
        begun = time.perf_counter()
        await engine.load_weights(self._model)
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
        weights = await asyncio.to_thread(load_file, str(self._model / "model.safetensors"))
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
        prompt = self._renderer.render([{"role": "user", "content": "Tell a long story."}])
        sampling = Sampling(temperature=1.0)
        jobs = [
            asyncio.create_task(
                engine.generate(prompt, sampling=sampling, max_tokens=self._long, stop_ids=())
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
