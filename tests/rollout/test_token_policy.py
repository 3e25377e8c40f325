"""The token policy over the fake engine: exact turns, budgets, rewrites."""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np
import pytest

from tests.clock import Forward
from tests.rollout.tokenizers import tokenizer
from trajgym.envs import EnvSpec, Session, TurnLimits
from trajgym.rollout import (
    FakeEngine,
    PolicyGarbage,
    PolicyRequest,
    PolicyUnavailable,
    TokenPolicy,
    call,
    run_session,
)
from trajgym.rollout.engines import Fault, Generation, TokenEngine
from trajgym.rollout.rendering import ByteRenderer, TemplateRenderer
from trajgym.trajectory import Segment, Task, TurnTokens, build_rows

USER = {"role": "user", "content": "go"}


def request(messages: Any = (USER,), **fields: Any) -> PolicyRequest:
    return PolicyRequest(session="s", messages=list(messages), **fields)


def as_tokens(reply: Any) -> TurnTokens:
    """Check a reply's ids by the ledger's own rules."""
    sampled = reply.sampled
    return TurnTokens(
        prompt_kept=0,
        prompt_ids=sampled.prompt_ids,
        response_ids=sampled.response_ids,
        logprobs=sampled.logprobs,
        segments=sampled.segments,
        spans=sampled.spans,
    )


def follow(reply: Any, *new: Any, before: Any = (USER,)) -> PolicyRequest:
    """Return the request for the turn after a reply."""
    prefix = np.concatenate([reply.sampled.prompt_ids, reply.sampled.response_ids])
    messages = [*before, reply.message, *new]
    return request(messages, prefix_ids=prefix, prefix_messages=len(before) + 1)


async def test_a_first_turn_is_rendered_and_exact() -> None:
    """A reply carries the prompt's ids, what was sampled, finite log-probs and the version."""
    policy = TokenPolicy.fake([call("bash", command="ls")], version=3)
    reply = await policy.sample(request())
    tokens = as_tokens(reply)
    assert reply.finish == "tool_calls"
    assert reply.synthetic
    assert reply.policy == "engine:fake"
    assert reply.context is None
    assert reply.sampling is not None
    assert reply.sampling.logprob_mode == "processed"
    assert tokens.segments == (Segment(tokens.response_ids.size, 3, 3),)
    assert (tokens.logprobs < 0).all()
    assert [s.call_id for s in tokens.spans] == [reply.message["tool_calls"][0]["id"]]


async def test_a_second_turn_appends_to_the_first() -> None:
    """The next prompt starts with the ids of prompt and response, bit for bit."""
    policy = TokenPolicy.fake(["odd   spacing <think>", "done"])
    first = await policy.sample(request())
    second_request = follow(first, {"role": "tool", "content": "r"})
    second = await policy.sample(second_request)
    prefix = second_request.prefix_ids
    assert prefix is not None
    assert second.sampled is not None
    assert np.array_equal(second.sampled.prompt_ids[: prefix.size], prefix)
    assert second.message["content"] == "done"
    assert second.context is None


async def test_stripped_reasoning_renders_afresh_and_says_what_was_shown() -> None:
    """Where the template strips reasoning, the prompt is new and the context lacks it."""
    renderer = ByteRenderer(strip_reasoning=True)
    policy = TokenPolicy.fake(["<think>hm</think>one", "two"], renderer=renderer)
    first = await policy.sample(request())
    assert first.message["reasoning_content"] == "hm"
    again = {"role": "user", "content": "on"}
    second = await policy.sample(follow(first, again))
    stripped = [USER, {"role": "assistant", "content": "one"}, again]
    assert second.context == stripped
    assert list(second.sampled.prompt_ids) == renderer.render(stripped)  # type: ignore[union-attr]


async def test_a_rewrite_without_changes_has_no_context() -> None:
    """A fresh render that shows every message as given leaves the context empty."""
    renderer = TemplateRenderer(tokenizer("mistral"))
    policy = TokenPolicy(FakeEngine(lambda _: "ok", renderer=_opened(renderer)), renderer)
    tools = [{"type": "function", "function": {"name": "f", "parameters": {}}}]
    first = await policy.sample(request(tools=tools))
    following = follow(first, {"role": "user", "content": "on"})
    following.tools = tools
    second = await policy.sample(following)
    assert second.context is None
    assert second.sampled is not None
    assert list(second.sampled.prompt_ids) == renderer.render(following.messages, tools)


def _opened(renderer: TemplateRenderer) -> TemplateRenderer:
    """Return the renderer with something by which a script can tell turns apart."""
    renderer.opening_ids = tuple(renderer._codec.encode("[/INST]"))
    return renderer


@pytest.mark.parametrize("budget", [1, 5, 9])
async def test_reasoning_out_of_budget_is_closed_and_the_turn_goes_on(budget: int) -> None:
    """After so many tokens, the closing ids are inserted, untrained, and sampling continues."""
    thought = "<think>" + "x" * 40 + "</think>"
    policy = TokenPolicy.fake([thought + "answer"])
    reply = await policy.sample(request(limits=TurnLimits(reasoning_tokens=budget)))
    tokens = as_tokens(reply)
    assert reply.message["content"] == "answer"
    assert reply.message.get("reasoning_content", "") == "x" * (budget - 1)
    assert [s.sampled for s in tokens.segments] == [True, False, True]
    assert tokens.segments[0].length == budget
    close = policy.renderer.reasoning_close_ids
    assert tuple(tokens.response_ids[~tokens.sampled_mask]) == close
    assert (tokens.logprobs[~tokens.sampled_mask] == 0).all()
    assert tokens.spans[0].end == budget + len(close)
    assert reply.finish == "stop"


async def test_no_reasoning_at_all() -> None:
    """A budget of zero begins the response with an empty, inserted reasoning block."""
    policy = TokenPolicy.fake(["<think>hm</think>answer"])
    reply = await policy.sample(request(limits=TurnLimits(reasoning_tokens=0)))
    assert reply.message == {"role": "assistant", "content": "answer"}
    assert as_tokens(reply).segments[0] == Segment(2, -1, -1, sampled=False)


async def test_reasoning_within_budget_is_left_alone() -> None:
    """Reasoning that closes in time, or never opens, gets no inserted ids."""
    for text in ("<think>hm</think>a long enough answer", "no thinking, only an answer"):
        policy = TokenPolicy.fake([text])
        reply = await policy.sample(request(limits=TurnLimits(reasoning_tokens=8)))
        assert as_tokens(reply).sampled_mask.all()
        assert reply.message["content"] in text
        assert reply.finish == "stop"


async def test_the_completion_limit_bounds_everything() -> None:
    """Inserted ids count, and a turn without room for them ends at its length."""
    policy = TokenPolicy.fake(["<think>" + "x" * 40 + "</think>answer"])
    for most, sampled in ((5, [True] * 5), (6, [True] * 5), (8, [True] * 5 + [False] + [True] * 2)):
        limits = TurnLimits(completion_tokens=most, reasoning_tokens=5)
        reply = await policy.sample(request(limits=limits))
        assert reply.finish == "length"
        assert as_tokens(reply).sampled_mask.tolist() == sampled
    limited = await policy.sample(request(limits=TurnLimits(completion_tokens=7)))
    assert limited.finish == "length"
    assert as_tokens(limited).response_ids.size == 7


async def test_a_weight_update_shows_as_two_segments() -> None:
    """A boundary that the engine shows is kept to the token; one it hides is a range."""
    for hide, wanted in (
        (False, (Segment(2, 5, 5), Segment(4, 6, 6))),
        (True, (Segment(6, 5, 6),)),
    ):
        policy = TokenPolicy.fake(["hello"], version=5, hide_boundaries=hide)
        policy.engine.update_weights(after_tokens=2)  # type: ignore[attr-defined]
        assert as_tokens(await policy.sample(request())).segments == wanted


async def test_an_abort_keeps_what_was_sampled() -> None:
    """An aborted response is a turn that finished by ``abort``; one without a token is an error."""
    policy = TokenPolicy.fake(["hello"], faults=[Fault(call=0, kind="abort", after_tokens=2)])
    reply = await policy.sample(request())
    assert reply.finish == "abort"
    assert reply.message["content"] == "he"
    empty = TokenPolicy.fake(["hello"], faults=[Fault(call=0, kind="abort")])
    with pytest.raises(PolicyUnavailable, match="aborted before"):
        await empty.sample(request())


class Silent(FakeEngine):
    """Samples nothing, not even an end."""

    finish: Any = "stop"

    async def generate(self, prompt_ids: Any, **options: Any) -> Generation:
        return Generation((), (), (), self.finish)


@pytest.mark.parametrize(
    ("finish", "status"), [("stop", "completed"), ("length", "truncated:completion_tokens")]
)
async def test_a_reply_without_a_token_is_an_empty_turn(finish: str, status: str) -> None:
    """It is scored as the empty message of a hosted model is, and gives no ids to train on."""
    engine = Silent(["x"])
    engine.finish = finish
    task = Task(id="t", prompt="")
    session = Session(EnvSpec(id="tests.worlds:Counter"), task)
    await run_session(session, TokenPolicy(engine, engine.renderer), task)
    (turn,) = session.turns
    assert (turn.message["content"], turn.tokens) == ("", None)
    assert session.status.scored
    assert finish == "stop" or str(session.status) == status
    rows, (dropped,) = build_rows(session.tree)
    assert (rows, dropped.reason) == ([], "turn 0: the model sampled nothing")


async def test_a_hanging_engine_is_given_up(forward: Forward) -> None:
    """An engine that never answers is cancelled at the deadline, and nothing is left running."""
    engine = FakeEngine(["x"], faults=[Fault(call=0, kind="hang")])
    policy = TokenPolicy(engine, engine.renderer, timeout=100)
    asking = asyncio.create_task(policy.sample(request()))
    async with asyncio.timeout(60):
        while not engine.running:
            await asyncio.sleep(0.001)
    forward(100)
    with pytest.raises(PolicyUnavailable, match=r"no answer within 100 s in session 's'"):
        await asking
    assert (engine.cancelled, engine.running) == (1, 0)


async def test_pauses_are_reported() -> None:
    """Seconds in which the engine was paused reach the reply, over all its calls."""
    faults = [Fault(call=i, kind="pause", seconds=0.01) for i in (0, 1)]
    policy = TokenPolicy.fake(["<think>abcdef</think>x"], faults=faults)
    reply = await policy.sample(request(limits=TurnLimits(reasoning_tokens=3)))
    assert reply.paused_seconds == pytest.approx(0.02)


class _Liar(TokenEngine):
    name = "liar"

    async def generate(self, prompt_ids: Any, **options: Any) -> Generation:
        return Generation([65, 66], [-1.0], (Segment(2, 0, 0),), "stop")


async def test_an_engine_whose_lengths_disagree_is_refused() -> None:
    """Ids without as many log-probs never become a turn."""
    with pytest.raises(PolicyGarbage, match="2 ids, 1 log-probs"):
        await TokenPolicy(_Liar(), ByteRenderer()).sample(request())


async def test_the_session_is_the_sticky_key_and_the_seed_is_passed_on() -> None:
    """The engine sees the request's session and seed."""
    seen = []
    policy = TokenPolicy.fake(lambda turn: seen.append((turn.session, turn.seed)) or "ok")
    await policy.sample(request(seed=7))
    assert seen == [("s", 7)]
    await policy.close()
    assert policy.engine.closed  # type: ignore[attr-defined]


async def test_a_response_that_goes_on_after_a_stop_id_is_refused() -> None:
    """A server that ignores stop ids would give turns with tokens that follow their end."""

    class Endless(FakeEngine):
        async def generate(self, *args: Any, **options: Any) -> Generation:
            made = await super().generate(*args, **options)
            ids = [*made.ids, *made.ids]
            return made._replace(
                ids=ids,
                logprobs=[*made.logprobs, *made.logprobs],
                segments=(Segment(len(ids), 0, 0),),
            )

    engine = Endless(lambda call: "yes")
    policy = TokenPolicy(engine, engine.renderer)
    with pytest.raises(PolicyGarbage, match="past a stop id"):
        await policy.sample(request())
