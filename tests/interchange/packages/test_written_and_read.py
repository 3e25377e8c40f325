"""Files that the real packages write are imported, and what is exported is read by them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import load_golden
from trajgym.adapters import export
from trajgym.adapters.interchange import import_run
from trajgym.trajectory import Run, SessionTree, Task, text_of

pytestmark = pytest.mark.interchange


def imported(name: str, path: Path, out: Path) -> tuple[list[SessionTree], dict[str, Task], Any]:
    report = import_run(name, path, out)
    with Run(out) as run:
        return list(run.sessions()), {task.id: task for task in run.tasks()}, report


def sent(name: str, trees: list[SessionTree], out: Path) -> Path:
    report = export(name, trees, [], out, task=lambda one: Task(id=one, prompt="p"))
    assert not report.dropped
    return out


def golden(*names: str) -> list[SessionTree]:
    return [load_golden(name)[0] for name in names]


# Harbor --------------------------------------------------------------------------------------


def test_harbor_reads_our_trajectories(tmp_path: Path) -> None:
    """Harbor's validator accepts what we export; sub-agents and ids are in its fields."""
    harbor = pytest.importorskip("harbor.models.trajectories")
    from harbor.utils.trajectory_validator import TrajectoryValidator

    trees = golden("subagent", "parallel_calls", "rewrite", "truncated", "fork", "two_versions")
    out = sent("atif", trees, tmp_path / "out")
    files = sorted(out.rglob("trajectory.json"))
    assert len(files) == len(trees) + 1  # the fork's second attempt
    for file in files:
        validator = TrajectoryValidator()
        assert validator.validate(file), validator.get_errors()
    sub = next(tree for tree in trees if any(turn.edge == "spawn" for turn in tree.turns))
    read = harbor.Trajectory.model_validate_json(
        (out / sub.record.id / "trajectory.json").read_text()
    )
    assert [one.trajectory_id for one in read.subagent_trajectories] == ["helper-1"]
    first = next(step for step in read.steps if step.source == "agent")
    assert first.metrics.prompt_token_ids == sub.prompt(sub.turns[0]).tolist()


def test_harbor_writes(tmp_path: Path) -> None:
    """A trajectory that Harbor's models write, with ids, a picture's link and a sub-agent."""
    harbor = pytest.importorskip("harbor.models.trajectories")
    helper = harbor.Trajectory(
        trajectory_id="h1",
        agent=harbor.Agent(name="helper", version="1"),
        steps=[
            harbor.Step(step_id=1, source="user", message="sum"),
            harbor.Step(step_id=2, source="agent", message="6"),
        ],
    )
    ref = harbor.SubagentTrajectoryRef(trajectory_id="h1")
    result = harbor.ObservationResult(
        source_call_id="c1", content="6", subagent_trajectory_ref=[ref]
    )
    whole = harbor.Trajectory(
        session_id="run-1",
        agent=harbor.Agent(name="terminus-2", version="2.0", model_name="openai/gpt"),
        subagent_trajectories=[helper],
        notes="by hand",
        steps=[
            harbor.Step(step_id=1, source="system", message="be brief"),
            harbor.Step(step_id=2, source="user", message="sum the file"),
            harbor.Step(
                step_id=3,
                source="agent",
                message="delegate",
                reasoning_content="hm",
                timestamp="2026-01-02T03:04:05Z",
                tool_calls=[
                    harbor.ToolCall(tool_call_id="c1", function_name="ask", arguments={"q": "sum"})
                ],
                observation=harbor.Observation(results=[result]),
                metrics=harbor.Metrics(
                    prompt_tokens=4,
                    completion_tokens=2,
                    cost_usd=0.5,
                    prompt_token_ids=[1, 2, 3, 4],
                    completion_token_ids=[5, 6],
                    logprobs=[-0.5, -0.25],
                ),
            ),
            harbor.Step(step_id=4, source="agent", message="It is 6"),
        ],
    )
    trial = tmp_path / "trials" / "hello__1"
    (trial / "agent").mkdir(parents=True)
    (trial / "agent" / "trajectory.json").write_text(json.dumps(whole.to_json_dict()))
    result_json = {
        "task_name": "hello",
        "trial_name": "hello__1",
        "verifier_result": {"rewards": {"reward": 1.0}},
        "trial_uri": "file:///x",
    }
    (trial / "result.json").write_text(json.dumps(result_json))
    (tree,), tasks, report = imported("atif", tmp_path / "trials", tmp_path / "run")
    assert [(turn.agent, turn.edge) for turn in tree.turns] == [
        ("main", "continue"),
        ("h1", "spawn"),
        ("main", "return"),
    ]
    first = tree.turns[0]
    assert first.tokens is not None
    assert first.tokens.response_ids.tolist() == [5, 6]
    assert first.message["reasoning_content"] == "hm"
    assert first.signals == {"cost_usd": 0.5}
    assert tree.attempts[0].outcome is not None
    assert tree.attempts[0].outcome.score == 1.0
    assert list(tasks) == ["hello"]
    assert report.lost == {"notes": 1, "policy versions": 1, "result": 1}


# Inspect -------------------------------------------------------------------------------------


@pytest.fixture
def inspect_log(tmp_path: Path) -> Path:
    """A log of an evaluation that Inspect runs with its own stand-in for a model."""
    inspect_ai = pytest.importorskip("inspect_ai")
    from inspect_ai.dataset import Sample
    from inspect_ai.model import ModelOutput, ModelUsage, get_model
    from inspect_ai.scorer import includes
    from inspect_ai.solver import generate, use_tools
    from inspect_ai.tool import Tool, tool

    @tool
    def add() -> Tool:
        async def execute(x: int, y: int) -> str:
            """Add.

            Args:
                x: a number
                y: a number
            """
            return str(x + y)

        return execute

    outputs = [
        ModelOutput.for_tool_call("mockllm/model", "add", {"x": 1, "y": 2}),
        ModelOutput.from_content("mockllm/model", "3"),
        ModelOutput.from_content("mockllm/model", "no"),
    ]
    for output in outputs:  # without it, Inspect loads a tokenizer from the internet
        output.usage = ModelUsage(input_tokens=5, output_tokens=2, total_tokens=7)
    task = inspect_ai.Task(
        dataset=[
            Sample(id="a/1", input="1+2?", target="3"),
            Sample(id="b", input="x?", target="y"),
        ],
        solver=[use_tools(add()), generate()],
        scorer=includes(),
        name="sums",
    )
    model = get_model("mockllm/model", custom_outputs=outputs)
    (log,) = inspect_ai.eval(
        task, model=model, log_dir=str(tmp_path / "logs"), display="none", max_samples=1
    )
    assert log.status == "success", log.error
    return tmp_path / "logs"


def test_inspect_writes(inspect_log: Path, tmp_path: Path) -> None:
    """Messages, calls, scores, usage, tools and times come out of a real log."""
    trees, tasks, report = imported("inspect", inspect_log, tmp_path / "run")
    by_task = {tree.record.task: tree for tree in trees}
    assert set(by_task) == {"sums/a/1", "sums/b"} == set(tasks)
    solved = by_task["sums/a/1"]
    assert [text_of(one) for one in solved.conversation(solved.turns[-1])][-2:] == ["3", "3"]
    assert solved.turns[0].calls[0].name == "add"
    assert json.loads(solved.turns[0].message["tool_calls"][0]["function"]["arguments"]) == {
        "x": 1,
        "y": 2,
    }
    assert [one["function"]["name"] for one in solved.record.tools] == ["add"]
    assert solved.turns[0].usage is not None
    assert solved.turns[0].usage.prompt_tokens == 5
    scores = {one: tree.attempts[0].outcome for one, tree in by_task.items()}
    assert {one: found.score for one, found in scores.items() if found} == {
        "sums/a/1": 1.0,
        "sums/b": 0.0,
    }
    assert tasks["sums/a/1"].data["target"] == "3"
    assert set(report.lost) == {"log", "events"}


def test_inspect_reads_our_logs(tmp_path: Path) -> None:
    """Inspect reads an exported log, its samples, scores, limits and tool calls."""
    log_module = pytest.importorskip("inspect_ai.log")
    names = ["parallel_calls", "truncated", "failed", "fork", "rewrite"]
    out = sent("inspect", golden(*names), tmp_path / "out")
    (file,) = out.glob("*.eval")
    log = log_module.read_eval_log(str(file))
    assert len(log.samples) == log.results.total_samples + sum(
        1 for one in log.samples if one.epoch > 1
    )
    assert {one.role for sample in log.samples for one in sample.messages} >= {"user", "assistant"}
    called = [
        call.function
        for sample in log.samples
        for one in sample.messages
        for call in getattr(one, "tool_calls", None) or ()
    ]
    assert called
    assert any(sample.limit for sample in log.samples)
    assert any(sample.error for sample in log.samples)
    assert any(sample.scores["trajgym"].value == 1.0 for sample in log.samples if sample.scores)
    summaries = log_module.read_eval_log_sample_summaries(str(file))
    assert len(summaries) == len(log.samples)


# mini-swe-agent ------------------------------------------------------------------------------


def test_mini_swe_agent_writes(tmp_path: Path) -> None:
    """A trajectory of the real agent, with its deterministic model and real commands."""
    pytest.importorskip("minisweagent")
    from minisweagent.agents.default import DefaultAgent
    from minisweagent.environments.local import LocalEnvironment
    from minisweagent.models.test_models import DeterministicToolcallModel, make_toolcall_output

    def step(command: str, number: int) -> dict[str, Any]:
        function = {"name": "bash", "arguments": json.dumps({"command": command})}
        call = {"id": f"c{number}", "type": "function", "function": function}
        action = {"command": command, "tool_call_id": f"c{number}"}
        return make_toolcall_output(f"step {number}", [call], [action])

    final = "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT && echo patch"
    model = DeterministicToolcallModel(outputs=[step("echo hi", 0), step(final, 1)])
    path = tmp_path / "files" / "task-1" / "task-1.traj.json"
    agent = DefaultAgent(
        model,
        LocalEnvironment(),
        system_template="You fix bugs.",
        instance_template="Fix: {{task}}",
        output_path=path,
        cost_limit=0,
    )
    agent.run("the bug")
    (tree,), tasks, report = imported("mini-swe-agent", tmp_path / "files", tmp_path / "run")
    assert [text_of(one) for one in tree.turns[0].context] == ["You fix bugs.", "Fix: the bug"]
    assert "hi" in text_of(tree.turns[0].observation[0])
    assert tree.turns[0].signals == {"cost_usd": 1.0}
    assert str(tree.attempts[0].status) == "completed"
    assert tree.record.labels["exit_status"] == "Submitted"
    assert tree.record.labels["submission"].strip() == "patch"
    assert tasks["task-1"].prompt == "Fix: the bug"
    assert set(report.lost) == {"configuration", "model stats", "raw outputs"}


def test_mini_swe_agent_reads_our_files(tmp_path: Path) -> None:
    """Its inspector's steps are our turns."""
    inspector = pytest.importorskip("minisweagent.run.utilities.inspector")
    out = sent("mini-swe-agent", golden("parallel_calls"), tmp_path / "out")
    (file,) = out.rglob("*.traj.json")
    document = json.loads(file.read_text())
    steps = inspector._messages_to_steps(document["messages"])
    assert (
        len([step for step in steps if step and step[0]["role"] == "assistant"])
        == (document["info"]["model_stats"]["api_calls"])
    )


# SWE-agent -----------------------------------------------------------------------------------


def test_swe_agents_viewer_reads_our_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The viewer of the released package shows the conversation and how it ended."""
    server = pytest.importorskip("inspector.server")
    # It shows files of its own repository only.
    monkeypatch.setattr(server, "__file__", str(tmp_path / "inspector" / "server.py"))
    trees = golden("parallel_calls", "truncated")
    out = sent("swe-agent", trees, tmp_path / "out")
    files = sorted(out.rglob("*.traj"))
    assert len(files) == len(trees)
    for file in files:
        content = server.load_content(str(file), {}, {})
        roles = [one["role"] for one in content["history"]]
        assert "assistant" in roles
        assert all(isinstance(one["content"], str) for one in content["history"])
        assert server.get_status(str(file))


# OpenAI --------------------------------------------------------------------------------------


def test_openai_messages_become_turns(tmp_path: Path) -> None:
    """Messages as the client's own objects are written: calls, nulls, fields of the response."""
    chat = pytest.importorskip("openai.types.chat")
    from openai.types.chat.chat_completion_message_function_tool_call import Function

    function = Function(name="add", arguments='{"x": 1}')
    call = chat.ChatCompletionMessageFunctionToolCall(id="c", function=function, type="function")
    first = chat.ChatCompletionMessage(role="assistant", content=None, tool_calls=[call])
    last = chat.ChatCompletionMessage(role="assistant", content="1", annotations=[])
    messages = [
        {"role": "user", "content": "?"},
        first.model_dump(),
        {"role": "tool", "tool_call_id": "c", "content": "1"},
        last.model_dump(),
    ]
    (tmp_path / "chats").mkdir()
    (tmp_path / "chats" / "a.jsonl").write_text(json.dumps({"messages": messages}))
    (tree,), _, _ = imported("openai-chat", tmp_path / "chats", tmp_path / "run")
    assert [text_of(turn.message) for turn in tree.turns] == ["", "1"]
    assert tree.turns[0].calls[0].name == "add"
    assert text_of(tree.turns[0].observation[0]) == "1"


def test_openai_types_accept_our_lines(tmp_path: Path) -> None:
    """The messages and tools of a line have the types that OpenAI's client declares."""
    chat = pytest.importorskip("openai.types.chat")
    from pydantic import TypeAdapter

    out = sent("openai-chat", golden("parallel_calls", "subagent", "rewrite"), tmp_path / "out")
    messages = TypeAdapter(list[chat.ChatCompletionMessageParam])
    tools = TypeAdapter(list[chat.ChatCompletionToolParam])
    lines = [json.loads(line) for line in (out / "chat.jsonl").read_text().splitlines()]
    for line in lines:
        messages.validate_python(line["messages"])
        tools.validate_python(line.get("tools", []))
        assert line["messages"][-1]["role"] == "assistant"
    assert len(lines) == 5  # one, the sub-agent's, and the rewritten context's


# verifiers -----------------------------------------------------------------------------------


def test_verifiers_writes(tmp_path: Path) -> None:
    """An episode that verifiers' own graph and store write: ids, a call, a rewrite, rewards."""
    vf = pytest.importorskip("verifiers.v1")
    from verifiers.v1.configs.agent import WireAgentConfig
    from verifiers.v1.episode import EnvInfo, Episode
    from verifiers.v1.graph import prepare_turn
    from verifiers.v1.state import State
    from verifiers.v1.task import WireTaskData
    from verifiers.v1.trace import AgentInfo, Trace, TraceTask
    from verifiers.v1.types import (
        AssistantMessage,
        Response,
        Tool,
        ToolCall,
        ToolMessage,
        TurnTokens,
        Usage,
        UserMessage,
    )
    from verifiers.v1.utils.trace_store import write_episode

    assert vf
    task = TraceTask(
        type="Sums", data=WireTaskData(idx=0, name="sums-0", prompt="1+2?", answer="3")
    )
    trace = Trace[WireTaskData, State, WireAgentConfig](
        task=task, agent=AgentInfo(config=WireAgentConfig(model="m"), name="solver")
    )

    def respond(prompt: list[Any], message: Any, ids: list[int], new: list[int]) -> list[Any]:
        response = Response(
            id="r",
            created=0,
            model="m",
            message=message,
            finish_reason="stop",
            usage=Usage(prompt_tokens=4, completion_tokens=2, cached_input_tokens=1),
            tokens=TurnTokens(
                prompt_ids=ids, completion_ids=new, completion_logprobs=[-0.12345] * len(new)
            ),
        )
        prepare_turn(trace, prompt, [Tool(name="add", description="Add.")]).commit(response)
        return [*prompt, message]

    call = ToolCall(id="c", name="add", arguments="{}")
    history = respond(
        [UserMessage(content="1+2?")],
        AssistantMessage(content="", reasoning_content="hm", tool_calls=[call]),
        [1, 2],
        [3, 4],
    )
    history.append(ToolMessage(tool_call_id="c", content="3", name="add"))
    respond(history, AssistantMessage(content="3"), [1, 2, 3, 4, 5, 6], [7])
    respond([UserMessage(content="short")], AssistantMessage(content="three"), [8, 9], [10])
    trace.record_reward("right", 0.5, weight=2.0)
    trace.record_metric("turns", 3)
    trace.ok = True
    trace.stop("agent_completed")
    files = tmp_path / "files"
    files.mkdir()
    write_episode(files, Episode(env=EnvInfo(id="sums"), task=task, traces=[trace], ok=True))
    (tree,), tasks, report = imported("verifiers", files, tmp_path / "run")
    assert report.exact == report.turns == 3
    assert [turn.edge for turn in tree.turns] == ["continue", "continue", "rewrite"]
    assert [tree.prompt(turn).tolist() for turn in tree.turns] == [
        [1, 2],
        [1, 2, 3, 4, 5, 6],
        [8, 9],
    ]
    assert tree.turns[0].message["reasoning_content"] == "hm"
    assert [one.status for one in tree.turns[0].calls] == ["ok"]
    assert [one["function"]["name"] for one in tree.record.tools] == ["add"]
    assert tasks["sums-0"].data["answer"] == "3"
    assert tree.attempts[0].outcome is not None
    assert tree.attempts[0].outcome.score == 1.0
    assert tree.attempts[0].outcome.details["metrics"] == {"turns": 3.0}
    assert set(report.lost) == {"agent", "policy versions"}


def test_verifiers_reads_our_traces(tmp_path: Path) -> None:
    """Its reader gives a training sample per branch with the ids and log-probs of our rows."""
    pytest.importorskip("verifiers.v1")
    from verifiers.v1.trace import WireTrace
    from verifiers.v1.utils.trace_store import read_episodes

    trees = golden("parallel_calls", "subagent", "rewrite", "truncated", "failed", "two_versions")
    out = sent("verifiers", trees, tmp_path / "out")
    episodes = read_episodes(out, WireTrace)
    assert [one.id for one in episodes] == [tree.record.id for tree in trees]
    for tree, episode in zip(trees, episodes, strict=True):
        (trace,) = episode.traces
        samples = [(branch.token_ids, branch.sampled_mask) for branch in trace.branches]
        for turn in tree.turns:
            if turn.tokens is None:
                continue
            whole = tree.sequence(turn).tolist()
            mask = next(mask for ids, mask in samples if ids[: len(whole)] == whole)
            size = turn.tokens.response_ids.size
            assert mask[len(whole) - size : len(whole)] == turn.tokens.sampled_mask.tolist()
        outcome = tree.attempts[0].outcome
        assert trace.reward == (outcome.score if outcome else 0.0)
        assert trace.num_turns == len(tree.turns)
        assert trace.is_truncated == (tree.attempts[0].status.kind == "truncated")
        assert trace.has_error == (not tree.attempts[0].status.scored)
    linked = episodes[1].traces[0]
    assert {link.type for node in linked.nodes for link in node.semantic_parents} == {
        "subagent_call",
        "subagent_return",
    }


# Atropos -------------------------------------------------------------------------------------


def test_atropos_takes_our_groups(tmp_path: Path) -> None:
    """Its API accepts an exported group, and gives it to a trainer in a batch."""
    server = pytest.importorskip("atroposlib.api.server")
    from fastapi.testclient import TestClient

    trees = golden("two_versions", "parallel_calls")
    out = sent("atropos", trees, tmp_path / "out")
    lines = [json.loads(line) for line in (out / "groups.jsonl").read_text().splitlines()]
    size = sum(len(line["tokens"]) for line in lines)
    registration = {
        "wandb_group": "g",
        "wandb_project": "p",
        "batch_size": size,
        "max_token_len": 99,
        "checkpoint_dir": str(tmp_path),
        "save_checkpoint_interval": 1,
        "starting_step": 0,
        "num_steps": 1,
    }
    client = TestClient(server.app)
    assert client.get("/reset_data").status_code == 200
    assert client.post("/register", json=registration).status_code == 200
    for line in lines:
        sent_line = client.post("/scored_data", json=line)
        assert sent_line.json() == {"status": "received"}
    batch = client.get("/batch").json()["batch"]
    fields = ("tokens", "masks", "scores", "messages", "inference_logprobs", "generation_params")
    by_ids = {json.dumps(one["tokens"]): one for one in batch}
    for line in lines:
        found = by_ids[json.dumps(line["tokens"])]
        assert {name: found[name] for name in fields} == {name: line[name] for name in fields}
    (tmp_path / "batch").mkdir()
    written = "\n".join(json.dumps(one) for one in batch)
    (tmp_path / "batch" / "groups.jsonl").write_text(written)
    back, _, report = imported("atropos", tmp_path / "batch", tmp_path / "run")
    # A turn with inserted ids has more sampled parts than answers: text, and reported.
    assert report.lost == {"unmatched ids": 1, "policy versions": 1}
    (exact,) = (tree for tree in back if tree.turns[0].tokens is not None)
    assert exact.sequence(exact.turns[0]).tolist() == trees[1].sequence(trees[1].turns[0]).tolist()


# OpenHands -----------------------------------------------------------------------------------


def test_openhands_writes(tmp_path: Path) -> None:
    """A conversation of the real agent with its scripted model: calls, an error, a finish."""
    sdk = pytest.importorskip("openhands.sdk")
    from openhands.sdk.llm import Message, MessageToolCall, TextContent
    from openhands.sdk.testing import TestLLM

    def call(number: int, name: str, **arguments: str) -> Any:
        text = json.dumps(arguments)
        return MessageToolCall(id=f"c{number}", name=name, arguments=text, origin="completion")

    llm = TestLLM.from_messages(
        [
            Message(
                role="assistant",
                content=[TextContent(text="let me see")],
                reasoning_content="hm",
                tool_calls=[call(1, "think", thought="a bug"), call(2, "missing")],
            ),
            Message(role="assistant", content=[], tool_calls=[call(3, "finish", message="done")]),
        ]
    )
    conversation = sdk.Conversation(
        agent=sdk.Agent(llm=llm, tools=[]),
        workspace=str(tmp_path),
        persistence_dir=str(tmp_path / "files"),
        visualizer=None,
    )
    conversation.send_message("fix it")
    conversation.run()
    (tree,), tasks, report = imported("openhands", tmp_path / "files", tmp_path / "run")
    first, second = tree.turns
    assert [one["role"] for one in first.context] == ["system", "user"]
    assert first.message["reasoning_content"] == "hm"
    assert [(one.name, one.status) for one in first.calls] == [
        ("think", "ok"),
        ("missing", "error"),
    ]
    assert [text_of(one) for one in second.observation] == ["done"]
    assert [task.prompt for task in tasks.values()] == ["fix it"]
    assert first.policy == "imported:test-model"
    assert first.started_at > 0
    assert str(tree.attempts[0].status) == "completed"
    assert set(report.lost) == {"configuration", "tools"}


# OpenEnv -------------------------------------------------------------------------------------


def test_openenv_traces_both_ways(tmp_path: Path) -> None:
    """Its strict model accepts our trace, writes it again, and that is imported token-exactly."""
    training = pytest.importorskip("openenv.core.harness.training")

    trees = golden("two_versions", "parallel_calls")
    out = sent("openenv", trees, tmp_path / "out")
    for tree in trees:
        file = out / f"{tree.record.id}.training_trace.json"
        trace = training.TrainingTrace.model_validate_json(file.read_text())
        for turn, call in zip(tree.turns, trace.turns, strict=True):
            assert call.prompt_token_ids + call.completion_token_ids == tree.sequence(turn).tolist()
        bare = [
            one.model_copy(update={"metadata": {"model": "m", "n_tools": 0}}) for one in trace.turns
        ]
        again = training.TrainingTrace(turns=bare)
        (tmp_path / "theirs").mkdir(exist_ok=True)
        theirs = tmp_path / "theirs" / f"{tree.record.id}.training_trace.json"
        theirs.write_text(again.model_dump_json())
    back, _, report = imported("openenv", tmp_path / "theirs", tmp_path / "run")
    assert report.exact == report.turns == sum(len(tree.turns) for tree in trees)
    whole = {str(tree.sequence(turn).tolist()) for tree in trees for turn in tree.turns}
    assert {str(tree.sequence(turn).tolist()) for tree in back for turn in tree.turns} == whole
    assert set(report.lost) == {"policy versions"}
