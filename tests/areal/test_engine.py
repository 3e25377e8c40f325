"""AReaL's engine as a token engine: clocks, versions and failures."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from trajgym.adapters.areal import ArealEngine
from trajgym.envs import Truncate
from trajgym.rollout import PolicyGarbage, PolicyUnavailable
from trajgym.rollout.engines import Generation
from trajgym.trajectory import Sampling, Segment


class Executor:
    """Is paused for so many questions; then something happens."""

    def __init__(self, questions: int, then: Callable[[], object]) -> None:
        self.left, self.then = questions, then
        self.begun = False

    def is_paused(self) -> bool:
        if not self.begun:  # before the request
            self.begun = True
            return False
        self.left -= 1
        if self.left == 0:
            self.then()
        return self.left > 0


class Inference:
    """The part of AReaL's engine that is used, as its executor's tests do without a server."""

    def __init__(self, versions: list[int], *, before: int = 0, paused: int = 0) -> None:
        self.versions, self.before = versions, before
        self.go = asyncio.Event()
        self.cancelled = False
        self.workflow_executor = Executor(paused, self.go.set)
        self.prompt_shift = 0
        self.error: Exception | None = None
        self.requests: list[Any] = []

    def get_version(self) -> int:
        return self.before

    async def agenerate(self, request: Any) -> Any:
        from areal.api import ModelResponse

        self.requests.append(request)
        if self.error is not None:
            raise self.error
        try:
            await self.go.wait()
        except asyncio.CancelledError:
            self.cancelled = True
            raise
        size = len(self.versions)
        return ModelResponse(
            input_tokens=[i + self.prompt_shift for i in request.input_ids],
            output_tokens=list(range(10, 10 + size)),
            output_logprobs=[-0.5] * size,
            output_versions=self.versions,
            stop_reason="stop",
        )


async def sampled(engine: Inference, **options: Any) -> Generation:
    from areal.api.cli_args import GenerationHyperparameters

    gconfig = GenerationHyperparameters(max_tokens=8)
    made = ArealEngine(engine, gconfig, **options)
    return await made.generate(
        [1, 2, 3],
        sampling=Sampling(temperature=0.7),
        max_tokens=4,
        stop_ids={9},
        session="s-1",
    )


async def test_a_pause_is_not_the_turns_time() -> None:
    """Ten waits of a whole timeout each, all of them paused: the answer still counts."""
    engine = Inference([0], paused=10)
    found = await sampled(engine, timeout=0.02)
    assert list(found.ids) == [10]


async def test_silence_without_a_pause_fails_the_turn() -> None:
    """No answer in time: the session's turn fails, and the call does not go on unseen."""
    engine = Inference([0])
    with pytest.raises(PolicyUnavailable, match="turn_timeout"):
        await sampled(engine, timeout=0.02)
    assert engine.cancelled


@pytest.mark.parametrize(
    ("before", "reported", "segments"),
    [
        (3, [3, 3], (Segment(2, 3, 3),)),
        (3, [3, 4, 4], (Segment(1, 3, 3), Segment(2, 4, 4))),
        (3, [4, 4], (Segment(2, 3, 4),)),
        (3, [4, 5], (Segment(1, 3, 4), Segment(1, 4, 5))),
        (3, [3, 6], (Segment(1, 3, 3), Segment(1, 4, 6))),
        (3, [3, 6, 7], (Segment(1, 3, 3), Segment(1, 4, 6), Segment(1, 6, 7))),
    ],
)
async def test_versions_become_ranges(
    before: int, reported: list[int], segments: tuple[Segment, ...]
) -> None:
    """AReaL reads versions late: a run can be as old as the update before it allows."""
    engine = Inference(reported, before=before)
    engine.go.set()
    assert (await sampled(engine)).segments == segments


async def test_one_request_id_for_a_session_and_the_renderers_stop_ids() -> None:
    """The request carries the session's id, the policy's temperature, and room that is left."""
    engine = Inference([0])
    engine.go.set()
    await sampled(engine)
    (request,) = engine.requests
    assert request.rid == "s-1"
    assert request.gconfig.temperature == 0.7
    assert request.gconfig.stop_token_ids == [9]
    assert request.gconfig.max_new_tokens == 4


async def test_a_full_context_is_the_agents_own_doing() -> None:
    """No room for a response: the session is cut, not failed."""
    from areal.api.cli_args import GenerationHyperparameters

    made = ArealEngine(Inference([0]), GenerationHyperparameters(max_tokens=3))
    with pytest.raises(Truncate, match="max_tokens"):
        await made.generate([1, 2, 3], sampling=Sampling(), max_tokens=4, stop_ids=())


async def test_an_answer_to_another_prompt_is_refused() -> None:
    """Ids that AReaL did not sample after our prompt are never recorded as if it had."""
    engine = Inference([0])
    engine.go.set()
    engine.prompt_shift = 1
    with pytest.raises(PolicyGarbage):
        await sampled(engine)


async def test_areals_errors_fail_the_turn() -> None:
    """What AReaL raises after its own retries is a failure of the policy."""
    engine = Inference([0])
    engine.error = OSError("no server")
    with pytest.raises(PolicyUnavailable, match="no server"):
        await sampled(engine)
