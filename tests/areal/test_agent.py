"""Agents through AReaL's own OpenAI proxy, and what they may return."""

from __future__ import annotations

import asyncio
import multiprocessing
import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.areal.proxy import proxying
from tests.areal.test_workflow import WITHIN, loader, raised, some, within
from trajgym.adapters.areal import EnvAgent, ExternalAgent, task_dataset
from trajgym.trajectory import InvalidInput, Outcome, Run


@pytest.fixture
def proxy(
    request: pytest.FixtureRequest, tiny: Any, engine: Callable[..., Any]
) -> Iterator[tuple[Any, str]]:
    """AReaL's engine with a proxy in front of it."""
    from areal.api.cli_args import AgentConfig

    settings = {"mode": "inline", "engine_max_tokens": 512, **getattr(request, "param", {})}
    agent = AgentConfig(agent_cls_path="x", **settings)
    made = engine(max_head_offpolicyness=2, tokenizer_path=tiny.path, agent=agent)
    with proxying(made) as address:
        yield made, address


def rollout(proxy: tuple[Any, str], agent: Any, data: list[Any]) -> list[dict[str, Any]]:
    made, address = proxy
    flow = made._resolve_workflow(agent, None, 1, proxy_addr=address)
    for element in data:
        made.submit(element, flow)
    found: list[dict[str, Any]] = within(WITHIN, made.wait, len(data))
    return found


def test_an_environment_is_played_through_the_proxy(
    tiny: Any, proxy: tuple[Any, str], tmp_path: Path
) -> None:
    """Each completion's row has its turn's return, and the session is in the store."""
    agent = EnvAgent("test/areal", tmp_path, deriver="step_reward", max_tokens=16)
    (trajectory,) = rollout(proxy, agent, task_dataset(some(1)))
    with Run(tmp_path) as run:
        (tree,) = [run.session(s.record.id) for s in run.summaries()]
    assert str(tree.attempts[0].status) == "truncated:turns"
    earned = [turn.reward or 0.0 for turn in tree.turns]
    returns = np.cumsum(earned[::-1])[::-1]
    np.testing.assert_allclose(trajectory["rewards"].numpy(), returns)
    said = [tiny.tokenizer.decode(ids[mask.bool()]) for ids, mask in _rows(trajectory)]
    for text, turn in zip(said, tree.turns, strict=True):
        assert str(turn.message["content"]) in text


@pytest.mark.parametrize("proxy", [{"mode": "subproc"}], indirect=True)
def test_an_environment_is_played_in_another_process(
    proxy: tuple[Any, str], tmp_path: Path
) -> None:
    """AReaL's subprocesses give address and key through the environment only."""
    agent = EnvAgent("tests.areal.worlds:Moody", tmp_path, max_tokens=16)
    (trajectory,) = rollout(proxy, agent, task_dataset(some(1)))
    assert trajectory["input_ids"].shape[0] == 3
    with Run(tmp_path) as run:
        assert len(list(run.summaries())) == 1


@pytest.mark.parametrize(
    "proxy", [{"chat_template_type": "concat", "export_style": "concat"}], indirect=True
)
def test_areal_sees_one_conversation(proxy: tuple[Any, str], tmp_path: Path) -> None:
    """The messages come back to AReaL as it sent them: its tree of completions is one path."""
    agent = EnvAgent("test/areal", tmp_path, max_tokens=16)
    (trajectory,) = rollout(proxy, agent, task_dataset(some(1)))
    assert trajectory["input_ids"].shape[0] == 1
    with Run(tmp_path) as run:
        (summary,) = run.summaries()
        assert len(run.session(summary.record.id).turns) == 3


def test_a_failed_session_is_rejected_and_not_a_zero(
    proxy: tuple[Any, str], tmp_path: Path
) -> None:
    """An environment that fails gives no trajectory; the store has the cause."""
    agent = EnvAgent("test/areal", tmp_path, max_tokens=16)
    assert rollout(proxy, agent, task_dataset(some(1, **{"break": 0}))) == [None]
    with Run(tmp_path) as run:
        (summary,) = run.summaries()
    assert str(summary.attempts[0].status) == "failed:env"


def test_failing_sessions_end_the_training(proxy: tuple[Any, str], tmp_path: Path) -> None:
    """AReaL would sample for ever; after some failures in a row its executor is stopped."""
    made, address = proxy
    agent = EnvAgent("test/areal", tmp_path, max_tokens=16, give_up=4)
    flow = made._resolve_workflow(agent, None, 1, proxy_addr=address)
    batch = partial(made.prepare_batch, loader(some(60, **{"break": "all"})), flow, group_size=1)
    said = within(WITHIN, raised, batch)
    assert said.startswith(
        "RuntimeError: Background thread failed: 4 consecutive groups had no row"
    )
    assert "failed:env" in said
    with Run(tmp_path) as run:
        assert len(list(run.summaries())) < 20


def test_failing_sessions_of_another_process_end_the_training(tmp_path: Path) -> None:
    """In AReaL's pool of processes an agent interrupts the process that started the pool."""
    interrupted = threading.Event()
    before = signal.signal(signal.SIGINT, lambda *_: interrupted.set())
    try:
        with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
            for _ in range(3):
                assert not interrupted.is_set()
                assert "failing for a reason" in pool.submit(fail_once, 3).result(WITHIN)
        assert interrupted.wait(WITHIN)
    finally:
        signal.signal(signal.SIGINT, before)


def fail_once(give_up: int) -> str:
    """Run an agent that fails, as AReaL's workers do."""
    agent = ExternalAgent(f"{__name__}:failing", give_up=give_up)
    try:
        asyncio.run(agent.run({}))
    except RuntimeError as error:
        return str(error)
    return "nothing was raised"


async def failing(data: Any) -> float:
    raise RuntimeError("failing for a reason")


def test_a_callers_agent_is_scored(proxy: tuple[Any, str]) -> None:
    """An agent that returns an int, which AReaL alone would reject, trains with it as a float."""

    async def agent(data: Any, *, base_url: str, api_key: str, http_client: Any) -> int:
        from openai import AsyncOpenAI

        client = AsyncOpenAI(base_url=base_url, api_key=api_key, http_client=http_client)
        asked = [{"role": "user", "content": data["question"]}]
        await client.chat.completions.create(
            model="default", messages=asked, max_completion_tokens=8
        )
        return 1

    (trajectory,) = rollout(proxy, ExternalAgent(agent), [{"question": "Is it 1?"}])
    assert trajectory["rewards"].tolist() == [1.0]


@pytest.mark.parametrize(
    ("returned", "score"),
    [
        (1, 1.0),
        (True, 1.0),
        (Outcome(score=0.5, passed=False), 0.5),
        ({"a": 1, "b": 0.25}, {"a": 1.0, "b": 0.25}),
    ],
)
async def test_scores_become_floats(returned: Any, score: Any) -> None:
    """What AReaL takes is a float, or floats by completion."""

    async def agent(data: Any, **_: Any) -> Any:
        return returned

    found = await ExternalAgent(agent).run({})
    assert found == score
    assert all(type(v) is float for v in (found.values() if isinstance(found, dict) else [found]))


@pytest.mark.parametrize("returned", [None, float("nan"), "good", {"a": None}])
async def test_what_is_no_score_is_refused(returned: Any) -> None:
    """A forgotten return is an error that names it."""

    async def agent(data: Any, **_: Any) -> Any:
        return returned

    with pytest.raises(InvalidInput, match="return a finite score"):
        await ExternalAgent(agent).run({})


async def test_an_agent_that_hangs_is_cancelled() -> None:
    """A deadline ends it, where AReaL would wait for ever."""
    cancelled = asyncio.Event()

    async def agent(data: Any, **_: Any) -> float:
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()
        return 0.0

    with pytest.raises(TimeoutError):
        await ExternalAgent(agent, timeout=0.01).run({})
    assert cancelled.is_set()


def test_advantages_are_refused(tmp_path: Path) -> None:
    """AReaL would add up advantages over turns: the agent refuses them before anything runs."""
    with pytest.raises(InvalidInput, match="gives advantages"):
        EnvAgent("test/areal", tmp_path, deriver="grpo")


def _rows(trajectory: dict[str, Any]) -> list[tuple[Any, Any]]:
    return list(zip(trajectory["input_ids"], trajectory["loss_mask"], strict=True))
