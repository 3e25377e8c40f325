"""docs/settings.md: lint reports each setting that it lists, under the code that it names."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.adapters.build import exact_session
from tests.adapters.test_areal_lint import SOUND as AREAL
from tests.adapters.test_group_rows import sealed
from tests.adapters.test_lint import SOUND as VERL
from tests.gradient.settings import Setting, settings
from trajgym.adapters import Gate, group_rows, lint
from trajgym.adapters.areal import workflow_kwargs
from trajgym.adapters.areal._engine import check_distribution as check_areal
from trajgym.adapters.trl import _worker as trl_worker
from trajgym.adapters.trl._check import check_trainer
from trajgym.adapters.trl._settings import check_distribution as check_trl
from trajgym.adapters.verl import VerlEngine
from trajgym.adapters.verl import _engine as verl_engine
from trajgym.rollout import FakeEngine, PolicyGarbage, PolicyRejected
from trajgym.rollout import _token_policy as token_policy
from trajgym.rollout.engines import Generation
from trajgym.trajectory import InvalidInput, Segment

SOUND: dict[str, dict[str, Any]] = {
    "areal": {**AREAL, "trajgym": {"expected_hung": 0}},
    "trl": {"num_generations": 8},
    "verl": VERL,
}


def codes(folder: Path, trainer: str, overrides: dict[str, Any]) -> set[str]:
    file = folder / "config.json"
    file.write_text(json.dumps(copy.deepcopy(SOUND[trainer])))
    found = lint(trainer, file, overrides=overrides)
    return {one.code for one in found if one.code != "single-turn"}


@pytest.mark.parametrize("setting", settings(), ids=lambda one: f"{one.trainer}-{one.name}")
def test_lint_reports_each_setting(setting: Setting, tmp_path: Path) -> None:
    """The finding has the code of the table, and is gone without the setting."""
    assert codes(tmp_path, setting.trainer, {}) == set()
    given = {**setting.given, setting.key: setting.value}
    assert codes(tmp_path, setting.trainer, given) == {setting.code}


def test_the_table_is_read_whole() -> None:
    """No row is missed by the pattern that reads the page."""
    page = Path(__file__).parent.parent.parent / "docs" / "settings.md"
    lines = [line for line in page.read_text().splitlines() if line.startswith("| ")]
    assert len(settings()) == len(lines) - 1
    assert {one.trainer for one in settings()} == set(SOUND)


@pytest.mark.parametrize(
    "setting", settings(shown="rows"), ids=lambda one: f"{one.trainer}-{one.name}"
)
def test_what_changes_the_rows_is_refused_where_they_are_made(setting: Setting) -> None:
    """A user who doesn't run lint meets an error or a refused session, not other rows."""
    name, value = setting.name, setting.value
    if name in {"num_generations", "n"}:
        (row,) = group_rows(sealed(members=1), "grpo").rows
        assert row.advantage is not None
        assert not row.advantage.any()  # nothing can be refused: a group of one has no advantage
    elif setting.trainer == "trl":
        with pytest.raises(InvalidInput, match=f"^{name} "):
            check_trainer(
                SimpleNamespace(args=SimpleNamespace(**{name: value}), train_dataset=None)
            )
        if name == "temperature":
            with pytest.raises(InvalidInput, match="above 0"):
                trl_worker._check_engine(FakeEngine([]), value, frozenset())
        elif name in PLAIN_TRL:
            with pytest.raises(InvalidInput, match=f"{name}={value}"):
                check_trl(SimpleNamespace(**{**PLAIN_TRL, name: value}))
    elif setting.key in {"actor.temperature", "gconfig.n_samples"}:
        gconfig = {**GCONFIG, name: value} if name == "n_samples" else GCONFIG
        trained = value if name == "temperature" else 1.0
        config = SimpleNamespace(
            gconfig=SimpleNamespace(**gconfig), actor=SimpleNamespace(temperature=trained)
        )
        with pytest.raises(InvalidInput, match=f"{name} is {value}"):
            workflow_kwargs(config)
    elif setting.trainer == "areal":
        gconfig = SimpleNamespace(**{**GCONFIG, name: value})
        with pytest.raises(InvalidInput, match=name):
            check_areal(gconfig)
    elif name == "ignore_eos":
        past = Generation([5, 2, 7], [-1.0] * 3, (Segment(3, 0, 0),), "length")
        with pytest.raises(PolicyGarbage, match="ignore_eos"):
            token_policy._Response().sampled(past, 8, frozenset({2}))
    elif name == "calculate_log_probs":
        with pytest.raises(PolicyRejected, match="calculate_log_probs"):
            verl_engine._logprobs(SimpleNamespace(log_probs=None), [1])
    else:
        refused = _refused_by_verl(name, value)
        assert refused
        assert "allow=" in refused


def _refused_by_verl(name: str, value: Any) -> str | None:
    """Return why the gate refuses a session that verl's engine sampled with a setting."""
    params = {"temperature": 0.7, "top_p": 1.0, "top_k": -1}
    mode = value if name == "logprobs_mode" else "processed_logprobs"
    if name != "logprobs_mode":
        params[name] = value
    engine = VerlEngine(
        None,
        params,
        prompt_length=1,
        response_length=1,
        padded=False,
        version=0,
        logprobs_mode=mode,
    )
    tree = exact_session("a", 1.0)
    for turn in tree.turns:
        turn.sampling = engine.sampling
    return Gate(temperature=params["temperature"]).refusal(tree)


PLAIN_TRL = {"top_p": 1.0, "top_k": 0, "min_p": None, "repetition_penalty": 1.0}
GCONFIG: dict[str, Any] = {
    "greedy": False,
    "use_beam_search": False,
    "top_p": 1.0,
    "top_k": 0,
    "frequency_penalty": 0.0,
    "ignore_eos": False,
    "min_new_tokens": 0,
    "stop": None,
    "temperature": 1.0,
    "n_samples": 1,
}
