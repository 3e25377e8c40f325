"""OpenEnv's servers as environments, and served environments played by OpenEnv's clients."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.worlds import call
from trajgym.envs import Budgets, EnvSpec, Session, UnknownEnv, tools_of
from trajgym.rollout import Runner, ScriptedPolicy
from trajgym.server import EnvApp, Limits, ServerConfig, running
from trajgym.trajectory import InvalidInput, Run, Store, Task, text_of

pytestmark = pytest.mark.interchange
pytest.importorskip("openenv.core.env_server")

from openenv.core import GenericEnvClient  # noqa: E402
from openenv.core.env_server.mcp_types import CallToolAction  # noqa: E402
from openenv.core.mcp_client import MCPToolClient  # noqa: E402

from tests.interchange.packages.openenv_worlds import BUSY, served  # noqa: E402

COUNTER = EnvSpec(id="tests.worlds:Counter")


@pytest.fixture(scope="module")
def guess() -> Iterator[str]:
    with served("guess") as url:
        yield url


@pytest.fixture(scope="module")
def abacus() -> Iterator[str]:
    with served("abacus") as url:
        yield url


# An OpenEnv server as an environment ---------------------------------------------------------


async def test_an_episode_with_typed_actions(guess: str, tmp_path: Path) -> None:
    """The tool has the server's schema; invalid actions are told to the agent; rewards add up."""
    spec = EnvSpec(id="openenv", config={"url": guess})
    (tool,) = tools_of(spec.resolve()).values()
    assert tool.schema["function"]["parameters"]["properties"]["guess"]["minimum"] == 0
    assert "metadata" not in tool.schema["function"]["parameters"]["properties"]
    task = Task(id="g", prompt="Guess.", data={"high": 1})
    async with (
        Store(tmp_path / "run") as store,
        Session(spec, task, store=store, seed=5) as session,
    ):
        assert text_of(session.messages[0]) == "Guess.\n\na number from 0 to 1"
        refused = await session.step(call(("act", '{"guess": -1}')))
        assert "greater than or equal to 0" in text_of(refused.observation[0])
        assert session.turns[0].calls[0].status == "invalid"
        said = await session.step({"role": "assistant", "content": "zero?"})
        assert "act" in text_of(said.observation[0])
        for number in (0, 1):
            if not session.done:
                await session.step(call(("act", json.dumps({"guess": number}))))
        assert str(session.status) == "completed"
        assert session.outcome is not None
        given = [turn.reward for turn in session.turns if turn.reward is not None]
        assert session.outcome.score == sum(given)
        assert given[-1] == 1.0
        assert session.outcome.passed
        assert session.outcome.details == {"rewards": len(given)}


async def test_equal_seeds_start_equal_episodes(guess: str) -> None:
    """The session's seed reaches the server, so that a fork replays to the same state."""
    spec = EnvSpec(id="openenv", config={"url": guess, "text": "guess"})
    task = Task(id="g", data={"high": 1000})

    async def hints(seed: int) -> list[str]:
        async with Session(spec, task, seed=seed) as session:
            seen = [await session.step(call(("act", f'{{"guess": {n}}}'))) for n in (500, 250, 750)]
            return [text_of(one.observation[0]) for one in seen]

    assert await hints(1) == await hints(1)
    found = [await hints(seed) for seed in range(4)]
    assert len({tuple(one) for one in found}) > 1


async def test_sessions_wait_for_a_server_with_one_place(guess: str, tmp_path: Path) -> None:
    """Four attempts at a server that has one session at a time: all are completed."""
    spec = EnvSpec(id="openenv", config={"url": guess})
    policy = ScriptedPolicy([call(("act", f'{{"guess": {n}}}')) for n in (0, 1)])
    task = Task(id="g", data={"high": 1})
    async with Store(tmp_path / "run") as store:
        async with Runner(spec, [task], policy, store=store, samples=4, concurrency=4) as runner:
            groups = [group async for group in runner]
    assert len(groups) == 1
    with Run(tmp_path / "run") as run:
        ends = [str(tree.attempts[0].status) for tree in run.sessions()]
    assert ends == ["completed"] * 4


async def test_a_crash_of_the_server_is_not_a_reward(guess: str) -> None:
    """An exception in the environment ends the attempt as failed, without a score."""
    spec = EnvSpec(id="openenv", config={"url": guess})
    async with Session(spec, Task(id="g", data={"high": 20}), seed=1) as session:
        await session.step(call(("act", '{"guess": 13}')))
        assert str(session.status) == "failed:env"
        assert "out of luck" in session.attempt.cause
        assert session.outcome is None


async def test_a_busy_server_costs_the_attempt_its_time_only(guess: str) -> None:
    """A step that outlasts the agent's budget is cut, and the attempt is scored."""
    spec = EnvSpec(id="openenv", config={"url": guess})
    budgets = Budgets(seconds_per_turn=1.0)
    try:
        async with Session(spec, Task(id="g"), seed=1, budgets=budgets) as session:
            await session.step(call(("act", '{"guess": 11}')))
            assert str(session.status) == "truncated:seconds_per_turn"
            assert session.outcome is not None
            assert session.outcome.details == {"rewards": 0}
    finally:
        BUSY.set()


async def test_a_text_answer_can_be_an_action(guess: str) -> None:
    """With ``text``, the field takes the answer; the server converts it."""
    spec = EnvSpec(id="openenv", config={"url": guess, "text": "guess"})
    async with Session(spec, Task(id="g", data={"high": 0}), seed=1) as session:
        await session.step({"role": "assistant", "content": "0"})
        assert session.outcome is not None
        assert session.outcome.passed


async def test_the_servers_tools_are_the_agents(abacus: str) -> None:
    """Tools over MCP, parallel calls, an error of a tool, a missing tool, rewards, an answer."""
    spec = EnvSpec(id="openenv", config={"url": abacus})
    assert sorted(tools_of(spec.resolve())) == ["add", "crash"]
    async with Session(spec, Task(id="a", prompt="Add."), seed=1) as session:
        seen = await session.step(
            call(("add", '{"x": 1, "y": 2}'), ("add", '{"x": 3, "y": 4}'), ("gone", "{}"))
        )
        assert [text_of(one) for one in seen.observation[:2]] == ["3", "7"]
        assert seen.reward == 1.0
        seen = await session.step(call(("crash", "{}")))
        assert "the abacus fell" in text_of(seen.observation[0])
        assert seen.reward == -0.5
        seen = await session.step(call(("add", '{"x": "one"}')))
        assert "y" in text_of(seen.observation[0])
        await session.step({"role": "assistant", "content": "3 and 7"})
        assert str(session.status) == "completed"
        assert session.outcome is not None
        assert session.outcome.details == {"rewards": 4}
        assert not session.outcome.passed


async def test_wrong_settings_are_named(guess: str, abacus: str) -> None:
    """Unknown fields, an unreachable server, a URL that is none."""
    with pytest.raises(InvalidInput, match="guess"):
        EnvSpec(id="openenv", config={"url": guess, "text": "nothing"}).make()
    with pytest.raises(InvalidInput, match="tools"):
        EnvSpec(id="openenv", config={"url": abacus, "text": "guess"}).make()
    with pytest.raises(UnknownEnv, match="no response"):
        EnvSpec(id="openenv", config={"url": "http://127.0.0.1:9"}).resolve()
    with pytest.raises(UnknownEnv, match="is not the URL"):
        EnvSpec(id="openenv").make()
    spec = EnvSpec(id="openenv", config={"url": guess, "fields": ["picture"]})
    async with Session(spec, Task(id="g"), seed=1) as session:
        assert str(session.status) == "failed:env"
        assert "picture" in session.attempt.cause


# A served environment, played by OpenEnv's clients -------------------------------------------


async def test_openenvs_tool_client_plays_and_the_run_is_recorded(tmp_path: Path) -> None:
    """Tools are discovered and called; rewards, the end and errors are as the client expects."""
    async with Store(tmp_path / "run") as store:
        app = EnvApp({"counter": COUNTER}, store=store)
        async with running(app) as url, MCPToolClient(f"{url}/envs/counter/openenv") as client:
            tools = {one.name: one for one in await client.list_tools()}
            assert tools["add"].input_schema["properties"]["n"]["type"] == "integer"
            await client.reset(seed=3, episode_id="one")
            assert await client.call_tool("add", n=2) == "now 2"
            with pytest.raises(RuntimeError, match="I will not"):
                await client.call_tool("refuse")
            for name, arguments, kind in (
                ("refuse", {}, "execution_error"),
                ("gone", {}, "tool_not_found"),
                ("add", {"n": "many"}, "invalid_args"),
            ):
                seen = await client.step(CallToolAction(tool_name=name, arguments=arguments))
                assert seen.observation.error.error_type.value == kind
            state = await client.state()
            assert (state.episode_id, state.step_count) == ("one", 5)
            last = await client.step(CallToolAction(tool_name="finish"))
            assert last.done
            with pytest.raises(RuntimeError, match="ended"):
                await client.call_tool("add")
    with Run(tmp_path / "run") as run:
        (tree,) = run.sessions()
    assert tree.record.id == "one"
    assert [turn.reward for turn in tree.turns] == [0.1, None, None, None, None, 1.0]
    outcome = tree.attempts[0].outcome
    assert outcome is not None
    assert last.reward == 1.0 + outcome.score


async def test_openenvs_generic_client_plays_tasks_by_messages() -> None:
    """Whole messages and texts as actions; tasks by id, by the seed, as objects, in order."""
    tasks = [Task(id="a"), Task(id="b")]
    app = EnvApp({"counter": COUNTER}, tasks={"counter": tasks})
    async with running(app) as url, GenericEnvClient(f"{url}/envs/counter/openenv") as client:
        seen = []
        for how in ({}, {}, {"seed": 1}, {"task": "a"}, {"task": {"id": "mine"}}):
            opened = await client.reset(**how)
            assert opened.observation["text"] == "Count to 3."
            seen.append((await client.state())["task"])
        assert seen == ["a", "b", "b", "a", "mine"]
        with pytest.raises(RuntimeError, match="VALIDATION_ERROR"):
            await client.reset(task="gone")
        with pytest.raises(RuntimeError, match="unknown fields"):
            await client.reset(difficulty=3)
        await client.reset()
        message = call(("add", '{"n": 1}'), ("add", '{"n": 2}'))
        both = await client.step({"type": "message", "message": message})
        assert [text_of(one) for one in both.observation["messages"]] == ["now 1", "now 3"]
        assert both.reward == pytest.approx(0.2)
        end = await client.step({"content": "three"})
        assert end.done
        assert end.observation["status"] == "completed"
        assert end.reward == end.observation["outcome"]["score"] == 1.0


async def test_a_failing_environment_is_an_error_of_the_step() -> None:
    """A failure has no reward; the next episode on the same connection is a new environment."""
    async with (
        running(EnvApp({"counter": COUNTER})) as url,
        GenericEnvClient(f"{url}/envs/counter/openenv") as client,
    ):
        await client.reset()
        with pytest.raises(RuntimeError, match=r"failed:env.*EXECUTION_ERROR"):
            await client.step({"type": "call_tool", "tool_name": "bug", "arguments": {}})
        await client.reset()
        again = await client.step({"type": "call_tool", "tool_name": "add", "arguments": {"n": 1}})
        assert again.observation["result"]["data"] == "now 1"


async def test_places_and_secrets() -> None:
    """A full server says so in OpenEnv's code; a leaving client frees its place; secrets hold."""
    config = ServerConfig(secret="sesame", limits=Limits(environments=1))
    async with running(EnvApp({"counter": COUNTER}, config)) as url:
        base = f"{url}/envs/counter/openenv"
        headers = {"Authorization": "Bearer sesame"}
        with pytest.raises(ConnectionError, match="403"):
            await GenericEnvClient(base).connect()
        async with GenericEnvClient(base, headers=headers) as first:
            await first.reset()
            async with GenericEnvClient(base, headers=headers) as second:
                with pytest.raises(RuntimeError, match="CAPACITY_REACHED"):
                    await second.reset()
        async with GenericEnvClient(base, headers=headers) as third, asyncio.timeout(240):
            while True:
                try:
                    await third.reset()
                    break
                except RuntimeError:
                    await asyncio.sleep(0.01)


async def test_openenv_validates_the_server() -> None:
    """`openenv validate --url` has nothing to object to."""
    from openenv.cli._validation import validate_running_environment

    async with running(EnvApp({"counter": COUNTER})) as url:
        report = await asyncio.to_thread(
            validate_running_environment, f"{url}/envs/counter/openenv"
        )
    assert report["passed"], json.dumps(report, indent=1)
