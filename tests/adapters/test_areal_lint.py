"""`trajgym lint areal`: every trap has a code, and a sound configuration has no findings."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from trajgym.adapters import lint, list_linters
from trajgym.cli import app

SOUND: dict[str, Any] = {
    "gconfig": {"n_samples": 1, "max_new_tokens": 512},
    "rollout": {"max_head_offpolicyness": 2, "consumer_batch_size": 4},
    "actor": {
        "kl_ctl": 0.0,
        "use_decoupled_loss": True,
        "rejection_sampling": {"level": "token", "action": "mask", "metric": "ratio", "upper": 5.0},
        "adv_norm": None,
        "reward_norm": None,
    },
}

TRAPS = [
    ("actor.kl_ctl", 0.1, "kl-without-ref"),
    ("actor.reward_bias", -0.5, "bent-reward"),
    ("actor.mask_no_eos_with_zero", True, "bent-reward"),
    ("actor.overlong_reward_penalty", True, "bent-reward"),
    ("actor.reward_scaling", 10.0, "reward-reshaped"),
    ("actor.reward_clip", 0.2, "reward-reshaped"),
    ("actor.reward_norm", {"mean_level": "batch"}, "reward-reshaped"),
    ("actor.importance_sampling_level", "sequence", "ratio-of-rows"),
    ("actor.gae_lambda", 0.95, "values-need-one"),
    ("actor.discount", 0.99, "values-need-one"),
    ("critic", {"path": "x"}, "values-overwritten"),
    ("actor.adv_norm", {"mean_level": "batch"}, "normalised-twice"),
    (
        "actor.reward_norm",
        {"mean_level": "group", "std_level": None, "group_size": 4},
        "group-of-rows",
    ),
    ("actor.rejection_sampling", None, "no-behaviour-weight"),
    ("actor.prox_logp_method", "loglinear", "versions-unshifted"),
    ("actor.attn_impl", "sdpa", "packed-attention"),
    ("gconfig.n_samples", 8, "grouped-groups"),
    ("actor.temperature", 0.7, "temperatures-differ"),
    ("trajgym.gconfig.temperature", 0.7, "temperatures-differ"),
    ("gconfig.top_p", 0.95, "bent-distribution"),
    ("gconfig.top_k", 50, "bent-distribution"),
    ("gconfig.stop", ["</answer>"], "bent-distribution"),
    ("gconfig.greedy", True, "bent-distribution"),
    ("rollout.max_head_offpolicyness", 0, "hung-episodes"),
    ("trajgym.expected_hung", 9, "hung-episodes"),
    ("rollout.agent", {"export_style": "concat"}, "rewards-dropped"),
]


def written(folder: Path, config: dict[str, Any]) -> Path:
    path = folder / "areal.yaml"
    path.write_text(json.dumps(config))  # JSON is YAML
    return path


def test_a_sound_configuration_has_no_findings(tmp_path: Path) -> None:
    """Settings that train on the derived values have no findings."""
    assert "areal" in list_linters()
    assert list(lint("areal", written(tmp_path, SOUND))) == []


@pytest.mark.parametrize(("key", "value", "code"), TRAPS, ids=[key for key, _, _ in TRAPS])
def test_each_trap_has_a_name(key: str, value: Any, code: str, tmp_path: Path) -> None:
    """One wrong setting gives only its finding, with the key and the fix."""
    overrides = {key: value}
    config = copy.deepcopy(SOUND)
    if value is None:
        section, name = key.split(".")
        config[section].pop(name)
        overrides = {}
    (found,) = lint("areal", written(tmp_path, config), overrides=overrides)
    assert found.code == code
    assert found.where in {key, "rollout.max_head_offpolicyness", "rollout.agent.export_style"}
    assert found.problem
    assert found.fix


def test_recomputed_log_probs_are_named(tmp_path: Path) -> None:
    """Without the decoupled loss, recomputed log-probs replace the recorded ones."""
    overrides = {
        "actor.use_decoupled_loss": False,
        "actor.rejection_sampling": None,
        "actor.recompute_logprob": True,
    }
    (found,) = lint("areal", written(tmp_path, SOUND), overrides=overrides)
    assert found.code == "behaviour-replaced"


def test_deadlines_make_sync_training_sound(tmp_path: Path) -> None:
    """With no episode expected to hang, an offpolicyness of 0 is fine."""
    overrides = {"rollout.max_head_offpolicyness": 0, "trajgym.expected_hung": 0}
    assert list(lint("areal", written(tmp_path, SOUND), overrides=overrides)) == []


def test_values_that_are_filled_in_later_are_left_alone(tmp_path: Path) -> None:
    """Interpolations are no values yet, and no reason to fail or to blame."""
    later = dict.fromkeys(
        ("actor.temperature", "gconfig.top_k", "rollout.consumer_batch_size"), "${somewhere.else}"
    )
    later |= {"actor.reward_clip": "${x}", "trajgym.expected_hung": 0}
    assert list(lint("areal", written(tmp_path, SOUND), overrides=later)) == []


def test_the_example_is_sound() -> None:
    """The configuration in examples/areal has no findings."""
    path = Path(__file__).parent.parent.parent / "examples" / "areal" / "guess.yaml"
    assert list(lint("areal", path, overrides={"trajgym.expected_hung": 0})) == []


def test_the_command_exits_with_what_it_found(tmp_path: Path) -> None:
    """The command prints the findings and fails; a sound file passes."""
    path = str(written(tmp_path, SOUND))
    assert CliRunner().invoke(app, ["lint", "areal", path]).exit_code == 0
    bad = CliRunner().invoke(app, ["lint", "areal", path, "--set", "actor.gae_lambda=0.9"])
    assert bad.exit_code == 1
    assert "values-need-one" in bad.output
