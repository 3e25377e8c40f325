"""The Responses and Messages policies against a real HTTP server that answers in their dialects."""

from __future__ import annotations

import asyncio
import json
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests import worlds
from tests.clock import Forward
from tests.rollout.server import Answer, Endpoint, endpoint
from trajgym.envs import EnvSpec, TurnLimits
from trajgym.rollout import (
    AnthropicPolicy,
    ContextFull,
    Policy,
    PolicyGarbage,
    PolicyRejected,
    PolicyRequest,
    PolicyUnavailable,
    ResponsesPolicy,
    Retry,
    collect,
)
from trajgym.rollout.hosted import _blocks, _items
from trajgym.server.dialects import MessagesDialect, ResponsesDialect
from trajgym.trajectory import Run, Sampling, Task, Usage, image_part

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

assert worlds.Counter
USER = {"role": "user", "content": "go"}
QUICK = Retry(tries=3, first_wait=0.001, longest_wait=0.01)
SCHEMA = {"type": "object", "properties": {"n": {"type": "integer"}}}
TOOLS = [
    {"type": "function", "function": {"name": "add", "description": "Add.", "parameters": SCHEMA}}
]
BLOB = "ab" * 32
PNG = b"\x89PNG\r\n"
DATA = "data:image/png;base64,iVBORw0K"

THINKING = {"type": "thinking", "thinking": "hm", "signature": "sig-1"}
REDACTED = {"type": "redacted_thinking", "data": "opaque"}
TOOL_USE = {"type": "tool_use", "id": "t1", "name": "add", "input": {"n": 3}}
BLOCKS = [THINKING, REDACTED, {"type": "text", "text": "I add."}, TOOL_USE]

REASONING = {
    "type": "reasoning",
    "id": "rs_1",
    "summary": [{"type": "summary_text", "text": "hm"}],
    "encrypted_content": "opaque",
}
SAID = {
    "type": "message",
    "id": "msg_1",
    "role": "assistant",
    "status": "completed",
    "content": [{"type": "output_text", "text": "I add.", "annotations": []}],
}
CALLED = {
    "type": "function_call",
    "id": "fc_1",
    "call_id": "t1",
    "name": "add",
    "arguments": '{"n": 3}',
    "status": "completed",
}


def request(**fields: Any) -> PolicyRequest:
    return PolicyRequest(**{"session": "s1", "messages": [USER], **fields})


def events(*found: dict[str, Any]) -> Answer:
    """Return a stream of server-sent events, named by their types."""
    body = "".join(f"event: {e['type']}\ndata: {json.dumps(e)}\n\n" for e in found)
    return Answer(body=body, headers={"content-type": "text/event-stream"})


def messages_answer(blocks: list[Any], stop: str = "end_turn", **fields: Any) -> dict[str, Any]:
    usage = {"input_tokens": 5, "output_tokens": 9, "cache_read_input_tokens": 2}
    usage |= {"cache_creation_input_tokens": 1, "output_tokens_details": {"thinking_tokens": 4}}
    body = {"id": "m", "type": "message", "role": "assistant", "model": "m", "content": blocks}
    return {**body, "stop_reason": stop, "stop_sequence": None, "usage": usage, **fields}


def messages_stream(blocks: list[Any], stop: str = "end_turn") -> Answer:
    whole = messages_answer(blocks, stop)
    opening = {**whole, "content": [], "stop_reason": None}
    out: list[dict[str, Any]] = [{"type": "message_start", "message": opening}, {"type": "ping"}]
    for index, block in enumerate(blocks):
        deltas: list[dict[str, Any]] = []
        empty = dict(block)
        if block["type"] == "text":
            empty["text"] = ""
            deltas = [{"type": "text_delta", "text": character} for character in block["text"]]
        elif block["type"] == "thinking":
            empty |= {"thinking": "", "signature": ""}
            deltas = [{"type": "thinking_delta", "thinking": block["thinking"]}]
            deltas.append({"type": "signature_delta", "signature": block["signature"]})
        elif block["type"] == "tool_use":
            empty["input"] = {}
            text = json.dumps(block["input"])
            deltas = [{"type": "input_json_delta", "partial_json": t} for t in (text[:3], text[3:])]
        out.append({"type": "content_block_start", "index": index, "content_block": empty})
        out += [{"type": "content_block_delta", "index": index, "delta": d} for d in deltas]
        out.append({"type": "content_block_stop", "index": index})
    delta = {"stop_reason": stop, "stop_sequence": None}
    out.append({"type": "message_delta", "delta": delta, "usage": whole["usage"]})
    return events(*out, {"type": "message_stop"})


def response(items: list[Any], status: str = "completed", **fields: Any) -> dict[str, Any]:
    usage = {
        "input_tokens": 8,
        "input_tokens_details": {"cached_tokens": 2},
        "output_tokens": 9,
        "output_tokens_details": {"reasoning_tokens": 4},
        "total_tokens": 17,
    }
    body = {"id": "r", "object": "response", "created_at": 0, "model": "m", "output": items}
    body |= {"status": status, "usage": usage, "error": None, "incomplete_details": None}
    return {**body, "parallel_tool_calls": True, "tool_choice": "auto", "tools": [], **fields}


class Dialect:
    """One API: its policy, and what its servers answer."""

    def __init__(self, name: str, *, stream: bool) -> None:
        self.name, self.stream = name, stream

    def policy(self, server: Endpoint, **options: Any) -> Policy:
        given = {"retry": QUICK, "stream": self.stream, "api_key": "secret-key", **options}
        if self.name == "responses":
            return ResponsesPolicy("m", base_url=server.url, **given)
        return AnthropicPolicy("m", base_url=server.url.removesuffix("/v1"), **given)

    def answer(self, *, cut: bool = False) -> Answer:
        """Return a turn that reasons, says something and calls a tool."""
        if self.name == "messages":
            stop = "max_tokens" if cut else "tool_use"
            whole = Answer(body=messages_answer(BLOCKS, stop))
            return messages_stream(BLOCKS, stop) if self.stream else whole
        status = "incomplete" if cut else "completed"
        more = {"incomplete_details": {"reason": "max_output_tokens"}} if cut else {}
        body = response([REASONING, SAID, CALLED], status, **more)
        if not self.stream:
            return Answer(body=body)
        begun = {"type": "response.created", "response": response([]), "sequence_number": 0}
        return events(begun, {"type": f"response.{status}", "response": body, "sequence_number": 1})

    def error(self, status: int, kind: str, message: str) -> Answer:
        error = {"type": kind, "message": message}
        outer = {"type": "error"} if self.name == "messages" else {}
        return Answer(status, {**outer, "error": error}, {"retry-after": "0"})


@pytest.fixture(
    params=[(name, stream) for name in ("responses", "messages") for stream in (False, True)],
    ids=lambda p: f"{p[0]}{'-stream' * p[1]}",
)
def dialect(request: pytest.FixtureRequest) -> Dialect:
    name, stream = request.param
    return Dialect(name, stream=stream)


@asynccontextmanager
async def asking(
    dialect: Dialect, *answers: Answer, **options: Any
) -> AsyncIterator[tuple[Policy, Endpoint]]:
    async with endpoint(*answers) as server, dialect.policy(server, **options) as made:
        yield made, server


async def test_a_turn_comes_back_to_the_endpoint_as_it_came(dialect: Dialect) -> None:
    """Text, reasoning, calls and usage are read; the next request holds them unchanged."""
    async with asking(dialect, dialect.answer()) as (asked, server):
        reply = await asked.sample(request(tools=TOOLS))
        assert reply.message["content"] == "I add."
        assert reply.message["reasoning_content"] == "hm"
        (call,) = reply.message["tool_calls"]
        assert (call["id"], call["function"]["name"]) == ("t1", "add")
        assert json.loads(call["function"]["arguments"]) == {"n": 3}
        assert reply.finish == "tool_calls"
        assert reply.usage == Usage(
            prompt_tokens=8, completion_tokens=9, reasoning_tokens=4, cached_tokens=2
        )
        result = {"role": "tool", "tool_call_id": "t1", "content": "3"}
        await asked.sample(request(messages=[USER, reply.message, result], tools=TOOLS))
    sent = server.requests[1]
    if dialect.name == "messages":
        assert server.paths == ["/v1/messages"] * 2
        assert sent["messages"][1:] == [
            {"role": "assistant", "content": BLOCKS},
            {
                "role": "user",
                "content": [
                    {
                        "type": "tool_result",
                        "tool_use_id": "t1",
                        "content": [{"type": "text", "text": "3"}],
                    }
                ],
            },
        ]
    else:
        assert server.paths == ["/v1/responses"] * 2
        assert sent["store"] is False
        reasoning, said, called, output = sent["input"][1:]
        assert reasoning == REASONING
        assert (said["id"], said["content"][0]["text"]) == ("msg_1", "I add.")
        assert (called["id"], called["arguments"]) == ("fc_1", '{"n": 3}')
        assert output == {"type": "function_call_output", "call_id": "t1", "output": "3"}


async def test_edited_messages_lose_what_no_longer_fits(dialect: Dialect) -> None:
    """Signed reasoning belongs to its text: an edited message is sent without it."""
    async with asking(dialect, dialect.answer()) as (asked, server):
        reply = await asked.sample(request())
        edited = {**reply.message, "content": "changed"}
        result = {"role": "tool", "tool_call_id": "t1", "content": "3"}
        await asked.sample(request(messages=[USER, edited, result]))
    text = json.dumps(server.requests[1])
    assert "changed" in text
    assert "sig-1" not in text
    assert "opaque" not in text


async def test_what_is_sent(dialect: Dialect) -> None:
    """System prompt, tools, sampling, limits, images and further fields are in the request."""
    sampling = Sampling(temperature=0.5, top_p=0.9, max_tokens=100)
    system = {"role": "system", "content": "Be brief."}
    seen = {"role": "user", "content": [{"type": "text", "text": "see"}, image_part(BLOB)]}
    async with asking(
        dialect, dialect.answer(), sampling=sampling, extra_body={"metadata": {"a": "b"}}
    ) as (asked, server):
        await asked.sample(
            request(
                messages=[system, seen],
                images={BLOB: PNG},
                tools=TOOLS,
                limits=TurnLimits(completion_tokens=50),
            )
        )
        with pytest.raises(PolicyRejected, match="bytes are not in"):
            await asked.sample(request(messages=[seen]))
    (sent,) = server.requests
    assert (sent["temperature"], sent["top_p"], sent["metadata"]) == (0.5, 0.9, {"a": "b"})
    assert server.headers[0]["x-session-id"] == "s1"
    if dialect.name == "messages":
        sent_keys = [server.headers[0].get(name, "") for name in ("x-api-key", "authorization")]
        assert "secret-key" in "".join(sent_keys)
        assert (sent["system"], sent["max_tokens"]) == ("Be brief.", 50)
        assert sent["tools"] == [{"name": "add", "description": "Add.", "input_schema": SCHEMA}]
        source = {"type": "base64", "media_type": "image/png", "data": "iVBORw0K"}
        assert sent["messages"][0]["content"][1] == {"type": "image", "source": source}
    else:
        assert server.headers[0]["authorization"] == "Bearer secret-key"
        assert (sent["input"][0]["role"], sent["max_output_tokens"]) == ("system", 50)
        assert sent["tools"][0]["parameters"] == SCHEMA
        assert sent["input"][1]["content"][1]["image_url"] == DATA


async def test_a_cut_answer_is_a_length(dialect: Dialect) -> None:
    """The provider's token limit is the finish ``length``."""
    async with asking(dialect, dialect.answer(cut=True)) as (asked, _):
        assert (await asked.sample(request())).finish == "length"


@pytest.mark.parametrize(
    ("status", "kind"),
    [(429, "rate_limit_error"), (500, "api_error"), (529, "overloaded_error")],
)
async def test_what_may_pass_is_tried_again(dialect: Dialect, status: int, kind: str) -> None:
    """Rate limits and server errors are retried, and the time lost is a pause."""
    bad = dialect.error(status, kind, "later")
    async with asking(dialect, bad, bad, dialect.answer()) as (asked, server):
        reply = await asked.sample(request())
    assert len(server.requests) == 3
    assert reply.paused_seconds > 0


async def test_broken_connections_and_hangs_are_bounded(dialect: Dialect, forward: Forward) -> None:
    """A dropped connection is tried again; a server that never answers is given up."""
    async with asking(dialect, Answer(drop=True), dialect.answer()) as (asked, server):
        assert (await asked.sample(request())).message["content"] == "I add."
    assert len(server.requests) == 2
    async with asking(dialect, Answer(hang=True), timeout=100.0) as (asked, server):
        asking_it = asyncio.create_task(asked.sample(request()))
        for n in range(3):
            await server.received(n + 1)
            forward(100)
        with pytest.raises(PolicyUnavailable, match="no answer within"):
            await asking_it
    assert len(server.requests) == 3


async def test_refusals_are_not_retried_and_never_show_the_key(dialect: Dialect) -> None:
    """A wrong key is rejected at once, and a server that repeats it is not quoted."""
    bad = dialect.error(401, "authentication_error", "invalid x-api-key: secret-key")
    async with asking(dialect, bad) as (asked, server):
        with pytest.raises(PolicyRejected, match="401") as caught:
            await asked.sample(request())
    assert "secret-key" not in str(caught.value)
    assert "secret-key" not in json.dumps(asked.identity)
    assert len(server.requests) == 1


@pytest.mark.parametrize(
    "text",
    [
        "prompt is too long: 210000 tokens > 200000 maximum",
        "Your input exceeds the context window of this model. Please adjust your input.",
    ],
)
async def test_a_full_context_is_named(dialect: Dialect, text: str) -> None:
    """Both providers' refusals end the attempt ``truncated:context``."""
    async with asking(dialect, dialect.error(400, "invalid_request_error", text)) as (asked, _):
        with pytest.raises(ContextFull):
            await asked.sample(request())


@pytest.mark.parametrize("body", ["<html>hello</html>", {}, "{not json", [1]])
async def test_garbage_is_named(body: Any) -> None:
    """An answer that is none of the dialect's is garbage, and is not asked for again."""
    for name in ("responses", "messages"):
        kind = "text/html" if isinstance(body, str) and body[0] == "<" else "application/json"
        answer = Answer(body=body, headers={"content-type": kind})
        async with asking(Dialect(name, stream=False), answer) as (asked, server):
            with pytest.raises(PolicyGarbage):
                await asked.sample(request())
        assert len(server.requests) == 1


async def test_an_error_inside_a_stream_is_tried_again() -> None:
    """An overload that is reported after the stream began is an overload."""
    error = {"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}}
    dialect = Dialect("messages", stream=True)
    async with asking(dialect, events(error), dialect.answer()) as (asked, server):
        assert (await asked.sample(request())).message["content"] == "I add."
    assert len(server.requests) == 2
    failed = response([], "failed", error={"code": "server_error", "message": "boom"})
    dialect = Dialect("responses", stream=True)
    ended = events({"type": "response.failed", "response": failed, "sequence_number": 0})
    async with asking(dialect, ended, dialect.answer()) as (asked, server):
        assert (await asked.sample(request())).message["content"] == "I add."
    assert len(server.requests) == 2


async def test_models_without_encrypted_reasoning_are_asked_without_it() -> None:
    """The refusal is recognised once; later requests leave the field out."""
    dialect = Dialect("responses", stream=False)
    text = "Encrypted content is not supported with this model."
    refused = dialect.error(400, "invalid_request_error", text)
    async with asking(dialect, refused, dialect.answer()) as (asked, server):
        await asked.sample(request())
        await asked.sample(request())
    assert ["include" in sent for sent in server.requests] == [True, False, False]


async def test_reasoning_limits_lower_the_thinking_budget() -> None:
    """A turn's reasoning limit bounds the budget, down to the API's minimum."""
    thinking = {"thinking": {"type": "enabled", "budget_tokens": 8000}}
    dialect = Dialect("messages", stream=False)
    async with asking(dialect, dialect.answer(), extra_body=thinking) as (asked, server):
        for most in (None, 3000, 10):
            await asked.sample(request(limits=TurnLimits(reasoning_tokens=most)))
    budgets = [sent["thinking"]["budget_tokens"] for sent in server.requests]
    assert budgets == [8000, 3000, 1024]


async def test_sessions_record_what_the_provider_needs(tmp_path: Any) -> None:
    """Collected through a store, the second turn's request still has the signed blocks."""
    done = messages_answer([{"type": "text", "text": "Done."}])
    dialect = Dialect("messages", stream=False)
    async with endpoint(dialect.answer(), Answer(body=done)) as server:
        async with dialect.policy(server) as policy:
            spec = EnvSpec(id="test/counter")
            await collect(spec, [Task(id="a")], policy, tmp_path / "run", samples=1)
    assert server.requests[1]["messages"][1]["content"] == BLOCKS
    with Run(tmp_path / "run") as run:
        (tree,) = run.sessions()
    assert tree.turns[0].message["native"]["parts"] == BLOCKS
    assert tree.turns[0].usage is not None
    assert tree.turns[0].usage.cached_tokens == 2


# The translation, against the server's own, which reads and writes the other way ------------------

TEXT = st.text(st.characters(codec="utf-8"), min_size=1, max_size=8).filter(str.strip)
NAME = st.from_regex(r"[a-z]{1,8}", fullmatch=True)
CALL = st.builds(
    lambda n, name: {
        "id": f"c{n}",
        "type": "function",
        "function": {"name": name, "arguments": json.dumps({"n": n})},
    },
    st.integers(0, 99),
    NAME,
)


@st.composite
def conversations(draw: st.DrawFn) -> list[dict[str, Any]]:
    """Draw a conversation as sessions have them: each call is answered."""
    messages: list[dict[str, Any]] = [{"role": "system", "content": draw(TEXT)}]
    for _ in range(draw(st.integers(1, 3))):
        messages.append({"role": "user", "content": draw(TEXT)})
        calls = draw(st.lists(CALL, max_size=2, unique_by=lambda call: call["id"]))
        spoken = {"role": "assistant", "content": draw(TEXT)}
        messages.append(spoken | ({"tool_calls": calls} if calls else {}))
        messages += [
            {"role": "tool", "tool_call_id": call["id"], "content": draw(TEXT)} for call in calls
        ]
    return messages


@given(conversations())
def test_requests_mean_the_conversation(messages: list[dict[str, Any]]) -> None:
    """Our server reads our requests as the conversation that they were made from."""
    system, sent = _blocks.to_messages(messages)
    read = MessagesDialect().parse({"system": system, "messages": sent}, lambda _: None)
    assert read.messages == messages
    items = _items.to_input(messages)
    assert ResponsesDialect().parse({"input": items}, lambda _: None).messages == messages
