"""The agent loop in verl's V1 chain: workers, TransferQueue and replay buffer in local Ray."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.trl.tiny import tasks
from tests.verl.chain import composed, configuration
from tests.verl.fake import FakeServers, one_of_all, talk
from trajgym.adapters.verl import write_prompts
from trajgym.envs import EnvSpec
from trajgym.rewards import apply, get_deriver
from trajgym.rollout import PolicyUnavailable
from trajgym.rollout.engines import FakeCall
from trajgym.trajectory import Message, Run, build_rows

WORDS = EnvSpec(id="tests.trl.tiny:Words")


@pytest.fixture
def prompts(tmp_path: Path) -> Path:
    """Two tasks as verl's data."""
    path = tmp_path / "train.parquet"
    assert write_prompts(path, tasks(2), WORDS) == 2
    return path


def test_a_column_is_enough(chain: Any, prompts: Path) -> None:
    """With agent_name in the data, verl's workers play our sessions and queue their rows.

    Its reward workers, which know no rule for this data, are not asked.
    """
    rows = chain.rollout(prompts, FakeServers(), rewards=True)
    assert set(rows.statuses.values()) == {"finished"}
    scores = {key: sum(values) for key, values in rows.by_key("rm_scores").items()}
    assert scores == pytest.approx({(p, s, 0): s / 3 for p in range(2) for s in range(4)})
    masks, logprobs = rows.get("response_mask"), rows.get("rollout_log_probs")
    for mask, values in zip(masks, logprobs, strict=True):
        assert mask[-1] == 1
        assert [value != 0 for value in values] == [bool(m) for m in mask]
    assert all(type(tag["min_global_steps"]) is int for tag in rows.batch.tags)


def lost(call: FakeCall) -> str:
    """Fail in the second turn of session 1."""
    if call.session.endswith("-1") and call.turn == 1:
        raise PolicyUnavailable("replica gone")
    return talk(call)


def test_a_failed_session_leaves_its_siblings(chain: Any, prompts: Path) -> None:
    """A session without a row costs its group nothing else: verl still calls it finished."""
    rows = chain.rollout(prompts, FakeServers(lost))
    assert set(rows.statuses.values()) == {"finished"}
    assert {(p, s) for p, s, _ in rows.by_key("uid")} == {
        (p, s) for p in range(2) for s in (0, 2, 3)
    }


def test_an_asynchronous_trainer_refills_nothing(chain: Any, prompts: Path) -> None:
    """Verl throws a group away for one exception, and samples it again; it gets none."""
    refills: list[int] = []
    rows = chain.rollout(prompts, FakeServers(lost), refills=refills)
    assert len(rows) == 6
    assert refills == []


def expected(folder: Path, deriver: str, uids: list[str]) -> dict[Any, Any]:
    """Return advantages of recorded sessions by prompt, session and turns of the row."""
    made = get_deriver(deriver)
    with Run(folder) as run:
        trees, groups = list(run.sessions()), list(run.groups())
    assert [group.sealed for group in groups] == [True, True]
    values = made.derive(made.table(groups, trees))
    found = {}
    for tree in trees:
        for row in apply(build_rows(tree).rows, values):
            assert row.advantage is not None
            place = uids.index(str(tree.record.group)), tree.record.sample
            kept = row.advantage[int(row.loss_mask.argmax()) :].tolist()
            found[place, row.turns] = kept
    return found


def said(call: FakeCall) -> str | Message:
    """Vary with the attempt too, so that rival attempts differ."""
    return one_of_all(call) if (call.seed or 0) % 3 else "maybe"


@pytest.mark.parametrize(
    ("deriver", "more"),
    [
        ("gigpo", []),
        ("tree_grpo", ["+trajgym.expansion.name=tree"]),
    ],
)
def test_our_trainer_has_the_derivers_advantages(
    chain: Any, prompts: Path, tmp_path: Path, deriver: str, more: list[str]
) -> None:
    """Each token's advantage is what the deriver gives for the recorded group, trees included."""
    from trajgym.adapters.verl import StepSyncTrainer

    config = configuration(
        chain.tiny,
        "trainer.v1.trainer_mode=trajgym_sync",
        "algorithm.adv_estimator=trajgym",
        f"+trajgym.deriver.name={deriver}",
        f"+trajgym.store={tmp_path / 'run'}",
        *more,
    )
    trainer = StepSyncTrainer(config)
    assert config.trainer.v1.trainer_mode == "sync"
    rows = chain.rollout(prompts, FakeServers(said), config=config)
    found = rows.advantages(trainer)
    wanted = expected(tmp_path / "run", deriver, rows.uids)
    assert len(found) == len(wanted) >= 8
    assert any(any(values) for values in wanted.values())
    places: dict[Any, list[Any]] = {}
    for (place, _), values in wanted.items():
        places.setdefault(place, []).append(values)
    for (prompt, session, _), values in found.items():
        assert any(
            len(values) == len(one) and values == pytest.approx(one, abs=1e-6)
            for one in places[prompt, session]
        )
    assert rows.metrics["trajgym/sessions"] == 8
    assert rows.metrics["trajgym/groups_that_shrank"] == 0


def test_padding_rows_get_no_advantage(chain: Any, prompts: Path) -> None:
    """Rows that verl pads a batch with copy a real row's fields, but count in no group."""
    from verl.trainer.ppo.padding_utils import upsample_batch_to_divisible_size

    from trajgym.adapters.verl import StepSyncTrainer

    config = configuration(
        chain.tiny,
        "trainer.v1.trainer_mode=trajgym_sync",
        "algorithm.adv_estimator=trajgym",
        "+trajgym.deriver.name=grpo",
    )
    trainer = StepSyncTrainer(config)
    rows = chain.rollout(prompts, FakeServers(), config=config)
    rows.batch = upsample_batch_to_divisible_size(rows.batch, 5, chain.tiny.tokenizer.eos_token_id)
    rows.uids += {key.split("_")[0] for key in rows.batch.keys} - set(rows.uids)
    found = rows.advantages(trainer)
    assert len(found) == 10
    padding = [values for (prompt, _, _), values in found.items() if prompt == 2]
    assert padding == [[0.0], [0.0]]
    assert rows.metrics["trajgym/sessions"] == 8
    assert {values[0] > 0 for (_, session, _), values in found.items() if session == 3} == {True}


def test_validation_is_played_too(chain: Any, prompts: Path) -> None:
    """With verl's settings for validation, rows go to that partition, one for each prompt."""
    rows = chain.rollout(prompts, FakeServers(), validate=True)
    assert rows.batch.partition_id == "val"
    assert {(p, s) for p, s, _ in rows.by_key("uid")} == {(0, 0), (1, 0)}
    info = [fields["reward_extra_info"] for fields in rows.get("extra_fields")]
    assert len({tuple(one) for one in info}) == 1
    assert all(isinstance(value, float) for one in info for value in one.values())


def test_a_wrong_configuration_ends_the_training(chain: Any, prompts: Path) -> None:
    """An environment that is given twice gives no row at all, and verl's trainer stops there."""
    with pytest.raises(RuntimeError, match="no materializable trajectories"):
        chain.rollout(prompts, FakeServers(), "+trajgym.env.id=tests.trl.tiny:Words")


async def test_the_old_trainers_worker(tiny: Any, prompts: Path) -> None:
    """Verl's V0 worker pads our main rows, with the score on the last token, a sampled one."""
    from verl import DataProto
    from verl.experimental.agent_loop.agent_loop import AgentLoopWorker
    from verl.utils.dataset.rl_dataset import RLHFDataset, collate_fn

    old = ["trainer.use_v1=False", "+trajgym.outputs=main"]
    config = configuration(tiny, *old)
    servers = FakeServers(lambda call: "maybe" if call.turn else "a")
    worker = AgentLoopWorker(config, servers)
    data = RLHFDataset([str(prompts)], tiny.tokenizer, config.data)
    batch = collate_fn([data[i] for i in range(2)])
    batch["uid"] = np.array(["u0", "u1"], dtype=object)
    given = DataProto.from_single_dict(batch, meta_info={"global_steps": 7, "validate": False})
    out = await worker.generate_sequences(given.repeat(2, interleave=True))
    scores, mask = out.batch["rm_scores"], out.batch["response_mask"]
    assert scores.sum(1).tolist() == pytest.approx([2 / 3] * 4)
    assert (mask[scores != 0] == 1).all()
    assert out.batch["rollout_log_probs"][mask == 1].ne(0).all()
    assert out.non_tensor_batch["trajgym_passed"].tolist() == [1.0] * 4


PLUGIN = """
import sys
import verl
from verl.experimental.agent_loop.agent_loop import _agent_loop_registry
from verl.trainer.ppo.core_algos import get_adv_estimator_fn
from verl.trainer.ppo.v1 import get_trainer_cls
print(_agent_loop_registry["trajgym"]["_target_"])
print(get_adv_estimator_fn("trajgym").__name__)
print(*(get_trainer_cls(f"trajgym_{mode}").__name__
        for mode in ("sync", "colocate_async", "separate_async")))
"""


def test_installing_is_enough(tmp_path: Path) -> None:
    """In any process that imports verl, loop, estimator and trainers are there by name."""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", PLUGIN], cwd=tmp_path, capture_output=True, text=True
    )
    assert done.stdout.splitlines()[-3:] == [
        "trajgym.adapters.verl._loop.TrajgymAgentLoop",
        "given_advantages",
        "StepSyncTrainer StepColocateAsyncTrainer StepSeparateAsyncTrainer",
    ], done.stderr


def test_a_plugin_that_fails_says_so(tmp_path: Path) -> None:
    """Verl hides errors of plug-ins; ours logs them as errors."""
    fake = tmp_path / "verl-0.8.0.dist-info"
    fake.mkdir()
    (fake / "METADATA").write_text("Metadata-Version: 2.1\nName: verl\nVersion: 0.8.0\n")
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", "import verl"],
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0
    assert "trajgym's plug-in for verl can't be loaded" in done.stderr
    assert "verl 0.8.0 is installed" in done.stderr


def test_the_linters_defaults_are_verls() -> None:
    """What `trajgym lint` takes for verl's defaults are those of the installed verl."""
    from omegaconf import OmegaConf

    from trajgym.adapters.verl._lint_config import _DEFAULTS

    config = composed()
    for key, value in _DEFAULTS.items():
        if key == "data.pad_mode":
            continue  # of the SFT trainer
        assert OmegaConf.select(config, key, default="?") == value, key
