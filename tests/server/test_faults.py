"""Faults between an agent, the proxy and the engine, and what is recorded of them."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import fcntl
import json
import socket
import termios
from array import array
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from tests.clock import Forward
from tests.server.fake import Trouble
from tests.server.harness import ADD, World, result, shape, world
from trajgym.server import Limits
from trajgym.trajectory import Run, blob_hashes, build_rows

USER = {"role": "user", "content": "go"}
BODY = {"model": "fake", "messages": [USER]}
DONE = {"text": "one two three four five six"}
CHAT = "/sessions/s/v1/chat/completions"


async def until(condition: Any, seconds: float = 60.0) -> None:
    """Wait for something that no event announces."""
    async with asyncio.timeout(seconds):
        while not condition():
            await asyncio.sleep(0.01)


def unread(client: socket.socket) -> int:
    """Return how many bytes have arrived at a socket that were not read."""
    found = array("i", [0])
    fcntl.ioctl(client, termios.FIONREAD, found)
    return found[0]


def sent(w: World) -> bytes:
    """Return what the running call's clients have been sent, or would have been."""
    (flight,) = w.app.book.find("s").running
    return b"".join(flight.pieces)


async def leave(w: World, body: Any = None, headers: Any = None) -> None:
    """Send a request, and close the connection once it has reached the engine."""
    w.engine.arrived.clear()
    post = asyncio.ensure_future(w.http.post(w.url + CHAT, json=body or BODY, headers=headers))
    await asyncio.wait_for(w.engine.arrived.wait(), 60)
    post.cancel()
    await asyncio.wait({post})


async def test_a_retry_after_an_error_is_one_turn(tmp_path: Path) -> None:
    """Case 1: the engine's status passes through; the retry is the turn, the first try is noted."""
    trouble = Trouble(0, "status", 429, headers={"retry-after": "7"})
    async with world(tmp_path, [DONE], trouble) as w:
        await w.create()
        async with w.http.post(w.url + CHAT, json=BODY) as got:
            assert got.status == 429
            assert got.headers["retry-after"] == "7"
            assert (await got.json())["error"]["message"] == "injected"
        await w.chat([USER])
        (turn,) = w.tree().turns
    assert turn.wire is not None
    assert [t.cause for t in turn.wire.tries] == ["status 429: injected"]
    assert turn.parent is None


async def test_a_client_that_gave_up_attaches_again(tmp_path: Path) -> None:
    """Case 2: the same body after a timeout gets the call that still runs: one turn."""
    async with world(tmp_path, [DONE], Trouble(0, "gate")) as w:
        await w.create()
        await leave(w)
        live = w.app.book.find("s")
        await until(lambda: not live.running[0].listeners)
        again = asyncio.ensure_future(w.chat([USER]))
        await until(lambda: live.running[0].listeners)
        w.engine.gate.set()
        answer = await again
        (turn,) = w.tree().turns
        assert len(w.engine.requests) == 1
    assert answer["choices"][0]["message"]["content"] == DONE["text"]
    assert turn.delivery == "delivered"


async def test_an_answer_that_nobody_took_is_replayed_once(tmp_path: Path) -> None:
    """Case 3: complete but undelivered: an orphan until the retry gets exactly this answer."""
    async with world(tmp_path, [DONE], Trouble(0, "gate")) as w:
        await w.create()
        await leave(w)
        live = w.app.book.find("s")
        await until(lambda: not live.running[0].listeners)
        w.engine.gate.set()
        await until(lambda: not live.running)
        answer = await w.chat([USER])
        (turn,) = w.tree().turns
        assert turn.wire is not None
        assert answer["id"] == turn.wire.call
        await w.chat([USER])
        assert len(w.engine.requests) == 2
        first, second = w.tree().turns
    assert first.delivery == second.delivery == "delivered"
    assert second.wire is not None
    assert second.wire.rule == "R5"


async def test_a_client_that_never_comes_back_leaves_an_orphan(
    tmp_path: Path, forward: Forward
) -> None:
    """The call is cancelled at the engine after a while; what it had sampled trains nothing."""
    limits = Limits(attach_seconds=300)
    async with world(tmp_path, [DONE], Trouble(0, "gate_after"), limits=limits) as w:
        await w.create()
        await leave(w, {**BODY, "stream": True})
        await until(lambda: not w.app.book.find("s").running[0].listeners)
        await until(lambda: b"one" in sent(w))
        forward(300)
        await until(lambda: w.engine.cancelled == 1)
        await until(lambda: not w.app.book.find("s").running)
        await w.chat([USER], temperature=0.5)
        await w.close(score=1.0)
        tree = w.tree()
    orphan, turn = tree.turns
    assert orphan.delivery == "orphan"
    assert orphan.message["content"].startswith("one")
    assert (turn.delivery, turn.parent) == ("delivered", None)
    rows, dropped = build_rows(tree)
    assert [row.turns for row in rows] == [(1,)]
    assert "never reached" in dropped[0].reason


async def test_twins_are_two_turns(tmp_path: Path) -> None:
    """Case 4: two equal requests of connected clients are two samples."""
    async with world(tmp_path, [DONE], Trouble(0, "gate")) as w:
        await w.create()
        first = asyncio.ensure_future(w.chat([USER]))
        await asyncio.wait_for(w.engine.arrived.wait(), 60)
        second = await w.chat([USER])
        w.engine.gate.set()
        assert (await first)["id"] != second["id"]
        tree = w.tree()
    assert [t.parent for t in tree.turns] == [None, None]
    assert tree.turns[0].wire is not None
    assert tree.turns[0].wire.rule == "R1"


async def test_a_child_that_arrives_before_its_parents_end_finds_it(tmp_path: Path) -> None:
    """Case 27: an agent acts on a stream's text before its end; the child is placed at commit."""
    steps = [{"text": "one two three"}, {"text": "child"}]
    async with world(tmp_path, steps, Trouble(0, "gate_after", after=3)) as w:
        await w.create()
        body = {**BODY, "stream": True}
        first = asyncio.ensure_future(w.events(CHAT, body))
        await until(lambda: w.engine.open == 1)
        await until(lambda: b"three" in sent(w))
        child = [USER, {"role": "assistant", "content": "one two three"}, USER]
        second = asyncio.ensure_future(w.chat(child))
        await until(lambda: len(w.engine.requests) == 2)
        w.engine.gate.set()
        await asyncio.gather(first, second)
        tree = w.tree()
    assert shape(tree) == [(None, "continue", "main"), (0, "continue", "main")]


async def test_a_stream_that_breaks_goes_on_at_the_next_token(tmp_path: Path) -> None:
    """The engine's connection is lost during a stream; the client receives one whole answer."""
    async with world(tmp_path, [DONE], Trouble(0, "drop", after=3)) as w:
        await w.create()
        chunks = await w.events(CHAT, {**BODY, "stream": True})
        (turn,) = w.tree().turns
    text = "".join(c["choices"][0]["delta"].get("content") or "" for c in chunks)
    assert text == DONE["text"]
    assert turn.exact
    assert turn.message["content"] == DONE["text"]
    assert turn.wire is not None
    assert [t.cause for t in turn.wire.tries] == ["connection lost, continued"]


async def test_an_engine_that_is_down_is_waited_for(tmp_path: Path) -> None:
    """A refused connection is tried again until the deadline, then answered with 502."""
    async with world(tmp_path, [DONE], upstream={"connect_seconds": 0.3}) as w:
        await w.create()
        w.app.settings.upstream.base_url = "http://127.0.0.1:9"
        answer = await w.chat([USER], status=502)
        assert "Cannot connect" in answer["error"]["message"]
        assert w.tree().turns == []


# Weight updates -----------------------------------------------------------------------------


async def control(w: World, what: str, **body: Any) -> dict[str, Any]:
    return await w.post(f"/api/control/{what}", body)


async def test_new_calls_wait_for_the_end_of_a_pause(tmp_path: Path) -> None:
    """Calls wait while the proxy is paused, and are then made with the new version."""
    async with world(tmp_path, [DONE], refuses_in_pause=True) as w:
        await w.create()
        await control(w, "pause")
        waiting = asyncio.ensure_future(w.chat([USER]))
        await until(lambda: w.app.settings.control.held == 1)
        assert w.engine.requests == []
        await control(w, "version", version=3)
        await control(w, "resume")
        await waiting
        (turn,) = w.tree().turns
    assert turn.tokens is not None
    assert [s[1:3] for s in turn.tokens.segments] == [(3, 3)]


async def test_a_pause_that_is_too_long_is_a_503(tmp_path: Path) -> None:
    """The wait is shorter than clients' timeouts, and the answer has Retry-After."""
    async with world(tmp_path, [DONE], limits=Limits(hold_seconds=0.05)) as w:
        await w.create()
        await control(w, "pause")
        async with w.http.post(w.url + CHAT, json=BODY) as got:
            assert got.status == 503
            assert got.headers["retry-after"] == "1"
        await control(w, "resume")
        await w.chat([USER])
        (turn,) = w.tree().turns
    assert turn.wire is not None
    assert len(turn.wire.tries) == 1


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("called", [False, True])
async def test_an_aborted_answer_is_completed(tmp_path: Path, stream: bool, called: bool) -> None:
    """An update in abort mode cuts an answer; it is continued from its ids, as one turn.

    The engine reports ``tool_calls`` for a cut answer in which a call had begun.
    """
    step: dict[str, Any] = {"text": "one two three"}
    if called:
        step["calls"] = [("add", {"a": 12345, "b": 67890})]
    trouble = Trouble(0, "gate_after", after=5 if called else 2)
    async with world(tmp_path, [step], trouble) as w:
        await w.create()
        body = {**BODY, "tools": [ADD], "stream": stream}
        if stream:
            work: Any = asyncio.ensure_future(w.events(CHAT, body))
        else:
            work = asyncio.ensure_future(w.post(CHAT, body))
        await until(lambda: w.engine.gated == 1)
        await control(w, "pause", mode="abort")
        await until(lambda: w.app.settings.control.held == 1)
        await control(w, "resume", version=1)
        w.engine.gate.set()
        got = await work
        (turn,) = w.tree().turns
    assert turn.message["content"] == "one two three"
    expected = {"a": 12345, "b": 67890}
    if called:
        (call,) = turn.message["tool_calls"]
        assert json.loads(call["function"]["arguments"]) == expected
    assert turn.finish == ("tool_calls" if called else "stop")
    if not stream:
        return
    choices = [c["choices"][0] for c in got if c["choices"]]
    assert "".join(c["delta"].get("content") or "" for c in choices) == "one two three"
    parts = [p for c in choices for p in c["delta"].get("tool_calls") or ()]
    assert bool(parts) == called
    if called:
        arguments = "".join(p["function"].get("arguments") or "" for p in parts)
        assert json.loads(arguments) == expected
    assert [c["finish_reason"] for c in choices if c["finish_reason"]] == [turn.finish]
    assert turn.tokens is not None
    assert [s.version_low for s in turn.tokens.segments][-1] == 1


async def test_versions_of_a_stream_show_where_the_update_was(tmp_path: Path) -> None:
    """Keep mode freezes the stream; tokens before and after carry their own versions."""
    async with world(tmp_path, [DONE], Trouble(0, "gate_after", after=3)) as w:
        await w.create()
        work = asyncio.ensure_future(w.events(CHAT, {**BODY, "stream": True}))
        await until(lambda: w.engine.open == 1)
        await until(lambda: b"three" in sent(w))
        await control(w, "pause", mode="keep")
        await control(w, "version", version=5)
        await control(w, "resume")
        w.engine.gate.set()
        await work
        (turn,) = w.tree().turns
    assert turn.tokens is not None
    segments = [(s.length, s.version_low, s.version_high) for s in turn.tokens.segments]
    assert segments[0][1:] == (0, 0)
    assert segments[0][0] == len("one two three ")
    assert segments[1][1:] == (0, 5)  # the chunk that was under way
    assert segments[2][1:] == (5, 5)


async def test_updates_under_load_show_no_error_to_any_client(tmp_path: Path) -> None:
    """Forty agents of four turns, three updates in abort mode meanwhile: every call is a 200."""
    step = {"text": "one two three four", "calls": [("add", {"a": 1, "b": 2})]}
    async with world(tmp_path, [step], delay=0.002, refuses_in_pause=True) as w:

        async def agent(number: int) -> None:
            name = f"s{number}"
            await w.create(name)
            messages: list[Any] = [USER]
            for _ in range(4):
                said = await w.say(messages, name, tools=[ADD])
                assert json.loads(said["tool_calls"][0]["function"]["arguments"]) == {
                    "a": 1,
                    "b": 2,
                }
                messages += [result(call, "3") for call in said["tool_calls"]]

        async def trainer() -> None:
            for version in (1, 2, 3):
                await asyncio.sleep(0.1)
                await control(w, "pause", mode="abort")
                await asyncio.sleep(0.05)
                await control(w, "resume", version=version)

        await asyncio.gather(trainer(), *(agent(i) for i in range(40)))
        for i in range(40):
            tree = w.tree(f"s{i}")
            assert [t.parent for t in tree.turns] == [None, 0, 1, 2]
            assert all(t.exact for t in tree.turns)


# Hostile clients ----------------------------------------------------------------------------


async def test_large_bodies_are_refused_before_they_are_read(tmp_path: Path) -> None:
    """A gigabyte by its length is a 413 at once; one without a length as soon as it is too much."""
    async with world(tmp_path, [DONE], limits=Limits(body_bytes=10_000)) as w:
        await w.create()
        host, port = w.url.removeprefix("http://").split(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(
            f"POST {CHAT} HTTP/1.1\r\nhost: x\r\ncontent-length: 1073741824\r\n\r\n".encode()
        )
        assert (await asyncio.wait_for(reader.readline(), 60)).startswith(b"HTTP/1.1 413")
        writer.close()

        async def endless() -> Any:
            while True:
                yield b"x" * 1000

        try:
            async with w.http.post(w.url + CHAT, data=endless()) as got:
                assert got.status == 413
        except aiohttp.ClientError:
            pass  # it may close the connection while we still send
        assert w.engine.requests == []
        await w.chat([USER])


async def test_an_image_that_the_disk_does_not_take_fails_its_call(tmp_path: Path) -> None:
    """No turn is acknowledged that shows what is not stored; the next try stores all of it."""
    data = base64.b64encode(bytes(400_000)).decode()
    image = {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{data}"}}
    message = {"role": "user", "content": [image]}
    async with world(tmp_path, [DONE, DONE]) as w:
        await w.create()
        disk = w.app.settings.store._sink._connection
        pages = disk.execute("PRAGMA page_count").fetchone()[0]
        disk.execute(f"PRAGMA max_page_count = {pages + 20}")
        failed = await w.chat([message], tools=[ADD], status=500)
        assert "could not be recorded" in failed["error"]["message"]
        disk.execute("PRAGMA max_page_count = 1000000")
        await w.chat([message], tools=[ADD])
        await w.close()
    with Run(tmp_path) as run:
        lost, turn = run.session("s").turns
        assert (lost.delivery, turn.delivery) == ("orphan", "delivered")
        assert turn.wire is not None
        assert {turn.wire.tools, *blob_hashes(turn.context)} == set(run.blobs())


async def test_a_turn_that_the_disk_does_not_take_spoils_no_other(tmp_path: Path) -> None:
    """Its call fails and can be repeated; what comes before and after is in the store."""
    large = {"role": "user", "content": "z" * 400_000}
    async with world(tmp_path, [DONE] * 5) as w:
        await w.create()
        said = (await w.chat([USER]))["choices"][0]["message"]
        disk = w.app.settings.store._sink._connection
        pages = disk.execute("PRAGMA page_count").fetchone()[0]
        disk.execute(f"PRAGMA max_page_count = {pages + 20}")
        failed = await w.chat([USER, said, large], status=500)
        assert "could not be recorded" in failed["error"]["message"]
        await w.chat([{"role": "user", "content": "something else"}])
        disk.execute("PRAGMA max_page_count = 1000000")
        again = (await w.chat([USER, said, large]))["choices"][0]["message"]
        await w.chat([USER, said, large, again, USER])
        disk.execute(f"PRAGMA max_page_count = {pages + 20}")
        await w.chat([large], status=500)
        await w.close()
    with Run(tmp_path) as run:
        tree = run.session("s")
        assert [turn.delivery for turn in tree.turns] == ["delivered", "orphan", *["delivered"] * 3]
        assert [turn.parent for turn in tree.turns] == [None, None, None, 0, 3]
        (attempt,) = tree.attempts
        assert [turn.index for turn in tree.trajectory(attempt)] == [0, 3, 4]
        assert [problem.split(": ", 1)[1] for problem in run.check()] == [
            "session s: turn 1 was not written"
        ]


@pytest.mark.parametrize("large", ["task", "labels"])
async def test_a_session_that_the_disk_does_not_take_can_be_created_again(
    tmp_path: Path, large: str
) -> None:
    """No calls are recorded for what is not stored; the same id is accepted once there is room."""
    text = "z" * 400_000
    fields = (
        {"labels": {"text": text}}
        if large == "labels"
        else {"task": {"id": "t", "data": {"text": text}}}
    )
    async with world(tmp_path, [DONE]) as w:
        disk = w.app.settings.store._sink._connection
        pages = disk.execute("PRAGMA page_count").fetchone()[0]
        disk.execute(f"PRAGMA max_page_count = {pages + 20}")
        body = {"id": "s", **fields}
        await w.post("/api/sessions", body, status=500)
        await w.chat([USER], status=404)
        disk.execute("PRAGMA max_page_count = 1000000")
        await w.create(**fields)
        await w.post("/api/sessions", body, status=409)
        await w.chat([USER])
        await w.close()
    with Run(tmp_path) as run:
        assert not run.check()
        (tree,) = run.sessions()
        assert len(tree.turns) == 1


async def test_a_slow_loris_is_cut_off(tmp_path: Path, forward: Forward) -> None:
    """Connections without headers and slow bodies are closed; others are served meanwhile."""
    limits = Limits(header_seconds=300, body_seconds=300)
    async with world(tmp_path, [DONE], limits=limits) as w:
        await w.create()
        host, port = w.url.removeprefix("http://").split(":")
        silent = [await asyncio.open_connection(host, int(port)) for _ in range(20)]
        for _, writer in silent[:10]:
            writer.write(b"POST / HTTP/1.1\r\nhost:")
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(f"POST {CHAT} HTTP/1.1\r\nhost: x\r\ncontent-length: 99\r\n\r\n{{".encode())
        await w.chat([USER])
        forward(300)
        assert b"408" in await asyncio.wait_for(reader.readline(), 60)
        writer.close()
        for one, other in silent:
            with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
                await asyncio.wait_for(one.readexactly(1), 60)
            other.close()


async def test_a_client_that_reads_nothing_is_cut_off(tmp_path: Path, forward: Forward) -> None:
    """Its answer is not delivered; the same request again gets exactly this answer."""
    text = "x" * 8_000_000  # more than the sockets' buffers hold
    async with world(tmp_path, [{"text": text}], limits=Limits(send_seconds=300), ids=False) as w:
        await w.create()
        host, port = w.url.removeprefix("http://").split(":")
        body = json.dumps(BODY).encode()
        with socket.socket() as deaf:
            deaf.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            deaf.setblocking(False)
            loop = asyncio.get_running_loop()
            await loop.sock_connect(deaf, (host, int(port)))
            head = f"POST {CHAT} HTTP/1.1\r\nhost: x\r\ncontent-length: {len(body)}\r\n"
            head += "content-type: application/json\r\n\r\n"
            await loop.sock_sendall(deaf, head.encode() + body)
            await until(lambda: unread(deaf))  # as much as there is room for
            forward(300)
            await until(lambda: w.tree().turns[0].delivery != "open")
            assert w.tree().turns[0].delivery == "orphan"
            got = b""
            with contextlib.suppress(ConnectionError):
                while piece := await asyncio.wait_for(loop.sock_recv(deaf, 1 << 20), 60):
                    got += piece
            assert len(got) < len(text)
        answer = await w.chat([USER])
        (turn,) = w.tree().turns
        assert len(w.engine.requests) == 1
    assert answer["choices"][0]["message"]["content"] == text
    assert turn.delivery == "delivered"


async def test_a_large_answer_on_a_connection_that_then_closes_is_delivered(tmp_path: Path) -> None:
    """The server ends the connection after the last byte; that is no disconnect of the client."""
    text = "x" * 8_000_000
    async with world(tmp_path, [{"text": text}], ids=False) as w:
        await w.create()
        async with w.http.post(w.url + CHAT, json=BODY, headers={"connection": "close"}) as got:
            answer = await got.json()
        live = w.app.book.find("s")
        await until(lambda: w.tree().turns[0].delivery != "open" and not live.running)
        (turn,) = w.tree().turns
    assert answer["choices"][0]["message"]["content"] == text
    assert turn.delivery == "delivered"
