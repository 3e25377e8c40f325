"""The groups of a session server through verl's agent loop."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.feeding import farm
from tests.trl.tiny import tasks
from tests.verl.chain import loop, row, sampling
from tests.verl.fake import FakeServers
from trajgym.adapters.verl import write_prompts
from trajgym.envs import EnvSpec
from trajgym.server import ServerConfig

WORDS = EnvSpec(id="tests.trl.tiny:Words")
(TASK,) = tasks(1)
ESTIMATOR = "algorithm.adv_estimator=trajgym"


def output_ids(output: Any) -> bytes:
    return np.array(output.prompt_ids + output.response_ids, dtype=np.int32).tobytes()


async def test_rollouts_are_fed_sessions(tiny: Any, tmp_path: Path) -> None:
    """Every rollout gets a session's row, with the advantages of its whole group as rewards."""
    servers = FakeServers()
    with farm(tmp_path) as agents:
        for i in range(2):
            await asyncio.to_thread(agents.group, f"g{i}", 1.0, 0.0)
        rows = agents.rows()
        feed = f"+trajgym.feed.url={agents.url}"
        made = [loop(tiny, servers, feed, ESTIMATOR) for _ in range(4)]
        given = [one.run(sampling(), **row(TASK, WORDS, session=i)) for i, one in enumerate(made)]
        outputs = [output for found in await asyncio.gather(*given) for output in found]
        assert agents.acknowledged == {"trainer": 0}
        assert agents.version == 7
    assert servers.requests == []
    assert len(outputs) == len(rows) == 4
    for output in outputs:
        recorded = rows.pop(output_ids(output))
        start = len(output.prompt_ids)
        assert recorded.advantage is not None
        assert [bool(m) for m in output.response_mask] == recorded.loss_mask[start:].tolist()
        assert output.response_logprobs == recorded.logprobs[start:].tolist()
        assert output.token_rewards == recorded.advantage[start:].tolist()
        assert output.extra_fields["reward_extra_info"]["trajgym_score"] in {0.0, 1.0}
    assert not rows


async def test_a_feed_needs_an_estimator_that_takes_advantages(
    tiny: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """With verl's own estimator the advantages would be normalised by prompt: no row, and why."""
    with farm(tmp_path) as agents:
        await asyncio.to_thread(agents.group, "g", 1.0, 0.0)
        made = loop(tiny, FakeServers(), f"+trajgym.feed.url={agents.url}")
        assert await made.run(sampling(), **row(TASK, WORDS)) == []
        assert agents.acknowledged == {}
    assert "algorithm.adv_estimator" in caplog.text


async def test_validation_is_sampled(tiny: Any, tmp_path: Path) -> None:
    """Rollouts that are not trained run the environment of their row, and take no group."""
    servers = FakeServers()
    with farm(tmp_path) as agents:
        made = loop(tiny, servers, f"+trajgym.feed.url={agents.url}", ESTIMATOR)
        greedy = sampling() | {"temperature": 0, "top_p": 1.0, "top_k": -1}
        (output,) = await made.run(greedy, **row(TASK, WORDS, session=1))
        assert agents.acknowledged == {}
    assert servers.requests
    assert output.reward_score == pytest.approx(1 / 3)


def test_workers_divide_the_feed(chain: Any, tmp_path: Path) -> None:
    """In verl's own chain with two workers, each session of the feed is one rollout, once."""
    prompts = tmp_path / "train.parquet"
    assert write_prompts(prompts, tasks(4), WORDS) == 4
    with farm(tmp_path / "run", ServerConfig()) as agents:
        for i in range(16):
            agents.group(f"g{i}", 1.0, 0.0)
        recorded = agents.rows()
        rows = chain.rollout(
            prompts,
            FakeServers(),
            f"+trajgym.feed.url={agents.url}",
            "actor_rollout_ref.rollout.agent.num_workers=2",
            "data.train_batch_size=4",
            ESTIMATOR,
        )
        consumers = set(agents.acknowledged)
    assert set(rows.statuses.values()) == {"finished"}
    assert len(rows) == 16
    prompt_ids, responses = rows.get("prompts"), rows.get("responses")
    taken = {
        np.array(p + r, dtype=np.int32).tobytes()
        for p, r in zip(prompt_ids, responses, strict=True)
    }
    assert len(taken) == 16
    assert taken <= set(recorded)
    assert consumers == {"trainer.0-of-2", "trainer.1-of-2"}
