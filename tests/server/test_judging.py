"""Turns are judged as they arrive; a judge that is down delays nothing and catches up."""

from __future__ import annotations

import asyncio
import sqlite3
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from tests.ports import free_port
from tests.server.fake import Engine, serving
from tests.server.harness import ADD, World, result, world
from tests.server.judge import Judge
from tests.server.test_feed import TASK, group, play
from tests.server.test_process import server
from trajgym.adapters import RowBuilder
from trajgym.rollout import OpenAIPolicy, Retry
from trajgym.rollout.annotators import Annotator, HintJudge, VoteJudge
from trajgym.server import Feed, Judges, ServerConfig
from trajgym.trajectory import InvalidInput, SessionTree, Turn
from trajgym.trajectory._database import AMENDED

USER = {"role": "user", "content": "go"}
CALL = {"text": "so", "calls": [("add", {"a": 1, "b": 2})]}
EXACT = {"logprob_mode": "processed"}


def policy(judge: Judge, name: str = "judge") -> OpenAIPolicy:
    return OpenAIPolicy("j", base_url=judge.url, retry=Retry(tries=1), timeout=300, name=name)


def judges(judge: Judge, **settings: Any) -> Judges:
    both = [VoteJudge(policy(judge), votes=1), HintJudge(policy(judge), votes=1)]
    return Judges(annotators=both, **{"seconds": 300, "longest_wait": 0.2, **settings})


async def steps(w: World, name: str, *results: str) -> None:
    """Make a call for each result, which is what the agent sees next, and one more."""
    messages: list[Any] = [USER]
    for text in results:
        said = await w.say(messages, name, tools=[ADD])
        messages.append(result(said["tool_calls"][0], text))
    await w.say(messages, name, tools=[ADD])


async def signals(w: World, name: str, count: int) -> list[dict[str, Any]]:
    """Wait until the first turns of a session have both signals in the store."""
    async with asyncio.timeout(60):
        while True:
            found = [turn.signals for turn in w.tree(name).turns]
            if sum("vote" in one and "hint" in one for one in found) >= count:
                return found
            await asyncio.sleep(0.01)


async def test_turns_are_judged_as_they_arrive(tmp_path: Path) -> None:
    """A turn has its vote and hint while the session goes on; the last one has no next state."""
    judge = Judge(free_port())
    async with judge.up(), world(tmp_path, [CALL], judges=judges(judge)) as w:
        await w.create()
        await steps(w, "s", "3", "error: negative")
        found = await signals(w, "s", 2)
        async with w.http.get(f"{w.url}/metrics") as got:
            metrics = await got.text()
        async with w.http.get(f"{w.url}/api/sessions/s/tree") as got:
            shown = await got.json()
    assert [one.get("vote") for one in found] == [1, -1, None]
    assert [one.get("hint") for one in found] == [None, "Both numbers have to be positive.", None]
    assert shown["turns"][1]["signals"]["vote"] == -1
    assert 'trajgym_judged_total{source="votes:judge"} 2' in metrics
    assert "trajgym_judge_failing_seconds 0" in metrics


async def test_edited_histories_are_judged_by_what_followed(tmp_path: Path) -> None:
    """An answer that came back edited, or was dropped for an error message, has a next state."""
    judge = Judge(free_port())
    async with judge.up(), world(tmp_path, [CALL], judges=judges(judge)) as w:
        await w.create()
        messages: list[Any] = [USER]
        said = await w.say(messages, tools=[ADD])
        messages[-1] = {**said, "content": ""}  # as agents send it that drop the text of calls
        messages.append(result(said["tool_calls"][0], "3"))
        await w.chat(messages, tools=[ADD])
        await w.create("dropped")
        await w.chat([USER], "dropped", tools=[ADD])
        await w.chat([USER, {"role": "user", "content": "format error"}], "dropped", tools=[ADD])
        found = [(await signals(w, name, 1))[0].get("vote") for name in ("s", "dropped")]
        edges = [turn.edge for name in ("s", "dropped") for turn in w.tree(name).turns]
    assert edges == ["continue", "rewrite", "continue", "rewrite"]
    assert found == [1, -1]
    assert "so" not in judge.asked[0].partition("WHAT HAPPENED NEXT")[2]


async def test_a_judge_that_hangs_delays_no_call(tmp_path: Path) -> None:
    """Agents are served while every slot of the judge is taken; slots are bounded."""
    judge = Judge(free_port())
    judge.gate.clear()
    async with judge.up(), world(tmp_path, [CALL], judges=judges(judge, concurrency=2)) as w:
        for name in ("a", "b", "c"):
            await w.create(name)
        await asyncio.gather(*(steps(w, name, "3", "3", "3") for name in ("a", "b", "c")))
        async with asyncio.timeout(60):
            while judge.most < 2:
                await asyncio.sleep(0.01)
        assert not any(turn.signals for turn in w.tree("a").turns)
        judge.gate.set()
        for name in ("a", "b", "c"):
            await signals(w, name, 3)
    assert judge.most == 2
    assert len(judge.asked) == 18  # no turn was judged twice


async def test_a_judge_that_died_catches_up(tmp_path: Path) -> None:
    """While it is down nothing waits for it; what it missed is judged once it is back."""
    judge = Judge(free_port())
    config = ServerConfig(signal_seconds=300)
    given = judges(judge, grace=0.0)
    async with world(tmp_path, [CALL], judges=given, config=config, upstream=EXACT) as w:
        async with judge.up():
            await w.create("a")
            await steps(w, "a", "3")
            await signals(w, "a", 1)
        await w.post("/api/groups", {"id": "g", "task": TASK, "samples": 1}, status=201)
        await w.create("b", group="g")
        await steps(w, "b", "3", "error")
        await w.close("b", score=1.0)
        async with Feed(w.url, acknowledge=False) as feed, asyncio.timeout(60):
            early = await anext(feed)  # sealed although no judge answers
        assert not any(turn.signals for turn in early.sessions[0].turns)
        async with judge.up():
            found = await signals(w, "b", 2)
        async with Feed(w.url) as feed:
            late = await anext(feed)
    assert [one.get("vote") for one in found] == [1, -1, None]
    assert [turn.signals.get("vote") for turn in late.sessions[0].turns] == [1, -1, None]


async def test_a_complete_group_waits_for_its_votes(tmp_path: Path) -> None:
    """A fed group has the votes from which the trainer's advantages are derived."""
    judge = Judge(free_port())
    judge.gate.clear()
    config = ServerConfig(signal_seconds=300)
    given = judges(judge, grace=300)
    async with (
        judge.up(),
        world(tmp_path, [CALL], judges=given, config=config, upstream=EXACT) as w,
    ):
        await w.post("/api/groups", {"id": "g", "task": TASK, "samples": 2}, status=201)
        for name, text in (("a", "3"), ("b", "error")):
            await w.create(name, group="g")
            await steps(w, name, text)
            await w.close(name, score=0.0)
        async with Feed(w.url) as feed:
            reading = asyncio.ensure_future(anext(feed))
            async with asyncio.timeout(60):
                while len(judge.asked) < 4:
                    await asyncio.sleep(0.01)
            async with w.http.get(f"{w.url}/api/groups/g") as got:
                assert not (await got.json())["sealed"]
            judge.gate.set()
            async with asyncio.timeout(60):
                sealed = await reading
    rows = RowBuilder("next_state_votes", "a test")(sealed).rows
    first = [row.advantage[row.loss_mask][0] for row in rows if row.advantage is not None]
    assert first == [1.0, -1.0]


async def test_a_groups_deadline_ends_the_wait_for_votes(tmp_path: Path) -> None:
    """A judge that neither answers nor fails does not hold a group back for ever."""
    judge = Judge(free_port())
    judge.gate.clear()
    config = ServerConfig(signal_seconds=0.2)
    async with judge.up(), world(tmp_path, [CALL], judges=judges(judge), config=config) as w:
        await w.post("/api/groups", {"id": "g", "task": TASK, "samples": 1}, status=201)
        await w.create("a", group="g")
        await steps(w, "a", "3")
        await w.close("a", score=1.0)
        async with Feed(w.url) as feed, asyncio.timeout(60):
            sealed = await anext(feed)
        judge.gate.set()
        found = await signals(w, "a", 1)
    assert [member.left for member in sealed.group.members] == [""]
    assert found[0]["vote"] == 1


async def test_what_a_killed_server_left_is_judged(tmp_path: Path) -> None:
    """After SIGKILL with a dead judge, sessions that ended and open ones get their signals."""
    judge, port = Judge(free_port()), free_port()
    url = f"http://127.0.0.1:{port}"
    more = ["--judge", "votes", "--judge", "hints", "--judge-url", judge.url]
    more += ["--judge-model", "j", "--judge-votes", "1"]
    async with (
        serving(Engine(lambda n, body: CALL)) as fake,
        aiohttp.ClientSession() as http,
    ):
        w = World(fake, None, url, http)  # type: ignore[arg-type]
        async with server(tmp_path, fake.url, port, *more):
            for name in ("ended", "open"):
                await w.create(name)
                await steps(w, name, "3", "error")
            await w.close("ended", score=1.0)
        assert judge.asked == []
        async with judge.up(), server(tmp_path, fake.url, port, *more), asyncio.timeout(60):
            for name in ("ended", "open"):
                votes: list[Any] = []
                while votes != [1, -1, None]:
                    async with http.get(f"{url}/api/sessions/{name}/tree") as got:
                        turns = (await got.json())["turns"]
                    votes = [turn.get("signals", {}).get("vote") for turn in turns]
                    await asyncio.sleep(0.02)


async def test_signals_that_can_not_be_recorded_are_no_fault_of_the_judge(tmp_path: Path) -> None:
    """Where the store refuses them they are kept, and recorded later; no judge is asked twice."""
    judge = Judge(free_port())
    async with judge.up(), world(tmp_path, [CALL], judges=judges(judge)) as w:
        file = sqlite3.connect(w.app.settings.store.path, timeout=60, isolation_level=None)
        judged = f"BEFORE INSERT ON signals WHEN new.source <> '{AMENDED}'"
        file.execute(f"CREATE TRIGGER refuse {judged} BEGIN SELECT RAISE(ABORT, 'no room'); END")
        work = w.app.judging
        assert work is not None
        await w.create()
        await steps(w, "s", "3")
        async with asyncio.timeout(60):
            while not work.failing_seconds:
                await asyncio.sleep(0.01)
        file.execute("DROP TRIGGER refuse")
        file.close()
        await signals(w, "s", 1)
        assert not work.failed
    assert len(judge.asked) == 2  # one turn, two judges


async def test_a_turn_that_always_fails_does_not_hold_up_others(tmp_path: Path) -> None:
    """The endpoint refuses one turn: it is given up after some tries, the others are judged."""
    judge = Judge(free_port(), status=lambda shown: 400 if "poison" in shown else 200)
    async with judge.up(), world(tmp_path, [CALL], judges=judges(judge, concurrency=1)) as w:
        await w.create("bad")
        await w.create("good")
        await steps(w, "bad", "poison")
        await steps(w, "good", "3", "3", "3", "3")
        await signals(w, "good", 4)
        work = w.app.judging
        assert work is not None
        await w.post("/api/groups", {"id": "g", "task": TASK, "samples": 1}, status=201)
        await play(w, "g", "late", 1.0)
        async with Feed(w.url) as feed, asyncio.timeout(60):
            assert (await anext(feed)).group.id == "g"
        assert not w.tree("bad").turns[0].signals
        assert work.failed.total() >= 2


async def test_signals_of_other_judges_are_kept(tmp_path: Path) -> None:
    """A judge outside posts its own signals; ours are added, and repeated posts change nothing."""
    judge = Judge(free_port())
    async with judge.up(), world(tmp_path, [CALL], judges=judges(judge)) as w:
        await w.create()
        await steps(w, "s", "3")
        post = {"turn": 0, "signals": {"safe": True}, "source": "outside"}
        for _ in range(2):
            await w.post("/api/sessions/s/signals", post)
        found = await signals(w, "s", 1)
    assert found[0] == {"vote": 1, "votes": [1], "hint": None, "safe": True}


class Rude(Annotator):
    """Raises what annotators should not raise."""

    source = "rude"

    def turns(self, tree: SessionTree) -> list[Turn]:
        raise RuntimeError("no turns")

    async def annotate(self, tree: SessionTree, turn: Turn) -> dict[str, Any]:
        raise asyncio.CancelledError


async def test_a_broken_annotator_stops_nothing(tmp_path: Path) -> None:
    """Sessions are served and groups are sealed whatever an annotator raises."""
    async with world(tmp_path, [CALL], judges=Judges(annotators=[Rude()])) as w:
        await w.create()
        await steps(w, "s", "3")
        await group(w, "g", 1.0)
        async with Feed(w.url) as feed, asyncio.timeout(60):
            assert (await anext(feed)).group.id == "g"


def test_settings_of_judges_are_checked() -> None:
    """Impossible limits, no judge, or two of one name are errors."""
    one = Rude()
    for wrong in (
        {"annotators": []},
        {"annotators": [one, one]},
        {"annotators": [one], "concurrency": 0},
        {"annotators": [one], "seconds": float("inf")},
        {"annotators": [one], "grace": -1},
    ):
        with pytest.raises(InvalidInput):
            Judges(**wrong)  # type: ignore[arg-type]
