"""A full context window is recognised from every source, and the attempt is scored."""

# ruff: noqa: ISC004 - long messages as servers send them

from __future__ import annotations

from typing import Any

import pytest

from tests.rollout.server import Answer, completion, endpoint, said
from tests.worlds import Counter
from trajgym.envs import EnvSpec, Session
from trajgym.rollout import (
    ContextFull,
    OpenAIPolicy,
    PolicyRejected,
    PolicyRequest,
    Retry,
    VLLMEngine,
    run_session,
)
from trajgym.rollout._context import context_full
from trajgym.rollout.rendering import ByteRenderer
from trajgym.trajectory import Sampling, Task

REFUSALS: dict[str, tuple[int, dict[str, Any]]] = {
    "openai": (
        400,
        {
            "message": "This model's maximum context length is 8192 tokens. However, your messages "
            "resulted in 9001 tokens. Please reduce the length of the messages.",
            "type": "invalid_request_error",
            "param": "messages",
            "code": "context_length_exceeded",
        },
    ),
    "vllm-engine": (
        400,
        {"message": "The engine prompt length 4100 exceeds the max_model_len 4096. Please reduce "
         "prompt.", "type": "BadRequestError"},
    ),
    "openai-code-only": (400, {"message": "no", "code": "context_length_exceeded"}),
    "openai-input": (
        400,
        {"message": "Input tokens exceed the configured limit of 272000 tokens.", "code": None},
    ),
    "anthropic": (
        400,
        {"type": "invalid_request_error", "message": "prompt is too long: 208310 tokens > 200000"},
    ),
    "google": (
        400,
        {
            "code": 400,
            "status": "INVALID_ARGUMENT",
            "message": "The input token count (1200000) exceeds the maximum number of tokens "
            "allowed (1048576).",
        },
    ),
    "vertex": (
        400,
        {"message": "Unable to submit request because the input token count is 33000 but model "
         "only supports up to 32768. Reduce the input token count and try again."},
    ),
    "vllm": (
        400,
        {"message": "This model's maximum context length is 4096 tokens. However, your request has "
         "5000 input tokens. Please reduce the length of the input messages.", "code": 400},
    ),
    "vllm-prompt": (
        400,
        {"message": "The decoder prompt (length 5000) is longer than the maximum model length of "
         "4096. Make sure that `max_model_len` is no smaller than the number of text tokens."},
    ),
    "vllm-old": (400, {"message": "max_tokens must be at least 1, got -186."}),
    "sglang": (
        400,
        {"message": "The input (61709 tokens) is longer than the model's context length "
         "(40960 tokens).", "code": 400},
    ),
    "sglang-input": (
        400,
        {"message": "Input length (160062 tokens) exceeds the maximum allowed length (59862 "
         "tokens). Use a shorter input or enable --allow-auto-truncate."},
    ),
    "llama.cpp": (
        400,
        {"code": 400, "type": "exceed_context_size_error", "n_prompt_tokens": 1407, "n_ctx": 256,
         "message": "the request exceeds the available context size, try increasing it"},
    ),
    "llama.cpp-500": (500, {"code": 500, "message": "Context size has been exceeded."}),
    "llama.cpp-200": (
        200,
        {"code": 400, "type": "exceed_context_size_error", "message": "the request exceeds"},
    ),
    "tgi": (
        422,
        {"message": "Input validation error: `inputs` must have less than 4096 tokens. Given: "
         "5000", "error_type": "validation"},
    ),
    "mistral": (
        400,
        {"message": "Prompt contains 40000 tokens and 0 draft tokens, too large for model with "
         "32768 maximum context length"},
    ),
    "xai": (
        400,
        {"message": "This model's maximum prompt length is 131072 but the request contains "
         "200000 tokens."},
    ),
    "bedrock": (400, {"message": "Input is too long for requested model."}),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSALS)
async def test_a_full_context_truncates_and_is_scored(name: str) -> None:
    """Two good turns, then the endpoint's refusal: truncated:context, verified, asked once."""
    status, error = REFUSALS[name]
    assert Counter
    good = completion(said(None, tool_calls=[call("add", '{"amount": 1}')]))
    async with endpoint(good, good, Answer(status, {"error": error})) as server:
        async with OpenAIPolicy("m", base_url=server.url) as policy:
            session = Session(EnvSpec(id="test/counter"), Task(id="t"))
            await run_session(session, policy, Task(id="t"))
    assert str(session.status) == "truncated:context"
    assert session.outcome is not None
    assert len(session.turns) == 2
    assert len(server.requests) == 3


def call(name: str, arguments: str) -> dict[str, Any]:
    return {"id": "c", "type": "function", "function": {"name": name, "arguments": arguments}}


@pytest.mark.parametrize(
    "text",
    [
        "Invalid API key",
        "Request too large for gpt-4 on tokens per min (TPM): Limit 10000, Requested 20000. The "
        "model's context length is not the problem",
        "model not found",
        "max_tokens is too large: 5000. This model supports at most 4096 completion tokens",
        "",
    ],
)
def test_other_refusals_are_not_the_contexts(text: str) -> None:
    """Keys, account limits and completion limits stay failures of the policy."""
    assert context_full(text) is None


@pytest.mark.parametrize(
    ("text", "room"),
    [
        (
            "This model's maximum context length is 4096 tokens. However, you requested 4472 "
            "tokens (376 in the messages, 4096 in the completion).",
            3720,
        ),
        (
            "'max_tokens' is too large: 2000. This model's maximum context length is 4096 tokens "
            "and your request has 3000 input tokens (2000 > 4096 - 3000).",
            1096,
        ),
        (
            "Requested token count exceeds the model's maximum context length of 202752 tokens. "
            "You requested a total of 202941 tokens: 170941 tokens from the input messages and "
            "32000 tokens for the completion.",
            31811,
        ),
        (
            "input length and `max_tokens` exceed context limit: 190000 + 21333 > 200000, "
            "decrease input length or `max_tokens` and try again",
            10000,
        ),
        (
            "Input validation error: `inputs` tokens + `max_new_tokens` must be <= 4096. Given: "
            "4000 `inputs` tokens and 200 `max_new_tokens`",
            96,
        ),
        (
            "This model's maximum context length is 4096 tokens. However, you requested 9000 "
            "tokens (8900 in the messages, 100 in the completion).",
            None,
        ),
    ],
)
async def test_a_prompt_that_fits_is_sent_with_a_lower_limit(text: str, room: int | None) -> None:
    """Where only the response would not fit, the call is made once more with what is left."""
    refusal = Answer(400, {"error": {"message": text, "code": 400}})
    sampling = Sampling(max_tokens=200_000)
    async with endpoint(refusal, completion(said(), finish="length")) as server:
        async with OpenAIPolicy("m", base_url=server.url, sampling=sampling) as policy:
            request = PolicyRequest(session="s", messages=[{"role": "user", "content": "go"}])
            if room is None:
                with pytest.raises(ContextFull):
                    await policy.sample(request)
                assert len(server.requests) == 1
            else:
                reply = await policy.sample(request)
                assert reply.finish == "length"
                assert server.requests[1]["max_completion_tokens"] == room


async def test_a_known_window_is_checked_before_sending() -> None:
    """With a renderer and the window's size no request is sent that can't be answered."""
    renderer = ByteRenderer()
    messages = [{"role": "user", "content": "x" * 50}]
    size = len(renderer.render(messages))
    request = PolicyRequest(session="s", messages=messages)
    sampling = Sampling(max_tokens=100)
    async with endpoint(completion(said())) as server:
        for window, limit in ((size, None), (size + 7, 7), (size + 500, 100)):
            policy = OpenAIPolicy(
                "m",
                base_url=server.url,
                renderer=renderer,
                context_tokens=window,
                sampling=sampling,
            )
            async with policy:
                if limit is None:
                    with pytest.raises(ContextFull, match=f"{size} tokens"):
                        await policy.sample(request)
                    assert not server.requests
                else:
                    await policy.sample(request)
                    assert server.requests[-1]["max_completion_tokens"] == limit


async def test_a_request_beyond_the_accounts_rate_is_not_repeated() -> None:
    """A single request above the tokens per minute can never pass: it is refused at once."""
    text = "Request too large for m on tokens per min (TPM): Limit 10000, Requested 20000."
    body = {"error": {"message": text, "code": "rate_limit_exceeded"}}
    async with endpoint(Answer(429, body)) as server:
        async with OpenAIPolicy("m", base_url=server.url) as policy:
            request = PolicyRequest(session="s", messages=[{"role": "user", "content": "go"}])
            with pytest.raises(PolicyRejected, match="too large"):
                await policy.sample(request)
    assert len(server.requests) == 1


async def test_an_error_with_status_200_is_tried_again() -> None:
    """Routers wrap a provider's failure into an answer with status 200."""
    wrapped = Answer(200, {"error": {"code": 502, "message": "provider returned error"}})
    retry = Retry(tries=3, first_wait=0.001)
    async with endpoint(wrapped, completion(said())) as server:
        async with OpenAIPolicy("m", base_url=server.url, retry=retry) as policy:
            request = PolicyRequest(session="s", messages=[{"role": "user", "content": "go"}])
            assert (await policy.sample(request)).message["content"] == "hi"
    assert len(server.requests) == 2


def sampled(ids: list[int]) -> Answer:
    """Return a completion as vLLM sends it."""
    logprobs = {"token_logprobs": [-1.0] * len(ids)}
    choice = {"index": 0, "token_ids": ids, "logprobs": logprobs, "finish_reason": "length"}
    return Answer(body={"choices": [choice | {"text": "x"}]})


async def test_vllm_knows_its_window() -> None:
    """The engine asks for the model's length once, lowers max_tokens, refuses what can't fit."""
    given: dict[str, Any] = {"sampling": Sampling(temperature=1.0), "stop_ids": ()}
    async with endpoint(sampled([7, 8])) as server:
        server.models = Answer(body={"data": [{"id": "m", "max_model_len": 10}]})
        engine = VLLMEngine(server.url, "m")
        try:
            generation = await engine.generate([1] * 8, max_tokens=100, **given)
            with pytest.raises(ContextFull, match="10 tokens, the context 10"):
                await engine.generate([1] * 10, max_tokens=100, **given)
        finally:
            await engine.close()
    assert (generation.ids, generation.finish) == ([7, 8], "length")
    (request,) = server.requests
    assert request["max_tokens"] == 2


@pytest.mark.parametrize("name", ["vllm", "vllm-prompt", "vllm-old"])
async def test_vllms_refusal_is_a_full_context(name: str) -> None:
    """Without a known window the server's refusal ends the attempt, and is not tried again."""
    status, error = REFUSALS[name]
    async with endpoint(Answer(status, {"error": error})) as server:
        engine = VLLMEngine(server.url, "m")
        try:
            with pytest.raises(ContextFull):
                await engine.generate(
                    [1], sampling=Sampling(temperature=1.0), max_tokens=9, stop_ids=()
                )
        finally:
            await engine.close()
    assert len(server.requests) == 1


async def test_vllm_is_waited_for() -> None:
    """A 429 of the server is waited for as it asks, by the same limiter as other clients."""
    busy = Answer(429, {}, {"retry-after": "0.01"})
    async with endpoint(busy, busy, sampled([7])) as server:
        engine = VLLMEngine(server.url, "m")
        try:
            generation = await engine.generate(
                [1], sampling=Sampling(temperature=1.0), max_tokens=1, stop_ids=()
            )
        finally:
            await engine.close()
    assert len(server.requests) == 3
    assert generation.paused_seconds > 0
