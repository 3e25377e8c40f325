"""The tools beside the shell, reminders, and signals for derivers."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.swe.test_env import opened, run
from trajgym.envs import EnvSpec, Session, ToolError
from trajgym.envs.swe import SweEnv, demo_agent, expert_actions, localisation
from trajgym.envs.swe._editor_env import Edited, bounded
from trajgym.rewards import TurnTable, get_deriver
from trajgym.rollout import call
from trajgym.trajectory import InvalidInput, Run, Store, Task

if TYPE_CHECKING:
    from pathlib import Path

    from trajgym.trajectory import Message


async def test_long_files_come_in_windows(spans: Task) -> None:
    """A view without an end shows one window and its position in the file."""
    async with opened(spans, window=3) as env:
        await env.bash("seq 10 > numbers")
        first = await env.view("numbers")
        assert first.content == "     1\t1\n     2\t2\n     3\t3\n[lines 1 to 3 of 10]"
        last = await env.view("numbers", 9)
        assert last.content == "     9\t9\n    10\t10\n[lines 9 to 10 of 10]"
        chosen = await env.view("numbers", 2, 7)
        assert str(chosen.content).count("\n") == 5


async def test_search_shows_places_in_order(spans: Task) -> None:
    """Matches are sorted by file and line, without the git directory; a bad pattern is an error."""
    async with opened(spans) as env:
        await env.bash("mkdir z; seq 200 > z/numbers; printf 'a\\n12x\\n' > a.txt; rm README.md")
        found = await env.search("^12")
        assert str(found.content).split("\n")[:3] == [
            "a.txt:2:12x",
            "z/numbers:12:12",
            "z/numbers:120:120",
        ]
        assert found.signals["matches"] == 12
        many = await env.search("[0-9]", "z")
        assert str(many.content).endswith("[100 more matches; narrow the pattern or the path]")
        assert (await env.search("no such text")).content == "no match"
        assert (await env.search("-v", "a.txt")).content == "no match"
        with pytest.raises(ToolError, match="search failed"):
            await env.search("(")
        with pytest.raises(ToolError, match="search failed"):
            await env.search("x", "missing")


async def test_undo_takes_edits_back_one_by_one(spans: Task) -> None:
    """The last edit of a file is undone first; a created file is removed; modes are kept."""
    async with opened(spans) as env:
        await env.bash("printf 'one\\r\\ntwo\\377' > f; chmod 755 f; md5sum f > /tmp/before")
        await env.str_replace("f", "one", "1")
        await env.insert("f", 0, "top")
        await env.create("g", "new")
        for path in ("f", "g", "f"):
            assert (await env.undo(path)).content == f"undid the last change of {path}"
        after = await env.bash("md5sum -c --quiet /tmp/before; stat -c %a f; test ! -e g")
        assert after.content == "755\n[exit status 0]"
        with pytest.raises(ToolError, match="no change of f"):
            await env.undo("f")


async def test_forks_can_undo_what_was_done_before(spans: Task) -> None:
    """The edits that can be undone are part of a snapshot: a fork has the same state."""
    async with opened(spans) as env:
        await env.create("g", "new")
        await env.str_replace("g", "new", "newer")
        snapshot = await env.snapshot()
        other = SweEnv(sandbox="embedded")
        try:
            await other.restore(spans, None, snapshot)
            undone = await other.undo("g")
            assert undone.signals["files_edited_so_far"] == ["g"]
            assert (await other.bash("cat g")).content == "new\n[exit status 0]"
        finally:
            await other.close()


def test_what_can_be_undone_is_bounded() -> None:
    """Snapshots stay small: old and huge edits are forgotten first."""
    many = [Edited("/f", "x", 0o644)] * 80
    assert len(bounded(many)) == 50
    huge = [Edited("/a", "x", 0o644), Edited("/f", "x" * (1 << 20), 0o644), Edited("/b", None, 0)]
    assert [edited.path for edited in bounded(huge)] == ["/f", "/b"]


def config(**more: object) -> EnvSpec:
    return EnvSpec(id="swe", config={"sandbox": "embedded", **more})


async def test_calls_are_bounded_with_a_reminder(spans: Task) -> None:
    """The agent reads its remaining budget; after the last call, the attempt is scored."""
    async with Session(config(calls=3, remind_at=2), spans) as session:
        first = await session.step(call("bash", command="true"))
        assert "[2 of 3 calls left; submit when the work is done]" in text(first.observation)
        await session.step(call("view", path="README.md"))
        last = await session.step(call("bash", command="true"))
        assert "all 3 calls are used" in text(last.observation)
    assert str(session.status) == "truncated:calls"
    assert session.outcome is not None
    assert session.outcome.score == 0.0
    with pytest.raises(InvalidInput, match="calls must be at least 1"):
        SweEnv(calls=0)


def text(observation: list[Message]) -> str:
    return "\n".join(str(message["content"]) for message in observation)


async def test_derivers_are_told_where_and_how_the_agent_worked(spans: Task) -> None:
    """Gold files seen and edited, repeated commands, tests before the end, files of the change."""
    async with Session(config(), spans) as session:
        for _ in range(2):
            await session.step(call("bash", command="ls"))
        await session.step(call("view", path="spans/_set.py"))
        await session.step(call("create", path="other.txt", content="x"))
        await session.step(call("bash", command="ls"))
        await session.step(call("bash", command="pytest -q"))
        await session.step(call("insert", path="spans/_set.py", line=0, text="# note"))
        await session.step(call("submit"))
    signals = [turn.signals for turn in session.turns]
    assert [s["repeated"] for s in signals if "repeated" in s] == [0, 1, 0, 0]
    assert signals[1]["gold_files_seen"] == 0.0
    assert 0.0 < signals[2]["gold_files_seen"] <= 1.0
    assert signals[3]["gold_files_edited"] == 0.0
    assert signals[6]["gold_files_edited"] > 0.0
    assert signals[7]["tests_before_submit"] is True
    assert signals[7]["edits_since_tests"] == 1
    assert session.outcome is not None
    where = session.outcome.details["localisation"]
    assert where["precision"] == 0.5
    assert 0.0 < where["recall"] <= 1.0


async def test_expert_trajectory_gives_distances_and_rewards(spans: Task, tmp_path: Path) -> None:
    """An agent that does what the expert did is at distance 0, and SRL rewards it with 1."""
    messages = demo_agent(spans, 0)
    task = spans.model_copy(
        update={"data": {**spans.data, "expert_actions": expert_actions(messages)}}
    )
    async with Store(tmp_path) as store:
        session = Session(config(), task, store=store)
        other = [call("bash", command="echo something else entirely"), call("submit")]
        await run(session, [*messages[:2], *other])
    distances = [turn.signals["expert_distance"] for turn in session.turns]
    assert distances[:2] == [0.0, 0.0]
    assert 0.2 < distances[2] <= 1.0
    with Run(tmp_path) as stored:
        table = TurnTable.build([], stored.sessions(), texts=True)
        values = get_deriver("srl").derive(table).values
    assert values.tolist()[:2] == [1.0, 1.0]
    assert values.tolist()[2] < 1.0


def test_localisation_of_patches() -> None:
    """Recall is the share of gold's files, precision the share of the change's files."""

    def patch(*paths: str) -> str:
        return "".join(
            f"diff --git a/{p} b/{p}\n--- a/{p}\n+++ b/{p}\n@@ -1 +1 @@\n-a\n+b\n" for p in paths
        )

    assert localisation(patch("a", "b"), patch("b", "c", "d", "e")) == {
        "recall": 0.25,
        "precision": 0.5,
    }
    assert localisation("", patch("a")) == {"recall": 0.0, "precision": 0.0}
