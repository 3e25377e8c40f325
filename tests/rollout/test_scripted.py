"""Scripted policies: lists, functions and generators."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from trajgym.envs import Reply
from trajgym.rollout import PolicyGarbage, PolicyRequest, ScriptedPolicy, call, say
from trajgym.trajectory import InvalidInput, check_message

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

USER = {"role": "user", "content": "go"}


def request(messages: Any = (USER,), session: str = "s") -> PolicyRequest:
    return PolicyRequest(session=session, messages=list(messages))


async def play(policy: ScriptedPolicy, turns: int, session: str = "s") -> list[Any]:
    """Drive some turns and return the whole conversation."""
    messages: list[Any] = [USER]
    for i in range(turns):
        reply = await policy.sample(request(messages, session))
        messages += [reply.message, {"role": "user", "content": f"seen {i}"}]
    return messages


def contents(messages: list[Any]) -> list[str]:
    return [m["content"] for m in messages if m["role"] == "assistant"]


async def test_a_list_is_said_in_order_and_then_runs_out() -> None:
    """Each turn gets its answer as a text turn; a turn past the end is an error."""
    policy = ScriptedPolicy(["one", call("f", x=[1])], name="demo")
    first = await policy.sample(request())
    assert (first.message["content"], first.finish, first.sampled) == ("one", "stop", None)
    assert first.policy == "scripted:demo"
    messages = [USER, first.message, USER]
    second = await policy.sample(request(messages))
    assert second.finish == "tool_calls"
    check_message(second.message)
    assert second.message["tool_calls"][0]["function"] == {"name": "f", "arguments": '{"x": [1]}'}
    with pytest.raises(PolicyGarbage, match="nothing for turn 2"):
        await policy.sample(request([*messages, second.message]))


async def test_call_ids_differ_within_and_between_turns() -> None:
    """Parallel calls and calls of later turns never share an id."""
    policy = ScriptedPolicy.always([call("f"), call("g", x=1)])
    messages = await play(policy, 2)
    ids = [c["id"] for m in messages for c in m.get("tool_calls", ())]
    assert len(set(ids)) == len(ids) == 4


async def test_functions_plain_and_async() -> None:
    """A function sees the request and may return text, a message or a whole reply."""

    async def later(asked: PolicyRequest) -> str:
        return asked.session

    assert (await ScriptedPolicy(later).sample(request())).message["content"] == "s"
    made = ScriptedPolicy(lambda _: Reply(message=say("x"), finish="length"))
    reply = await made.sample(request())
    assert (reply.finish, reply.policy) == ("length", "scripted:script")


async def test_a_generator_serves_each_session_apart() -> None:
    """Every session has its own generator, which receives the messages so far."""

    def script(asked: PolicyRequest) -> Iterator[Any]:
        messages: Any = yield f"hello {asked.session}"
        while True:
            messages = yield f"{len(messages)} messages"

    policy = ScriptedPolicy(script)
    assert contents(await play(policy, 2, "a")) == ["hello a", "3 messages"]
    assert contents(await play(policy, 3, "b")) == ["hello b", "3 messages", "5 messages"]


async def test_a_generator_follows_a_fork() -> None:
    """Asked about an earlier point again, it is replayed to there, not continued from its end."""
    closed = []

    async def script(_: PolicyRequest) -> AsyncIterator[Any]:
        try:
            messages: Any = yield "start"
            for i in range(10):
                messages = yield f"{i} after {messages[-1]['content']}"
        finally:
            closed.append(True)

    policy = ScriptedPolicy(script)
    messages = await play(policy, 3)
    assert contents(messages)[-1] == "1 after seen 1"
    fork = [*messages[:3], messages[3], {"role": "user", "content": "other"}]
    reply = await policy.sample(request(fork))
    assert reply.message["content"] == "1 after other"
    assert len(closed) == 1
    await policy.close()
    assert len(closed) == 2


async def test_a_generator_that_ends_says_its_last_word() -> None:
    """What comes after a generator's end is ``last``, or an error."""

    def script(_: PolicyRequest) -> Iterator[Any]:
        yield "only"

    assert contents(await play(ScriptedPolicy(script, last="bye"), 2)) == ["only", "bye"]
    with pytest.raises(PolicyGarbage, match="nothing for turn 1"):
        await play(ScriptedPolicy(script), 2)


async def test_a_generator_may_yield_from_lists_and_generators() -> None:
    """Answers of a list come in order, also inside another generator; later yields get messages."""

    def inner() -> Iterator[Any]:
        messages: Any = yield "four"
        yield f"{len(messages)} messages"
        yield from ("six",)

    def script(_: PolicyRequest) -> Iterator[Any]:
        yield from ["one", "two"]
        messages: Any = yield "three"
        assert len(messages) == 7
        yield from inner()

    expected = ["one", "two", "three", "four", "9 messages", "six", "end"]
    policy = ScriptedPolicy(script, last="end")
    messages = await play(policy, 7)
    assert contents(messages) == expected
    assert (await policy.sample(request(messages[:3]))).message["content"] == "two"


async def test_garbage_is_named() -> None:
    """An answer that is no assistant message is refused with what is wrong with it."""
    for answer in (3, {"role": "user", "content": "x"}, {"role": "assistant", "content": 1}):
        with pytest.raises(PolicyGarbage, match="scripted:script"):
            await ScriptedPolicy([answer]).sample(request())  # type: ignore[list-item]


def test_what_is_no_script_is_refused_at_once() -> None:
    """A lone string and arguments that are not JSON fail where they are written."""
    with pytest.raises(InvalidInput, match="put it in a list"):
        ScriptedPolicy("hello")
    with pytest.raises(InvalidInput, match="JSON values"):
        call("f", x=object())


def test_malformed_arguments_can_be_scripted() -> None:
    """Arguments given as a string go as they are, so that environments meet bad JSON."""
    message = say("", ("f", '{"x": '))
    assert message["tool_calls"][0]["function"]["arguments"] == '{"x": '
