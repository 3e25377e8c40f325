"""A policy made of a renderer and an engine that speaks ids."""

from __future__ import annotations

import asyncio
import dataclasses
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, Self

import numpy as np

from trajgym.envs import Reply, Sampled
from trajgym.rollout._engine import ShownImage
from trajgym.rollout._image_spans import refuse_placeholders
from trajgym.rollout._policy import Policy, PolicyGarbage, PolicyUnavailable
from trajgym.trajectory import Sampling, Segment, Usage, blob_hashes

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trajgym.envs import TurnLimits
    from trajgym.rollout._engine import Generation, TokenEngine
    from trajgym.rollout._policy import PolicyRequest
    from trajgym.rollout._renderer import Parsed, Renderer
    from trajgym.trajectory import Message

__all__ = ["TokenPolicy"]

_INSERTED = -1


class _Prompt(NamedTuple):
    ids: list[int]
    context: list[Message] | None
    images: tuple[ShownImage, ...] = ()


class _Response:
    """A response as it grows."""

    __slots__ = ("finish", "ids", "logprobs", "paused", "segments")

    def __init__(self) -> None:
        self.ids: list[int] = []
        self.logprobs: list[float] = []
        self.segments: list[Segment] = []
        self.finish = "length"
        self.paused = 0.0

    def sampled(self, generation: Generation, most: int) -> None:
        """Append what an engine sampled.

        Raises:
            PolicyGarbage: its lengths disagree, or it sampled more than was asked for.
        """
        n = len(generation.ids)
        covered = sum(segment.length for segment in generation.segments)
        if not n == len(generation.logprobs) == covered or n > most:
            raise PolicyGarbage(
                f"the engine returned {n} ids, {len(generation.logprobs)} log-probs and segments "
                f"over {covered}, of at most {most}: they must agree",
            )
        self.ids.extend(int(i) for i in generation.ids)
        self.logprobs.extend(float(value) for value in generation.logprobs)
        for segment in generation.segments:
            self._append(segment)
        self.finish = generation.finish
        self.paused += generation.paused_seconds

    def inserted(self, ids: Sequence[int]) -> None:
        """Append ids that nobody sampled."""
        self.ids.extend(ids)
        self.logprobs.extend([0.0] * len(ids))
        self._append(Segment(len(ids), _INSERTED, _INSERTED, sampled=False))

    def _append(self, segment: Segment) -> None:
        last = self.segments[-1] if self.segments else None
        if last is not None and last[1:] == segment[1:] and last.version_low == last.version_high:
            self.segments[-1] = last._replace(length=last.length + segment.length)
        else:
            self.segments.append(segment)


class TokenPolicy(Policy):
    """Renders, samples, parses; every reply carries its ids.

    A turn that continues another appends to that turn's ids. Where the template does not allow it,
    the prompt is rendered afresh, and ``Reply.context`` holds what the model was shown if that
    differs from the messages given.

    Reasoning that is still open after ``limits.reasoning_tokens`` response tokens is closed with
    inserted ids (a segment that is not sampled), and sampling goes on. Inserted ids count as
    completion tokens. Keeping ``limits.seconds`` is left to the caller, who can cancel.

    Args:
        engine: samples ids; closed with the policy.
        renderer: messages <-> ids, for the engine's model.
        sampling: temperature and the rest; seed and ``max_tokens`` are set for each request.
        max_tokens: most response tokens of a turn, if the limits leave more.
        timeout: seconds until an engine that does not answer counts as unavailable.
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
            script: what it says, see :class:`FakeEngine`.
            options: more arguments of :class:`FakeEngine`.
        """
        from trajgym.rollout._fake_engine import FakeEngine

        engine = FakeEngine(script, **options)
        return cls(engine, engine.renderer)

    async def sample(self, request: PolicyRequest) -> Reply:
        """See :meth:`Policy.sample`."""
        prompt = await self._prompt_of(request)
        most = _least(self._max_tokens, request.limits.completion_tokens)
        sampling = dataclasses.replace(self._sampling, max_tokens=most, seed=request.seed)
        response = await self._respond(prompt, request, sampling, most)
        if not response.ids:
            raise PolicyUnavailable(
                f"{self.name}: the engine gave no token (finish {response.finish!r})"
            )
        refuse_placeholders(self.renderer.placeholder_ids, response.ids, self.name)
        parsed = self.renderer.parse(response.ids, prompt.ids, request.tools)
        return Reply(
            message=parsed.message,
            sampled=_sampled(prompt, response, parsed),
            context=prompt.context,
            finish=parsed.finish if response.finish == "stop" else response.finish,
            usage=_usage(prompt.ids, response, parsed),
            sampling=sampling,
            policy=self.name,
            synthetic=self.engine.synthetic,
            paused_seconds=response.paused,
        )

    async def close(self) -> None:
        """Close the engine."""
        await self.engine.close()

    async def _prompt_of(self, request: PolicyRequest) -> _Prompt:
        blobs = list(blob_hashes(request.messages))
        if not blobs:
            return self._prompt(self.renderer, request)
        renderer = self.renderer.showing(request.images)

        def make() -> _Prompt:
            prompt = self._prompt(renderer, request)
            found = renderer.images_in(prompt.ids, prompt.context or request.messages)
            images = tuple(ShownImage(ref, request.images[ref.blob]) for ref in found)
            return prompt._replace(images=images)

        return await asyncio.to_thread(make)  # decoding pictures takes its time

    @staticmethod
    def _prompt(renderer: Renderer, request: PolicyRequest) -> _Prompt:
        if request.prefix_ids is not None:
            ids = renderer.extend(
                request.prefix_ids,
                request.messages,
                request.tools,
                held=request.prefix_messages,
            )
            if ids is not None:
                return _Prompt(ids, None)
        shown = renderer.shown(request.messages, request.tools)
        return _Prompt(renderer.render(request.messages, request.tools), shown)

    async def _respond(
        self, prompt: _Prompt, request: PolicyRequest, sampling: Sampling, most: int
    ) -> _Response:
        response = _Response()
        budget = self._reasoning_budget(request.limits, prompt.ids, most)
        if budget is not None:
            if budget > 0:
                await self._generate(prompt, response, budget, request, sampling)
            if response.finish != "length" or len(response.ids) >= most:
                return response
            close = self._closing(prompt.ids, response.ids)
            if len(response.ids) + len(close) >= most:
                return response
            if close:
                response.inserted(close)
        await self._generate(prompt, response, most - len(response.ids), request, sampling)
        return response

    def _reasoning_budget(self, limits: TurnLimits, prompt: list[int], most: int) -> int | None:
        """Return after how many tokens to look whether reasoning is open; None for never."""
        if limits.reasoning_tokens is None or not self.renderer.reasoning_close_ids:
            return None
        budget = limits.reasoning_tokens
        if budget and not self.renderer.reasoning_is_open((), prompt):
            # Reasoning can't be seen to be open before its opening marker is complete.
            budget = max(budget, len(self.renderer.reasoning_open_ids))
        return min(budget, most)

    def _closing(self, prompt: list[int], response: list[int]) -> Sequence[int]:
        if self.renderer.reasoning_is_open(response, prompt):
            return self.renderer.reasoning_close_ids
        if not response:  # no reasoning at all was allowed
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
                    prompt.ids + response.ids,
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
        response.sampled(generation, most)


def _least(most: int, limit: int | None) -> int:
    return max(1, most if limit is None else min(most, limit))


def _sampled(prompt: _Prompt, response: _Response, parsed: Parsed) -> Sampled:
    return Sampled(
        prompt_ids=np.array(prompt.ids, dtype=np.int32),
        response_ids=np.array(response.ids, dtype=np.int32),
        logprobs=np.array(response.logprobs, dtype=np.float32),
        segments=tuple(response.segments),
        spans=parsed.spans,
        images=tuple(image.ref for image in prompt.images),
    )


def _usage(prompt: list[int], response: _Response, parsed: Parsed) -> Usage:
    return Usage(
        prompt_tokens=len(prompt),
        completion_tokens=len(response.ids),
        reasoning_tokens=sum(s.end - s.start for s in parsed.spans if s.kind == "reasoning"),
    )
