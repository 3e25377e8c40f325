"""Small files in each foreign format: what an import makes of them, refuses, and loses."""

from __future__ import annotations

import contextlib
import json
import tempfile
import zipfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from trajgym.adapters.interchange import UnknownFormat, import_run
from trajgym.trajectory import InvalidInput, Run, SessionTree, text_of

USER = {"role": "user", "content": "sum 1 and 2"}


def write(path: Path, *values: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(json.dumps(value) for value in values))
    return path


def imported(name: str, path: Path) -> tuple[list[SessionTree], dict[str, int]]:
    out = path.parent / "run"
    report = import_run(name, path, out)
    with Run(out) as run:
        assert not run.check()
        return list(run.sessions()), report.lost


def test_openai_lines_of_one_prompt_are_a_group(tmp_path: Path) -> None:
    """Lines with the same opening are samples of one task; weights are reported."""
    one = {"messages": [USER, {"role": "assistant", "content": "3", "weight": 0}]}
    two = {"messages": [USER, {"role": "assistant", "content": "4"}]}
    three = {"messages": [{"role": "user", "content": "?"}, {"role": "assistant", "content": "!"}]}
    trees, lost = imported("openai-chat", write(tmp_path / "a.jsonl", one, two, three))
    assert lost == {"weights": 1}
    assert trees[0].record.group == trees[1].record.group != trees[2].record.group
    assert [tree.record.sample for tree in trees] == [0, 1, 0]
    assert all(tree.attempts[0].outcome is None for tree in trees)
    assert not any(turn.exact for tree in trees for turn in tree.turns)


def test_sharegpt_array_with_calls(tmp_path: Path) -> None:
    """A file that is one array; a function_call after text belongs to the same answer."""
    call = json.dumps({"name": "add", "arguments": {"x": 1}})
    line = {
        "system": "be brief",
        "conversations": [
            {"from": "human", "value": "go"},
            {"from": "gpt", "value": "adding"},
            {"from": "function_call", "value": call},
            {"from": "observation", "value": "3"},
            {"from": "gpt", "value": "3"},
        ],
        "tools": json.dumps([{"name": "add", "parameters": {}}]),
        "source": "somewhere",
    }
    (tree,), lost = imported("sharegpt", write(tmp_path / "a.json", [line]))
    assert len(tree.turns) == 2
    assert tree.turns[0].message["content"] == "adding"
    assert [one.status for one in tree.turns[0].calls] == ["ok"]
    assert tree.record.tools[0]["function"]["name"] == "add"
    assert lost == {"other fields": 1}


def test_mini_swe_agent_with_responses_api(tmp_path: Path) -> None:
    """Responses of OpenAI's Responses API, and an end at a limit."""
    item = {"type": "function_call", "call_id": "c", "name": "bash", "arguments": "{}"}
    document = {
        "trajectory_format": "mini-swe-agent-1.1",
        "info": {"exit_status": "LimitsExceeded", "submission": ""},
        "messages": [
            {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "fix"}]},
            {"object": "response", "output": [item], "extra": {"cost": 0.5, "timestamp": 12.0}},
            {"type": "function_call_output", "call_id": "c", "output": "done"},
            {"role": "exit", "content": "LimitsExceeded", "extra": {}},
        ],
    }
    (tree,), _ = imported("mini-swe-agent", write(tmp_path / "x.traj.json", document))
    assert str(tree.attempts[0].status) == "truncated:turns"
    assert tree.turns[0].signals == {"cost_usd": 0.5}
    assert tree.turns[0].started_at == 12.0
    assert text_of(tree.turns[0].observation[0]) == "done"
    assert tree.record.task == "x"


def test_swe_agent_demonstrations_are_context(tmp_path: Path) -> None:
    """Answers of a demonstration are not turns; steps give the seconds."""
    document = {
        "environment": "swe",
        "trajectory": [{"response": "look", "execution_time": 1.5, "state": {"cwd": "/"}}],
        "history": [
            {"role": "system", "content": "s", "agent": "main"},
            {"role": "assistant", "content": "demo", "is_demo": True, "agent": "main"},
            {"role": "user", "content": "issue", "agent": "main"},
            {
                "role": "assistant",
                "content": "look",
                "agent": "main",
                "tool_calls": [
                    {"id": "c", "type": "function", "function": {"name": "ls", "arguments": {}}}
                ],
                "thinking_blocks": [{"type": "thinking", "thinking": "hm", "signature": "x"}],
            },
            {"role": "tool", "content": "file", "agent": "main", "tool_call_ids": ["c"]},
        ],
        "info": {"exit_status": "submitted (exit_cost)", "submission": "diff"},
    }
    (tree,), lost = imported("swe-agent", write(tmp_path / "i-1.traj", document))
    (turn,) = tree.turns
    assert [one["role"] for one in turn.context] == ["system", "assistant", "user"]
    assert turn.env_seconds == 1.5
    assert turn.message["reasoning_content"] == "hm"
    assert str(tree.attempts[0].status) == "completed"
    assert tree.record.labels == {"submission": "diff", "exit_status": "submitted (exit_cost)"}
    assert lost == {"state": 1, "thinking signatures": 1}


def inspect_log(path: Path, sample: dict[str, Any]) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("header.json", json.dumps({"eval": {"task": "t", "model": "m"}}))
        archive.writestr("samples/1_epoch_1.json", json.dumps(sample))
    return path


@pytest.mark.parametrize(
    ("fields", "status", "score"),
    [
        ({"scores": {"a": {"value": {"x": 1}}, "b": {"value": "P"}}}, "completed", 0.5),
        (
            {"scores": {"a": {"value": "C"}}, "limit": {"type": "token", "limit": 9}},
            "truncated:token",
            1,
        ),
        ({"scores": {"a": {"value": "C"}}, "error": {"message": "lost"}}, "failed:env", None),
        ({}, "completed", None),
    ],
)
def test_inspect_ends(tmp_path: Path, fields: Any, status: str, score: float | None) -> None:
    """Scores, limits and errors of a sample; a failure has no score."""
    sample = {
        "id": 1,
        "epoch": 1,
        "input": "q",
        "target": "3",
        "messages": [
            {"id": "a", "role": "user", "content": "attachment://h"},
            {"id": "b", "role": "assistant", "content": "3"},
        ],
        "attachments": {"h": "a long question"},
    }
    (tree,), _ = imported("inspect", inspect_log(tmp_path / "x.eval", sample | fields))
    assert text_of(tree.turns[0].context[0]) == "a long question"
    (attempt,) = tree.attempts
    assert str(attempt.status) == status
    assert (attempt.outcome.score if attempt.outcome else None) == score


def atif(*steps: dict[str, Any], **fields: Any) -> dict[str, Any]:
    numbered = [{"step_id": n, **step} for n, step in enumerate(steps, 1)]
    return {
        "schema_version": "ATIF-v1.8",
        "session_id": "s",
        "agent": {"name": "a", "version": "1", "model_name": "m"},
        "steps": numbered,
        **fields,
    }


def test_atif_copied_context_and_media(tmp_path: Path) -> None:
    """Copied steps are context; audio is a mark; a picture beside the file is stored."""
    (tmp_path / "p.png").write_bytes(b"png")
    source = {"media_type": "image/png", "path": "p.png"}
    parts = [
        {"type": "image", "source": source},
        {"type": "audio", "source": {"media_type": "audio/wav", "path": "a.wav"}},
    ]
    document = atif(
        {"source": "agent", "message": "before", "is_copied_context": True},
        {"source": "user", "message": parts},
        {"source": "agent", "message": "after", "extra": {"confidence": 0.5}},
    )
    (tree,), lost = imported("atif", write(tmp_path / "trajectory.json", document))
    (turn,) = tree.turns
    assert [one["role"] for one in turn.context] == ["assistant", "user"]
    assert turn.context[1]["content"][0]["image_url"]["url"].startswith("blob:")
    assert turn.signals == {"confidence": 0.5}
    assert turn.policy == "imported:m"
    assert lost == {"audio": 1}


def test_atif_prompts_are_stored_as_deltas(tmp_path: Path) -> None:
    """Whole prompts of a growing conversation are stored once, and read back whole."""
    first = {"prompt_token_ids": [1, 2], "completion_token_ids": [3], "logprobs": [-1.0]}
    second = {"prompt_token_ids": [1, 2, 3, 4], "completion_token_ids": [5], "logprobs": [-1.0]}
    document = atif(
        {"source": "user", "message": "q"},
        {"source": "agent", "message": "a", "metrics": first},
        {"source": "agent", "message": "b", "metrics": second},
    )
    (tree,), lost = imported("atif", write(tmp_path / "trajectory.json", document))
    assert tree.turns[1].tokens is not None
    assert tree.turns[1].tokens.prompt_kept == 3
    assert tree.prompt(tree.turns[1]).tolist() == [1, 2, 3, 4]
    assert lost == {"policy versions": 2}


@pytest.mark.parametrize(
    ("name", "document", "message"),
    [
        ("openai-chat", {"messages": [{"role": "alien"}]}, "role is 'alien'"),
        ("openai-chat", {"input": {}, "preferred_output": []}, "a preference pair"),
        ("sharegpt", {"conversations": [{"from": "martian", "value": "x"}]}, "from is 'martian'"),
        ("mini-swe-agent", {"trajectory_format": "x"}, "trajectory_format is 'x'"),
        ("swe-agent", {"trajectory": []}, "'history' is missing"),
        ("atif", {"schema_version": "ATIF-v2.0"}, "schema_version is 'ATIF-v2.0'"),
        ("atif", atif({"source": "user", "message": "q"}), "no step of the agent"),
    ],
)
def test_malformed_files_are_named(tmp_path: Path, name: str, document: Any, message: str) -> None:
    """The error names the file, and no run is made."""
    path = write(tmp_path / "bad.json", document)
    with pytest.raises(InvalidInput, match=message) as caught:
        import_run(name, path, tmp_path / "run")
    assert "bad.json" in str(caught.value)
    assert not (tmp_path / "run").exists()


def test_nothing_to_import(tmp_path: Path) -> None:
    """Unknown formats, directories without files, and a run that exists are refused."""
    with pytest.raises(UnknownFormat, match="no format 'x'; there are atif"):
        import_run("x", tmp_path, tmp_path / "run")
    with pytest.raises(InvalidInput, match=r"no file \*\.eval here"):
        import_run("inspect", tmp_path, tmp_path / "run")
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "x").touch()
    path = write(tmp_path / "a.jsonl", {"messages": [USER, {"role": "assistant", "content": "3"}]})
    with pytest.raises(InvalidInput, match="not empty"):
        import_run("openai-chat", path, tmp_path / "run")


def verifiers_episode(**trace: Any) -> dict[str, Any]:
    """An episode of one trace: a question, a call with ids, its result, and an answer."""
    call = {"id": "c", "name": "add", "arguments": "{}", "type": "function"}
    nodes = [
        {"message": {"role": "user", "content": "1+2?"}, "token_ids": [1], "mask": [False]},
        {
            "parent": 0,
            "sampled": True,
            "message": {"role": "assistant", "content": "", "tool_calls": [call]},
            "token_ids": [2, 3, 4],
            "mask": [False, True, True],
            "logprobs": [-0.5, -0.25],
        },
        {"parent": 1, "message": {"role": "tool", "tool_call_id": "c", "content": "3"}},
        {
            "parent": 2,
            "sampled": True,
            "message": {"role": "assistant", "content": "3"},
            "token_ids": [5, 6],
            "mask": [False, True],
            "logprobs": [-1.0],
        },
    ]
    task = {"type": "Task", "data": {"idx": 4, "prompt": "1+2?"}}
    return {
        "id": "e",
        "env": {"id": "sums"},
        "task": task,
        "group": {"id": "g"},
        "run": {"type": "train", "id": "r", "work": {"step": 9, "policy": {"start": 7, "end": 8}}},
        "traces": [
            {
                "id": "t",
                "task": task,
                "nodes": nodes,
                "rewards": {"right": {"score": 0.5, "weight": 2.0}, "style": None},
                "is_completed": True,
                "ok": True,
            }
            | trace
        ],
    }


def test_verifiers_traces_keep_ids_and_policy_versions(tmp_path: Path) -> None:
    """Prompts are the ids of the path; the episode's policy span is each token's; rewards add."""
    (tree,), lost = imported("verifiers", write(tmp_path / "traces.jsonl", verifiers_episode()))
    first, second = tree.turns
    assert tree.prompt(second).tolist() == [1, 2, 3, 4, 5]
    assert first.tokens is not None
    assert first.tokens.response_ids.tolist() == [3, 4]
    assert first.tokens.segments == ((2, 7, 8, True),)
    assert [one.status for one in first.calls] == ["ok"]
    assert tree.record.task == "sums/4"
    assert tree.attempts[0].outcome is not None
    assert tree.attempts[0].outcome.score == 1.0
    assert lost == {"episode": 1}


def test_verifiers_branches_are_rewrites_and_sub_agents(tmp_path: Path) -> None:
    """A second root is a rewrite of the context, unless a link says that a turn called it."""
    root = [
        {"message": {"role": "user", "content": "summary"}},
        {"parent": 4, "sampled": True, "message": {"role": "assistant", "content": "done"}},
    ]
    episode = verifiers_episode()
    episode["traces"][0]["nodes"] += root
    linked = verifiers_episode(id="linked")
    called = root[1] | {"semantic_parents": [{"node": 1, "type": "subagent_call"}]}
    linked["traces"][0]["nodes"] += [root[0], called]
    trees, _ = imported("verifiers", write(tmp_path / "traces.jsonl", episode, linked))
    plain, agents = trees
    assert [(turn.edge, turn.kept) for turn in plain.turns] == [
        ("continue", None),
        ("continue", None),
        ("rewrite", 0),
    ]
    assert [text_of(one) for one in plain.context(plain.turns[2])] == ["summary"]
    assert [(turn.edge, turn.parent) for turn in agents.turns][2] == ("spawn", 0)
    assert agents.turns[2].agent != "main"


@pytest.mark.parametrize(
    ("fields", "status"),
    [
        ({"stop_condition": "max_turns"}, "truncated:turns"),
        ({"is_timeout": True, "stop_condition": "agent_timeout"}, "truncated:seconds"),
        ({"ok": False, "errors": [{"type": "ProviderError", "message": "503"}]}, "failed:policy"),
        ({"errors": [{"type": "SandboxError", "message": "of an earlier try"}]}, "completed"),
        ({"is_completed": False}, "interrupted"),
    ],
)
def test_how_verifiers_traces_end(fields: dict[str, Any], status: str, tmp_path: Path) -> None:
    """Limits, errors and timeouts have their status; only scored ones have an outcome."""
    episode = verifiers_episode(**fields)
    (tree,), _ = imported("verifiers", write(tmp_path / "traces.jsonl", episode))
    (attempt,) = tree.attempts
    assert str(attempt.status) == status
    assert (attempt.outcome is not None) == attempt.status.scored


def test_verifiers_rollouts_of_earlier_versions(tmp_path: Path) -> None:
    """Calls are JSON in strings; metadata.json gives environment and model."""
    call = json.dumps({"id": "c", "name": "add", "arguments": "{}"})
    line = {
        "example_id": 3,
        "prompt": [{"role": "user", "content": "1+2?"}],
        "completion": [
            {"role": "assistant", "content": None, "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "c", "content": "3"},
            {"role": "assistant", "content": "3"},
        ],
        "answer": "3",
        "reward": 1.0,
        "right": 1.0,
        "metrics": {"right": 1.0},
        "is_completed": True,
        "is_truncated": False,
        "timing": {"total": 1},
        "seen": ["x"],
    }
    write(tmp_path / "metadata.json", {"env_id": "sums", "model": "m"})
    (tree,), lost = imported("verifiers", write(tmp_path / "results.jsonl", line))
    assert [one["function"]["name"] for one in tree.turns[0].message["tool_calls"]] == ["add"]
    assert tree.record.task == "sums/3"
    assert tree.turns[0].policy == "imported:m"
    assert tree.attempts[0].outcome is not None
    assert tree.attempts[0].outcome.details == {"metrics": {"right": 1.0}}
    assert lost == {"other fields": 1, "bounds": 1}


def atropos_group(**fields: Any) -> dict[str, Any]:
    """A group of two rows: one of two answers with rewards, one of one."""
    two = [USER, *ANSWERED[:1], {"role": "user", "content": "and?"}, *ANSWERED[1:]]
    return {
        "tokens": [[1, 2, 3, 4, 5], [1, 6]],
        "masks": [[-100, 2, -100, 4, 5], [-100, 6]],
        "scores": [1.0, -1.0],
        "advantages": [[0, 0.5, 0, 0.5, 0.5], [0, -0.5]],
        "inference_logprobs": [[1.0, -0.5, 1.0, -0.25, -0.125], [1.0, -2.0]],
        "messages": [two, [USER, ANSWERED[0]]],
        "generation_params": {"temperature": 0.5},
        "distill_token_ids": None,
    } | fields


ANSWERED = [
    {"role": "assistant", "content": "3", "reward": 0.25},
    {"role": "assistant", "content": "4", "reward": None},
]


def test_atropos_rows_become_exact_sessions(tmp_path: Path) -> None:
    """Each unmasked part is a turn with its ids, log-probs and advantages; rows are a group."""
    trees, lost = imported("atropos", write(tmp_path / "groups.jsonl", atropos_group()))
    first, second = trees
    assert [first.prompt(turn).tolist() for turn in first.turns] == [[1], [1, 2, 3]]
    last = first.turns[1]
    assert last.tokens is not None
    assert last.tokens.response_ids.tolist() == [4, 5]
    assert last.tokens.logprobs.tolist() == [-0.25, -0.125]
    assert last.signals["advantages"] == [0.5, 0.5]
    assert last.sampling is not None
    assert last.sampling.temperature == 0.5
    assert [turn.reward for turn in first.turns] == [0.25, None]
    assert first.record.group == second.record.group
    assert [tree.attempts[0].outcome.score for tree in trees if tree.attempts[0].outcome] == [1, -1]
    assert lost == {"policy versions": 2}


@pytest.mark.parametrize(
    ("fields", "exact", "texts", "lost"),
    [
        ({"inference_logprobs": None}, False, ["3", "4", "3"], "ids without log-probs"),
        ({"messages": None}, True, ["", "", ""], "text"),
        (
            {"messages": [[USER, ANSWERED[0]], [USER, ANSWERED[0]]]},
            None,
            ["3", "3"],
            "unmatched ids",
        ),
        ({"distill_token_ids": [[[1]], [[1]]]}, True, ["3", "4", "3"], "distillation"),
        ({"overrides": [{"set_advantage_to_zero": True}, {}]}, True, ["3", "4", "3"], "overrides"),
    ],
)
def test_what_atropos_rows_lack(
    fields: dict[str, Any], exact: bool | None, texts: list[str], lost: str, tmp_path: Path
) -> None:
    """Rows without log-probs or text are kept as far as they go, and the loss is counted."""
    path = write(tmp_path / "groups.jsonl", atropos_group(**fields))
    trees, counted = imported("atropos", path)
    turns = [turn for tree in trees for turn in tree.turns]
    assert [text_of(turn.message) for turn in turns] == texts
    assert lost in counted
    if exact is not None:
        assert {turn.exact for turn in turns} == {exact}


def test_atropos_rows_without_messages_and_log_probs(tmp_path: Path) -> None:
    """There is nothing to keep of them; the error says how to save groups."""
    path = write(tmp_path / "bad.json", atropos_group(messages=None, inference_logprobs=None))
    with pytest.raises(InvalidInput, match=r"bad.json:1: row 1: .*include_messages"):
        import_run("atropos", path, tmp_path / "run")


def openhands(folder: Path, *events: dict[str, Any], **state: Any) -> Path:
    """A conversation of OpenHands: a chain of events, unless they name their parents."""
    write(folder / "base_state.json", {"id": "conv", "execution_status": "finished"} | state)
    for number, event in enumerate(events):
        name = f"event-{number:05d}-{number:08d}.json"
        write(folder / "events" / name, {"id": f"e{number}", "timestamp": "2026-01-01"} | event)
    return folder


def said(text: str, source: str = "user") -> dict[str, Any]:
    role = "assistant" if source == "agent" else "user"
    content = [{"type": "text", "text": text}]
    return {
        "kind": "MessageEvent",
        "source": source,
        "llm_message": {"role": role, "content": content},
    }


def acted(call: str, response: str) -> dict[str, Any]:
    return {
        "kind": "ActionEvent",
        "thought": [{"type": "text", "text": f"thought {call}"}],
        "tool_call": {"id": call, "name": "terminal", "arguments": "{}"},
        "llm_response_id": response,
    }


def observed(call: str, **observation: Any) -> dict[str, Any]:
    content = [{"type": "text", "text": f"out {call}"}]
    return {
        "kind": "ObservationEvent",
        "tool_call_id": call,
        "observation": {"content": content} | observation,
    }


def test_openhands_calls_of_one_response_are_one_answer(tmp_path: Path) -> None:
    """Results follow both calls, whatever their order; a rejected call was not executed."""
    rejected = {
        "kind": "UserRejectObservation",
        "tool_call_id": "c2",
        "rejection_reason": "no",
    }
    path = openhands(
        tmp_path / "conv",
        said("fix"),
        acted("c1", "r1"),
        acted("c2", "r1"),
        rejected,
        observed("c1", is_error=True, exit_code=1),
        said("done", "agent"),
        said("thanks"),
    )
    (tree,), lost = imported("openhands", path)
    first, second = tree.turns
    assert [(one.call_id, one.status) for one in first.calls] == [
        ("c1", "error"),
        ("c2", "not_executed"),
    ]
    assert [one["tool_call_id"] for one in first.observation] == ["c2", "c1"]
    assert [text_of(one) for one in second.observation] == ["thanks"]
    assert lost == {"observations": 1}


def test_openhands_condensations_are_rewrites(tmp_path: Path) -> None:
    """The turn after a condensation was shown the summary in place of what was forgotten."""
    path = openhands(
        tmp_path / "conv",
        said("fix"),
        acted("c1", "r1"),
        observed("c1"),
        {
            "kind": "Condensation",
            "forgotten_event_ids": ["e1", "e2"],
            "summary": "looked",
            "summary_offset": 1,
        },
        acted("c2", "r2"),
        observed("c2"),
        said("done", "agent"),
    )
    (tree,), lost = imported("openhands", path)
    first, second, third = tree.turns
    assert [text_of(one) for one in first.observation] == ["out c1"]
    assert (second.edge, second.kept) == ("rewrite", 1)
    assert [text_of(one) for one in tree.context(second)] == ["fix", "looked"]
    assert [text_of(one) for one in tree.context(third)] == [
        "fix",
        "looked",
        "thought c2",
        "out c2",
    ]
    assert lost == {}


def test_openhands_reads_the_current_branch(tmp_path: Path) -> None:
    """Events of another branch are counted as lost."""
    path = openhands(
        tmp_path / "conv",
        said("fix"),
        said("one", "agent"),
        said("two", "agent") | {"parent_id": "e0"},
        leaf_event_id="e1",
    )
    (tree,), lost = imported("openhands", path)
    assert [text_of(turn.message) for turn in tree.turns] == ["one"]
    assert lost == {"branches": 1}


@pytest.mark.parametrize(
    ("state", "failure", "status"),
    [
        ("finished", None, "completed"),
        ("error", "MaxIterationsReached", "truncated:turns"),
        ("error", "LLMError", "failed:agent"),
        ("stuck", None, "failed:agent"),
        ("paused", None, "interrupted"),
    ],
)
def test_how_openhands_conversations_end(
    state: str, failure: str | None, status: str, tmp_path: Path
) -> None:
    """The state's status, and the conversation's error if there is one."""
    error = {"kind": "ConversationErrorEvent", "code": failure, "detail": "why"}
    events = [said("fix"), said("done", "agent"), *([error] if failure else [])]
    path = openhands(tmp_path / "conv", *events, execution_status=state)
    (tree,), _ = imported("openhands", path)
    assert str(tree.attempts[0].status) == status


def openenv_call(node: str, messages: list[Any], answer: Any, **fields: Any) -> dict[str, Any]:
    """A call of OpenEnv's training trace."""
    choice = {"message": answer, "finish_reason": "stop"}
    return {
        "node_id": node,
        "prompt_token_ids": [1],
        "completion_token_ids": [2, 3],
        "per_token_logps": [-0.5, -0.25],
        "loss_mask": [0, 1, 1],
        "request": {"messages": messages, "tools": None},
        "response": {"choices": [choice]},
        "metadata": {"node_id": node, "model": "m", "sampling_params": {"temperature": 0.5}},
    } | fields


def test_openenv_calls_continue_or_rewrite(tmp_path: Path) -> None:
    """Messages that continue the call before are its observation; others a new context."""
    call = {"id": "c", "type": "function", "function": {"name": "add", "arguments": "{}"}}
    asked = {"role": "assistant", "content": "", "tool_calls": [call]}
    result = {"role": "tool", "tool_call_id": "c", "content": "3"}
    done = {"role": "assistant", "content": "3"}
    document = {
        "schema_version": 1,
        "turns": [
            openenv_call("a", [USER], asked),
            openenv_call(
                "b", [USER, asked, result], done, prompt_token_ids=[1, 2, 3, 4], loss_mask=[0] * 6
            ),
            openenv_call("c", [USER, {"role": "user", "content": "short"}], done, response={}),
        ],
    }
    path = write(tmp_path / "training_trace.json", document)
    (tree,), lost = imported("openenv", path)
    first, second, third = tree.turns
    assert [one.status for one in first.calls] == ["ok"]
    assert [text_of(one) for one in first.observation] == ["3"]
    assert first.sampling is not None
    assert first.sampling.temperature == 0.5
    assert tree.prompt(second).tolist() == [1, 2, 3, 4]
    assert second.tokens is not None
    assert not second.tokens.sampled_mask.any()
    assert (third.edge, third.kept) == ("rewrite", 1)
    assert text_of(third.message) == ""
    assert tree.attempts[0].outcome is None
    assert lost == {"policy versions": 3, "text": 1}


def test_openenv_masks_fit_the_ids(tmp_path: Path) -> None:
    """A mask of another length is an error that names the turn."""
    document = {"turns": [openenv_call("a", [USER], {"role": "assistant"}, loss_mask=[0])]}
    path = write(tmp_path / "bad.json", document)
    with pytest.raises(InvalidInput, match=r"bad.json: turn 1: 2 ids, 2 log-probs and 0 values"):
        import_run("openenv", path, tmp_path / "run")


json_values = st.sampled_from([None, True, -1, 0.5, 10**20, "x", [], [1], {}, {"x": 1}])


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Return the paths to every value inside a JSON document."""
    items: list[tuple[Any, Any]] = []
    if isinstance(value, dict):
        items = list(value.items())
    elif isinstance(value, list):
        items = list(enumerate(value))
    return [path, *(one for key, item in items for one in places(item, (*path, key)))][
        0 if path else 1 :
    ]


@pytest.mark.parametrize("name", ["atropos", "openenv", "verifiers"])
@settings(max_examples=50, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data())
def test_files_of_another_shape_are_input_errors(name: str, data: st.DataObject) -> None:
    """Whatever value is in an unexpected place, the error names the file, and no run is made."""
    document = {
        "atropos": atropos_group,
        "openenv": lambda: {"turns": [openenv_call("a", [USER], ANSWERED[0])]},
        "verifiers": verifiers_episode,
    }[name]()
    document = json.loads(json.dumps(document))
    *above, last = data.draw(st.sampled_from(places(document)))
    parent = document
    for key in above:
        parent = parent[key]
    parent[last] = data.draw(json_values)
    with tempfile.TemporaryDirectory() as folder:
        path = write(Path(folder) / "bad.json", document)
        with contextlib.suppress(InvalidInput):
            import_run(name, path, Path(folder) / "run")
            return
        with pytest.raises(InvalidInput, match=r"bad\.json"):
            import_run(name, path, Path(folder) / "run")
        assert not (Path(folder) / "run").exists()
