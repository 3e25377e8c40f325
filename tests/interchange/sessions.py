"""Sessions to export and import again, and how to compare them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from hypothesis import strategies as st

from trajgym.adapters import ExportReport, export
from trajgym.adapters.interchange import FEATURES, features_of, get_format, import_run
from trajgym.trajectory import (
    Attempt,
    CallResult,
    Outcome,
    Run,
    Sampling,
    Segment,
    SessionRecord,
    SessionTree,
    Status,
    Store,
    Task,
    Turn,
    TurnTokens,
    Usage,
    image_part,
)

PIXEL = bytes.fromhex(
    "89504e470d0a1a0a0000000d4948445200000001000000010806000000"
    "1f15c4890000000d49444154789c6360000002000001e221bc330000000049454e44ae426082"
)
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "bash",
            "description": "Run a command.",
            "parameters": {"type": "object", "properties": {"command": {"type": "string"}}},
        },
    }
]
texts = st.text(st.characters(codec="utf-8", exclude_categories=["Cs", "Cc"]), max_size=12).filter(
    lambda text: "<image>" not in text
)
some_texts = texts.filter(bool)


@st.composite
def linear_sessions(
    draw: st.DrawFn, image: str = "", name: str = "s-1", *, trained: bool = False
) -> SessionTree:
    """One attempt of text or exact turns, with calls, results, reasoning, rewards and pictures.

    If ``trained``, it has training rows: the turns are exact, and it has a score.
    """
    exact = trained or draw(st.booleans())
    turns: list[Turn] = []
    size = 0
    for index in range(draw(st.integers(1, 4))):
        calls = [f"c{index}-{n}" for n in range(draw(st.integers(0, 2)))]
        message: dict[str, Any] = {"role": "assistant", "content": draw(texts)}
        if calls:
            arguments = draw(st.dictionaries(some_texts, st.integers() | texts, max_size=2))
            function = {"name": "bash", "arguments": json.dumps(arguments)}
            message["tool_calls"] = [
                {"id": one, "type": "function", "function": function} for one in calls
            ]
        elif not message["content"]:
            message["content"] = "ok"
        if draw(st.booleans()):
            message["reasoning_content"] = draw(some_texts)
        answers = [{"role": "tool", "tool_call_id": one, "content": draw(texts)} for one in calls]
        shown: Any = draw(some_texts)
        if image and draw(st.booleans()):
            shown = [image_part(image), {"type": "text", "text": shown}]
        turns.append(
            Turn(
                index=index,
                parent=index - 1 if index else None,
                context=[] if index else draw(openings()),
                message=message,
                observation=answers or [{"role": "user", "content": shown}],
                calls=[
                    CallResult(
                        call_id=one, name="bash", status=draw(st.sampled_from(["ok", "error"]))
                    )
                    for one in calls
                ],
                finish="tool_calls" if calls else "stop",
                reward=draw(st.none() | st.floats(-1, 1)),
                signals=draw(st.just({}) | st.just({"vote": 1})),
                usage=draw(st.none() | st.just(Usage(prompt_tokens=3, completion_tokens=2))),
                sampling=Sampling(temperature=1.0, logprob_mode="processed") if exact else None,
                policy="engine:m",
                started_at=1_700_000_000.0 + index,
                policy_seconds=0.5,
                tokens=_tokens(index, size) if exact else None,
            )
        )
        size += 5
    ends = ["completed", "truncated:turns", *(() if trained else ("failed:env",))]
    status = Status.parse(draw(st.sampled_from(ends)))
    score = draw(st.sampled_from([0.0, 0.25, 1.0]))
    attempt = Attempt(
        leaf=len(turns) - 1,
        status=status,
        cause="" if status.kind == "completed" else "why",
        outcome=Outcome(score=score, passed=score == 1.0, details={"n": 1})
        if status.scored
        else None,
        ended_at=1_700_000_100.0,
    )
    record = SessionRecord(
        id=name,
        task="t/1",
        env={"id": "e", "config": {"k": 1}},
        tools=draw(st.just([]) | st.just(TOOLS)),
        seed=draw(st.none() | st.just(7)),
        labels={"sandbox": "none"},
        created_at=1_700_000_000.0,
    )
    return SessionTree(record, turns, [attempt])


def openings() -> st.SearchStrategy[list[dict[str, Any]]]:
    user = some_texts.map(lambda text: {"role": "user", "content": text})
    roles = st.sampled_from(["system", "developer"])
    system = st.builds(lambda role, text: {"role": role, "content": text}, roles, some_texts)
    return st.tuples(system, user).map(list) | user.map(lambda one: [one])


def _tokens(index: int, size: int) -> TurnTokens:
    rng = np.random.default_rng(index)
    return TurnTokens(
        prompt_kept=size,
        prompt_ids=rng.integers(0, 99, 3),
        response_ids=rng.integers(100, 200, 2),
        logprobs=np.array([-0.5, -0.25], dtype=np.float32),
        segments=(Segment(1, 4, 5), Segment(1, 6, 6)),
    )


TASK = Task(id="t/1", prompt="do it", data={"licence": "MIT"})


def through(
    name: str, trees: list[SessionTree], folder: Path, **options: Any
) -> tuple[list[SessionTree], ExportReport]:
    """Export sessions, import the files, and return what the new run has."""
    with Store(folder / "source") as store:
        store.put_blob(PIXEL, "image/png")[1].wait()
    with Run(folder / "source") as run:
        report = export(
            name, trees, [], folder / "out", blobs=run.blob, task=lambda _: TASK, **options
        )
    import_run(name, folder / "out", folder / "back")
    with Run(folder / "back") as run:
        return list(run.sessions()), report


def plain(messages: list[dict[str, Any]], *, ids: bool) -> list[Any]:
    """Return what every format keeps of messages: who wrote and called what, in order."""
    names: dict[str, int] = {}
    found = []
    for message in messages:
        content = message.get("content") or ""
        calls = [
            (
                call["id"] if ids else names.setdefault(call["id"], len(names)),
                call["function"]["name"],
                json.loads(call["function"]["arguments"]),
            )
            for call in message.get("tool_calls") or ()
        ]
        answered = message.get("tool_call_id")
        found.append((message["role"], content, calls, answered if ids else names.get(answered)))
    return found


UNANSWERED = {"atropos", "openai-chat", "openenv", "sharegpt"}
"""Formats whose conversations end with an answer."""


def assert_kept(name: str, before: SessionTree, after: SessionTree, report: ExportReport) -> None:
    """What a format claims to hold is there again; what it loses is in the report."""
    form = get_format(name)
    ids = "tool call ids" in form.holds
    left = before.conversation(before.turns[-1])
    right = after.conversation(after.turns[-1])
    trailing = len(before.turns[-1].observation)
    if "developer messages" not in form.holds:
        left = [one | {"role": one["role"].replace("developer", "system")} for one in left]
    if name in UNANSWERED:
        left = left[: len(left) - trailing]
    assert plain(right, ids=ids) == plain(left, ids=ids)
    for feature in form.holds:
        read = FEATURES[feature][1]
        if name in UNANSWERED and feature == "images":
            continue  # the last observation is not written
        assert read(after, TASK) == read(before, TASK), feature
    present = features_of(before, TASK)
    assert report.lost == {one: 1 for one in present if one not in form.holds}
