"""Real tasks, built from releases on the package index."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from trajgym.envs.swe import InvalidTask, SweRecord, build_task, demo_agent, grade, load_tasks
from trajgym.envs.swe._sources import base_tree

if TYPE_CHECKING:
    from pathlib import Path

    from trajgym.envs.sandbox import SandboxProvider

HUNK = "hunk-sqlparse-0.5.1-sqlparse_engine_statement_splitter-L62"
RELEASE = "pallets__jinja-3.1.2-to-3.1.3"


@pytest.mark.index
@pytest.mark.parametrize("name", [HUNK, RELEASE])
async def test_real_task_is_solved_by_its_gold_patch_alone(
    provider: SandboxProvider, name: str
) -> None:
    """A release and a single human fix: gold passes every listed test, nothing fails without it."""
    (task,) = load_tasks(name)
    gold = await grade(task, task.data["patch"].encode(), provider)
    empty = await grade(task, b"", provider)
    assert (gold.score, gold.details["failing"], gold.details["left_out"]) == (1.0, [], {})
    assert (empty.score, empty.details["f2p_passed"], empty.details["p2p"]) == (0.0, 0, 1.0)


@pytest.mark.index
def test_building_twice_gives_equal_tasks(tmp_path: Path) -> None:
    """The base commit and the patches depend on the recipe alone."""
    cached = load_tasks(HUNK)
    assert load_tasks(HUNK, cache_dir=tmp_path) == cached
    tree = base_tree(SweRecord.of(cached[0]), tmp_path)
    assert tree.commit == cached[0].data["base_commit"]


@pytest.mark.index
def test_scripted_agent_edits_a_release(tmp_path: Path) -> None:
    """A change of many hunks becomes editor calls whose old text occurs once in the base."""
    (task,) = load_tasks(RELEASE)
    messages = demo_agent(task, 0)
    names = [c["function"]["name"] for m in messages for c in m["tool_calls"]]
    assert names.count("str_replace") > 10
    assert names[-1] == "submit"


def test_recipe_without_releases_is_refused() -> None:
    """A recipe must name the two releases that it is made from."""
    recipe = {
        "instance_id": "x",
        "repo": "x/x",
        "problem_statement": "x",
        "FAIL_TO_PASS": ["t.py::t"],
        "PASS_TO_PASS": [],
    }
    with pytest.raises(InvalidTask, match="two releases"):
        build_task(recipe)
