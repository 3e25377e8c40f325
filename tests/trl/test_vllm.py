"""The vLLM engine against a server that stands in for vLLM with a real model."""

from __future__ import annotations

import asyncio
from typing import Any, ClassVar

import pytest

from tests.trl.server import Server
from trajgym.rollout import PolicyGarbage, PolicyRejected, PolicyUnavailable, Retry, VLLMEngine
from trajgym.rollout.rendering import TemplateRenderer
from trajgym.trajectory import InvalidInput, Sampling, Segment

QUICK = Retry(tries=3, first_wait=0.001, longest_wait=0.001)


def engine(server: Server, **options: Any) -> VLLMEngine:
    settings = {"retry": QUICK, "timeout": 240, "versions": lambda: server.version}
    return VLLMEngine(server.url, "tiny", **{**settings, **options})


async def ask(made: VLLMEngine, prompt: list[int], **options: Any) -> Any:
    """Sample eight tokens, without a stop id unless one is given."""
    sampling = Sampling(temperature=options.pop("temperature", 1.0), seed=options.pop("seed", 7))
    try:
        return await made.generate(
            prompt,
            sampling=sampling,
            max_tokens=options.pop("max_tokens", 8),
            stop_ids=options.pop("stop_ids", ()),
            **options,
        )
    finally:
        await made.close()


@pytest.fixture
def prompt(tiny: Any) -> list[int]:
    return TemplateRenderer(tiny.tokenizer).render([{"role": "user", "content": "Is it?"}])


@pytest.mark.parametrize("stream", [False, True])
async def test_ids_and_logprobs_are_the_servers_own(
    server: Server, prompt: list[int], stream: bool
) -> None:
    """What comes back is what was sampled, with the model's own log-probs at that temperature."""
    import torch

    got = await ask(engine(server, stream=stream), prompt, temperature=0.7)
    assert list(got.ids) == server.answered[0].ids
    ids = torch.tensor([prompt + list(got.ids)])
    logits = server.model(input_ids=ids).logits[0, len(prompt) - 1 : -1].float() / 0.7
    expected = torch.log_softmax(logits, -1).gather(1, ids[0, len(prompt) :, None])[:, 0]
    assert torch.allclose(torch.tensor(got.logprobs), expected, atol=1e-5)
    assert got.finish == "length"
    assert got.segments == (Segment(8, 0, 0),)


async def test_the_whole_distribution_is_asked_for(server: Server, prompt: list[int]) -> None:
    """The model's own generation settings can't cut or bend the distribution unseen."""
    await ask(engine(server), prompt)
    (body,) = server.bodies
    assert (body["top_p"], body["top_k"], body["min_p"]) == (1.0, 0, 0.0)
    assert (body["repetition_penalty"], body["presence_penalty"]) == (1.0, 0.0)


async def test_a_stop_id_ends_the_response(server: Server, tiny: Any, prompt: list[int]) -> None:
    """The stop id is part of the response."""
    stop = tiny.tokenizer.eos_token_id
    got = await ask(engine(server), prompt, stop_ids={stop}, max_tokens=64)
    assert got.finish == "stop"
    assert got.ids[-1] == stop


@pytest.mark.parametrize("stream", [False, True])
async def test_an_update_inside_a_response(server: Server, prompt: list[int], stream: bool) -> None:
    """A stream shows the boundary to within a token; without one the whole carries the range."""
    server.update_at[0] = 3
    got = await ask(engine(server, stream=stream), prompt)
    truth = server.answered[0].versions
    assert truth == [0, 0, 0, 1, 1, 1, 1, 1]
    ranges = [(s.version_low, s.version_high) for s in got.segments for _ in range(s.length)]
    assert all(low <= true <= high for (low, high), true in zip(ranges, truth, strict=True))
    assert sum(low != high for low, high in ranges) <= (1 if stream else 8)
    if not stream:
        assert got.segments == (Segment(8, 0, 1),)


async def test_an_aborted_response_goes_on(server: Server, prompt: list[int]) -> None:
    """After an abort the rest is sampled behind what was there, with its own version."""
    server.abort_at[0], server.update_at[1] = 3, 0
    got = await ask(engine(server), prompt)
    assert len(got.ids) == 8
    assert list(got.ids) == server.answered[0].ids + server.answered[1].ids
    assert server.answered[1].prompt == prompt + server.answered[0].ids
    assert server.bodies[0]["seed"] != server.bodies[1]["seed"]
    assert sum(s.length for s in got.segments) == 8


@pytest.mark.parametrize("trouble", ["break_at", "error_at"])
async def test_a_broken_stream_keeps_what_came(
    server: Server, prompt: list[int], trouble: str
) -> None:
    """A stream that breaks is continued; not a token of it is sampled twice or lost."""
    getattr(server, trouble)[0] = 4
    got = await ask(engine(server, stream=True), prompt)
    assert list(got.ids) == server.answered[0].ids + server.answered[1].ids
    assert len(server.answered[0].ids) == 4


async def test_trouble_is_tried_again(server: Server, prompt: list[int]) -> None:
    """Two refusals and an abort without a token are waited out, and count as paused."""
    server.refuse, server.abort_at[0] = 1, 0
    got = await ask(engine(server), prompt)
    assert len(got.ids) == 8
    assert got.paused_seconds > 0


async def test_trouble_that_stays_is_named(server: Server, prompt: list[int]) -> None:
    """A server that keeps refusing, or is not there, is unavailable."""
    server.refuse = 99
    with pytest.raises(PolicyUnavailable, match="status 503"):
        await ask(engine(server), prompt)
    gone = VLLMEngine("http://127.0.0.1:9", "tiny", retry=QUICK)
    with pytest.raises(PolicyUnavailable, match="is the server up"):
        await ask(gone, prompt)


async def test_a_hanging_server_is_given_up(server: Server, prompt: list[int]) -> None:
    """Each request has a deadline."""
    server.hang = True
    with pytest.raises(PolicyUnavailable, match="TimeoutError"):
        await ask(engine(server, timeout=0.05), prompt)


async def test_cancelling_closes_the_request(server: Server, prompt: list[int]) -> None:
    """A cancelled call leaves no request on the server."""
    server.hang = True
    made = engine(server)
    call = asyncio.create_task(ask(made, prompt))
    while not server.running:
        await asyncio.sleep(0.005)
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    assert made._client is None


@pytest.mark.parametrize(
    ("choice", "match"),
    [
        ({"token_ids": [5, 6], "logprobs": {"token_logprobs": [-1.0]}}, "2 token ids"),
        ({"text": "hi", "finish_reason": "stop"}, "text without token ids"),
        ({"token_ids": [5], "logprobs": {"token_logprobs": [float("nan")]}}, "log-probs"),
        (
            {"token_ids": [5], "logprobs": {"token_logprobs": [-1]}, "prompt_token_ids": [1]},
            "a different prompt",
        ),
    ],
)
async def test_answers_that_do_not_fit_are_refused(
    server: Server, prompt: list[int], choice: dict[str, Any], match: str
) -> None:
    """Ids without log-probs, text without ids, and a prompt that was changed never train."""
    made = engine(server)
    with pytest.raises(PolicyGarbage, match=match):
        made._read({"choices": [choice]}, prompt)
    await made.close()


async def test_check_compares_model_and_mode(server: Server) -> None:
    """A wrong model name and raw log-probs are found before training."""
    good = engine(server)
    await good.check()
    await good.close()
    other = VLLMEngine(server.url, "other")
    with pytest.raises(InvalidInput, match="serves"):
        await other.check()
    await other.close()
    server.logprobs_mode = "LogprobsMode.RAW_LOGPROBS"
    raw = engine(server)
    with pytest.raises(InvalidInput, match="processed_logprobs"):
        await raw.check()
    await raw.close()


async def test_a_refusal_is_not_retried(server: Server, prompt: list[int]) -> None:
    """A 4xx is the request's fault."""
    made = engine(server)

    class Gone:
        status = 404
        headers: ClassVar[dict[str, str]] = {}

    assert isinstance(made._refused(Gone(), "no such model"), PolicyRejected)
    await made.close()
