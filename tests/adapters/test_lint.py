"""`trajgym lint`: each trap of verl is named, and a sound configuration is not."""

from __future__ import annotations

import copy
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml

from trajgym.adapters import lint, list_linters
from trajgym.adapters.verl import write_prompts
from trajgym.envs import EnvSpec
from trajgym.trajectory import InvalidInput, Task

ROOT = Path(__file__).parent.parent.parent
ENV = EnvSpec(id="tests.worlds:Counter")
SOUND: dict[str, Any] = {
    "actor_rollout_ref": {"rollout": {"n": 8, "calculate_log_probs": True}},
    "algorithm": {"adv_estimator": "trajgym"},
    "data": {"train_batch_size": 512},
    "trainer": {"v1": {"trainer_mode": "trajgym_sync"}},
    "trajgym": {"deriver": {"name": "gigpo"}},
}
ROLLOUT = "actor_rollout_ref.rollout"
STOCK = {"trainer.v1.trainer_mode": "sync", "trajgym.deriver": None}


def codes(folder: Path, changes: dict[str, Any], data: Path | None = None) -> list[str]:
    """Return what is found in the sound configuration after some changes."""
    file = folder / "config.yaml"
    file.write_text(yaml.safe_dump(copy.deepcopy(SOUND)))
    files = [data] if data else [prompts(folder)]
    return [found.code for found in lint("verl", file, files, overrides=changes)]


def prompts(folder: Path, **options: Any) -> Path:
    path = folder / "train.parquet"
    write_prompts(path, [Task(id="a"), Task(id="b")], options.pop("env", ENV), **options)
    return path


def parquet(folder: Path, rows: list[dict[str, Any]]) -> Path:
    path = folder / "own.parquet"
    pq.write_table(pa.Table.from_pylist(rows), path)
    return path


def test_a_sound_configuration_is_not_blamed(tmp_path: Path) -> None:
    """What the documentation recommends has no findings."""
    assert codes(tmp_path, {}) == []


@pytest.mark.parametrize(
    ("code", "changes"),
    [
        ("no-logprobs", {f"{ROLLOUT}.calculate_log_probs": False}),
        ("raw-logprobs", {f"{ROLLOUT}.logprobs_mode": "raw_logprobs"}),
        ("cut-distribution", {f"{ROLLOUT}.top_p": 0.9}),
        ("cut-distribution", {f"{ROLLOUT}.top_k": 50}),
        ("cut-distribution", {f"{ROLLOUT}.repetition_penalty": 1.1}),
        ("no-temperature", {f"{ROLLOUT}.temperature": 0}),
        ("singleton-groups", {f"{ROLLOUT}.n": 1}),
        (
            "rows-averaged",
            {**STOCK, "actor_rollout_ref.actor.loss_agg_mode": "seq-mean-token-mean"},
        ),
        (
            "rows-averaged",
            {**STOCK, "actor_rollout_ref.actor.policy_loss.loss_mode": "sapo"},
        ),
        (
            "rows-averaged",
            {
                "actor_rollout_ref.actor.loss_agg_mode": "seq-mean-token-sum",
                "actor_rollout_ref.actor.policy_loss.loss_mode": "kl_cov",
            },
        ),
        ("ratio-of-rows", {"actor_rollout_ref.actor.policy_loss.loss_mode": "gspo"}),
        ("stale-uncorrected", {"trainer.v1.trainer_mode": "trajgym_separate_async"}),
        ("section", {"trajgym.deriver.name": "outcome"}),
        ("section", {"trajgym.rewards": [{"name": "grpo"}]}),
        ("singleton-groups", {**STOCK, "algorithm.adv_estimator": "grpo", f"{ROLLOUT}.n": 1}),
        ("groups-shrink", {**STOCK, "algorithm.adv_estimator": "grpo"}),
        ("deriver-unused", {"trainer.v1.trainer_mode": "sync"}),
        ("deriver-missing", {"trajgym.deriver": None}),
        ("estimator-unused", {"algorithm.adv_estimator": "grpo"}),
        ("kl-in-advantages", {"algorithm.use_kl_in_reward": True}),
        ("sequence-weights", {"algorithm.rollout_correction.rollout_is": "sequence"}),
        ("replay-uncorrected", {"skip.rollout_tq.enable": True}),
        ("one-row", {**STOCK, "trajgym.seed": 1, "trainer.use_v1": False}),
        ("one-row", {**STOCK, "trajgym.seed": 1, "async_training.staleness_threshold": 0.1}),
        ("v0-workers", {"trainer.use_v1": False, f"{ROLLOUT}.agent.num_workers": 3}),
        ("padded-batch", {"data.train_batch_size": 300}),
        ("short-context", {f"{ROLLOUT}.max_model_len": 600}),
        ("section", {"trajgym.maximum": 1}),
        ("section", {"trajgym.expansion": {"name": "bush"}}),
        (
            "rewards-summed",
            {
                **STOCK,
                "algorithm.adv_estimator": "grpo",
                "trajgym.rewards": [{"name": "outcome"}, {"name": "step_reward"}],
            },
        ),
    ],
)
def test_each_setting_that_misleads_is_named(
    tmp_path: Path, code: str, changes: dict[str, Any]
) -> None:
    """The finding of a setting has a stable code, and disappears with the setting."""
    assert code in codes(tmp_path, changes)
    assert code not in codes(tmp_path, {})


def test_our_trainers_weigh_the_rows_of_sequence_means(tmp_path: Path) -> None:
    """Sequence means are sound where the advantages are scaled for them; so are trees of one."""
    mode = {"actor_rollout_ref.actor.loss_agg_mode": "seq-mean-token-mean"}
    assert codes(tmp_path, mode) == []
    tree = {f"{ROLLOUT}.n": 1, "trajgym.expansion": {"name": "tree"}}
    assert "singleton-groups" not in codes(tmp_path, tree)


TRL = [
    ("cut-distribution", {"top_p": 0.9}),
    ("cut-distribution", {"top_k": 50}),
    ("cut-distribution", {"min_p": 0.05}),
    ("cut-distribution", {"repetition_penalty": 1.2}),
    ("no-temperature", {"temperature": 0.0}),
    ("singleton-groups", {"num_generations": 1}),
    ("endings-masked", {"mask_truncated_completions": True}),
    ("tokens-masked", {"top_entropy_quantile": 0.2}),
    ("micro-batches-averaged", {"token_budget": 0, "gradient_accumulation_steps": 4}),
]


@pytest.mark.parametrize(("code", "changes"), TRL, ids=[next(iter(c)) for _, c in TRL])
def test_each_setting_of_trl_is_named(tmp_path: Path, code: str, changes: dict[str, Any]) -> None:
    """Arguments of TRL's trainers under which rows mean something else have a finding each."""
    file = tmp_path / "trl.json"
    file.write_text(json.dumps({"num_generations": 8, "temperature": 1.0}))
    assert lint("trl", file) == []
    (found,) = lint("trl", file, overrides=changes)
    assert (found.code, found.where) == (code, next(iter(changes)))


def test_values_that_hydra_fills_in_are_left_alone(tmp_path: Path) -> None:
    """Interpolations are no numbers yet, and no reason to fail or to blame."""
    later = "${oc.env:SIZE}"
    keys = ("n", "top_p", "top_k", "max_model_len", "agent.num_workers")
    changes: dict[str, Any] = {f"{ROLLOUT}.{key}": later for key in keys}
    changes |= {"data.train_batch_size": later, "data.max_prompt_length": later}
    assert codes(tmp_path, changes) == []


def test_rows_that_a_stock_loop_would_run(tmp_path: Path) -> None:
    """The loops that verl takes by default are named with what they do to tools and rewards."""
    rows = [
        {"prompt": [{"role": "user", "content": "x"}], "extra_info": {"index": i}} for i in (0, 1)
    ]
    none = parquet(tmp_path, rows)
    stock = {**STOCK, "trajgym": None, "algorithm.adv_estimator": "gae"}
    assert {"single-turn", "reward-on-observation"} <= set(codes(tmp_path, stock, none))
    tools = parquet(tmp_path, [row | {"agent_name": "tool_agent"} for row in rows])
    found = codes(tmp_path, stock, tools)
    assert {"tool-output-cut", "calls-dropped"} <= set(found)
    assert "single-turn" not in found
    longer = {f"{ROLLOUT}.multi_turn.max_tool_response_length": 4096}
    assert "tool-output-cut" not in codes(tmp_path, stock | longer, tools)


def test_a_name_that_is_registered_twice(tmp_path: Path) -> None:
    """A YAML entry with the plug-in's own name is found; another name is fine, also in the data."""
    entries = tmp_path / "loops.yaml"
    key = f"{ROLLOUT}.agent.agent_loop_config_path"
    entry = {"name": "trajgym", "_target_": "trajgym.adapters.verl.TrajgymAgentLoop"}
    entries.write_text(yaml.safe_dump([entry]))
    assert "registered-twice" in codes(tmp_path, {key: str(entries)})
    entries.write_text(yaml.safe_dump([entry | {"name": "mine"}]))
    rows = pq.read_table(prompts(tmp_path)).to_pylist()
    data = parquet(tmp_path, [row | {"agent_name": "mine"} for row in rows])
    assert not {"registered-twice", "other-loop"} & set(codes(tmp_path, {key: str(entries)}, data))
    assert "other-loop" in codes(tmp_path, {}, data)


@pytest.mark.parametrize(
    ("code", "change"),
    [
        ("column-overwrites", {"rm_scores": 1.0}),
        ("prompt-is-text", {"prompt": "hello"}),
        ("no-index", {"extra_info": {"split": "train"}}),
        ("row", {"trajgym": "{}"}),
        ("row", {"trajgym": None}),
        ("row", {"trajgym": json.dumps({"task": {"id": "a"}})}),
        ("row", {"trajgym": json.dumps({"task": {"id": "a"}, "env": {"id": "nobody"}})}),
        ("other-loop", {"agent_name": "single_turn_agent"}),
    ],
)
def test_each_column_that_misleads_is_named(
    tmp_path: Path, code: str, change: dict[str, Any]
) -> None:
    """What is wrong with rows is found without starting a session."""
    rows = pq.read_table(prompts(tmp_path)).to_pylist()
    assert code in codes(tmp_path, {}, parquet(tmp_path, [row | change for row in rows]))


def test_merged_structs_are_named(tmp_path: Path) -> None:
    """Tool settings that parquet merged to one shape are found by their nulls."""
    rows = pq.read_table(prompts(tmp_path)).to_pylist()
    for i, row in enumerate(rows):
        row["extra_info"] = {"index": i, "tools_kwargs": {f"tool{i}": {"x": 1}}}
    assert "merged-structs" in codes(tmp_path, {}, parquet(tmp_path, rows))


def test_an_environment_given_twice(tmp_path: Path) -> None:
    """A row's environment beside that of the configuration is found."""
    assert "row" in codes(tmp_path, {"trajgym.env.id": ENV.id})
    alone = prompts(tmp_path, env=None)
    assert codes(tmp_path, {"trajgym.env.id": ENV.id}, alone) == []


def test_supervised_data(tmp_path: Path) -> None:
    """Settings and files of the SFT trainer are checked too."""

    def sft(data: dict[str, Any], rows: list[dict[str, Any]]) -> set[str]:
        file = tmp_path / "sft.json"
        file.write_text(json.dumps({"engine": {}, "data": data}))
        return {found.code for found in lint("verl", file, [parquet(tmp_path, rows)])}

    def message(*arguments: Any) -> dict[str, Any]:
        calls = [{"function": {"name": "f", "arguments": one}} for one in arguments]
        return {"messages": [{"role": "assistant", "content": "", "tool_calls": calls}]}

    ids = [{"input_ids": [1, 2], "loss_mask": [0, 1]}]
    ours = {"custom_cls": {"path": "pkg://trajgym.adapters.verl", "name": "TokenDataset"}}
    assert sft({}, ids) == {"class-missing"}
    assert sft(ours, ids) == set()
    assert sft({}, [message({"a": 1}), message({"b": 1})]) == {"merged-arguments"}
    assert sft({}, [message('{"a": 1}')]) == {"quoted-arguments"}
    assert sft({}, [{"messages": "[]"}]) == {"messages-are-text"}
    hidden = {"truncation": "right", "ignore_input_ids_mismatch": True}
    assert sft(hidden, [message({"a": 1})]) == {"cut-to-nothing", "rendered-apart"}


def test_what_cannot_be_read_is_an_error(tmp_path: Path) -> None:
    """An unknown trainer, broken YAML and a missing file end with a clear error."""
    broken = tmp_path / "broken.yaml"
    broken.write_text("a: [")
    with pytest.raises(InvalidInput, match="not YAML"):
        lint("verl", broken)
    with pytest.raises(InvalidInput, match=r"can't read .*none\.yaml"):
        lint("verl", tmp_path / "none.yaml")
    with pytest.raises(InvalidInput, match="no checks for 'nobody'"):
        lint("nobody", broken)
    assert "verl" in list_linters()


def test_the_command_says_what_to_write(tmp_path: Path) -> None:
    """`trajgym lint` prints code, key and fix, and fails if it found something."""
    file = tmp_path / "config.yaml"
    file.write_text(yaml.safe_dump(SOUND))
    words = [sys.executable, "-m", "trajgym.cli", "lint", "verl", str(file)]
    words += ["--data", str(prompts(tmp_path))]
    done = subprocess.run(words, capture_output=True, text=True)
    assert (done.returncode, done.stdout.count("\n")) == (0, 1), done.stdout + done.stderr
    bad = [*words, "--set", f"{ROLLOUT}.calculate_log_probs=false"]
    done = subprocess.run(bad, capture_output=True, text=True)
    assert done.returncode == 1
    for part in ("no-logprobs", f"{ROLLOUT}.calculate_log_probs", "fix: set it to True"):
        assert part in done.stdout


def test_the_pages_commands_run(tmp_path: Path) -> None:
    """The commands of docs/verl.md before training work unchanged in the project's root."""
    text = (ROOT / "docs" / "verl.md").read_text()
    prepare, check = (
        next(line for line in text.splitlines() if part in line)
        for part in ("prepare.py", "trajgym lint verl examples")
    )
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    paths = {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    for line in (prepare, check):
        done = subprocess.run(
            ["sh", "-c", line],
            cwd=tmp_path,
            env={**os.environ, **paths},
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stdout + done.stderr
