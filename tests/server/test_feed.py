"""Groups of outside agents: sealed, streamed to consumers, acknowledged, sent again."""

from __future__ import annotations

import asyncio
import json
import sqlite3
from contextlib import AsyncExitStack, closing
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from tests.clock import Forward
from tests.ports import free_port
from tests.server.fake import Engine, serving
from tests.server.harness import World, world
from tests.server.test_process import bearer, server
from trajgym.adapters import RowBuilder
from trajgym.rollout import SealedGroup
from trajgym.server import Feed, ServerConfig, ServerError
from trajgym.server._errors import Refused
from trajgym.server.feeding._log import FeedLog, Query

USER = {"role": "user", "content": "go"}
TASK = {"id": "sums", "prompt": "go"}


async def play(w: World, group: str, name: str, score: float | None, **fields: Any) -> None:
    """Run a session of one call in a group, and close it unless ``score`` is None."""
    await w.create(name, group=group, **fields)
    await w.chat([USER], name, return_token_ids=True)
    if score is not None:
        await w.close(name, score=score)


async def group(w: World, name: str, *scores: float | None, **fields: Any) -> None:
    await w.post(
        "/api/groups", {"id": name, "task": TASK, "samples": len(scores), **fields}, status=201
    )
    await asyncio.gather(*(play(w, name, f"{name}-{i}", s) for i, s in enumerate(scores)))
    if None not in scores:
        await w.sealed(name)


async def lines(w: World, **query: Any) -> list[dict[str, Any]]:
    async with w.http.get(f"{w.url}/feed", params=query) as got:
        assert got.status == 200, await got.text()
        return [json.loads(line) for line in (await got.read()).splitlines()]


def names(sealed: SealedGroup) -> list[str]:
    return [tree.record.id for tree in sealed.sessions]


async def test_finished_groups_are_training_rows(tmp_path: Path) -> None:
    """A group comes once its members have ended, token-exactly, ready for an adapter's rows."""
    exact = {"logprob_mode": "processed"}
    async with world(tmp_path, [{"text": "hi"}], upstream=exact) as w:
        await group(w, "g1", 1.0, 0.0)
        async with Feed(w.url, idle_seconds=60) as feed:
            sealed = await anext(feed)
        stored = [w.tree(name).to_json() for name in ("g1-0", "g1-1")]
    assert sealed.group.sealed
    assert [(m.session, m.left) for m in sealed.group.members] == [("g1-0", ""), ("g1-1", "")]
    assert [tree.to_json() for tree in sealed.sessions] == stored
    found = RowBuilder("grpo", "a test")(sealed)
    assert not found.reasons
    good, bad = (row.advantage[row.loss_mask] for row in found.rows if row.advantage is not None)
    assert good.min() > 0
    assert (good == -bad).all()


async def test_every_consumer_gets_what_it_did_not_acknowledge(tmp_path: Path) -> None:
    """Groups are sent again until they are acknowledged, to each consumer on its own."""
    async with world(tmp_path, [{"text": "hi"}]) as w:
        for name in ("a", "b", "c"):
            await group(w, name, 1.0)
        seen: dict[str, list[str]] = {}
        for label, consumer, most in [
            ("first", "trainer", 2), ("again", "trainer", 9), ("rest", "trainer", 9),
            ("other", "eval", 9),
        ]:  # fmt: skip
            async with Feed(w.url, consumer, limit=2, idle_seconds=0.05) as feed:
                got = seen.setdefault(label, [])
                async for sealed in feed:
                    got.append(sealed.group.id)
                    if len(got) == most:
                        break  # the last one is not acknowledged
        async with w.http.get(f"{w.url}/feed/consumers") as answer:
            state = await answer.json()
        async with w.http.get(f"{w.url}/metrics") as answer:
            metrics = await answer.text()
    assert seen == {"first": ["a", "b"], "again": ["b", "c"], "rest": [], "other": ["a", "b", "c"]}
    assert [(one["consumer"], one["behind"]) for one in state["consumers"]] == [
        ("eval", 0), ("trainer", 0)
    ]  # fmt: skip
    assert 'trajgym_feed_behind{consumer="trainer"} 0' in metrics


async def test_a_feed_asks_before_it_is_idle(tmp_path: Path) -> None:
    """What is there is received, also if the idle time is over before the first question."""
    async with world(tmp_path, [{"text": "hi"}]) as w:
        await group(w, "a", 1.0)
        async with Feed(w.url, idle_seconds=1e-9) as feed:
            assert [sealed.group.id async for sealed in feed] == ["a"]


async def test_groups_done_out_of_order_are_acknowledged_in_order(tmp_path: Path) -> None:
    """With several groups in work, only what has nothing open before it is acknowledged."""
    async with world(tmp_path, [{"text": "hi"}]) as w:
        for name in ("a", "b", "c"):
            await group(w, name, 1.0)
        log = w.app.feed
        async with Feed(w.url, acknowledge=False) as feed:
            taken = [await feed.take() for _ in range(3)]
            first, second, third = (one for one in taken if one is not None)
            await feed.done(second)
            await feed.commit()
            assert log.acknowledged("trainer") == 0
            await feed.done(first)
            assert log.acknowledged("trainer") == 0
            await feed.commit()
            assert log.acknowledged("trainer") == second.position
            await feed.done(third)
            await feed.commit()
    assert log.acknowledged("trainer") == third.position == log.last


async def test_a_deadline_seals_what_is_there(tmp_path: Path, forward: Forward) -> None:
    """At its deadline a group goes out; a session that still runs left it, by name, and goes on."""
    async with world(tmp_path, [{"text": "hi"}]) as w:
        await w.post(
            "/api/groups", {"id": "g", "task": TASK, "samples": 3, "seconds": 600}, status=201
        )
        await play(w, "g", "g-0", 1.0)
        await play(w, "g", "g-1", None)
        forward(600)
        async with Feed(w.url) as feed:
            sealed = await anext(feed)
        await w.close("g-1", score=1.0)
        await w.post("/api/sessions", {"id": "late", "group": "g"}, status=409)
        async with w.http.get(f"{w.url}/api/groups/g") as got:
            shown = await got.json()
    assert sealed.group.planned == 3
    assert [(m.session, m.left) for m in sealed.group.members] == [
        ("g-0", ""), ("g-1", "deadline")
    ]  # fmt: skip
    assert names(sealed) == ["g-0"]
    assert shown["sealed"]
    assert [m["left"] for m in shown["members"]] == ["", "deadline"]


async def test_a_group_that_is_being_sealed_is_reported_when_it_is_stored(tmp_path: Path) -> None:
    """Open until then, and sealed in the answer of everyone who asks for it to be sealed."""
    async with world(tmp_path, [{"text": "hi"}]) as w:
        await w.post("/api/groups", {"id": "g", "task": TASK, "samples": 2}, status=201)
        await play(w, "g", "g-0", 1.0)
        path = w.app.settings.store.path
        with closing(sqlite3.connect(path, timeout=60, isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")  # the store can't write until this ends
            first = asyncio.create_task(w.post("/api/groups/g/seal", {}))
            unplanned = {"id": "late", "group": "g", "sample": 7}
            async with asyncio.timeout(240):
                while "is sealed" not in str(await w.post("/api/sessions", unplanned, status=409)):
                    await asyncio.sleep(0)
            async with w.http.get(f"{w.url}/api/groups/g") as got:
                shown = (await got.json())["sealed"]
            second = asyncio.create_task(w.post("/api/groups/g/seal", {}))
            await w.post("/api/sessions", unplanned, status=409)  # time for the second to arrive
            other.execute("ROLLBACK")
        answers = await asyncio.gather(first, second)
    assert not shown
    assert [answer["sealed"] for answer in answers] == [True, True]


async def test_failed_sessions_leave_and_can_be_tried_again(tmp_path: Path) -> None:
    """A failure is a member that left, not a zero; a retry takes its sample."""
    async with world(tmp_path, [{"text": "hi"}]) as w:
        await w.post("/api/groups", {"id": "g", "task": TASK, "samples": 2}, status=201)
        await play(w, "g", "one", None)
        await w.close("one", status="failed:sandbox", cause="no disk")
        await play(w, "g", "two", None)
        await play(w, "g", "again", 1.0)  # while two runs: the sample of one is free
        await w.post("/api/sessions", {"id": "more", "group": "g"}, status=409)
        await w.post("/api/sessions", {"id": "x", "group": "g", "task": "other"}, status=400)
        await w.close("two", score=0.5)
        async with Feed(w.url) as feed:
            sealed = await anext(feed)
    members = [(m.session, m.sample, m.left) for m in sealed.group.members]
    assert members == [("again", 0, ""), ("one", 0, "failed:sandbox"), ("two", 1, "")]
    assert names(sealed) == ["again", "two"]


@pytest.mark.parametrize("stale", ["drop", "report"])
async def test_stale_sessions_are_named(tmp_path: Path, stale: Any) -> None:
    """A session too many versions behind leaves its group as stale, or stays and is reported."""
    async with world(tmp_path, [{"text": "hi"}]) as w:
        await group(w, "old", 1.0, 0.0)
        await w.post("/api/control/version", {"version": 3, "engine": False})
        await group(w, "new", 1.0)
        async with Feed(w.url, max_staleness=2, stale=stale) as feed:
            old, new = [await feed.take() for _ in range(2)]
            left = dict(feed.left)
        async with Feed(w.url, "patient", max_staleness=3) as feed:
            kept = await anext(feed)
    assert old is not None
    assert new is not None
    assert old.stale == {"old-0": 3, "old-1": 3}
    assert new.stale == {}
    assert names(new.sealed) == ["new-0"]
    assert names(old.sealed) == ([] if stale == "drop" else ["old-0", "old-1"])
    assert left == ({"stale": 2} if stale == "drop" else {})
    assert names(kept) == ["old-0", "old-1"]


async def test_a_poll_waits_for_a_group_and_is_bounded(tmp_path: Path) -> None:
    """A poll is answered as soon as a group is sealed; responses end at their size or number."""
    config = ServerConfig(feed_bytes=1)
    async with world(tmp_path, [{"text": "hi"}], config=config) as w:
        assert [one["end"] for one in await lines(w, wait=0)] == [True]
        poll = asyncio.ensure_future(lines(w, wait=50))
        await group(w, "a", 1.0)
        async with asyncio.timeout(60):
            first = await poll
        await group(w, "b", 1.0)
        bounded = await lines(w, limit=10)
        for query in ({"wait": -1}, {"limit": "x"}, {"stale": "no"}, {"consumer": "a/b"}):
            async with w.http.get(f"{w.url}/feed", params=query) as got:
                assert got.status == 400, query
        await w.post("/feed/ack", {"position": 99}, status=409)
    assert first[0]["group"]["id"] == "a"
    assert [len(first), len(bounded)] == [2, 2]
    assert bounded[-1]["behind"] == 1


async def test_groups_wait_for_slow_consumers(tmp_path: Path) -> None:
    """With a bound, no group can be opened while a consumer is too far behind."""
    config = ServerConfig(feed_behind=1)
    async with world(tmp_path, [{"text": "hi"}], config=config) as w:
        await group(w, "a", 1.0)
        async with Feed(w.url) as feed:
            await anext(feed)
            full = await w.post("/api/groups", {"id": "b", "task": TASK, "samples": 1}, status=503)
            await feed.done(await _current(feed))
            await w.post("/api/groups", {"id": "b", "task": TASK, "samples": 1}, status=201)
            again = await w.post("/api/groups", {"id": "b", "task": TASK, "samples": 1})
            await w.post("/api/groups", {"id": "b", "task": TASK, "samples": 2}, status=409)
            sealed = await w.post("/api/groups/b/seal", {})
    assert "1 groups behind" in full["error"]["message"]
    assert not again["sealed"]
    assert sealed["sealed"]


async def _current(feed: Feed) -> Any:
    return feed._current


async def test_the_trainer_has_a_token(tmp_path: Path) -> None:
    """It opens the feed and weight updates, and nothing else."""
    config = ServerConfig(secret="root", judge_token="judge", trainer_token="train")
    root, train = bearer("root"), bearer("train")
    async with world(tmp_path, [{"text": "hi"}], config=config) as w:
        body = {"id": "g", "task": TASK, "samples": 1}
        await w.post("/api/groups", body, status=401, headers=train)
        await w.post("/api/groups", body, status=201, headers=root)
        await w.post("/api/groups/g/seal", {}, headers=root)
        await w.post("/feed/ack", {"position": 0}, status=401)
        await w.post("/feed/ack", {"position": 0}, status=401, headers=bearer("judge"))
        await w.post("/api/control/version", {"version": 1}, headers=train)
        await w.post("/api/sessions", {"id": "a"}, status=401, headers=train)
        with pytest.raises(ServerError, match="401"):
            async with Feed(w.url, token="wrong") as feed:
                await anext(feed)
        async with Feed(w.url, token="train") as feed:
            assert (await anext(feed)).group.id == "g"


async def test_both_sides_survive_a_kill(tmp_path: Path) -> None:
    """SIGKILL of the server: the consumer reads on, open groups go on, nothing is lost."""
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    async with (
        serving(Engine(lambda n, body: {"text": "hi"})) as fake,
        aiohttp.ClientSession() as h,
    ):
        w = World(fake, None, url, h)  # type: ignore[arg-type]
        async with Feed(url, wait=2, patience=120) as feed:
            async with server(tmp_path, fake.url, port):
                await group(w, "a", 1.0)
                await w.post("/api/groups", {"id": "b", "task": TASK, "samples": 2}, status=201)
                await play(w, "b", "b-0", 1.0)
                await play(w, "b", "b-1", None)
                await w.post(
                    "/api/groups", {"id": "c", "task": TASK, "samples": 2, "seconds": 1}, status=201
                )
                assert (await anext(feed)).group.id == "a"
            reading = asyncio.ensure_future(_ids(feed, 2))
            async with server(tmp_path, fake.url, port):
                await w.close("b-1", score=0.0)
                async with asyncio.timeout(60):
                    rest = await reading
                # A consumer that was killed: another one of its name, without its memory.
                async with Feed(url, idle_seconds=0.05) as fresh:
                    again = [sealed.group.id async for sealed in fresh]
    assert sorted(rest) == ["b", "c"]
    assert again == rest[-1:]


async def _ids(feed: Feed, count: int) -> list[str]:
    return [(await anext(feed)).group.id for _ in range(count)]


async def test_consumers_divide_the_groups(tmp_path: Path) -> None:
    """Each group goes to one share, and no share looks as if it were behind."""
    config = ServerConfig(feed_behind=2)
    names = [f"g{i}" for i in range(12)]
    got: list[list[str]] = [[], [], []]
    async with AsyncExitStack() as stack:
        w = await stack.enter_async_context(world(tmp_path, [{"text": "hi"}], config=config))
        feeds = [
            await stack.enter_async_context(Feed(w.url, share=(k, 3), wait=0, idle_seconds=0.05))
            for k in range(3)
        ]
        for name in names:
            await group(w, name, 1.0)
            for k, feed in enumerate(feeds):
                got[k] += [sealed.group.id async for sealed in feed]
        behind = w.app.feed.behind()
        async with w.http.get(f"{w.url}/feed", params={"share": "3/3"}) as answer:
            assert answer.status == 400
    assert sorted(name for one in got for name in one) == sorted(names)
    assert all(len(one) < 12 for one in got)
    assert behind == {f"trainer.{k}-of-3": 0 for k in range(3)}


async def test_a_group_that_was_just_stored_can_be_acknowledged(tmp_path: Path) -> None:
    """What a consumer could read is never refused as unknown."""
    async with world(tmp_path, [{"text": "hi"}]) as w:
        log = FeedLog(w.app.settings.store, w.app.settings.control)
        await group(w, "a", 1.0)
        assert log.last == 0  # it has not been told
        *_, end = [line async for line in log.lines(Query(consumer="trainer"))]
        position = json.loads(end)["position"]
        assert await log.acknowledge("trainer", position) == position > 0
        assert log.behind() == {"trainer": 0}
        with pytest.raises(Refused, match="the last sealed group has"):
            await log.acknowledge("trainer", position + 1)


async def test_a_trainer_announces_its_updates(tmp_path: Path) -> None:
    """The feed's client holds calls back during an update, and sets the version afterwards."""
    async with world(tmp_path, [{"text": "hi"}]) as w:
        await w.create()
        async with Feed(w.url) as feed:
            await feed.pause()
            held = asyncio.ensure_future(w.chat([USER], return_token_ids=True))
            async with asyncio.timeout(60):
                while not w.app.settings.control.held:
                    await asyncio.sleep(0.01)
            await feed.announce(3)
            await feed.resume()
            await held
            with pytest.raises(ServerError, match="409"):
                await feed.announce(2)
        tokens = w.tree().turns[0].tokens
    assert tokens is not None
    assert {(s.version_low, s.version_high) for s in tokens.segments} == {(3, 3)}
