"""Whatever clients and the engine do, each delivered answer is exactly one turn."""

from __future__ import annotations

import asyncio
import json
import tempfile
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.server.fake import Trouble
from tests.server.harness import World, world
from tests.server.story import Story, says, system, tool, user
from trajgym.server import Limits
from trajgym.server.joining._atoms import read

_EVENTS = st.lists(
    st.tuples(
        st.sampled_from(["say", "twice", "leave", "again", "pause", "resume", "restart", "stream"]),
        st.integers(0, 2),
    ),
    min_size=3,
    max_size=14,
)
_TROUBLES = st.lists(st.tuples(st.integers(0, 12), st.sampled_from(["status", "drop"])), max_size=3)


class Agent:
    """Holds a conversation, retries as client libraries do, and notes what it was given."""

    def __init__(self, w: World, name: str) -> None:
        self.w = w
        self.path = f"/sessions/{name}/v1/chat/completions"
        self.messages: list[Any] = [user(f"I am {name}")]
        self.given: list[str] = []

    def body(self, *, stream: bool = False) -> dict[str, Any]:
        return {"model": "fake", "messages": list(self.messages), "stream": stream}

    async def once(self, body: dict[str, Any], headers: Any = None) -> str | None:
        """Return the text that came, None if the call failed."""
        async with self.w.http.post(self.w.url + self.path, json=body, headers=headers) as got:
            data = await got.read()
        if got.status != 200:
            return None
        if not body["stream"]:
            answer = json.loads(data)
            self.given.append(answer["id"])
            return str(answer["choices"][0]["message"]["content"])
        lines = [line[6:] for line in data.decode().splitlines() if line.startswith("data: ")]
        if lines[-1] != "[DONE]":
            return None
        chunks = [json.loads(line) for line in lines[:-1]]
        self.given.append(chunks[0]["id"])
        return "".join(c["choices"][0]["delta"].get("content") or "" for c in chunks)

    async def say(self, *, stream: bool = False) -> None:
        for attempt in range(6):
            headers = {"x-stainless-retry-count": str(attempt)}
            said = await self.once(self.body(stream=stream), headers)
            if said is not None:
                self.messages += [{"role": "assistant", "content": said}, user("go on")]
                return
        raise AssertionError("six tries without an answer")

    async def leave(self) -> None:
        """Give up before there can be an answer."""
        task = asyncio.ensure_future(self.once(self.body()))
        await asyncio.sleep(0.002)
        task.cancel()
        await asyncio.wait({task})


async def play(events: Any, troubles: Any, path: Path) -> None:
    limits = Limits(attach_seconds=0.2, hold_seconds=30.0)
    faults = [Trouble(call, kind) for call, kind in troubles]

    def script(n: int, body: Any) -> dict[str, Any]:
        return {"text": f"answer {n} to {len(body['messages'])} messages"}

    async with world(path, script, *faults, limits=limits) as w:
        agents = [Agent(w, f"s{i}") for i in range(3)]
        for i in range(3):
            await w.create(f"s{i}")
        control, book = w.app.settings.control, w.app.book
        for what, which in events:
            agent = agents[which]
            if what == "pause":
                control.pause()
                asyncio.get_running_loop().call_later(0.02, control.resume)
            elif what == "resume":
                control.resume()
            elif what == "restart":
                while w.app.settings.tasks:
                    await asyncio.sleep(0.002)
                book._live.clear()
            elif what == "twice":
                await asyncio.gather(agent.once(agent.body()), agent.once(agent.body()))
            elif what == "leave":
                await agent.leave()
            elif what == "again":
                await agent.once(agent.body())
            else:
                await agent.say(stream=what == "stream")
        for i, agent in enumerate(agents):
            await w.close(f"s{i}", score=1.0)
            tree = w.tree(f"s{i}")
            calls = [t.wire.call for t in tree.turns if t.wire is not None]
            assert len(set(calls)) == len(calls)
            delivered = {t.wire.call for t in tree.turns if t.wire and t.delivery == "delivered"}
            assert set(agent.given) <= delivered
            assert {t.agent for t in tree.turns} <= {"main"}
            for turn in tree.turns:
                shown = tree.context(turn)
                assert shown == agent.messages[: len(shown)]


@settings(
    max_examples=12,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
@given(_EVENTS, _TROUBLES)
def test_each_delivered_answer_is_one_turn(events: Any, troubles: Any) -> None:
    """Retries, disconnects, duplicates, pauses, restarts and engine faults, in any order."""
    with tempfile.TemporaryDirectory() as directory:
        asyncio.run(play(events, troubles, Path(directory)))


_TEXTS = st.sampled_from(["", "a", "some words", "a text of more than twenty-four characters"])
_CALLS = st.lists(
    st.tuples(st.sampled_from("pqrs"), st.just("add"), st.sampled_from(["{}", '{"x": "b"}'])),
    max_size=2,
)
_MESSAGES = st.lists(
    st.one_of(
        st.builds(user, _TEXTS),
        st.builds(system, _TEXTS),
        st.builds(lambda text, calls: says(text, *calls), _TEXTS, _CALLS),
        st.builds(tool, st.sampled_from("pqrs"), _TEXTS),
    ),
    min_size=1,
    max_size=6,
)


@settings(max_examples=150, deadline=None)
@given(st.lists(st.tuples(_MESSAGES, _TEXTS, _CALLS, st.booleans()), max_size=8))
def test_any_requests_form_a_tree(calls: Any) -> None:
    """Every call has a place for any requests: an earlier base, and an agent that fits its edge."""
    story = Story()
    history: list[Any] = []
    for messages, text, tools, continues in calls:
        history = [*history, *messages] if continues else messages
        answer = says(text, *tools)
        seen = story.call(history, answer)
        history = [*history, answer]
        base, edge = seen.parent, seen.edge
        if base is not None:
            assert base.number < seen.number
            assert (edge == "spawn") != (base.agent == seen.agent)
        else:
            assert edge == "continue"
        for returned in story.last.returns:
            assert returned.agent != seen.agent
    assert set(story.roles()) <= {seen.number for seen in story.seen}


@settings(max_examples=300, deadline=None)
@given(_MESSAGES, _MESSAGES, _MESSAGES, st.integers(0, 6))
def test_what_was_read_before_is_not_read_differently(
    shared: Any, one: Any, other: Any, edited: int
) -> None:
    """A conversation read on top of another one has the same atoms as when it is read alone."""
    before = read([*shared, *one])
    messages = [*(dict(message) for message in shared), *other]
    if edited < len(messages):
        messages[edited] = user("something else")
    assert read(messages, before) == read(messages)
    assert read(messages, read(messages, before)) == read(messages)


@settings(max_examples=60, deadline=None)
@given(_MESSAGES, _TEXTS, _CALLS, _MESSAGES)
def test_an_echoed_answer_is_always_continued(
    opening: Any, text: str, calls: Any, more: Any
) -> None:
    """A request that repeats prompt and answer continues that call, whatever stands in them."""
    story = Story()
    answer = says(text or "x", *calls)
    first = story.call(opening, answer)
    story.ask([*opening, answer, user("and then?"), *more])
    assert story.last.base is first
    assert story.last.edge == "continue"
