"""What `trajgym check --for` reports of a run for each trainer."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from tests.datasets.runs import tree, write_run
from trajgym.adapters import check_fitness
from trajgym.cli import app
from trajgym.trajectory import (
    Group,
    ImageRef,
    InvalidInput,
    Member,
    Run,
    Sampling,
    Segment,
    SessionTree,
    TurnTokens,
    image_part,
)


def exact(
    name: str, *, score: float | None = 1.0, group: str | None = "g", ids: int = 4, image: str = ""
) -> SessionTree:
    """A session of one exact turn, whose log-probs suit a trainer."""
    one = tree(name, group=group, score=score)
    if image:
        one.turns[0].context = [{"role": "user", "content": [image_part(image)]}]
    one.turns[0].sampling = Sampling(temperature=1.0, logprob_mode="processed")
    one.turns[0].tokens = TurnTokens(
        prompt_kept=0,
        prompt_ids=np.ones(3, dtype=np.int32),
        response_ids=np.ones(ids, dtype=np.int32),
        logprobs=-np.ones(ids, dtype=np.float32),
        segments=(Segment(ids, 1, 1),),
        images=(ImageRef(0, 1, image, "p"),) if image else (),
    )
    return one


def group(name: str, *members: str, sealed: bool = True) -> Group:
    return Group(
        id=name,
        task="t",
        planned=2,
        members=[Member(one, n) for n, one in enumerate(members)],
        sealed=sealed,
    )


def found(path: Path, trainer: str, **limits: int) -> set[tuple[str, str, int]]:
    with Run(path) as run:
        fitness = check_fitness(run, trainer, **limits)
    return {(one.code, one.example, one.number) for one in fitness.hindrances}


def test_groups_lengths_and_templates(tmp_path: Path) -> None:
    """Rows over a limit, groups without an advantage, calls that no template renders."""
    trees = [
        exact("a-0", group="a", ids=4),
        exact("a-1", group="a", ids=40, score=0.0),
        exact("b-0", group="b"),
        exact("b-1", group="b"),
        exact("c-0", group="c"),
        exact("d-0", group="d"),
        tree("e-0", group="e"),
    ]
    trees[0].turns[0].message["tool_calls"] = [
        {"id": "c", "type": "function", "function": {"name": "f", "arguments": "[1]"}}
    ]
    groups = [
        group("a", "a-0", "a-1"),
        group("b", "b-0", "b-1"),
        group("c", "c-0"),
        group("d", "d-0", sealed=False),
        group("e", "e-0"),
    ]
    path = write_run(tmp_path / "run", trees, groups)
    common = {
        ("template", "a-0", 1),
        ("equal-scores", "b", 1),
        ("small-group", "c", 1),
        ("empty-group", "d", 1),
        ("left-out", "d-0", 1),
        ("empty-group", "e", 1),
        ("left-out", "e-0", 1),
    }
    for trainer in ("trl", "verl", "areal"):
        assert found(path, trainer) == common
    assert found(path, "verl", max_response=39) - common == {("too-long", "a-1", 1)}
    assert found(path, "trl", max_tokens=42) - common == {("too-long", "a-1", 1)}
    assert found(path, "areal", max_prompt=2) - common == {("too-long", "a-0", 5)}


def test_trainers_differ(tmp_path: Path) -> None:
    """Images stop TRL's offline rows; an underscore stops verl; unsuitable log-probs all."""
    hash_ = "ab" * 32
    raw = exact("raw", group=None)
    raw.turns[0].sampling = Sampling(temperature=0.7, logprob_mode="raw")
    path = write_run(
        tmp_path / "run", [exact("pic", group=None, image=hash_), exact("a_b", group=None), raw]
    )
    assert found(path, "trl") == {("left-out", "pic", 1), ("left-out", "raw", 1)}
    assert found(path, "verl") == {("uid", "a_b", 1), ("left-out", "raw", 1)}
    assert found(path, "areal") == {("left-out", "raw", 1)}
    with Run(path) as run, pytest.raises(InvalidInput, match="no checks for 'x'"):
        check_fitness(run, "x")


def test_the_command_prints_it(tmp_path: Path) -> None:
    """A sound run has status 0, whatever trainers can't use."""
    path = write_run(tmp_path / "run", [exact("s", group=None), tree("text")])
    result = CliRunner().invoke(app, ["check", str(path), "--for", "trl", "--for", "verl"])
    assert result.exit_code == 0
    assert "trl: 1 of 2 sessions usable, 1 rows, the longest of 7 ids" in result.output
    assert "left-out 1:" in result.output
    data = CliRunner().invoke(app, ["check", str(path), "--for", "areal", "--json"])
    assert json.loads(data.output)["trainers"][0]["usable"] == 1
