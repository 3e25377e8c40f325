"""The viewer's HTTP interface: what it answers, to whom, and what it refuses."""

from __future__ import annotations

import asyncio
import json
import re
import sqlite3
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import pytest_asyncio

from tests.store.records import record, turn
from tests.viewer.runs import HOSTILE, write_run, write_screens
from trajgym.cli._reward import run_reward
from trajgym.rewards import GRPO, get_deriver
from trajgym.rollout.plots import plot_data
from trajgym.server import running
from trajgym.server.viewer import Viewer
from trajgym.server.viewer._library import Library
from trajgym.server.viewer._page import page_files
from trajgym.server.viewer._plots import RunPlots
from trajgym.trajectory import InvalidInput, Run, Store

TOKEN = {"Authorization": "Bearer secret"}


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with two runs."""
    path = tmp_path_factory.mktemp("runs")
    write_run(path / "one")
    with Store(path / "deep" / "two") as store:
        write_screens(store)
    return path


@pytest_asyncio.fixture
async def client(runs: Path, tmp_path: Path) -> AsyncIterator[httpx.AsyncClient]:
    """A client of a viewer of both, which has read them."""
    viewer = Viewer(runs, "secret", place=lambda run: tmp_path / f"{run.name}.db")
    async with (
        running(viewer) as url,
        httpx.AsyncClient(base_url=url, headers=TOKEN, timeout=60) as client,
    ):
        for run in ("one", "deep~two"):
            await read(client, run)
        yield client


async def read(client: httpx.AsyncClient, run: str, turns: int = 1) -> Any:
    """Wait until the viewer has read all of a run that has so many turns, and return its overview.

    It reads sessions before turns, and a bit at a time.
    """
    while True:
        found = (await client.get(f"/api/runs/{run}")).json()
        if found.get("turns", 0) >= turns and found["read"] == found["turns"]:
            return found
        await asyncio.sleep(0.05)


async def get(client: httpx.AsyncClient, path: str, **query: Any) -> Any:
    answer = await client.get(path, params=query)
    assert answer.status_code == 200, answer.text
    return answer.json()


async def test_data_needs_the_token(client: httpx.AsyncClient) -> None:
    """Without the token there is the page and nothing else; nothing can be written."""
    paths = ["", "/one", "/one/facets", "/one/sessions", "/one/sessions/hostile", "/one/groups"]
    paths += [
        "/one/failures",
        "/one/plots",
        "/one/sessions/g1-0/turns/0/tokens",
        f"/one/blobs/{'0' * 64}",
    ]
    for path in paths:
        for headers in ({}, {"Authorization": "Bearer wrong"}):
            async with httpx.AsyncClient(
                base_url=client.base_url, headers=headers, timeout=60
            ) as other:
                assert (await other.get(f"/api/runs{path}")).status_code == 401, path
        assert (await client.post(f"/api/runs{path}", json={})).status_code == 405
    async with httpx.AsyncClient(base_url=client.base_url, timeout=60) as other:
        page = await other.get("/")
        policy = page.headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy
        assert "http" not in page.text.partition("<body")[0].replace("http-equiv", "")
        assert (await other.get("/page/..%2f_app.py")).status_code == 404
        assert (await other.get("/page/_app.py")).status_code == 404


async def test_other_machines_need_a_token_of_the_users(tmp_path: Path) -> None:
    """A token that only the terminal shows is good for this machine only."""
    with pytest.raises(InvalidInput, match=r"0\.0\.0\.0 is reachable"):
        async with running(Viewer(tmp_path, "secret"), host="0.0.0.0"):
            pass


async def test_runs_and_sessions_are_listed(client: httpx.AsyncClient) -> None:
    """Runs below a directory; sessions of one with filters, order and pages."""
    found = await get(client, "/api/runs")
    assert [run["name"] for run in found["runs"]] == ["deep~two", "one"]
    page = await get(client, "/api/runs/one/sessions", group="g1", sort="turns", desc=1, limit=2)
    assert page["total"] == 4
    assert [row["turns"] for row in page["rows"]] == [4, 4]
    page = await get(
        client, "/api/runs/one/sessions", q="ignored", text="careful", outcome="solved"
    )
    assert {row["id"] for row in page["rows"]} >= {"g1-0", "g1-2"}
    two = {"status": ["failed:env", "failed:sandbox"]}
    page = await get(client, "/api/runs/one/sessions", **two)
    assert {"g1-3", "hostile"} <= {row["id"] for row in page["rows"]}
    fork = await get(client, "/api/runs/one/sessions", text="golden-fork")
    assert len(fork["rows"][0]["ends"]) == fork["rows"][0]["attempts"] > 1
    facets = await get(client, "/api/runs/one/facets")
    assert {"value": "solved", "n": 2} not in facets["task"]
    assert {tool["value"] for tool in facets["tool"]} >= {"bash", "edit"}
    failures = await get(client, "/api/runs/one/failures")
    assert any(one["status"] == "failed:sandbox" for one in failures["causes"])


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("none", 404),
        ("..", 404),
        ("one/sessions/none", 404),
        ("one/sessions/g1-0/turns/99", 404),
        ("one/sessions/g1-0/turns/99/tokens", 404),
        ("one/groups/none", 404),
        ("one/blobs/none", 404),
        (f"one/blobs/{'0' * 64}", 404),
        ("one/sessions?min_turns=many", 400),
        ("one/sessions?min_score=nan", 400),
        ("one/sessions?offset=-1", 400),
        ("one/sessions?outcome=maybe", 404),
    ],
)
async def test_wrong_requests_are_answered(
    client: httpx.AsyncClient, path: str, status: int
) -> None:
    """What does not exist or is malformed gets an error that says so."""
    answer = await client.get(f"/api/runs/{path}")
    assert answer.status_code == status, answer.text


async def test_a_session_is_whole(client: httpx.AsyncClient, runs: Path) -> None:
    """Turns, attempts, marks and texts are those of the record; long texts are shortened."""
    found = await get(client, "/api/runs/one/sessions/hostile")
    (one,) = found["turns"]
    assert one["message"]["parts"][0]["text"].startswith(HOSTILE)
    assert one["observation"][0]["parts"] == [{"text": HOSTILE}]
    screens = await get(client, "/api/runs/deep~two/sessions/screens")
    assert [t["marks"][0]["points"] for t in screens["turns"]] == [[[320, 200]], [[100, 50]]]
    assert screens["turns"][0]["screen"] == [640, 400]
    image = screens["turns"][0]["observation"][0]["parts"][1]["image"]
    answer = await client.get(f"/api/runs/deep~two/blobs/{image}")
    assert answer.headers["content-type"] == "image/png"
    assert answer.content.startswith(b"\x89PNG")
    with Store(runs / "one" / "long.sqlite") as store:
        store.begin_session(record("cut"))
        store.append_turn("cut", turn(0, "a" * 20_000 + "b" * 3_000)).wait()
    cut = (await get(client, "/api/runs/one/sessions/cut"))["turns"][0]["message"]["parts"][0]
    assert (len(cut["text"]), cut["end"], cut["cut"]) == (8_000, "b" * 3_000, 12_000)
    whole = await get(client, "/api/runs/one/sessions/cut/turns/0")
    assert len(whole["message"]["parts"][0]["text"]) == 23_000


async def test_values_are_those_of_the_derivers(client: httpx.AsyncClient, runs: Path) -> None:
    """Several derivers beside each other, over the whole group; what one lacks is reported."""
    names = ["outcome", "grpo", "next_state_votes", "none"]
    found = await get(client, "/api/runs/one/sessions/g1-0/values", **{"with": names})
    outcome, grpo, votes, none = found
    assert outcome["kind"] == "rewards"
    assert grpo["kind"] == "advantages"
    with Run(runs / "one") as run:
        group = run.group("g1")
        assert group is not None
        trees = [run.session(member.session) for member in group.members]
        deriver = get_deriver("grpo")
        wanted = deriver.derive(deriver.table([group], trees)).of("g1-0").tolist()
    assert [one["value"] for one in grpo["sessions"]["g1-0"]] == pytest.approx(wanted)
    assert "vote" in votes["problem"]
    assert "no deriver" in none["problem"]
    every = await get(client, "/api/runs/one/groups/g1/values", **{"with": "grpo"})
    assert set(every[0]["sessions"]) == {"g1-0", "g1-1", "g1-2", "g1-3"}
    alone = await get(client, "/api/runs/one/sessions/golden-fork/values", **{"with": "outcome"})
    assert "sessions" in alone[0]


async def test_a_group_shows_where_attempts_part(client: httpx.AsyncClient) -> None:
    """Equal turns have equal digests: the four attempts share two turns, then part."""
    found = await get(client, "/api/runs/one/groups/g1")
    digests = [[turn["digest"] for turn in one["turns"]] for one in found["attempts"]]
    assert len({tuple(d[:2]) for d in digests}) == 1
    thirds = [d[2] for d in digests if len(d) > 2]
    assert len(set(thirds)) == len(thirds) == 3


async def test_tokens_are_the_recorded_ones(client: httpx.AsyncClient, runs: Path) -> None:
    """Ids, log-probs, versions and the loss mask; texts of fake ids, which need no tokenizer."""
    found = await get(client, "/api/runs/one/sessions/g1-0/turns/0/tokens")
    with Run(runs / "one") as run:
        tokens = run.session("g1-0").turns[0].tokens
    assert tokens is not None
    assert found["response"] == tokens.response_ids.tolist()
    assert "".join(found["texts"]) == "I look around."
    assert found["logprobs"] == pytest.approx(tokens.logprobs.tolist(), abs=1e-5)
    assert set(found["low"]) == {3, 4}
    assert found["trained"] == [True] * 14
    failed = await get(client, "/api/runs/one/sessions/g1-3/turns/0/tokens")
    assert failed["trained"] == [False] * 14
    assert "not scored (failed:sandbox" in failed["why"]
    two = await get(client, "/api/runs/one/sessions/golden-two_versions/turns/0/tokens")
    assert len(two["trained"]) == len(two["response"])


async def test_a_run_appears_when_it_is_written(tmp_path: Path) -> None:
    """The path need not exist; what is recorded later is listed, and a revision says so."""
    viewer = Viewer(tmp_path / "run", "secret", place=lambda run: tmp_path / "c.db")
    async with (
        running(viewer) as url,
        httpx.AsyncClient(base_url=url, headers=TOKEN, timeout=60) as client,
    ):
        assert (await get(client, "/api/runs"))["runs"] == []
        with Store(tmp_path / "run") as store:
            store.begin_session(record("a"))
            store.append_turn("a", turn(0)).wait()
            async with asyncio.timeout(60):
                found = await read(client, "run", turns=1)
            assert found["live"]
            assert "totals" not in await get(client, "/api/runs/run", after=found["revision"])
            store.append_turn("a", turn(1)).wait()
            async with asyncio.timeout(60):
                await read(client, "run", turns=2)
            assert "totals" in await get(client, "/api/runs/run", after=found["revision"])
            (row,) = (await get(client, "/api/runs/run/sessions"))["rows"]
            assert (row["status"], row["turns"]) == ("running", 2)


async def plots_of(client: httpx.AsyncClient, run: str, sessions: int) -> dict[str, Any]:
    """Wait until the plots are of so many sessions, two minutes at most."""
    async with asyncio.timeout(120):
        while True:
            found: dict[str, Any] = await get(client, f"/api/runs/{run}/plots")
            if found["complete"] and found["sessions"] == sessions:
                return found
            await asyncio.sleep(0.05)


async def test_plots_are_those_of_the_command(client: httpx.AsyncClient, runs: Path) -> None:
    """The data is what `trajgym plot --json` prints; a client that has it gets it once."""
    with Run(runs / "one") as run:
        expected = [plot.to_json() for plot in plot_data(run)]
        sessions = sum(1 for _ in run.summaries())
    found = await plots_of(client, "one", sessions)
    assert found["plots"] == json.loads(json.dumps(expected))
    again = await get(client, "/api/runs/one/plots", after=found["version"])
    assert "plots" not in again
    assert again["version"] == found["version"]
    assert (await client.get("/api/runs/none/plots")).status_code == 404


async def test_plots_follow_the_run(tmp_path: Path) -> None:
    """New sessions, and values that are stored later, appear in the plots."""
    write_run(tmp_path / "runs" / "live")
    with Run(tmp_path / "runs" / "live") as run:
        sessions = sum(1 for _ in run.summaries())
    viewer = Viewer(tmp_path / "runs", "secret", place=lambda run: tmp_path / f"{run.name}.db")
    async with (
        running(viewer) as url,
        httpx.AsyncClient(base_url=url, headers=TOKEN, timeout=60) as client,
    ):
        await plots_of(client, "live", sessions)
        with Store(tmp_path / "runs" / "live") as store:
            store.begin_session(record("new"))
            store.append_turn("new", turn(0)).wait()
        await plots_of(client, "live", sessions + 1)
        run_reward(tmp_path / "runs" / "live", "grpo", {})
        async with asyncio.timeout(120):
            while True:
                plots = {
                    one["name"]: one
                    for one in (await plots_of(client, "live", sessions + 1))["plots"]
                }
                if [one["name"] for one in plots["advantages"]["series"]] == ["grpo"]:
                    break
                await asyncio.sleep(0.05)


def test_a_large_run_is_counted_in_parts(tmp_path: Path) -> None:
    """Until all sessions have been counted, the plots are of the ones that were."""
    write_run(tmp_path / "run")
    with Run(tmp_path / "run") as run:
        sessions = sum(1 for _ in run.summaries())
    with Library(tmp_path) as library, RunPlots(library) as plots:
        assert plots.advance(0) is True  # nobody has asked
        asked = plots.describe("run")
        assert (asked["sessions"], asked["complete"], asked["plots"]) == (0, False, [])
        assert plots.advance(0) is False
        part = plots.describe("run", after=asked["version"])
        assert (part["sessions"], part["complete"]) == (1, False)
        assert part["plots"]
        while not plots.advance(0):
            assert plots.describe("run")["counted"] <= sessions
        whole = plots.describe("run")
        assert (whole["sessions"], whole["complete"]) == (sessions, True)
        assert plots.advance(0) is True


def test_plots_of_a_damaged_run_say_so(tmp_path: Path) -> None:
    """The error is part of the answer, and what was counted before is kept."""
    write_run(tmp_path / "run")
    with Library(tmp_path) as library, RunPlots(library) as plots:
        plots.describe("run")
        while not plots.advance(10):
            pass
        with sqlite3.connect(tmp_path / "run" / "store.sqlite") as file:
            file.execute("UPDATE turns SET body = 'x'")
        file.close()
        before = plots.describe("run")
        plots._known["run"].again = 0.0
        plots.advance(10)
        after = plots.describe("run")
        assert "Turn" in after["error"]
        assert after["plots"] == before["plots"]


async def test_a_damaged_run_keeps_no_other_from_being_read(tmp_path: Path) -> None:
    """A record that lacks its fields is reported with its run; the others go on to be followed."""
    for name in ("bad", "good"):
        write_run(tmp_path / "runs" / name)
    with sqlite3.connect(tmp_path / "runs" / "bad" / "store.sqlite") as file:
        file.execute("UPDATE turns SET body = '{}'")
    file.close()
    viewer = Viewer(tmp_path / "runs", "secret", place=lambda run: tmp_path / f"{run.name}.db")
    async with (
        running(viewer) as url,
        httpx.AsyncClient(base_url=url, headers=TOKEN, timeout=60) as client,
        asyncio.timeout(120),
    ):
        while not (found := await get(client, "/api/runs/bad"))["error"]:
            await asyncio.sleep(0.05)
        assert "a record is damaged" in found["error"]
        await read(client, "good")


def test_no_name_is_declared_by_two_modules_of_the_page() -> None:
    """An exported file has all modules in one scope."""
    declared = re.compile(r"^(?:export )?(?:async )?(?:const|let|function|class) (\w+)", re.M)
    names = Counter(
        name
        for file, found in page_files().items()
        if file.endswith(".js")
        for name in declared.findall(found.data.decode())
    )
    assert [name for name, n in names.items() if n > 1] == []


async def test_values_that_compare_a_whole_run_are_marked(
    client: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is derived for one group alone is not what the run's values would be."""
    path = "/api/runs/one/groups/g1/values"
    (found,) = await get(client, path, **{"with": "grpo"})
    assert found["partial"] is False
    monkeypatch.setattr(GRPO, "depends_on", "run")
    (found,) = await get(client, path, **{"with": "grpo"})
    assert found["partial"] is True
