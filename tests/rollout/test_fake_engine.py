"""The fake engine: the same ids for the same prompt, versions, and faults when asked."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from typing import Any

import pytest

from trajgym.rollout import FakeEngine, PolicyGarbage, PolicyRejected, PolicyUnavailable, call
from trajgym.rollout.engines import Fault, Generation
from trajgym.rollout.rendering import ByteRenderer
from trajgym.trajectory import InvalidInput, Sampling, Segment

RENDERER = ByteRenderer()
PROMPT = RENDERER.render([{"role": "user", "content": "go"}])


async def generate(engine: FakeEngine, prompt: Any = PROMPT, **options: Any) -> Generation:
    fields = {"sampling": Sampling(seed=1), "max_tokens": 64, "stop_ids": RENDERER.stop_ids}
    return await engine.generate(prompt, **{**fields, **options})


async def test_random_ids_depend_on_seed_and_prompt_alone() -> None:
    """Equal seeds and prompts sample equally, whatever was asked before; others differ."""
    engine = FakeEngine(seed=1)
    first = await generate(engine)
    other = await generate(engine, sampling=Sampling(seed=2))
    assert await generate(engine) == first
    assert await generate(FakeEngine(seed=1)) == first
    assert other.ids != first.ids
    assert (await generate(FakeEngine(seed=2))).ids != first.ids
    assert all(value < 0 for value in first.logprobs)


async def test_sampling_in_two_calls_gives_the_ids_of_one() -> None:
    """A generation that is cut and continued is the one that was not cut."""
    for engine in (FakeEngine(), FakeEngine(["some words"])):
        whole = await generate(engine)
        head = await generate(engine, max_tokens=3)
        assert head.finish == "length"
        tail = await generate(engine, [*PROMPT, *head.ids])
        assert [*head.ids, *tail.ids] == whole.ids
        if engine._script is None:
            assert [*head.logprobs, *tail.logprobs] == whole.logprobs


async def test_a_script_is_followed_by_the_turns_in_the_prompt() -> None:
    """The reply is chosen by how many turns the prompt holds, so forks and resumption agree."""
    engine = FakeEngine(["one", call("f", x=1), list(b"raw")])
    first = await generate(engine)
    assert RENDERER.decode(first.ids) == "one<|end|>"
    prompt = [*PROMPT, *first.ids, *RENDERER.opening_ids]
    second = await generate(engine, prompt)
    (made,) = RENDERER.parse(second.ids).message["tool_calls"]
    assert made["function"] == {"name": "f", "arguments": '{"x": 1}'}
    assert (await generate(engine)).ids == first.ids
    prompt = [*prompt, *second.ids, *RENDERER.opening_ids]
    third = await generate(engine, prompt)
    assert (bytes(third.ids), third.finish) == (b"raw", "length")
    with pytest.raises(PolicyGarbage, match="3 replies, and turn 3"):
        await generate(engine, [*prompt, *third.ids, *RENDERER.opening_ids])


async def test_a_reply_that_is_changed_in_place_is_encoded_again() -> None:
    """What was encoded before is used for equal replies only."""
    reply = call("look", place="here")
    engine = FakeEngine([reply])
    first = await generate(engine)
    assert first.ids == RENDERER.encode_response(reply) == (await generate(engine)).ids
    reply["content"] = "Well."
    assert (await generate(engine)).ids == RENDERER.encode_response(reply) != first.ids
    engine.renderer = ByteRenderer()
    assert (await generate(engine)).ids == RENDERER.encode_response(reply)


async def test_a_function_sees_the_turn() -> None:
    """A script that is a function gets session, turn and the prompt before the turn."""
    seen = []
    engine = FakeEngine(lambda turn: seen.append(turn) or f"turn {turn.turn}")
    got = await generate(engine, session="s")
    assert RENDERER.decode(got.ids) == "turn 0<|end|>"
    assert (seen[0].session, seen[0].turn, seen[0].prompt_ids) == ("s", 0, tuple(PROMPT))


async def test_weight_updates_now_and_in_a_call() -> None:
    """An update counts at once, or after so many tokens of the call that was named."""
    engine = FakeEngine(["hello"])
    engine.update_weights()
    engine.update_weights(after_tokens=2, call=1)
    assert (await generate(engine)).segments == (Segment(6, 1, 1),)
    assert (await generate(engine)).segments == (Segment(2, 1, 1), Segment(4, 2, 2))
    assert (await generate(engine)).segments == (Segment(6, 2, 2),)
    engine.update_weights(after_tokens=100)
    assert (await generate(engine)).segments == (Segment(6, 2, 2),)
    assert engine.version == 3


async def test_errors_come_at_the_call_that_was_named() -> None:
    """A fault hits its own call and no other; any policy error can be asked for."""
    faults = [Fault(call=1), Fault(call=2, error=PolicyRejected("no"))]
    engine = FakeEngine(["x"], faults=faults)
    await generate(engine)
    with pytest.raises(PolicyUnavailable, match="call 1"):
        await generate(engine)
    with pytest.raises(PolicyRejected, match="no"):
        await generate(engine)
    assert (await generate(engine)).finish == "stop"
    assert (engine.calls, engine.running) == (4, 0)


async def test_a_hang_ends_by_cancellation_only() -> None:
    """A hanging call takes no answer, and leaves nothing behind when it is cancelled."""
    engine = FakeEngine(["x"])
    engine.inject(Fault(call=0, kind="hang"))
    task = asyncio.create_task(generate(engine))
    await asyncio.sleep(0)
    assert engine.running == 1
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert (engine.cancelled, engine.running) == (1, 0)


def test_a_lone_string_is_no_script() -> None:
    """A string would be taken for a list of letters; the error shows the right form."""
    with pytest.raises(InvalidInput, match="put it in a list"):
        FakeEngine("hello")


def test_it_runs_with_the_base_install() -> None:
    """The fake policy needs no torch, transformers, tokenizers or renderers."""
    program = (
        "import asyncio, sys\n"
        "for name in ('torch', 'transformers', 'tokenizers', 'renderers', 'jinja2', 'gguf'):\n"
        "    sys.modules[name] = None\n"
        "from trajgym.rollout import PolicyRequest, TokenPolicy\n"
        "request = PolicyRequest(session='s', messages=[{'role': 'user', 'content': 'hi'}])\n"
        "reply = asyncio.run(TokenPolicy.fake(['hello']).sample(request))\n"
        "print(reply.message['content'])\n"
        "assert 'openai' not in sys.modules\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("hello\n", "")
