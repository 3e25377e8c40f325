"""Small SWE tasks: what they are made of, the environment, the scripted agent, and grading."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trajgym.envs import EnvSpec, tools_of
from trajgym.envs.swe import InvalidTask, SweRecord
from trajgym.envs.swe.small import SmallSweEnv, small_agent, small_tasks
from trajgym.rollout import PolicyRequest, ScriptedPolicy, collect
from trajgym.trajectory import InvalidInput, Message, Run, SessionTree, Task

SPEC = EnvSpec(id="trajgym.envs.swe.small:SmallSweEnv", config={"sandbox": "embedded"})


def edits_of(script: list[Message]) -> list[dict[str, str]]:
    calls = [call["function"] for message in script for call in message["tool_calls"]]
    return [json.loads(c["arguments"]) for c in calls if c["name"] == "str_replace"]


def play(tmp_path: Path, tasks: list[Task], mistakes: float, samples: int = 1) -> list[SessionTree]:
    def answer(request: PolicyRequest) -> Message:
        assert request.task is not None
        said = sum(message["role"] == "assistant" for message in request.messages)
        return small_agent(request.task, request.sample, mistakes=mistakes)[said]

    policy = ScriptedPolicy(answer)
    asyncio.run(collect(SPEC, tasks, policy, tmp_path / "run", samples=samples, concurrency=4))
    with Run(tmp_path / "run") as run:
        return [run.session(summary.record.id) for summary in run.summaries()]


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 9_999), bugs=st.integers(1, 6), held_out=st.booleans())
def test_edits_of_the_faultless_agent_fit(seed: int, bugs: int, held_out: bool) -> None:
    """Its every edit replaces a line that occurs once, and together they undo all the bugs."""
    (task,) = small_tasks(1, bugs=bugs, seed=seed, held_out=held_out)
    files: dict[str, str] = dict(task.data["source"]["files"])
    edits = edits_of(small_agent(task, 0))
    assert len(edits) == bugs
    for edit in edits:
        assert files[edit["path"]].count(edit["old"]) == 1
        files[edit["path"]] = files[edit["path"]].replace(edit["old"], edit["new"])
    scope: dict[str, Any] = {}
    for path, text in files.items():
        if path.startswith(task.data["repo"]):
            exec(text, scope)
    cases = files["check.py"].partition("CASES = ")[2].partition("\n]\n")[0] + "\n]"
    for function, call, value in eval(cases):
        assert repr(eval(call.partition(".")[2], scope)) == value, function


def test_tasks_are_the_same_each_time_and_differ() -> None:
    """A seed names a task; tasks of other seeds, and held-out ones, are others."""
    tasks = small_tasks(50, seed=3)
    assert tasks == small_tasks(50, seed=3)
    assert len({json.dumps(task.data["source"]) for task in tasks}) == 50
    held_out = small_tasks(50, seed=3, held_out=True)
    assert not {t.data["repo"] for t in tasks} & {t.data["repo"] for t in held_out}
    assert not {t.id for t in tasks} & {t.id for t in held_out}


def test_what_does_not_fit_is_refused() -> None:
    """Numbers out of range, sources that name nothing, and other tasks are errors."""
    with pytest.raises(InvalidInput, match="bugs is 7"):
        small_tasks(1, bugs=7)
    with pytest.raises(InvalidInput, match="n is -1"):
        small_tasks(-1)
    for source in ("training", "train:x", "train:1:2:3"):
        with pytest.raises(InvalidInput, match="train:500:3"):
            SmallSweEnv.load_tasks(source)
    with pytest.raises(InvalidInput, match="not one of small_tasks"):
        small_agent(Task(id="t", data={}), 0)


def test_sources_by_name() -> None:
    """The environment gives tasks by kind, number and bugs."""
    assert [len(SmallSweEnv.load_tasks(s)) for s in ("train", "test:7", "train:5:4")] == [100, 7, 5]
    (task,) = SmallSweEnv.load_tasks("test:1:4")
    assert task.data["small"] == {"seed": 0, "bugs": 4, "held_out": True}
    assert list(tools_of(SmallSweEnv)) == ["bash", "submit", "view", "str_replace"]


def test_mended_packages_pass_and_the_signals_count(tmp_path: Path) -> None:
    """The faultless agent solves its task; each check counts the functions that pass."""
    (tree,) = play(tmp_path, small_tasks(1, bugs=2), 0.0)
    (attempt,) = tree.attempts
    assert attempt.outcome is not None
    assert attempt.outcome.score == 1.0
    checks = [turn.signals for turn in tree.turns if turn.signals.get("tests_run")]
    assert [(s["tests_passed"], s["tests_failed"]) for s in checks] == [(4, 2), (5, 1), (6, 0)]
    assert checks[-1]["tests_ok"]
    edits = [turn.signals for turn in tree.turns if "files_edited_so_far" in turn.signals]
    assert edits[-1]["gold_files_edited"] == 1.0


def test_a_wrong_repair_fails(tmp_path: Path) -> None:
    """An agent whose edits are all wrong leaves every function broken."""
    trees = play(tmp_path, small_tasks(1, bugs=1), 1.0, samples=3)
    outcomes = [tree.attempts[0].outcome for tree in trees]
    assert [outcome.score for outcome in outcomes if outcome] == [0.0] * 3


def test_answers_printed_by_the_package_do_not_count(tmp_path: Path) -> None:
    """Hidden cases are compared where the package's code never ran: it can print what it likes."""
    (task,) = small_tasks(1, bugs=1)
    path = edits_of(small_agent(task, 0))[0]["path"]
    forged = "import json\nfor i in range(99): print(json.dumps([i, 'True']))"
    line = f"printf '%s\\n' {json.dumps(forged)} >> {path}"

    def script(request: PolicyRequest) -> Any:
        del request
        for name, arguments in (("bash", {"command": line}), ("submit", {})):
            function = {"name": name, "arguments": json.dumps(arguments)}
            call = {"id": "c", "type": "function", "function": function}
            yield {"role": "assistant", "content": "", "tool_calls": [call]}

    asyncio.run(collect(SPEC, [task], ScriptedPolicy(script), tmp_path / "run"))
    with Run(tmp_path / "run") as run:
        (summary,) = run.summaries()
    assert summary.attempts[0].outcome is not None
    assert summary.attempts[0].outcome.score == 0.0


@pytest.mark.parametrize("path", ["/etc/passwd", "../up", "a/../../b", ".git/config", ""])
def test_paths_of_inline_sources_stay_inside(path: str) -> None:
    """A record's own files can't be written outside of the repository."""
    (task,) = small_tasks(1)
    source = {"kind": "inline", "files": {path: "x"}}
    with pytest.raises(InvalidTask, match="not a path inside"):
        SweRecord.parse({**task.data, "source": source}, "record")
