"""Recorded runs as verl's data, read by verl's own classes."""

from __future__ import annotations

import json
import uuid
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.trl.runs import ByTurn, Recorded
from tests.trl.tiny import SPEC, calls, tasks
from tests.verl.chain import PROMPT, RESPONSE, Chain, configuration
from trajgym.adapters import ExportReport
from trajgym.adapters.verl import (
    ReplayShape,
    TokenDataset,
    write_prompts,
    write_replay,
    write_sft_messages,
    write_sft_tokens,
)
from trajgym.envs import Budgets, EnvSpec
from trajgym.rewards import OutcomeReward
from trajgym.rollout import TokenPolicy, collect
from trajgym.rollout.engines import FakeCall
from trajgym.trajectory import InvalidInput, Run, Task, build_rows


def test_prompts_of_mixed_environments_stay_apart(tiny: Any, tmp_path: Path) -> None:
    """Through verl's data set each row gets its own task and settings, without foreign keys."""
    from verl.utils.dataset.rl_dataset import RLHFDataset

    shapes: list[dict[str, Any]] = [{"repo": "a", "tests": ["t"]}, {"question": "q", "n": None}]
    envs = [EnvSpec(id="one", config={"size": 1}), EnvSpec(id="two", config={"names": {"a": []}})]
    rows = [(Task(id=f"t{i}", data=shapes[i]), envs[i]) for i in range(2)]
    files = [tmp_path / "a.parquet", tmp_path / "b.parquet"]
    write_prompts(files[0], rows, budgets=Budgets(turns=7))
    write_prompts(files[1], [Task(id="t2")], None)
    config = configuration(tiny).data
    data = RLHFDataset([str(file) for file in files], tiny.tokenizer, config)
    read = [json.loads(data[i]["trajgym"]) for i in range(3)]
    assert [row["task"]["data"] for row in read] == [*shapes, {}]
    assert [row.get("env") for row in read] == [*(env.to_json() for env in envs), None]
    assert read[0]["budgets"]["turns"] == 7
    assert {data[i]["agent_name"] for i in range(3)} == {"trajgym"}
    assert [data[i]["index"] for i in range(3)] == [0, 1, 0]
    with pytest.raises(InvalidInput, match="no tasks"):
        write_prompts(tmp_path / "c.parquet", [])
    assert sorted(tmp_path.iterdir()) == files


def replayed(chain: Chain, folder: Path, shape: ReplayShape) -> dict[str, Any]:
    """Let verl inject a step and its stock trainer compute what it trains on."""
    import transfer_queue as tq
    import verl.utils.skip.rollout_skip  # noqa: F401 - registers the skip
    from omegaconf import OmegaConf, open_dict
    from verl.trainer.ppo.v1 import PPOTrainerSync
    from verl.trainer.ppo.v1.replay_buffer import ReplayBuffer
    from verl.utils.skip.skip_manager import SkipManager

    config = configuration(
        chain.tiny,
        "skip.rollout_tq.enable=True",
        f"skip.rollout_tq.dump_dir={folder}",
        "skip.rollout_tq.steps=[1]",
        "skip.rollout_tq.action=cache",
        f"data.train_batch_size={shape.prompts}",
        f"actor_rollout_ref.rollout.n={shape.samples}",
        f"trainer.experiment_name={shape.experiment}",
        f"trainer.project_name={shape.project}",
        "algorithm.adv_estimator=trajgym",
    )
    plain: Any = OmegaConf.to_container(config, resolve=True)
    assert ReplayShape.of(plain) == shape
    SkipManager.init(config)
    SkipManager.set_step(1)
    skip = SkipManager.skip_instances["rollout_tq"]
    uids = [uuid.uuid4().hex for _ in range(shape.prompts)]
    assert skip.maybe_load_and_inject(1, uids)
    buffer = ReplayBuffer(
        "sync", OmegaConf.create({}), 8, "drop", OmegaConf.create({}), poll_interval=0.2
    )
    batch, _ = buffer.sample(global_steps=1, partition_id="train", batch_size=shape.prompts)
    with open_dict(config):
        config.algorithm.rollout_correction.bypass_mode = True
    trainer = PPOTrainerSync(config)
    metrics: dict[str, Any] = {}
    batch = trainer._compute_old_log_prob(batch, metrics)
    batch = trainer._compute_advantage(batch, metrics)
    names = ["advantages", "old_log_probs", "responses", "prompts", "response_mask"]
    data = tq.kv_batch_get(keys=batch.keys, partition_id="train", select_fields=names)
    return {name: [value.tolist() for value in data[name]] for name in names}


def test_the_stock_trainer_replays_a_recorded_run(
    chain: Chain, recorded: Recorded, tmp_path: Path
) -> None:
    """What verl trains on are the recorded ids with each token's advantage, each row once."""
    shape = ReplayShape(
        experiment="e",
        project="p",
        prompts=3,
        samples=6,
        prompt_length=PROMPT,
        response_length=RESPONSE,
    )
    values = ByTurn().derive(ByTurn().table(recorded.groups, recorded.trees))
    report = ExportReport("replay")
    steps = write_replay(tmp_path, recorded.trees, recorded.groups, values, shape, report=report)
    wanted = {}
    for _, rows in recorded.rows(ByTurn()):
        for row in rows:
            start = int(row.loss_mask.argmax())
            wanted[tuple(row.input_ids.tolist())] = (
                row.advantage[start:].tolist(),
                row.logprobs[start:].tolist(),
            )
    assert (steps, report.written) == (1, len(wanted))
    found = replayed(chain, tmp_path, shape)
    trained = 0
    for i, mask in enumerate(found["response_mask"]):
        if not any(mask):
            assert not any(found["advantages"][i])  # fills the batch up
            continue
        trained += 1
        advantages, logprobs = wanted.pop(tuple(found["prompts"][i] + found["responses"][i]))
        assert found["advantages"][i] == pytest.approx(advantages)
        assert found["old_log_probs"][i] == pytest.approx(logprobs)
    assert not wanted
    assert trained == report.written


def test_a_replay_is_refused_where_it_would_mislead(recorded: Recorded, tmp_path: Path) -> None:
    """Without advantages, with rows over the limits, or with half a step there is no replay."""
    shape = ReplayShape(
        experiment="e", project="p", prompts=4, samples=4, prompt_length=512, response_length=512
    )
    table = OutcomeReward().table(recorded.groups, recorded.trees)
    rewards = OutcomeReward().derive(table)
    args = (recorded.trees, recorded.groups)
    with pytest.raises(InvalidInput, match="needs advantages"):
        write_replay(tmp_path, *args, [rewards], shape)
    with pytest.raises(InvalidInput, match="needs advantages"):
        write_replay(tmp_path, *args, rewards, shape)
    values = ByTurn().derive(table)
    short = ReplayShape(
        experiment="e", project="p", prompts=4, samples=4, prompt_length=8, response_length=8
    )
    report = ExportReport("replay")
    with pytest.raises(InvalidInput, match="nothing to train on"):
        write_replay(tmp_path, *args, values, short, report=report)
    assert "limits of 16 together" in report.dropped[0].reason
    for turn in recorded.trees[0].turns:
        turn.synthetic = True
    left = ExportReport("replay")
    try:
        write_replay(tmp_path, *args, values, shape, report=left)
    finally:
        for turn in recorded.trees[0].turns:
            turn.synthetic = False
    assert [one.session for one in left.dropped if one.reason.startswith("synthetic")] == [
        recorded.trees[0].record.id
    ]
    with pytest.raises(InvalidInput, match="prompts is 0"):
        ReplayShape(
            experiment="e", project="p", prompts=0, samples=4, prompt_length=8, response_length=8
        )


def chatter(call: FakeCall) -> Any:
    """Call tools with different arguments, then talk."""
    if call.turn == 0:
        return calls("note", text="x")
    return calls("note", text="y", times=2) if call.turn == 1 else "maybe"


@pytest.fixture
async def told(tmp_path: Path) -> tuple[list[Any], list[Any]]:
    """Sessions whose calls have different arguments, and their groups."""
    policy = TokenPolicy.fake(chatter)
    async with policy:
        await collect(SPEC, tasks(2), policy, tmp_path / "run", samples=2)
    with Run(tmp_path / "run") as run:
        return list(run.sessions()), list(run.groups())


async def test_messages_reach_verl_without_foreign_arguments(
    tiny: Any, told: tuple[list[Any], list[Any]], tmp_path: Path
) -> None:
    """Verl's own SFT data set renders calls with exactly the arguments that were given."""
    from omegaconf import OmegaConf
    from verl.utils.dataset.multiturn_sft_dataset import MultiTurnSFTDataset

    path = tmp_path / "sft.parquet"
    assert write_sft_messages(path, *told, include="all") == 4
    assert pq.read_schema(path).names == ["messages"]
    config = OmegaConf.create({"pad_mode": "no_padding", "max_length": 4096})
    data = MultiTurnSFTDataset(str(path), tiny.tokenizer, config)
    row = data[0]
    text = tiny.tokenizer.decode(row["input_ids"])
    trained = tiny.tokenizer.decode(row["input_ids"][row["loss_mask"].bool()])
    assert "null" not in text
    assert trained.count("<tool_call>") == 2
    assert "noted" not in trained
    assert "<tools>" in text


def test_token_rows_reach_verl_as_they_were_sampled(recorded: Recorded, tmp_path: Path) -> None:
    """The data set class gives the recorded ids, with exactly the sampled ones to learn."""
    path = tmp_path / "sft.parquet"
    count = write_sft_tokens(path, recorded.trees, recorded.groups, include="all")
    data = TokenDataset(str(path), None, {"max_length": 4096})
    rows = [row for tree in recorded.trees for row in build_rows(tree).rows]
    assert len(data) == count == len(rows)
    for i, row in enumerate(rows):
        assert data[i]["input_ids"].tolist() == row.input_ids.tolist()
        assert data[i]["loss_mask"].tolist() == row.loss_mask.astype(int).tolist()
        assert data[i]["position_ids"].tolist() == list(range(len(row)))
    assert len(TokenDataset([str(path)], None, {"max_length": 4096}, max_samples=2)) == 2


def test_token_rows_that_would_train_nothing(tmp_path: Path) -> None:
    """A row over max_length is refused, or cut where that was asked for; never trained empty."""
    path = str(tmp_path / "x.parquet")
    rows = {"input_ids": [[1, 2, 3, 4], [1, 2]], "loss_mask": [[0, 0, 0, 1], [0, 1]]}
    pq.write_table(pa.table(rows), path)
    with pytest.raises(InvalidInput, match="a row has 4 ids"):
        TokenDataset(path, None, {"max_length": 3})
    cut = TokenDataset(path, None, {"max_length": 3, "truncation": "right"})
    assert (len(cut), cut.left_out) == (1, 1)
    with pytest.raises(InvalidInput, match="no_padding"):
        TokenDataset(path, None, {"pad_mode": "right"})


def test_only_what_passed(recorded: Recorded, tmp_path: Path) -> None:
    """By default only attempts that solved their task are written, the others named."""
    report = ExportReport("sft")
    path = tmp_path / "sft.parquet"
    written = write_sft_tokens(path, recorded.trees, recorded.groups, report=report)
    passed = [tree.attempts[0].outcome.passed for tree in recorded.trees]
    assert 0 < written == sum(passed) < len(passed)
    assert len(report.dropped) == len(passed) - written
    assert len(np.unique([row.session for row in report.dropped])) == len(passed) - written
