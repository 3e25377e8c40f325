"""Exports as conversations: supervised fine-tuning and preferences."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.adapters.build import TOOLS, exact_session, golden_run, groups_of
from tests.conftest import load_golden
from trajgym.adapters import export
from trajgym.trajectory import InvalidInput, Status

if TYPE_CHECKING:
    from pathlib import Path

JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


def read(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def test_sft_has_passed_attempts_only(tmp_path: Path) -> None:
    """Failed and unsolved attempts are reported, not exported."""
    trees, groups = golden_run()
    report = export("sft", trees, groups, tmp_path)
    lines = read(tmp_path / "sft.jsonl")
    names = {"fork", "pictures", "rewrite", "screenshot", "subagent"}
    assert {line["session"] for line in lines} == names
    assert all(line["passed"] for line in lines)
    reasons = {(d.session, d.attempt): d.reason for d in report.dropped}
    assert reasons["fork", 1] == "did not pass"
    assert reasons["failed", 0] == "not scored (failed:sandbox)"
    assert reasons["truncated", 0] == "did not pass"


def test_sft_include_all_still_leaves_failures_out(tmp_path: Path) -> None:
    """`include="all"` adds unsolved attempts, never those without a score."""
    trees, groups = golden_run()
    report = export("sft", trees, groups, tmp_path, include="all")
    sessions = {line["session"] for line in read(tmp_path / "sft.jsonl")}
    assert sessions == {t.record.id for t in trees} - {"failed"}
    assert [d.session for d in report.dropped] == ["failed"]


def test_sft_line(tmp_path: Path) -> None:
    """A line ends with the answer, has arguments as objects and tools as a string."""
    tree = exact_session("a", 1.0, turns=2)
    export("sft", [tree], groups_of(tree), tmp_path)
    (line,) = read(tmp_path / "sft.jsonl")
    assert [m["role"] for m in line["messages"]] == ["user", "assistant", "tool", "assistant"]
    calls = [m["tool_calls"][0]["function"] for m in line["messages"] if "tool_calls" in m]
    assert calls[0] == {"name": "ls", "arguments": {"path": "/0"}}
    assert calls[1]["arguments"] == {"n": 1, "deep": {"list": [1, None, "x"]}}
    assert json.loads(line["tools"]) == TOOLS
    assert (line["task"], line["attempt"], line["agent"], line["turns"]) == ("t", 0, "main", [0, 1])
    assert line["synthetic"] is False


def test_sft_rewritten_contexts_and_sub_agents_have_their_own_lines(tmp_path: Path) -> None:
    """Both contexts of a rewrite are there, and both agents of a session with a helper."""
    trees = [load_golden("rewrite")[0], load_golden("subagent")[0]]
    export("sft", trees, [], tmp_path)
    lines = read(tmp_path / "sft.jsonl")
    assert [(line["session"], line["agent"], line["turns"]) for line in lines] == [
        ("rewrite", "main", [0]),
        ("rewrite", "main", [0, 1]),
        ("subagent", "helper-1", [1, 2]),
        ("subagent", "main", [0, 3]),
    ]
    assert "reasoning_content" in lines[0]["messages"][-1]
    assert "reasoning_content" not in str(lines[1]["messages"])


def test_sft_marks_synthetic_sessions(tmp_path: Path) -> None:
    """Sessions of a fake engine are exported with a mark."""
    tree = exact_session("a", 1.0)
    tree.turns[0].synthetic = True
    report = export("sft", [tree], groups_of(tree), tmp_path)
    assert read(tmp_path / "sft.jsonl")[0]["synthetic"] is True
    assert report.synthetic == 1


@settings(max_examples=100, deadline=None)
@given(calls=st.lists(st.dictionaries(st.text(), JSON, max_size=4), min_size=2, max_size=2))
def test_tool_arguments_survive_unchanged(
    calls: list[dict[str, Any]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Calls with arguments of any shapes come out as they went in: nothing merged, no nulls."""
    out = tmp_path_factory.mktemp("sft")
    tree = exact_session("a", 1.0, turns=2)
    for turn, arguments in zip(tree.turns, calls, strict=True):
        turn.message["tool_calls"][0]["function"]["arguments"] = json.dumps(arguments)
    export("sft", [tree], groups_of(tree), out)
    (line,) = read_lines(out / "sft.jsonl")
    found = [m["tool_calls"][0]["function"]["arguments"] for m in line["messages"][1::2]]
    assert found == calls


def read_lines(path: Path) -> list[dict[str, Any]]:
    # Text may hold line separators that are not newlines: split at newlines alone.
    return [json.loads(line) for line in path.read_bytes().split(b"\n") if line]


def test_arguments_that_are_no_object_are_named(tmp_path: Path) -> None:
    """What the model garbled can't be shown as an object; the attempt is left out by name."""
    tree = exact_session("a", 1.0)
    tree.turns[1].message["tool_calls"][0]["function"]["arguments"] = "{broken"
    report = export("sft", [tree], groups_of(tree), tmp_path)
    assert report.written == 0
    (dropped,) = report.dropped
    assert "'run' has arguments that are not a JSON object: '{broken'" in dropped.reason


@pytest.mark.parametrize("name", ["sft", "preference"])
def test_invalid_unicode_stops_no_export(name: str, tmp_path: Path) -> None:
    """Half a surrogate pair in one attempt's arguments or text is written as U+FFFD."""
    trees = [exact_session("a", 1.0), exact_session("b", 0.0), exact_session("c", 1.0)]
    for tree in trees[:2]:
        tree.turns[0].message["tool_calls"][0]["function"]["arguments"] = (
            '{"command": "\\ud800 ' + tree.record.id + '"}'
        )
    trees[0].turns[0].message["content"] = "\udfff"
    report = export(name, trees, groups_of(*trees), tmp_path)
    assert report.dropped == [] or name == "sft"
    lines = read_lines(tmp_path / f"{name}.jsonl")
    assert report.written == len(lines) == (2 if name == "sft" else 1)
    messages = lines[0]["messages" if name == "sft" else "chosen"]
    message = next(m for m in messages if m["role"] == "assistant")
    assert message["content"] == "\ufffd"
    assert message["tool_calls"][0]["function"]["arguments"] == {"command": "\ufffd a"}


@pytest.mark.parametrize("number", ["NaN", "-Infinity", "1e999"])
@pytest.mark.parametrize("name", ["sft", "preference"])
def test_numbers_that_json_has_not_leave_one_attempt_out(
    name: str, number: str, tmp_path: Path
) -> None:
    """Arguments with NaN or infinity can't be written: their attempt is named, others are there."""
    bad, good = exact_session("a", 1.0), exact_session("b", 1.0)
    bad.turns[0].message["tool_calls"][0]["function"]["arguments"] = f'{{"n": {number}}}'
    trees = [bad, good] if name == "sft" else [bad, exact_session("c", 0.0)]
    report = export(name, trees, groups_of(*trees), tmp_path)
    (dropped,) = report.dropped
    assert (dropped.session, number in dropped.reason) == ("a", True)
    assert report.written == len(trees) - (1 if name == "sft" else 2)


@pytest.mark.parametrize("depth", [150, 5_000])
@pytest.mark.parametrize("name", ["sft", "atif", "inspect", "mini-swe-agent", "sharegpt"])
def test_deeply_nested_arguments_stop_no_export(name: str, depth: int, tmp_path: Path) -> None:
    """A model that repeats a bracket costs its attempt at most, never the export."""
    bad, good = exact_session("a", 1.0), exact_session("b", 1.0)
    arguments = '{"n": ' + "[" * depth + "]" * depth + "}"
    bad.turns[0].message["tool_calls"][0]["function"]["arguments"] = arguments
    report = export(name, [bad, good], groups_of(bad, good), tmp_path)
    assert report.written + len(report.dropped) == 2
    assert [one.session for one in report.dropped] == (["a"] if name == "sft" else [])


def test_preference_pairs_the_first_different_answer(tmp_path: Path) -> None:
    """Best against worst: a shared prompt ending in a tool message, one answer each."""
    trees = [
        exact_session("a", 0.5, answers="maybe"),
        exact_session("b", 1.0, sample=1, answers="right"),
        exact_session("c", 0.0, sample=2, answers="wrong"),
    ]
    report = export("preference", trees, groups_of(*trees), tmp_path)
    (line,) = read(tmp_path / "preference.jsonl")
    assert [m["role"] for m in line["prompt"]] == ["user", "assistant", "tool", "assistant", "tool"]
    assert [m["content"] for m in line["chosen"]] == ["step 2 right"]
    assert [m["content"] for m in line["rejected"]] == ["step 2 wrong"]
    assert (line["chosen_score"], line["rejected_score"]) == (1.0, 0.0)
    assert (line["session"], line["rejected_session"]) == ("b", "c")
    assert report.written == 1


def test_preference_of_rival_attempts(tmp_path: Path) -> None:
    """Two branches of a fork are a pair on the turn where they part."""
    tree = load_golden("fork")[0]
    export("preference", [tree], groups_of(tree), tmp_path)
    (line,) = read(tmp_path / "preference.jsonl")
    assert (line["chosen"][0]["content"], line["rejected"][0]["content"]) == ("8", "12")
    assert line["prompt"][-1]["role"] == "tool"


EQUAL = "all scored attempts of its group have the same score"


def preference_reasons(tmp_path: Path, *trees: Any, **options: Any) -> list[str]:
    report = export("preference", trees, groups_of(*trees), tmp_path, **options)
    assert report.written == 0
    return [d.reason for d in report.dropped]


def test_groups_without_a_pair_are_named(tmp_path: Path) -> None:
    """Equal scores, a margin not met, same answers, different prompts: each is a reason."""
    a, b = exact_session("a", 1.0, answers="x"), exact_session("b", 1.0, sample=1, answers="y")
    assert preference_reasons(tmp_path, a, b) == [EQUAL]
    b = exact_session("b", 0.75, sample=1, answers="y")
    (reason,) = preference_reasons(tmp_path, a, b, margin=0.5)
    assert reason == "best and worst attempt of its group differ by less than 0.5"
    b = exact_session("b", 0.0, sample=1, answers="x")
    (reason,) = preference_reasons(tmp_path, a, b)
    assert "same answers" in reason
    b.turns[0].context[0]["content"] = "do something else"
    (reason,) = preference_reasons(tmp_path, a, b)
    assert "prompts of turns 0 and 0 differ" in reason


def test_failed_member_is_nobodys_rejected_answer(tmp_path: Path) -> None:
    """A failure is not a bad answer: it is named and makes no pair."""
    a, b = exact_session("a", 1.0, answers="x"), exact_session("b", 0.0, sample=1, answers="y")
    b.attempts[0].outcome = None
    b.attempts[0].status = Status.parse("failed:sandbox")
    reasons = preference_reasons(tmp_path, a, b)
    assert reasons == ["not scored (failed:sandbox)", EQUAL]


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("sft", {"include": "some"}, "include is 'some'"),
        ("preference", {"margin": -1}, "margin is -1"),
        ("preference", {"margin": float("nan")}, "margin is nan"),
    ],
)
def test_bad_options_are_refused(
    name: str, options: dict[str, Any], message: str, tmp_path: Path
) -> None:
    """An option's value that makes no sense is refused before anything is written."""
    with pytest.raises(InvalidInput, match=message):
        export(name, [], [], tmp_path, **options)
    assert list(tmp_path.iterdir()) == []
