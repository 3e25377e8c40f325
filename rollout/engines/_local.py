"""A token-exact engine over a transformers model in this process."""

from __future__ import annotations

import asyncio
import inspect
import threading
import time
from collections import OrderedDict
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, NamedTuple

from trajgym.rollout._ids import as_list
from trajgym.rollout._policy import PolicyUnavailable
from trajgym.rollout.engines._base import Generation, TokenEngine
from trajgym.trajectory import InvalidInput, Sampling, Segment

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

    from trajgym.trajectory import IntArray

__all__ = ["LocalEngine", "choose", "generator_of"]

_CHUNK = 256
"""Prompt ids per forward pass; a call can be cancelled between two passes."""


class _Cached(NamedTuple):
    """A session's cached ids, with their keys and values."""

    cache: Any
    ids: list[int]


class _Job(NamedTuple):
    prompt: list[int]
    sampling: Sampling
    max_tokens: int
    stop_ids: frozenset[int]
    session: str
    stop: threading.Event


class LocalEngine(TokenEngine):
    """Samples from a transformers model, one call at a time, in a thread.

    Log-probs are those of the distribution after temperature and before ``top_k`` and ``top_p``;
    at temperature 0 the most likely token is taken, with its log-prob at temperature 1. A seed
    gives the same ids for the same prompt on the same machine, unless rounding differences between
    cached and newly computed keys change them.

    Args:
        model: a transformers causal language model, in ``eval`` mode.
        name: recorded with each turn.
        cached_sessions: number of sessions whose keys and values are kept between turns; a turn
            whose prompt starts with the cached ids computes only the rest.
        version: policy version of the weights.
    """

    logprob_mode = "processed"

    def __init__(
        self, model: Any, *, name: str = "local", cached_sessions: int = 4, version: int = 0
    ) -> None:
        self.name = name
        self.version = version
        self.computed_tokens = 0
        """Number of ids that the model has processed; cached ids are not counted."""
        self._model = model
        # The name of this argument depends on the version of transformers.
        names = inspect.signature(model.forward).parameters
        self._cache_argument = "cache" if "cache" in names else "past_key_values"
        self._most_cached = cached_sessions
        self._closing = threading.Event()
        self._caches: OrderedDict[str, _Cached] = OrderedDict()
        # One thread, because the model can't be run concurrently, and one run uses the whole CPU.
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="trajgym-local")

    async def generate(
        self,
        prompt_ids: IntArray | Sequence[int],
        *,
        sampling: Sampling,
        max_tokens: int,
        stop_ids: Collection[int],
        session: str = "",
    ) -> Generation:
        """See :meth:`TokenEngine.generate`; waiting for the model counts as paused."""
        prompt = as_list(prompt_ids)
        if not prompt:
            raise InvalidInput("generate: the prompt is empty")
        stop = threading.Event()
        job = _Job(prompt, sampling, max_tokens, frozenset(stop_ids), session, stop)
        return await self._submit(self._run, job, stop=stop)

    async def _submit(
        self, run: Callable[[Any, float], Generation], job: Any, *, stop: threading.Event
    ) -> Generation:
        """Run a job in the engine's thread; ``stop`` is set when the caller is cancelled."""
        if self._closing.is_set():
            raise PolicyUnavailable(f"engine {self.name!r} is closed")
        asked = time.monotonic()
        try:
            return await asyncio.get_running_loop().run_in_executor(self._thread, run, job, asked)
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if self._closing.is_set() and not (task and task.cancelling()):
                # The engine was closed before the thread started the job.
                raise PolicyUnavailable(f"engine {self.name!r} is closed") from None
            raise
        finally:
            stop.set()  # on cancellation the thread ends at the next token

    async def score(
        self,
        prompt_ids: IntArray | Sequence[int],
        response_ids: IntArray | Sequence[int],
        *,
        sampling: Sampling,
    ) -> list[float]:
        """See :meth:`TokenEngine.score`; the mode of the log-probs is that of :meth:`generate`.

        Raises:
            InvalidInput: the prompt is empty.
            PolicyUnavailable: the engine is closed.
        """
        prompt, response = as_list(prompt_ids), as_list(response_ids)
        if not prompt:
            raise InvalidInput("score: the prompt is empty")
        if self._closing.is_set():
            raise PolicyUnavailable(f"engine {self.name!r} is closed")
        stop = threading.Event()
        temperature = 1.0 if sampling.temperature is None else sampling.temperature
        try:
            return await asyncio.get_running_loop().run_in_executor(
                self._thread, self._score, prompt, response, temperature, stop
            )
        finally:
            stop.set()

    async def close(self) -> None:
        """Stop after the current token and free the caches; calls in progress end as aborted."""
        self._closing.set()
        await asyncio.to_thread(self._thread.shutdown, cancel_futures=True)
        self._caches.clear()

    def _run(self, job: _Job, asked: float) -> Generation:
        import torch

        paused = time.monotonic() - asked
        generator = generator_of(job.sampling.seed)
        ids: list[int] = []
        logprobs: list[float] = []
        with torch.inference_mode():
            held = self._take(job.session, job.prompt)
            logits = self._forward(held, job.prompt[len(held.ids) :], job.stop)
            while logits is not None:
                chosen, logprob = choose(logits, job.sampling, generator)
                ids.append(chosen)
                logprobs.append(logprob)
                if chosen in job.stop_ids or len(ids) >= job.max_tokens:
                    break
                logits = self._forward(held, [chosen], job.stop)
        self._keep(job.session, held)
        finish = "abort" if logits is None else "stop" if ids[-1] in job.stop_ids else "length"
        segments = (Segment(len(ids), self.version, self.version),) if ids else ()
        return Generation(ids, logprobs, segments, finish, paused)  # type: ignore[arg-type]

    def _score(
        self, prompt: list[int], response: list[int], temperature: float, stop: threading.Event
    ) -> list[float]:
        import torch
        from transformers import DynamicCache

        held = _Cached(DynamicCache(config=self._model.config), [])
        found: list[float] = []
        with torch.inference_mode():
            before = self._forward(held, prompt, stop)
            for start in range(0, len(response), _CHUNK):
                chunk = response[start : start + _CHUNK]
                after = None if before is None else self._logits(held, chunk, stop)
                if before is None or after is None:
                    raise PolicyUnavailable(f"engine {self.name!r} was closed")
                logits = torch.cat([before[None], after[:-1]])
                logprobs = torch.log_softmax(_tempered(logits, temperature), dim=-1)
                found += logprobs.gather(1, torch.tensor(chunk)[:, None])[:, 0].tolist()
                before = after[-1]
        return found

    def _forward(self, held: _Cached, ids: list[int], stop: threading.Event) -> Any:
        """Run ids through the model and return the last logits, or None if stopped."""
        logits = None
        for start in range(0, len(ids), _CHUNK):
            logits = self._logits(held, ids[start : start + _CHUNK], stop, keep=1)
            if logits is None:
                return None
        return None if logits is None else logits[-1]

    def _logits(
        self, held: _Cached, chunk: list[int], stop: threading.Event, *, keep: int = 0
    ) -> Any:
        """Run one chunk through the model and return its logits (the last ``keep``; 0 is all)."""
        import torch

        if stop.is_set() or self._closing.is_set():
            return None
        out = self._model(
            input_ids=torch.tensor([chunk], device=self._model.device),
            use_cache=True,
            logits_to_keep=keep,
            **{self._cache_argument: held.cache},
        )
        held.ids.extend(chunk)
        self.computed_tokens += len(chunk)
        return out.logits[0].float().cpu()

    def _take(self, session: str, prompt: list[int]) -> _Cached:
        """Return the session's cache, truncated to the prefix that it shares with the prompt."""
        from transformers import DynamicCache

        found = self._caches.pop(session, None) if session else None
        if found is None:
            return _Cached(DynamicCache(config=self._model.config), [])
        # At least one id must run, to give logits.
        same = _shared(found.ids, prompt[:-1])
        if same < len(found.ids):
            found.cache.crop(same - len(found.ids))  # negative: how many to remove
            del found.ids[same:]
        return found

    def _keep(self, session: str, held: _Cached) -> None:
        if session and self._most_cached > 0:
            self._caches[session] = held
            while len(self._caches) > self._most_cached:
                self._caches.popitem(last=False)


def _shared(a: list[int], b: list[int]) -> int:
    for i, (x, y) in enumerate(zip(a, b, strict=False)):
        if x != y:
            return i
    return min(len(a), len(b))


def generator_of(seed: int | None) -> Any:
    """Return a random generator, seeded if a seed is given."""
    import torch

    generator = torch.Generator()
    if seed is None:
        generator.seed()
    else:
        generator.manual_seed(seed % 2**63)
    return generator


def choose(
    logits: Any, sampling: Sampling, generator: Any, *, never: Sequence[int] = ()
) -> tuple[int, float]:
    """Sample one id, but none of ``never``; return it with its log-prob before top-k and top-p."""
    import torch

    temperature = 1.0 if sampling.temperature is None else sampling.temperature
    logprobs = torch.log_softmax(_tempered(logits, temperature), dim=-1)
    possible = logprobs
    if never:
        possible = logprobs.index_fill(0, torch.tensor(never), float("-inf"))
    if temperature <= 0:
        chosen = int(possible.argmax())
    else:
        kept = _cut(possible, sampling).exp()
        chosen = int(torch.multinomial(kept, 1, generator=generator))
    return chosen, float(logprobs[chosen])


def _tempered(logits: Any, temperature: float) -> Any:
    return logits / temperature if temperature > 0 else logits


def _cut(logprobs: Any, sampling: Sampling) -> Any:
    """Return log-probs, with minus infinity for ids that top-k and top-p exclude."""
    nothing = float("-inf")
    if sampling.top_k is not None and 0 < sampling.top_k < logprobs.numel():
        least = logprobs.topk(sampling.top_k).values[-1]
        logprobs = logprobs.masked_fill(logprobs < least, nothing)
    if sampling.top_p is not None and sampling.top_p < 1:
        ordered, places = logprobs.softmax(-1).sort(descending=True)
        before = ordered.cumsum(-1) - ordered
        logprobs = logprobs.index_fill(0, places[before >= sampling.top_p], nothing)
    return logprobs
