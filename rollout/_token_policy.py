"""A policy that combines a renderer with an engine that samples token ids."""

from __future__ import annotations

import asyncio
import dataclasses
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, Self, TypeVar

import numpy as np

from trajgym.envs import Reply, Sampled
from trajgym.rollout._ids import as_array, holds_any
from trajgym.rollout._policy import Policy, PolicyGarbage, PolicyUnavailable
from trajgym.rollout.rendering._image_spans import ShownImage, refuse_placeholders
from trajgym.trajectory import Sampling, Segment, Usage, blob_hashes
from trajgym.trajectory._internal import append_ids

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

    from trajgym.envs import TurnLimits
    from trajgym.rollout._policy import PolicyRequest
    from trajgym.rollout.engines._base import Generation, TokenEngine
    from trajgym.rollout.rendering._base import Parsed, Renderer
    from trajgym.trajectory import FloatArray, IntArray, Message

__all__ = ["TokenPolicy"]

_Number = TypeVar("_Number", np.int32, np.float32)

_INSERTED = -1
_NOTHING = np.zeros(0, dtype=np.int32)


class _Prompt(NamedTuple):
    ids: IntArray
    context: list[Message] | None
    images: tuple[ShownImage, ...] = ()


class _Response:
    """A response that is being sampled."""

    __slots__ = ("_ids", "_logprobs", "finish", "paused", "segments", "size")

    def __init__(self) -> None:
        self.size = 0
        """Number of ids."""
        self._ids: list[IntArray] = []
        self._logprobs: list[FloatArray] = []
        self.segments: list[Segment] = []
        self.finish = "length"
        self.paused = 0.0

    def sampled(self, generation: Generation, most: int, stop_ids: frozenset[int]) -> None:
        """Append sampled ids.

        Raises:
            PolicyGarbage: the engine's lengths disagree, or it sampled more than was requested, or
                past a stop id.
        """
        n = len(generation.ids)
        covered = sum(segment.length for segment in generation.segments)
        if not n == len(generation.logprobs) == covered or n > most:
            raise PolicyGarbage(
                f"the engine returned {n} ids, {len(generation.logprobs)} log-probs and segments "
                f"over {covered}, of at most {most}: they must agree",
            )
        ids = as_array(generation.ids)
        if holds_any(ids[:-1], stop_ids):
            raise PolicyGarbage(
                f"the engine sampled past a stop id (one of {sorted(stop_ids)[:8]}), so the turn "
                "has tokens that follow its end: switch ignore_eos off",
            )
        self._add(ids, np.array(generation.logprobs, dtype=np.float32))
        for segment in generation.segments:
            self._append(segment)
        self.finish = generation.finish
        self.paused += generation.paused_seconds

    def inserted(self, ids: Sequence[int]) -> None:
        """Append ids that were not sampled."""
        self._add(as_array(ids), np.zeros(len(ids), dtype=np.float32))
        self._append(Segment(len(ids), _INSERTED, _INSERTED, sampled=False))

    @property
    def ids(self) -> IntArray:
        """int32 ``[N]``: the ids."""
        return _joined(self._ids) if self._ids else _NOTHING

    @property
    def logprobs(self) -> FloatArray:
        """float32 ``[N]``: the log-probs."""
        return _joined(self._logprobs)

    def _add(self, ids: IntArray, logprobs: FloatArray) -> None:
        self.size += ids.size
        self._ids.append(ids)
        self._logprobs.append(logprobs)

    def _append(self, segment: Segment) -> None:
        last = self.segments[-1] if self.segments else None
        if last is not None and last[1:] == segment[1:] and last.version_low == last.version_high:
            self.segments[-1] = last._replace(length=last.length + segment.length)
        else:
            self.segments.append(segment)


class TokenPolicy(Policy):
    """Renders prompts, samples ids and parses them; every reply has its ids.

    A turn that continues another appends to that turn's ids. If the template does not allow that,
    the prompt is rendered again, and ``Reply.context`` has the messages that the model was shown if
    they differ from the given ones.

    Reasoning that is still open after ``limits.reasoning_tokens`` response tokens is closed with
    inserted ids (a segment that is not sampled), and sampling continues. Inserted ids count as
    completion tokens. ``limits.seconds`` is enforced by the caller, which can cancel the call.

    Args:
        engine: samples ids; closed with the policy.
        renderer: converts between messages and ids of the engine's model.
        sampling: sampling parameters; seed and ``max_tokens`` are set for each request.
        max_tokens: largest number of response tokens per turn, if the limits allow more.
        timeout: seconds without a response after which the engine counts as unavailable.
        name: recorded with each turn; ``engine:<name of the engine>`` if None.
    """

    def __init__(
        self,
        engine: TokenEngine,
        renderer: Renderer,
        *,
        sampling: Sampling | None = None,
        max_tokens: int = 4096,
        timeout: float = 600.0,
        name: str | None = None,
    ) -> None:
        self.engine = engine
        self.renderer = renderer
        self.name = name or f"engine:{engine.name}"
        chosen = sampling or Sampling(temperature=1.0)
        if chosen.logprob_mode == "unknown":
            chosen = dataclasses.replace(chosen, logprob_mode=engine.logprob_mode)
        self._sampling = chosen
        self._max_tokens = max_tokens
        self._timeout = timeout

    @classmethod
    def fake(cls, script: Any = None, **options: Any) -> Self:
        """Return a policy over a :class:`FakeEngine`: exact turns without a model.

        Args:
            script: the responses, see :class:`FakeEngine`.
            options: more arguments of :class:`FakeEngine`.
        """
        from trajgym.rollout.engines._fake import FakeEngine

        engine = FakeEngine(script, **options)
        return cls(engine, engine.renderer)

    async def sample(self, request: PolicyRequest) -> Reply:
        """See :meth:`Policy.sample`."""
        prompt = await self._prompt_of(request)
        most = _least(self._max_tokens, request.limits.completion_tokens)
        sampling = dataclasses.replace(self._sampling, max_tokens=most, seed=request.seed)
        response = await self._respond(prompt, request, sampling, most)
        if not response.size:
            return self._empty(prompt, response, sampling)
        ids = response.ids
        refuse_placeholders(self.renderer.placeholder_ids, ids, self.name)
        parsed = self.renderer.parse(ids, prompt.ids, request.tools)
        return Reply(
            message=parsed.message,
            sampled=_sampled(prompt, ids, response, parsed),
            context=prompt.context,
            finish=parsed.finish if response.finish == "stop" else response.finish,
            usage=_usage(prompt.ids, response, parsed),
            sampling=sampling,
            policy=self.name,
            synthetic=self.engine.synthetic,
            paused_seconds=response.paused,
        )

    def _empty(self, prompt: _Prompt, response: _Response, sampling: Sampling) -> Reply:
        """Return the turn of an engine that sampled nothing: an empty turn, without ids.

        Raises:
            PolicyUnavailable: sampling was aborted.
        """
        if response.finish == "abort":
            raise PolicyUnavailable(f"{self.name}: aborted before the engine returned a token")
        return Reply(
            message={"role": "assistant", "content": ""},
            context=prompt.context,
            finish=response.finish,
            usage=Usage(prompt_tokens=len(prompt.ids), completion_tokens=0, reasoning_tokens=0),
            sampling=sampling,
            policy=self.name,
            synthetic=self.engine.synthetic,
            paused_seconds=response.paused,
        )

    @property
    def identity(self) -> dict[str, Any]:
        """See :meth:`Policy.identity`."""
        sampling = dataclasses.asdict(self._sampling) | {"max_tokens": self._max_tokens}
        known = {name: value for name, value in sampling.items() if value is not None}
        return {"name": self.name, "sampling": known}

    async def close(self) -> None:
        """Close the engine."""
        await self.engine.close()

    async def _prompt_of(self, request: PolicyRequest) -> _Prompt:
        searched = request.messages
        if request.prefix_ids is not None and not request.images:  # then the prefix shows none
            searched = searched[request.prefix_messages :]
        if not any(blob_hashes(searched)):
            return self._prompt(self.renderer, request)
        renderer = self.renderer.showing(request.images)

        def make() -> _Prompt:
            prompt = self._prompt(renderer, request)
            found = renderer.images_in(prompt.ids, prompt.context or request.messages)
            images = tuple(ShownImage(ref, request.images[ref.blob]) for ref in found)
            return prompt._replace(images=images)

        return await asyncio.to_thread(make)  # decoding images can take long

    @staticmethod
    def _prompt(renderer: Renderer, request: PolicyRequest) -> _Prompt:
        if request.prefix_ids is not None:
            added = renderer.extension(
                request.prefix_ids,
                request.messages,
                request.tools,
                held=request.prefix_messages,
            )
            if added is not None:
                return _Prompt(append_ids(request.prefix_ids, added), None)
        shown = renderer.shown(request.messages, request.tools)
        ids = append_ids(_NOTHING, renderer.render(request.messages, request.tools))
        return _Prompt(ids, shown)

    async def _respond(
        self, prompt: _Prompt, request: PolicyRequest, sampling: Sampling, most: int
    ) -> _Response:
        response = _Response()
        budget = self._reasoning_budget(request.limits, prompt.ids, most)
        if budget is not None:
            if budget > 0:
                await self._generate(prompt, response, budget, request, sampling)
            if response.finish != "length" or response.size >= most:
                return response
            close = self._closing(prompt.ids, response.ids)
            if response.size + len(close) >= most:
                return response
            if close:
                response.inserted(close)
        await self._generate(prompt, response, most - response.size, request, sampling)
        return response

    def _reasoning_budget(self, limits: TurnLimits, prompt: IntArray, most: int) -> int | None:
        """Return after how many tokens to check whether reasoning is open; None for never."""
        if limits.reasoning_tokens is None or not self.renderer.reasoning_close_ids:
            return None
        budget = limits.reasoning_tokens
        if budget and not self.renderer.reasoning_is_open((), prompt):
            # Open reasoning can't be detected before its opening marker is complete.
            budget = max(budget, len(self.renderer.reasoning_open_ids))
        return min(budget, most)

    def _closing(self, prompt: IntArray, response: IntArray) -> Sequence[int]:
        if self.renderer.reasoning_is_open(response, prompt):
            return self.renderer.reasoning_close_ids
        if not response.size:  # no reasoning at all was allowed
            return (*self.renderer.reasoning_open_ids, *self.renderer.reasoning_close_ids)
        return ()

    async def _generate(
        self,
        prompt: _Prompt,
        response: _Response,
        most: int,
        request: PolicyRequest,
        sampling: Sampling,
    ) -> None:
        generate: Any = self.engine.generate
        if prompt.images:
            generate = partial(self.engine.generate_seeing, images=prompt.images)
        try:
            async with asyncio.timeout(self._timeout):
                generation: Generation = await generate(
                    _followed(prompt.ids, response),
                    sampling=sampling,
                    max_tokens=most,
                    stop_ids=self.renderer.stop_ids,
                    session=request.session,
                )
        except TimeoutError as error:
            raise PolicyUnavailable(
                f"{self.name}: no answer within {self._timeout:g} s in session "
                f"{request.session!r}; raise timeout= if the engine is that slow",
            ) from error
        response.sampled(generation, most, self.renderer.stop_ids)


def _least(most: int, limit: int | None) -> int:
    return max(1, most if limit is None else min(most, limit))


def _joined(parts: list[npt.NDArray[_Number]]) -> npt.NDArray[_Number]:
    return parts[0] if len(parts) == 1 else np.concatenate(parts)


def _followed(prompt: IntArray, response: _Response) -> IntArray:
    return np.append(prompt, response.ids) if response.size else prompt


def _sampled(prompt: _Prompt, ids: IntArray, response: _Response, parsed: Parsed) -> Sampled:
    return Sampled(
        prompt_ids=prompt.ids,
        response_ids=ids,
        logprobs=response.logprobs,
        segments=tuple(response.segments),
        spans=parsed.spans,
        images=tuple(image.ref for image in prompt.images),
    )


def _usage(prompt: IntArray, response: _Response, parsed: Parsed) -> Usage:
    return Usage(
        prompt_tokens=len(prompt),
        completion_tokens=response.size,
        reasoning_tokens=sum(s.end - s.start for s in parsed.spans if s.kind == "reasoning"),
    )
