"""Plots of a run: their data, and the files that are drawn from them."""

from __future__ import annotations

import json
import struct
import xml.etree.ElementTree as ET
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from tests.datasets.runs import grouped_run, tree, write_run
from trajgym.cli import app
from trajgym.cli._reward import run_reward
from trajgym.rewards import get_deriver
from trajgym.rollout.plots import PLOTS, Plot, Series, draw_plots, plot_data
from trajgym.trajectory import (
    Attempt,
    CallResult,
    Group,
    Member,
    Outcome,
    Run,
    Segment,
    SessionTree,
    Status,
    TurnTokens,
)


def plots_of(path: Path, **more: object) -> dict[str, Plot]:
    with Run(path) as run:
        return {plot.name: plot for plot in plot_data(run, **more)}  # type: ignore[arg-type]


def series(plot: Plot) -> dict[str, list[float | None]]:
    return {one.name: one.y for one in plot.series}


def long(name: str, turns: int, **more: object) -> SessionTree:
    return tree(name, says=["x"] * turns, **more)  # type: ignore[arg-type]


def sampled(one: SessionTree, low: int, high: int, *, at: float, end: float) -> SessionTree:
    """Give each turn of a session five ids of these versions, and the session its times."""
    for turn in one.turns:
        turn.tokens = TurnTokens(
            prompt_kept=0,
            prompt_ids=np.zeros(2, dtype=np.int32),
            response_ids=np.ones(5, dtype=np.int32),
            logprobs=-np.ones(5, dtype=np.float32),
            segments=(Segment(5, low, high),),
        )
        turn.started_at = at
    one.record.created_at = at
    one.attempts[0].ended_at = end
    return one


def test_success_and_lengths(tmp_path: Path) -> None:
    """The share that passed grows by turn; failed attempts count in neither."""
    trees = [
        long("a", 1),
        long("b", 3),
        long("c", 2, score=0.0),
        long("d", 3, score=0.0),
        long("e", 9, score=None),
    ]
    found = plots_of(write_run(tmp_path / "run", trees))
    success = found["success-by-turn"]
    assert success.x == [0, 1, 2, 3]
    assert series(success) == {
        "passed": [0, 0.25, 0.25, 0.5],
        "still working": [1, 0.75, 0.5, 0],
    }
    lengths = found["lengths-turns"]
    assert lengths.x == [0.5, 1.5, 2.5, 3.5]
    assert series(lengths) == {"passed": [1, 0, 1], "not passed": [0, 1, 1]}


def test_rewards_and_calls(tmp_path: Path) -> None:
    """Step rewards have a mean and a band by turn; calls are counted by tool and status."""
    trees = [long("a", 2), long("b", 1)]
    for one, rewards in zip(trees, ([1.0, 5.0], [3.0]), strict=True):
        for turn, reward in zip(one.turns, rewards, strict=True):
            turn.reward = reward
            turn.calls = [
                CallResult(call_id="1", name="bash", status="ok"),
                CallResult(call_id="2", name="edit", status="error"),
            ]
    trees[0].turns[0].calls.append(CallResult(call_id="3", name="bash", status="timeout"))
    found = plots_of(write_run(tmp_path / "run", trees))
    (env,) = found["reward-by-turn"].series
    assert (env.y, env.low, env.high) == ([2, 5], [1, 5], [3, 5])
    tools = found["tool-use"]
    assert tools.x == ["bash", "edit"]
    assert series(tools) == {"ok": [3, 0], "error": [0, 3], "timeout": [1, 0]}


def test_staleness_is_what_the_run_knew_when_the_session_ended(tmp_path: Path) -> None:
    """Versions that were first sampled after a session's end do not make it stale."""
    trees = [
        sampled(long("a", 1), 1, 1, at=10, end=20),
        sampled(long("b", 2), 1, 3, at=30, end=60),
        sampled(long("c", 1), 4, 4, at=50, end=55),
    ]
    found = plots_of(write_run(tmp_path / "run", trees))
    staleness = found["staleness"]
    assert staleness.x == [-0.5, 0.5, 1.5, 2.5, 3.5]
    assert series(staleness) == {"sessions": [2, 0, 0, 1]}
    assert float(found["lengths-tokens"].x[-1]) >= 10


def groups_of(scores: list[list[float | None]]) -> tuple[list[SessionTree], list[Group]]:
    """A group for each list of scores; a member without a score has left."""
    trees, groups = [], []
    for n, own in enumerate(scores):
        members = []
        for i, score in enumerate(own):
            trees.append(long(f"{n}-{i}", 2, task=f"t{n}", group=f"g{n}", score=score))
            members.append(Member(f"{n}-{i}", i, "failed:env" if score is None else ""))
        groups.append(
            Group(id=f"g{n}", task=f"t{n}", planned=len(own), members=members, sealed=True)
        )
    return trees, groups


def test_tasks_groups_and_advantages(tmp_path: Path) -> None:
    """Solve rates by task; groups with equal scores apart; stored and given advantages."""
    trees, groups = groups_of([[0, 0, None], [0, 1, None], [1, 1, None]])
    path = write_run(tmp_path / "run", trees, groups)
    run_reward(path, "grpo", {})
    with Run(path) as run:
        deriver = get_deriver("rloo")
        values = deriver.derive(deriver.table(list(run.groups()), run.sessions()))
    found = plots_of(path, values=[values])
    rates = found["solve-rate"]
    assert (rates.x, series(rates)["solve rate"]) == (["t2", "t1", "t0"], [1, 0.5, 0])
    variance = series(found["group-variance"])
    assert (variance["equal scores"][0], sum(y or 0 for y in variance["equal scores"])) == (2, 2)
    assert (variance["different scores"][-1], sum(map(bool, variance["different scores"]))) == (
        1,
        1,
    )
    advantages = found["advantages"]
    held = {
        round(edge): round(18 * (share or 0))
        for edge, share in zip(map(float, advantages.x), series(advantages)["grpo"], strict=False)
        if share
    }
    assert set(series(advantages)) == {"grpo", "rloo"}
    assert held == {-1: 2, 0: 14, 1: 2}
    assert list(series(plots_of(path, stored=False)["advantages"])) == []


def test_equal_scores_are_exactly_equal(tmp_path: Path) -> None:
    """Scores that floating point can't sum exactly still make a group without variance."""
    trees = [long(f"s{n}", 1, group="g", score=0.1) for n in range(7)]
    members = [Member(f"s{n}", n) for n in range(7)]
    group = Group(id="g", task="t", planned=7, members=members, sealed=True)
    found = plots_of(write_run(tmp_path / "run", trees, [group]))
    assert series(found["group-variance"])["equal scores"][0] == 1


def test_failures_over_time(tmp_path: Path) -> None:
    """Each cause has a series; times count from the first session on."""
    trees = []
    for n in range(10):
        one = long(f"s{n}", 1, score=None)
        one.record.created_at = 1000.0
        one.attempts[0].cause = "no space\nmore" if n < 6 else "no image"
        one.attempts[0].ended_at = 1000.0 + 60 * n
        trees.append(one)
    failures = plots_of(write_run(tmp_path / "run", trees))["failures-over-time"]
    assert failures.x_label == "minutes since the run began"
    assert (failures.x[0], failures.x[-1]) == (0, 9)
    counts = {name: sum(y or 0 for y in ys) for name, ys in series(failures).items()}
    assert counts == {"failed:env: no space": 6, "failed:env: no image": 4}


@pytest.mark.parametrize("form", ["png", "svg"])
def test_files_are_drawn(tmp_path: Path, form: str) -> None:
    """Each plot has its file and its data as JSON; what a run lacks is named, not drawn."""
    grouped_run(tmp_path / "run", tasks=3)
    command = ["plot", str(tmp_path / "run"), "--out", str(tmp_path / "out"), "--with", "grpo"]
    result = CliRunner().invoke(app, [*command, "--format", form])
    assert result.exit_code == 0, result.output
    assert "left out staleness: no policy versions are recorded" in result.output
    data = CliRunner().invoke(app, [*command, "--json"])
    plots = json.loads(data.output)
    assert [plot["name"] for plot in plots] == list(PLOTS)
    drawn = {plot["name"] for plot in plots if plot["series"]} | {"overview"}
    assert {path.name for path in (tmp_path / "out").iterdir()} == {f"{n}.{form}" for n in drawn}
    for path in (tmp_path / "out").iterdir():
        if form == "png":
            width, height = struct.unpack(">II", path.read_bytes()[16:24])
            assert width > 900
            assert height > 400
        else:
            text = "".join(ET.parse(path).getroot().itertext())
            assert (
                path.stem == "overview"
                or next(plot["title"] for plot in plots if plot["name"] == path.stem) in text
            )


def test_names_are_not_formulas(tmp_path: Path) -> None:
    """Dollar signs, long names and missing values are drawn as they are."""
    plot = Plot(
        name="p",
        title="Title",
        x_label="x",
        y_label="y",
        kind="lines",
        x=[0.0, 1.0, 2.0],
        series=[Series(name="$a_{$ b$ " + "long " * 30, y=[1, None, 2])] * 9,
    )
    overview, one = draw_plots([plot], tmp_path, format="svg")
    assert "$a_{$ b$" in one.read_text()
    assert overview.exists()


def test_an_empty_run_has_no_plots(tmp_path: Path) -> None:
    """A run without sessions gives empty plots with a reason, and no file."""
    write_run(tmp_path / "run", [])
    found = plots_of(tmp_path / "run")
    assert all(plot.empty and plot.note for plot in found.values())
    assert draw_plots(list(found.values()), tmp_path / "out") == []


def test_a_running_attempt_is_not_a_failure(tmp_path: Path) -> None:
    """Attempts without an end count in no ending; truncated ones under their budget."""
    whole = long("a", 1)
    end = Attempt(
        leaf=0, status=Status("truncated", "turns"), outcome=Outcome(score=0, passed=False)
    )
    cut = SessionTree(whole.record, whole.turns, [end])
    found = plots_of(write_run(tmp_path / "run", [cut]))
    assert list(series(found["endings-over-time"])) == ["truncated:turns"]
    assert found["failures-over-time"].empty
