"""The repair game of the example, which compares derivers without a model."""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.rewards.build import group, session
from trajgym.rewards import Advantages
from trajgym.rollout import SealedGroup
from trajgym.trajectory import Segment, SessionTree, Span, Stamp, TurnTokens

sys.path.insert(0, str(Path(__file__).parents[2] / "examples" / "dense"))

import common
import compare
import game
import pairs
import starts


def solve(bugs: list[int], turns: int) -> list[str]:
    """Return the words of an agent that knows the bugs, followed by what it saw."""
    played = game.Repairs(bugs)
    said = ["check"]
    seen = played.act("check")
    while seen != "all right" and len(said) < turns:
        kind = int(seen.split()[1])
        said += [f"edit {game.right(kind)}", "check"]
        played.act(said[-2])
        seen = played.act("check")
    return [*said, seen]


def test_right_edits_solve_every_task_within_its_turns() -> None:
    """A check, an edit and a check for each bug; two turns and the submission are left."""
    for task in game.tasks(20, 5, seed=3):
        *said, seen = solve(task.data["bugs"], task.data["turns"])
        assert seen == "all right"
        assert len(said) + 3 == task.data["turns"]


def test_wrong_edits_repair_nothing_and_one_of_them_makes_a_bug() -> None:
    """Of the four edits, one repairs, one makes a bug of the next kind, two have no effect."""
    after = set()
    for edit in range(game.EDITS):
        played = game.Repairs([3])
        played.act("check")
        played.act(f"edit {edit}")
        after.add(played.act("check"))
    assert after == {"all right", "wrong: 3", "wrong: 3 4"}


def test_an_edit_without_a_check_before_it_has_no_effect() -> None:
    """The agent has to look at what is wrong, at the beginning and after each repair."""
    played = game.Repairs([3, 7])
    played.act(f"edit {game.right(3)}")
    assert played.act("check") == "wrong: 3 7"
    played.act(f"edit {game.right(3)}")
    played.act(f"edit {game.right(7)}")
    assert played.act("check") == "wrong: 7"


def test_a_step_follows_the_advantages() -> None:
    """What had a positive advantage becomes more probable; without advantages nothing changes."""
    table = game.Table(0.3, seed=0)
    before, untouched = table.chances(2).copy(), table.chances(5).copy()
    table.step([(2, 1, 0.0)], game.Adam(0.1))
    assert (table.chances(2) == before).all()
    table.step([(2, 1, 1.0), (2, 0, -1.0)], game.Adam(0.1))
    assert table.chances(2)[1] > before[1]
    assert table.chances(2)[0] < before[0]
    assert (table.chances(5) == untouched).all()


@pytest.mark.parametrize("arm", ["outcome", "steps", "gigpo", "tree"])
def test_training_is_recorded_and_raises_the_success(tmp_path: Path, arm: str) -> None:
    """From a success of about a half, ten updates solve more of the held-out tasks."""
    given = compare.parser().parse_args(
        ["--bugs", "2", "--updates", "10", "--groups", "4", "--eval", "40", "--eval-every", "10"]
    )
    given.out, given.learning_rate, given.start = tmp_path, 0.3, 0.5
    compare.run(arm, 0, 0.6, given)
    ((_, runs),) = starts.conditions(tmp_path).items()
    found = starts.row(runs, arm) if arm == "outcome" else starts.row({**runs, "outcome": {}}, arm)
    assert found["after"] > found["before"] + 0.1
    read = runs[arm][0]
    updates = [x for x in read if x["kind"] == "update"]
    assert len(updates) == 10
    assert all(sum(n for k, n in x["groups"].items() if k != "with_gradient") == 4 for x in updates)
    solved = [x["scores"] for x in read if x["kind"] == "eval"][-1]
    assert len(solved) == 40
    assert float(np.mean(solved)) == pytest.approx(found["after"], abs=1e-4)


def test_failed_groups_have_a_gradient_with_progress_only(tmp_path: Path) -> None:
    """Where no game is solved, the outcome has no gradient and progress has one."""
    given = compare.parser().parse_args(["--bugs", "6", "--updates", "1", "--eval", "1"])
    given.out = tmp_path
    shares = {}
    for arm in ("outcome", "progress"):
        compare.run(arm, 0, 0.1, given)
        (path,) = tmp_path.glob(f"{arm}-*")
        lines = [json.loads(line) for line in path.read_text().splitlines()]
        shares[arm] = next(x["groups"] for x in lines if x["kind"] == "update")
    assert shares["outcome"] == {"all_failed": 6, "with_gradient": 0}
    assert shares["progress"] == {"all_failed": 6, "with_gradient": 6}


def line(**tasks: float) -> list[dict[str, object]]:
    return [{"kind": "update"}, {"kind": "eval", "scores": tasks}]


def test_differences_are_paired_by_task_and_seed() -> None:
    """Only what both have is compared: gaps 0.5, 0.5 and 1, 0 in two seeds, by hand."""
    mine = {0: line(a=1, b=0.5, c=1), 1: line(a=1, b=1), 2: line(a=1)}
    base = {0: line(a=0.5, b=0), 1: line(a=0, b=1)}
    found = pairs.difference(mine, base)
    assert found is not None
    assert (found.seeds, found.tasks) == (2, 2)
    assert found.mean == 0.5
    assert found.over_seeds == 0.0  # 0.5 in both
    assert found.over_tasks == pytest.approx(12.71 * np.std([0.75, 0.25], ddof=1) / math.sqrt(2))
    assert pairs.difference(mine, {5: line(a=1)}) is None


def test_groups_with_a_gradient_are_counted_one_by_one() -> None:
    """Values over spans of one group are not a gradient of another one."""
    trees = [spanned("a", of="g"), spanned("b", of="h")]
    sealed = [SealedGroup(group(tree, name=tree.record.group or ""), [tree]) for tree in trees]
    table = common.PROGRESS.table([one.group for one in sealed], trees)
    for spans, wanted in (([0.0, 0.0], 0), ([1.0, 0.0], 1), ([1.0, -1.0], 2)):
        values = Advantages(table, np.zeros(2), Stamp("toolpo", {}), spans=spans)
        assert common.seen(sealed, values)["groups"] == {"all_failed": 2, "with_gradient": wanted}


def spanned(name: str, of: str) -> SessionTree:
    """A failed session of one turn, whose ids contain a tool call."""
    tree = session(name, 0.0, group=of)
    tree.turns[0].tokens = TurnTokens(
        prompt_kept=0,
        prompt_ids=np.array([1], np.int32),
        response_ids=np.array([2, 3], np.int32),
        logprobs=np.zeros(2, np.float32),
        segments=(Segment(2, 0, 0),),
        spans=(Span("tool_call", 0, 2, "c"),),
    )
    return tree
