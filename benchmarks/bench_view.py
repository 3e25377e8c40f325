"""How long the viewer takes to list a large run, and to open a long session.

A synthetic run is written, its catalogue is built, and a client asks a server over HTTP for lists
with filters, orders and searches, several times each; the CPU time is that of server and client
together. A session of many turns is asked for over HTTP and, with ``--browser``, opened in Chromium
(in the browser environment's image): from the change of the address until its first turns have been
laid out. The lower bound of building the catalogue is reading the same rows with SQLite alone.

Usage: python benchmarks/bench_view.py [--sessions 100000] [--turns 10] [--browser] [--json OUT]
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import sqlite3
import statistics
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx

from trajgym.server import running
from trajgym.server.viewer import Viewer
from trajgym.trajectory import (
    Attempt,
    CallResult,
    Group,
    Member,
    Outcome,
    SessionRecord,
    Status,
    Store,
    Turn,
)

GOAL_LIST, GOAL_OPEN, GOAL_SESSIONS = 0.2, 1.0, 100_000
TOKEN = {"Authorization": "Bearer bench"}
WORDS = [
    "file", "test", "error", "import", "value", "return", "class", "method",
    "fix", "patch", "line", "module", "cart", "price", "total", "parse",
    "cache", "index", "query", "token", "result", "assert", "fixture", "schema",
    "field", "model",
]  # fmt: skip
TOOLS = ["bash", "edit", "search", "submit"]
CAUSES = ["the container exited with status 137", "the endpoint closed the connection"]


def turn(index: int, random_: random.Random, size: int, tool: str) -> Turn:
    """Return a text turn with one tool call and a result of about so many words."""
    arguments = json.dumps({"command": " ".join(random_.choices(WORDS, k=8))})
    call = {"id": "c", "type": "function", "function": {"name": tool, "arguments": arguments}}
    result = " ".join(random_.choices(WORDS, k=size)) + f" unique{random_.randrange(10**9)}"
    text = " ".join(random_.choices(WORDS, k=12))
    status = "error" if random_.random() < 0.05 else "ok"
    return Turn(
        index=index,
        parent=index - 1 if index else None,
        message={"role": "assistant", "content": text, "tool_calls": [call]},
        observation=[{"role": "tool", "tool_call_id": "c", "content": result}],
        calls=[CallResult(call_id="c", name=tool, status=status)],  # type: ignore[arg-type]
        policy_seconds=1.0,
    )


def write_run(path: Path, sessions: int, turns: int, long: int) -> None:
    """Write groups of eight, a few failures, and one long session."""
    random_ = random.Random(0)
    with Store(path) as store:
        for index in range(sessions):
            name, group = f"{index // 8:08x}-{index % 8}", f"{index // 8:08x}"
            store.begin_session(
                SessionRecord(
                    id=name,
                    task=f"task-{index // 8 % 500}",
                    env={"id": "swe", "config": {}},
                    group=group,
                    sample=index % 8,
                    labels={"policy": f"engine:step-{index // 10_000}"},
                    created_at=1.7e9 + index,
                )
            )
            for at in range(turns):
                tool = TOOLS[min(at, 3)] if random_.random() < 0.7 else "bash"
                store.append_turn(name, turn(at, random_, 40, tool))
            solved = random_.random() < 0.4
            outcome = Outcome(score=float(solved), passed=solved)
            end = Attempt(leaf=turns - 1, status=Status("completed"), outcome=outcome)
            if random_.random() < 0.03:
                cause = random_.choice(CAUSES)
                end = Attempt(leaf=turns - 1, status=Status("failed", "sandbox"), cause=cause)
            ack = store.put_attempt(name, end)
            if index % 8 == 7:
                members = [Member(f"{group}-{k}", k) for k in range(8)]
                store.put_group(
                    Group(id=group, task=f"task-{index // 8 % 500}", planned=8, members=members)
                )
            if index % 500 == 499:
                ack.wait()
        store.begin_session(SessionRecord(id="long", task="long", env={"id": "swe"}))
        for at in range(long):
            store.append_turn("long", turn(at, random_, 300, "bash"))
        store.put_attempt("long", Attempt(leaf=long - 1, status=Status("completed"))).wait()


def plain_read(path: Path) -> float:
    """Return the seconds in which SQLite alone reads the rows that the catalogue is made of."""
    begun = time.perf_counter()
    connection = sqlite3.connect(path / "store.sqlite")
    for table in ("sessions", "attempts", "turns", "groups"):
        for _ in connection.execute(f"SELECT * FROM {table}"):
            pass
    connection.close()
    return time.perf_counter() - begun


QUERIES: dict[str, tuple[str, dict[str, Any]]] = {
    "first page": ("sessions", {}),
    "page in the middle": ("sessions", {"offset": 50_000}),
    "by score": ("sessions", {"sort": "score", "desc": 1}),
    "by turns, last page": ("sessions", {"sort": "turns", "offset": 99_000}),
    "solved and completed": ("sessions", {"outcome": "solved", "status": "completed"}),
    "one task": ("sessions", {"task": "task-7"}),
    "one tool": ("sessions", {"tool": "search"}),
    "one cause": ("sessions", {"cause": CAUSES[0]}),
    "a word that all have": ("sessions", {"text": "cart"}),
    "two words and a tool": ("sessions", {"text": "price total", "tool": "edit"}),
    "a rare word": ("sessions", {"text": "unique12"}),
    "a phrase": ("sessions", {"text": '"cart price total"'}),
    "groups by spread": ("groups", {"sort": "spread", "desc": 1}),
    "failures": ("failures", {}),
    "totals": ("", {}),
}


def spread(taken: list[float], scale: float) -> list[float]:
    """Return the smallest, the median and the largest of some times."""
    return [round(x * scale, 1) for x in (min(taken), statistics.median(taken), max(taken))]


async def measure(path: Path, given: argparse.Namespace, figures: dict[str, Any]) -> None:
    viewer = Viewer(path, "bench", place=lambda _: path / "catalog.db")
    async with running(viewer) as url, httpx.AsyncClient(timeout=600, headers=TOKEN) as client:
        base = f"{url}/api/runs/{path.name}"
        cpu = 0.0

        async def ask(part: str, query: dict[str, Any]) -> tuple[float, Any]:
            nonlocal cpu
            spent, begun = time.process_time(), time.perf_counter()
            answer = await client.get(f"{base}/{part}".rstrip("/"), params=query)
            seconds = time.perf_counter() - begun
            cpu = time.process_time() - spent
            answer.raise_for_status()
            return seconds, answer.json()

        begun = time.perf_counter()
        while True:
            _, found = await ask("", {})
            if found["totals"]["sessions"] > given.sessions and "listed_s" not in figures:
                figures["listed_s"] = time.perf_counter() - begun
            if found["turns"] and found["read"] >= found["turns"] and "listed_s" in figures:
                break
            await asyncio.sleep(0.2)
        figures["searchable_s"] = time.perf_counter() - begun
        await ask("facets", {})
        figures["lists_ms"], figures["lists_cpu_ms"] = {}, {}
        for name, (part, query) in QUERIES.items():
            taken, spent = [], []
            for _ in range(given.rounds):
                taken.append((await ask(part, query))[0])
                spent.append(cpu)
            figures["lists_cpu_ms"][name] = round(min(spent) * 1e3, 1)
            figures["lists_ms"][name] = spread(taken, 1e3)
        taken = [(await ask("sessions/long", {}))[0] for _ in range(given.rounds)]
        figures["session_ms"] = spread(taken, 1e3)
        if given.browser:
            figures["opened_ms"] = await open_in_browser(url, path.name, given.rounds)


OPEN = """async () => {
    const begun = performance.now();
    location.hash = %s;
    while (document.querySelectorAll('.turn[data-built] .call').length < 2)
        await new Promise(done => requestAnimationFrame(done));
    await new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)));
    return performance.now() - begun;
}"""
LEAVE = """async () => {
    location.hash = '#/runs';
    while (!document.querySelector('.run-list'))
        await new Promise(done => requestAnimationFrame(done));
}"""


async def open_in_browser(url: str, run: str, rounds: int) -> list[float]:
    """Return the spread of milliseconds until the session can be read."""
    from trajgym.envs.gui import Browser, browser_spec
    from trajgym.envs.gui.actions import GoTo, Size
    from trajgym.envs.sandbox import DockerProvider

    port = url.rpartition(":")[2]
    spec = browser_spec(allow=[f"view.example:80=127.0.0.1:{port}"])
    async with (
        DockerProvider() as provider,
        await provider.start(spec) as sandbox,
        Browser(sandbox, size=Size(1400, 900)) as browser,
    ):
        await browser.act([GoTo("http://view.example/#/runs?token=bench")])
        taken = []
        for _ in range(rounds):
            await browser.evaluate(LEAVE)
            address = json.dumps(f"#/run/{run}/session/long")
            taken.append(await browser.evaluate(OPEN % address))
    return spread(taken, 1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sessions", type=int, default=GOAL_SESSIONS)
    parser.add_argument("--turns", type=int, default=10)
    parser.add_argument("--long", type=int, default=500, help="turns of the long session")
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--browser", action="store_true", help="open the session in Chromium")
    parser.add_argument("--json", type=Path, help="file for the figures")
    parser.add_argument("--keep", type=Path, help="directory of the run, used again if it is there")
    given = parser.parse_args()
    figures: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        path = given.keep or Path(folder) / "run"
        known = path.exists()
        if not known:
            write_run(path, given.sessions, given.turns, given.long)
        figures["plain_read_s"] = plain_read(path)
        begun = time.process_time()
        asyncio.run(measure(path, given, figures))
        figures["cpu_s"] = time.process_time() - begun
        if known:  # the catalogue was there as well
            del figures["listed_s"], figures["searchable_s"]
        figures["store_mb"] = (path / "store.sqlite").stat().st_size / 1e6
        figures["catalog_mb"] = (path / "catalog.db").stat().st_size / 1e6
    print(f"{given.sessions} sessions of {given.turns} turns, {figures['store_mb']:.0f} MB")
    if not known:
        print(f"  listed after {figures['listed_s']:.1f} s; all text after", end=" ")
        print(f"{figures['searchable_s']:.1f} s", end=" ")
    print(f"  SQLite alone reads it in {figures['plain_read_s']:.1f} s")
    print(f"  catalogue: {figures['catalog_mb']:.0f} MB")
    for name, (best, median, worst) in figures["lists_ms"].items():
        spent = figures["lists_cpu_ms"][name]
        print(f"  {name:24} {median:8.1f} ms ({best:.1f} to {worst:.1f}), {spent:.1f} ms of CPU")
    slowest = max(median for _, median, _ in figures["lists_ms"].values())
    print(f"  a session of {given.long} turns: {figures['session_ms'][1]:.0f} ms over HTTP", end="")
    opened = figures.get("opened_ms")
    print(f", {opened[1]:.0f} ms until it can be read in Chromium" if opened else "")
    if given.sessions == GOAL_SESSIONS:
        lists = "met" if slowest < GOAL_LIST * 1e3 else "missed"
        busy = max(figures["lists_cpu_ms"].values())
        print(
            f"  goal: lists in under {GOAL_LIST * 1e3:.0f} ms: {lists} ({slowest:.0f} ms; "
            f"{busy:.0f} ms of CPU, at a load of {os.getloadavg()[0]:.0f} on {os.cpu_count()} CPUs)"
        )
        if opened:
            opens = "met" if opened[1] < GOAL_OPEN * 1e3 else "missed"
            print(f"  goal: a session in under {GOAL_OPEN:.0f} s: {opens}")
    if given.json:
        when = datetime.now(UTC).isoformat(timespec="seconds")
        size = {"sessions": given.sessions, "turns": given.turns, "long": given.long}
        found = {"when": when, "cpus": os.cpu_count(), "load": os.getloadavg()[0], **size}
        given.json.write_text(json.dumps(found | figures, indent=1) + "\n")


if __name__ == "__main__":
    main()
