"""A token-exact engine over a transformers vision-language model in this process."""

from __future__ import annotations

import threading
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

from trajgym.rollout._ids import as_list
from trajgym.rollout.engines._base import Generation
from trajgym.rollout.engines._local import LocalEngine, choose, generator_of
from trajgym.rollout.rendering._processor import pixels_of, placeholder_ids
from trajgym.trajectory import Segment

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence

    from trajgym.rollout.rendering._image_spans import ShownImage
    from trajgym.trajectory import IntArray, Sampling

__all__ = ["LocalVisionEngine"]


class _Job(NamedTuple):
    prompt: list[int]
    images: tuple[ShownImage, ...]
    sampling: Sampling
    max_tokens: int
    stop_ids: frozenset[int]
    stop: threading.Event


class LocalVisionEngine(LocalEngine):
    """Samples from a vision-language model; without images it works like :class:`LocalEngine`.

    With images, the whole prompt is computed in each turn. Placeholders are never sampled;
    log-probs are of the distribution before they are excluded, as with ``top_k`` and ``top_p``.

    Args:
        model: a transformers model that accepts images, in ``eval`` mode.
        processor: the model's processor; it must be the same as the renderer's.
        options: more arguments of :class:`LocalEngine`.
    """

    def __init__(self, model: Any, processor: Any, **options: Any) -> None:
        super().__init__(model, **options)
        self._processor = processor
        self._never = sorted(placeholder_ids(processor))

    async def generate_seeing(
        self,
        prompt_ids: IntArray | Sequence[int],
        images: Sequence[ShownImage],
        *,
        sampling: Sampling,
        max_tokens: int,
        stop_ids: Collection[int],
        session: str = "",
    ) -> Generation:
        """See :meth:`TokenEngine.generate_seeing`; waiting for the model counts as paused.

        Raises:
            UnsupportedModality: the placeholders were made by another processor.
            PolicyUnavailable: the engine is closed.
        """
        del session
        prompt = as_list(prompt_ids)
        stop = threading.Event()
        job = _Job(prompt, tuple(images), sampling, max_tokens, frozenset(stop_ids), stop)
        return await self._submit(self._run_seeing, job, stop=stop)

    def _run_seeing(self, job: _Job, asked: float) -> Generation:
        import torch

        paused = time.monotonic() - asked
        chooser = _Chooser(job, self._closing, self._never)
        inputs = pixels_of(self._processor, job.prompt, job.images)
        with torch.inference_mode(), self._own_settings():
            self._model.generate(
                **{name: value.to(self._model.device) for name, value in inputs.items()},
                max_new_tokens=job.max_tokens,
                do_sample=False,
                eos_token_id=sorted(job.stop_ids),
                pad_token_id=min(job.stop_ids),
                logits_processor=[chooser],
                stopping_criteria=[chooser.stopped],
            )
        self.computed_tokens += len(job.prompt) + len(chooser.ids)
        ids = chooser.ids
        ended = bool(ids) and ids[-1] in job.stop_ids
        finish = "stop" if ended else "length" if len(ids) >= job.max_tokens else "abort"
        segments = (Segment(len(ids), self.version, self.version),) if ids else ()
        return Generation(ids, chooser.logprobs, segments, finish, paused)  # type: ignore[arg-type]

    @contextmanager
    def _own_settings(self) -> Iterator[None]:
        """Reset the model's generation settings, because penalties would change the log-probs."""
        from transformers import GenerationConfig

        own, self._model.generation_config = self._model.generation_config, GenerationConfig()
        try:
            yield
        finally:
            self._model.generation_config = own


class _Chooser:
    """A logits processor that chooses the id and excludes all others.

    transformers' ``generate`` is needed because it knows how each model counts positions around
    images; but it has no per-call seed, and reports log-probs after top-k and top-p.
    """

    def __init__(self, job: _Job, closing: threading.Event, never: list[int]) -> None:
        self.ids: list[int] = []
        self.logprobs: list[float] = []
        self._job = job
        self._closing = closing
        self._never = never
        self._generator = generator_of(job.sampling.seed)

    def __call__(self, input_ids: Any, scores: Any) -> Any:
        import torch

        del input_ids
        chosen, logprob = choose(
            scores[0].float().cpu(), self._job.sampling, self._generator, never=self._never
        )
        self.ids.append(chosen)
        self.logprobs.append(logprob)
        forced = torch.full_like(scores, float("-inf"))
        forced[0, chosen] = 0.0
        return forced

    def stopped(self, input_ids: Any, scores: Any, **_: Any) -> Any:
        import torch

        del scores
        over = self._job.stop.is_set() or self._closing.is_set()
        return torch.full((len(input_ids),), over, dtype=torch.bool, device=input_ids.device)
