"""The OpenAI-compatible policy against a real HTTP server on loopback."""

from __future__ import annotations

import asyncio
import email.utils
import time
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from tests.clock import Forward
from tests.rollout.server import Answer, Endpoint, completion, endpoint, said
from trajgym.envs import TurnLimits
from trajgym.rollout import (
    OpenAIPolicy,
    PolicyGarbage,
    PolicyRejected,
    PolicyRequest,
    PolicyUnavailable,
    Retry,
)
from trajgym.rollout._retry import retry_after
from trajgym.rollout.rendering import ByteRenderer
from trajgym.trajectory import Sampling, Segment, image_part

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

USER = {"role": "user", "content": "go"}
QUICK = Retry(tries=3, first_wait=0.001, longest_wait=0.01)
TOOLS = [{"type": "function", "function": {"name": "f", "parameters": {}}}]


def request(**fields: Any) -> PolicyRequest:
    return PolicyRequest(**{"session": "s1", "messages": [USER], **fields})


def policy(url: str, **options: Any) -> OpenAIPolicy:
    return OpenAIPolicy("m", **{"base_url": url, "retry": QUICK, **options})


@asynccontextmanager
async def asking(*answers: Answer, **options: Any) -> AsyncIterator[tuple[OpenAIPolicy, Endpoint]]:
    """Return a policy and the server that it asks."""
    async with endpoint(*answers) as server, policy(server.url, **options) as made:
        yield made, server


async def test_a_text_turn() -> None:
    """Message, usage and finish come through; there are no ids."""
    calls = [{"id": "x", "type": "function", "function": {"name": "f", "arguments": "{bad"}}]
    message = said(None, tool_calls=calls, reasoning_content="hm")
    async with asking(completion(message, finish="tool_calls")) as (asked, _):
        reply = await asked.sample(request(tools=TOOLS))
    assert reply.message == {
        "role": "assistant",
        "content": "",
        "reasoning_content": "hm",
        "tool_calls": calls,
    }
    assert (reply.finish, reply.sampled, reply.policy) == ("tool_calls", None, "openai:m")
    assert reply.usage is not None
    assert (reply.usage.prompt_tokens, reply.usage.completion_tokens) == (5, 2)


async def test_what_is_sent() -> None:
    """Sampling, limits, tools, seed and the session's key reach the server."""
    sampling = Sampling(temperature=0.5, top_k=20, max_tokens=100)
    async with asking(completion(said()), sampling=sampling, extra_body={"min_p": 0.1}) as (
        asked,
        server,
    ):
        limits = TurnLimits(completion_tokens=9)
        reply = await asked.sample(request(tools=TOOLS, limits=limits, seed=4))
    (sent,) = server.requests
    assert sent == {
        "model": "m",
        "messages": [USER],
        "tools": TOOLS,
        "temperature": 0.5,
        "seed": 4,
        "max_completion_tokens": 9,
        "top_k": 20,
        "min_p": 0.1,
    }
    assert server.headers[0]["x-session-id"] == "s1"
    assert reply.sampling == Sampling(temperature=0.5, top_k=20, max_tokens=9, seed=4)


async def test_images_are_sent_as_data() -> None:
    """A stored image is sent as a data URL; one without bytes is refused by its hash."""
    blob = "ab" * 32
    messages = [{"role": "user", "content": [image_part(blob)]}]
    async with asking(completion(said())) as (asked, server):
        await asked.sample(request(messages=messages, images={blob: b"\x89PNG\r\n"}))
        with pytest.raises(PolicyRejected, match="blob:abab"):
            await asked.sample(request(messages=messages))
    (part,) = server.requests[0]["messages"][0]["content"]
    assert part["image_url"]["url"] == "data:image/png;base64,iVBORw0K"
    assert messages == [{"role": "user", "content": [image_part(blob)]}]


@pytest.mark.parametrize(("place", "roles"), [("user", ["tool", "user"]), ("tool", ["tool"])])
async def test_images_of_tools_go_where_the_endpoint_takes_them(
    place: Any, roles: list[str]
) -> None:
    """By default a tool's screenshot follows in a user message, as OpenAI's endpoint wants it."""
    blob = "ab" * 32
    text = {"type": "text", "text": "clicked"}
    result = {"role": "tool", "tool_call_id": "c", "content": [text, image_part(blob)]}
    async with asking(completion(said()), tool_images=place) as (asked, server):
        await asked.sample(request(messages=[USER, result], images={blob: b"\xff\xd8\xff"}))
    sent = server.requests[0]["messages"][1:]
    assert [message["role"] for message in sent] == roles
    assert sent[0]["content"][0] == text
    assert sent[-1]["content"][-1]["image_url"]["url"].startswith("data:image/jpeg;base64,")


@pytest.mark.parametrize(
    "bad",
    [
        Answer(429, {}, {"retry-after": "0"}),
        Answer(500, {}),
        Answer(503, "busy"),
        Answer(drop=True),
    ],
)
async def test_what_may_pass_is_tried_again(bad: Answer) -> None:
    """Rate limits, 5xx and broken connections are retried, and the time lost is a pause."""
    async with asking(bad, bad, completion(said())) as (asked, server):
        reply = await asked.sample(request())
    assert reply.message["content"] == "hi"
    assert len(server.requests) == 3
    assert reply.paused_seconds > 0


async def test_retries_are_bounded() -> None:
    """After the last attempt the policy is unavailable, with the server's status."""
    async with asking(Answer(500, {"error": {"message": "boom"}})) as (asked, server):
        with pytest.raises(PolicyUnavailable, match="500"):
            await asked.sample(request())
    assert len(server.requests) == 3


async def test_a_wait_longer_than_the_total_is_not_waited() -> None:
    """A server that asks for more time than there is gets no further try."""
    retry = Retry(tries=5, total_seconds=2)
    async with asking(Answer(429, {}, {"retry-after": "3600"}), retry=retry) as (asked, server):
        with pytest.raises(PolicyUnavailable, match="429"):
            await asyncio.wait_for(asked.sample(request()), 60)
    assert len(server.requests) == 1


@pytest.mark.parametrize("status", [400, 401, 404, 409, 422])
async def test_other_refusals_are_never_retried(status: int) -> None:
    """A request that the server refuses is sent once."""
    async with asking(Answer(status, {"error": {"message": "no"}})) as (asked, server):
        with pytest.raises(PolicyRejected, match=str(status)):
            await asked.sample(request())
    assert len(server.requests) == 1


async def test_a_hanging_server_is_given_up(forward: Forward) -> None:
    """Each try has a deadline, and the last one ends the call."""
    retry = Retry(tries=2, first_wait=0.001)
    async with asking(Answer(hang=True), timeout=100.0, retry=retry) as (asked, server):
        asking_it = asyncio.create_task(asked.sample(request()))
        for n in range(2):
            await server.received(n + 1)
            forward(100)
        with pytest.raises(PolicyUnavailable, match=r"(?i)time|answer"):
            await asyncio.wait_for(asking_it, 60)
    assert len(server.requests) == 2


async def test_no_server_at_all() -> None:
    """A closed port is reported as an endpoint that does not accept connections."""
    async with policy("http://127.0.0.1:9/v1") as asked:
        with pytest.raises(PolicyUnavailable, match="its URL correct"):
            await asked.sample(request())


@pytest.mark.parametrize(
    "answer",
    [
        Answer(body={"choices": []}),
        Answer(body={"choices": None}),
        Answer(body={}),
        Answer(body=[1, 2]),
        Answer(body="null"),
        Answer(body="<html>hello</html>", headers={"content-type": "text/html"}),
        Answer(body="{not json"),
        completion(None),
        completion(said([{"no": "type"}])),
        completion(said("x", tool_calls=[{"id": "a", "type": "function"}])),
    ],
)
async def test_garbage_is_named(answer: Answer) -> None:
    """An answer without a message is garbage, and is not asked for again."""
    async with asking(answer) as (asked, server):
        with pytest.raises(PolicyGarbage, match="openai:m"):
            await asked.sample(request())
    assert len(server.requests) == 1


@pytest.mark.parametrize("finish", ["stop", "length"])
async def test_an_empty_message_is_a_turn(finish: str) -> None:
    """``content: null`` without calls is an empty turn, as ``content: ""`` is."""
    async with asking(completion(said(None), finish=finish)) as (asked, _):
        reply = await asked.sample(request())
    assert (reply.message, reply.finish) == ({"role": "assistant", "content": ""}, finish)


def exact(ids: list[int], logprobs: list[Any], **message: Any) -> Answer:
    content = [{"token": "t", "logprob": value, "top_logprobs": []} for value in logprobs]
    choice = {"token_ids": ids, "logprobs": {"content": content}}
    return completion(said("ok", **message), choice=choice, prompt_token_ids=[1, 2, 3])


async def test_token_ids_make_an_exact_turn() -> None:
    """Returned ids and log-probs are the turn's; the version is what was there meanwhile."""
    versions = iter([4, 5])
    asked = {"token_ids": True, "versions": lambda: next(versions)}
    sampling = Sampling(logprob_mode="raw")
    async with asking(exact([7, 8], [-0.5, -0.25]), sampling=sampling, **asked) as (made, server):
        reply = await made.sample(request())
    assert server.requests[0]["return_token_ids"] is True
    assert server.requests[0]["logprobs"] is True
    sampled = reply.sampled
    assert sampled is not None
    assert np.array_equal(sampled.prompt_ids, [1, 2, 3])
    assert np.array_equal(sampled.response_ids, [7, 8])
    assert np.array_equal(sampled.logprobs, np.float32([-0.5, -0.25]))
    assert sampled.segments == (Segment(2, 4, 5),)
    assert reply.sampling is not None
    assert reply.sampling.logprob_mode == "raw"


async def test_a_renderer_finds_the_spans() -> None:
    """With a renderer the ids get spans, under the ids that the server gave its calls."""
    renderer = ByteRenderer()
    ids = renderer.encode_response('<tool_call>{"name": "f", "arguments": {}}</tool_call>')
    calls = [{"id": "srv-1", "type": "function", "function": {"name": "f", "arguments": "{}"}}]
    async with asking(
        exact(ids, [-1.0] * len(ids), tool_calls=calls), token_ids=True, renderer=renderer
    ) as (asked, _):
        reply = await asked.sample(request(tools=TOOLS))
    assert reply.sampled is not None
    (span,) = reply.sampled.spans
    assert (span.call_id, span.start, span.end) == ("srv-1", 0, len(ids) - 1)


async def test_images_are_found_in_the_ids_that_the_server_returns() -> None:
    """Placeholders in the prompt's ids are mapped to images; other ids are left unmapped."""
    blob = "ab" * 32
    renderer = ByteRenderer()
    messages = [{"role": "user", "content": [{"type": "text", "text": "see"}, image_part(blob)]}]
    prompt = renderer.render(messages)
    given = {"messages": messages, "images": {blob: b"\x89PNG"}}
    found = []
    for ids in (prompt, [1, 2, 3]):
        answer = exact([65, 260], [-1.0, -1.0])
        answer.body["prompt_token_ids"] = ids
        async with asking(answer, token_ids=True, renderer=renderer) as (asked, _):
            reply = await asked.sample(request(**given))
        assert reply.sampled is not None
        found.append([(i.blob, prompt[i.start : i.end]) for i in reply.sampled.images])
    assert found[0] == [(blob, [265] * len(found[0][0][1]))]
    assert found[1] == []
    async with asking(exact([265, 260], [-1.0, -1.0]), token_ids=True, renderer=renderer) as (
        asked,
        _,
    ):
        with pytest.raises(PolicyGarbage, match="sampled an image's placeholder"):
            await asked.sample(request())


async def test_missing_or_odd_token_ids_are_errors() -> None:
    """Asked for and not there, or not as many as log-probs: an error, never a silent text turn."""
    for answer in (completion(said()), exact([7, 8], [-0.5]), exact([7], [None])):
        async with asking(answer, token_ids=True) as (asked, _):
            with pytest.raises(PolicyGarbage, match="token"):
                await asked.sample(request())


async def test_one_connection_is_kept() -> None:
    """All turns use the same connection."""
    async with asking(completion(said())) as (asked, server):
        for _ in range(5):
            await asked.sample(request())
    assert (len(server.requests), server.connections) == (5, 1)


async def test_a_cancelled_call_ends_at_once() -> None:
    """Cancelling reaches through the retries and is not taken for a timeout."""
    async with asking(Answer(hang=True)) as (asked, server):
        task = asyncio.create_task(asked.sample(request()))
        await asyncio.wait_for(server.asked.wait(), 60)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task


def test_retry_after_is_read_in_all_its_forms(monkeypatch: pytest.MonkeyPatch) -> None:
    """Seconds, milliseconds and dates are parsed; invalid values are ignored."""
    monkeypatch.setattr(time, "time", lambda: 1_700_000_000.0)
    later = email.utils.formatdate(1_700_000_060, usegmt=True)
    assert retry_after({"retry-after": "7"}) == 7
    assert retry_after({"retry-after-ms": "250", "retry-after": "7"}) == 0.25
    assert retry_after({"retry-after": later}) == 60
    assert retry_after({"retry-after": "Thu, 01 Jan 1970 00:00:00 GMT"}) == 0
    assert retry_after({"retry-after": "soon"}) is None
    assert retry_after({"retry-after": "-3"}) is None
    assert retry_after({}) is None
