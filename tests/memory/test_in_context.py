"""Contexts of several trajectories: burstiness, budgets, and no trajectory twice."""

from __future__ import annotations

import json
from collections import Counter
from math import floor
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.memory.locks import CODES, expert, lock, locks
from tests.rollout.tokenizers import tokenizer
from trajgym.adapters import ExportReport, export
from trajgym.adapters.exports._contexts import Candidate, Composer
from trajgym.envs import EnvSpec
from trajgym.rollout import PolicyRequest, ScriptedPolicy, TokenPolicy, call, collect
from trajgym.rollout.engines import FakeCall
from trajgym.trajectory import InvalidInput, Message, Run

LEVELS = st.lists(st.lists(st.integers(1, 100), max_size=8), max_size=8)


@given(
    sizes=LEVELS,
    burstiness=st.one_of(st.sampled_from([0.0, 1.0, 0.5, 1 / 3]), st.floats(0, 1)),
    length=st.integers(2, 6),
    repeats=st.integers(2, 6),
    seed=st.integers(0, 3),
)
def test_contexts_keep_what_was_chosen(
    sizes: list[list[int]], burstiness: float, length: int, repeats: int, seed: int
) -> None:
    """Budget, length, share and levels hold for every context, and no trajectory is used twice."""
    budget, row, levels, level_of, tokens_of = 100, 0, {}, {}, {}
    for number, found in enumerate(sizes):
        levels[str(number)] = [Candidate(size, row + i) for i, size in enumerate(found)]
        for one in levels[str(number)]:
            level_of[one.row], tokens_of[one.row] = number, one.tokens
        row += len(found)
    contexts = list(
        Composer(
            levels,
            burstiness=burstiness,
            length=length,
            repeats=repeats,
            budget=budget,
            seed=seed,
        )
    )
    used = [row for context in contexts for row in context.rows]
    assert len(used) == len(set(used))
    for made, context in enumerate(contexts, 1):
        assert 2 <= len(context.rows) <= length
        assert context.tokens == sum(tokens_of[row] for row in context.rows) <= budget
        counts = Counter(level_of[row] for row in context.rows)
        query = level_of[context.rows[-1]]
        assert context.bursty is (max(counts.values()) > 1)
        assert counts[query] <= repeats
        assert all(count == 1 for level, count in counts.items() if level != query)
        bursty = sum(one.bursty for one in contexts[:made])
        assert bursty == floor(burstiness * made + 1e-9)
    # It ended because no context of the kind that was due is possible.
    left = {
        name: sorted(one.tokens for one in found if one.row not in used)
        for name, found in levels.items()
    }
    bursty = sum(one.bursty for one in contexts)
    if bursty + 1 <= burstiness * (len(contexts) + 1) + 1e-9:
        assert all(sum(found[:2]) > budget for found in left.values() if len(found) > 1)
    else:
        smallest = sorted(found[0] for found in left.values() if found)
        assert len(smallest) < 2 or sum(smallest[:2]) > budget


def read(path: Path) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    lines = (path / "in_context.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines], json.loads((path / "in_context.json").read_text())


def write(run_path: Path, out: Path, **options: Any) -> ExportReport:
    with Run(run_path) as run:
        return export("in-context", run.sessions(), run.groups(), out, task=run.task, **options)


def careful() -> ScriptedPolicy:
    """Samples differ in their first, wrong guess."""

    def script(request: PolicyRequest) -> Message:
        assert request.task is not None
        right = CODES[request.task.data["place"]]
        return call("turn", code=right if request.turn else request.sample % 3)

    return ScriptedPolicy(script)


async def test_whole_trajectories_of_a_level_share_a_context(tmp_path: Path) -> None:
    """Real sessions: the chosen share is bursty, and each line is a well-formed conversation."""
    run = tmp_path / "run"
    spec = EnvSpec(id="test/locks", config={"opening": "messages"})
    await collect(spec, locks("red", "blue", "green", "black"), careful(), run, samples=3)
    report = write(run, tmp_path / "out", burstiness=0.5, length=3, tokens=4000, by="place")
    lines, facts = read(tmp_path / "out")
    assert report.written == facts["contexts"] == len(lines) >= 8
    assert facts["measured_burstiness"] == sum(line["bursty"] for line in lines) / len(lines)
    assert abs(facts["measured_burstiness"] - 0.5) <= 1 / len(lines)
    assert facts["left_over"] == len(report.dropped)
    used = [(one["session"], one["attempt"]) for line in lines for one in line["trajectories"]]
    assert len(used) == len(set(used)) == facts["trajectories"]
    for line in lines:
        messages, parts = line["messages"], line["trajectories"]
        assert [message["role"] for message in messages].count("system") == 1
        assert messages[0]["role"] == "system"
        assert messages[-1]["role"] == "assistant"
        assert line["tokens"] == sum(part["tokens"] for part in parts) <= 4000
        levels = Counter(part["level"] for part in parts)
        assert line["bursty"] is (max(levels.values()) > 1)
        assert line["level"] == parts[-1]["level"]
        places = [part["messages"] for part in parts]
        assert [places[0][0], *(end for _, end in places)] == [
            1,
            *(start for start, _ in places[1:]),
            len(messages),
        ]
        for part in parts:
            own = messages[slice(*part["messages"])]
            assert own[0]["content"].startswith("Open the")
            assert part["task"].split("-")[0] in own[0]["content"]
        calls = [one["id"] for message in messages for one in message.get("tool_calls", [])]
        assert len(calls) == len(set(calls))
        answers = [message["tool_call_id"] for message in messages if "tool_call_id" in message]
        assert answers == calls[:-1]


async def test_equal_trajectories_count_once(tmp_path: Path) -> None:
    """Samples that say the same word for word are one trajectory, whatever their calls' ids."""
    await collect(
        EnvSpec(id="test/locks"), [lock("castle", "red")], expert(), tmp_path / "run", samples=3
    )
    report = write(tmp_path / "run", tmp_path / "out", burstiness=1.0)
    reasons = sorted(one.reason for one in report.dropped)
    assert reasons == [
        "its messages equal those of another session",
        "its messages equal those of another session",
        "left over: no context takes it",
    ]
    lines, facts = read(tmp_path / "out")
    assert lines == []
    assert facts["measured_burstiness"] is None


async def test_what_does_not_fit_is_reported(tmp_path: Path) -> None:
    """A trajectory that is longer than a context, or has no level, is left out with the reason."""
    run = tmp_path / "run"
    await collect(EnvSpec(id="test/locks"), locks("red"), careful(), run, samples=2)
    report = write(run, tmp_path / "a", tokens=100)
    assert all("more than a context has" in one.reason for one in report.dropped)
    report = write(run, tmp_path / "b", by="colour")
    assert all("no 'colour' in its data" in one.reason for one in report.dropped)
    report = write(run, tmp_path / "c", burstiness=1.0, include="all", length=2)
    assert report.written == 3


@pytest.mark.parametrize(
    ("option", "value"),
    [("burstiness", 1.5), ("length", 1), ("repeats", 1), ("tokens", 0), ("include", "some")],
)
def test_settings_out_of_range_are_refused(tmp_path: Path, option: str, value: Any) -> None:
    """The error names the setting and its value."""
    with pytest.raises(InvalidInput, match=f"{option} is '?{value}"):
        export("in-context", [], [], tmp_path, **{option: value})


async def test_a_real_template_takes_no_more_tokens_than_counted(tmp_path: Path) -> None:
    """Without ids the bytes bound the tokens: a whole context is rendered and counted."""
    run = tmp_path / "run"
    await collect(EnvSpec(id="test/locks"), locks("red", "blue"), careful(), run, samples=3)
    write(run, tmp_path / "out", length=3, tokens=3000)
    lines, facts = read(tmp_path / "out")
    assert facts["tokens_counted_by"].keys() == {"bytes"}
    for line in lines:
        rendered = tokenizer("qwen").apply_chat_template(
            line["messages"], tools=json.loads(line["tools"]), return_dict=False
        )
        assert 0 < len(rendered) <= line["tokens"] <= 3000


async def test_ids_of_the_engine_are_counted(tmp_path: Path) -> None:
    """Exact sessions: a context that is rendered anew takes no more than its trajectories' ids."""

    def script(given: FakeCall) -> Any:
        shown = bytes(one for one in given.prompt_ids if one < 256).decode(errors="replace")
        right = next(code for place, code in CODES.items() if place in shown)
        return call("turn", code=right if given.turn else (given.seed or 0) % 3)

    policy, run = TokenPolicy.fake(script), tmp_path / "run"
    await collect(EnvSpec(id="test/locks"), locks("red", "blue"), policy, run, samples=6)
    report = write(run, tmp_path / "out", length=3, tokens=3000)
    lines, facts = read(tmp_path / "out")
    assert facts["tokens_counted_by"].keys() == {"ids"}
    assert report.written == report.synthetic == len(lines) > 1
    for line in lines:
        for message in line["messages"]:
            for one in message.get("tool_calls", []):
                one["function"]["arguments"] = json.dumps(one["function"]["arguments"])
        rendered = policy.renderer.render(line["messages"], json.loads(line["tools"]))
        assert 0 < len(rendered) <= line["tokens"] <= 3000
