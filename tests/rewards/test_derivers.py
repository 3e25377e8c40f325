"""Derivers: the contract, the registry, and the shipped ones' values."""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import pytest

from tests.conftest import load_golden
from tests.rewards.build import group, session
from trajgym.cli._registered import show_registered
from trajgym.envs import EnvSpec
from trajgym.rewards import (
    GRPO,
    HGPO,
    IGPO,
    MSGRPO,
    MTGRPO,
    SRL,
    Advantages,
    Deriver,
    DeriverFault,
    GiGPO,
    GRPORoC,
    InformationGain,
    OutcomeReturn,
    OutcomeReward,
    ReturnToGo,
    Rewards,
    SoftOverlong,
    StepPenalty,
    Stepwise,
    ToolPO,
    TreeGRPO,
    TreeRL,
    TurnGAE,
    TurnTable,
    UnknownDeriver,
    apply,
    check_deriver,
    get_deriver,
    list_derivers,
)
from trajgym.rewards.filters import ResampleOnCorrect
from trajgym.rewards.toolkit import Scope
from trajgym.server import agent_class
from trajgym.trajectory import InvalidInput, Stamp, build_rows, validate_row

if TYPE_CHECKING:
    from pathlib import Path

SHIPPED: list[Deriver] = [
    *(get_deriver(name) for name in list_derivers()),
    GRPO(variant="verl"),
    GRPO(variant="mean_only"),
    TreeGRPO(combine="two_norm"),
    TreeRL(variant="official"),
    TreeRL(weight="none", repeat=True),
    ToolPO(missing_spans="turn", lambda1=0.5),
    GRPORoC(resample=ResampleOnCorrect(draw="sampled", seed=7)),
    GRPORoC(resample=ResampleOnCorrect(variant="official", keep=3)),
    MTGRPO(variant="official"),
    SRL(autojunk=True),
    MSGRPO(variant="official"),
    GiGPO(variant="official", mode="mean_std_norm", invalid_penalty=0.1),
    GiGPO(mode="mean_std_norm", invalid_penalty=0.1),
    GiGPO(similarity=0.9),
    HGPO(variant="official", base_group=True, history=3),
    ReturnToGo(gamma=0.9, earn="env"),
    Stepwise(of="reward", earn="env", variant="official"),
    SoftOverlong(max_tokens=10, cache=4, variant="official"),
    StepPenalty(threshold=1, max_turns=4),
    InformationGain(kind="delta_belief", last=True),
    IGPO(variant="official", gamma=0.9),
    TurnGAE(alpha=0.05),
]


@pytest.mark.parametrize("deriver", SHIPPED, ids=repr)
def test_shipped_derivers_conform(deriver: Deriver) -> None:
    """Every shipped deriver passes the check that plug-in authors run."""
    check_deriver(deriver)


def test_official_tree_grpo_keeps_the_reward_of_a_lone_leaf() -> None:
    """A tree of one leaf has its raw reward as the intra part, as in the code; the paper has 0."""
    trees = [session("a", 0.5), session("b", 0.5)]
    table = TurnTable.build([group(*trees)], trees)
    assert TreeGRPO().derive(table).values.tolist() == [0.0, 0.0]
    official = TreeGRPO(variant="official").derive(table).values
    assert official.tolist() == pytest.approx([0.5 / (1 + 1e-6)] * 2)


def test_outcome_sits_on_the_last_turn() -> None:
    """The score is on the attempt's last turn; a rival attempt has its own."""
    tree = session("s", 1.0, turns=3, forks=[0.5])
    table = TurnTable.build([], [tree])
    derived = OutcomeReward().derive(table)
    assert isinstance(derived, Rewards)
    assert derived.of("s").tolist() == [0.0, 0.0, 1.0, 0.5]


def test_outcome_return_is_on_every_turn_and_shared_turns_have_the_mean() -> None:
    """Turn 0 belongs to a pass and to a fail: its return is their mean."""
    derived = OutcomeReturn().derive(TurnTable.build([], [session("s", 1.0, turns=3, forks=[0.5])]))
    assert derived.of("s").tolist() == [0.75, 1.0, 1.0, 0.5]


def test_failed_rival_does_not_pull_the_mean() -> None:
    """A failure is not a zero: the shared turn keeps its scored attempt's return."""
    tree = session("s", None, turns=2, status="failed:env", forks=[1.0])
    derived = OutcomeReturn().derive(TurnTable.build([], [tree]))
    assert derived.of("s").tolist() == [1.0, 0.0, 1.0]


def grpo(scores: list[float], **settings: Any) -> list[float]:
    trees = [session(f"s{i}", score) for i, score in enumerate(scores)]
    return GRPO(**settings).derive(TurnTable.build([group(*trees)], trees)).values.tolist()


def test_grpo_variants_by_hand() -> None:
    """Scores 1, 0, 0: mean 1/3; population std sqrt(2)/3, sample std 1/sqrt(3)."""
    assert grpo([1.0, 0.0, 0.0]) == pytest.approx([2**0.5, -(2**-0.5), -(2**-0.5)])
    verl = [2 / 3 / (3**-0.5 + 1e-6), *[-1 / 3 / (3**-0.5 + 1e-6)] * 2]
    assert grpo([1.0, 0.0, 0.0], variant="verl") == pytest.approx(verl, rel=1e-12)
    assert grpo([1.0, 0.0, 0.0], variant="mean_only") == pytest.approx([2 / 3, -1 / 3, -1 / 3])


def test_group_of_one() -> None:
    """A lone attempt has advantage 0; verl's convention keeps the raw score."""
    assert grpo([0.7]) == [0.0]
    assert grpo([0.7], variant="mean_only") == [0.0]
    assert grpo([0.7], variant="verl") == pytest.approx([0.7 / (1 + 1e-6)])


def test_failed_member_leaves_the_group_statistics() -> None:
    """Two scored members and a failed one give the advantages of two."""
    trees = [session("a", 1.0), session("b", 0.0), session("c", None, status="failed:sandbox")]
    derived = GRPO().derive(TurnTable.build([group(*trees)], trees))
    assert derived.values.tolist() == [1.0, -1.0, 0.0]


def test_truncated_member_counts() -> None:
    """Running out of turns is the agent's own doing: it is punished, not dropped."""
    trees = [session("a", 1.0), session("b", 0.0, status="truncated:turns")]
    derived = GRPO().derive(TurnTable.build([group(*trees)], trees))
    assert derived.values.tolist() == [1.0, -1.0]


def test_session_of_no_group_is_refused() -> None:
    """A group-relative advantage without a group is an error that names the session."""
    with pytest.raises(InvalidInput, match="session s belongs to none"):
        GRPO().derive(TurnTable.build([], [session("s", 1.0, group=None)]))


def test_registry() -> None:
    """Derivers are found by name and take their settings by name."""
    assert {"outcome", "outcome_return", "grpo"} <= set(list_derivers())
    assert get_deriver("grpo", variant="verl") == GRPO(variant="verl")
    with pytest.raises(UnknownDeriver, match=r"no deriver 'gpro'; there are .*grpo"):
        get_deriver("gpro")
    with pytest.raises(InvalidInput, match=r"setting variant: .*'mean_only'"):
        get_deriver("grpo", variant="papr")
    with pytest.raises(InvalidInput, match=r"setting spread: .*settings: variant, eps"):
        get_deriver("grpo", spread=1)


def test_entry_point_that_is_no_deriver(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A plug-in that registers something else is named."""
    info = tmp_path / "plug-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: plug\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[trajgym.derivers]\nplug = json:loads\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(UnknownDeriver, match=r"'plug' .json:loads. is not a subclass"):
        get_deriver("plug")


@pytest.mark.parametrize(
    ("names", "said"),
    [
        ("json:nothing", r"'plug' \(json:nothing\) can't be loaded: AttributeError"),
        (
            "no_such_module:Deriver",
            r"'plug' \(no_such_module:Deriver\) can't be loaded: ModuleNotFoundError",
        ),
    ],
)
def test_a_plug_in_that_cant_be_loaded_is_named(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    names: str,
    said: str,
) -> None:
    """A broken package is an error with its name, and the lists still show what else there is."""
    info = tmp_path / "plug-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: plug\nVersion: 1.0\n")
    kinds = ("derivers", "envs", "agents")
    points = "".join(f"[trajgym.{kind}]\nplug = {names}\n" for kind in kinds)
    (info / "entry_points.txt").write_text(points)
    monkeypatch.syspath_prepend(str(tmp_path))
    loads = (lambda: get_deriver("plug"), EnvSpec(id="plug").resolve, lambda: agent_class("plug"))
    for kind, load in zip(kinds, loads, strict=True):
        with pytest.raises(InvalidInput, match=rf"trajgym\.{kind}: {said}"):
            load()
        show_registered(kind, as_json=False)
        lines = capsys.readouterr().out.splitlines()
        assert re.search(rf"^plug\tcan't be loaded: .*{said}", "\n".join(lines), re.MULTILINE)
        assert len(lines) > 1


def test_a_plug_in_that_is_installed_meanwhile_is_found(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A package that is installed, or removed, in a running process is noticed."""
    monkeypatch.syspath_prepend(str(tmp_path))
    assert "plug" not in list_derivers()
    info = tmp_path / "plug-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: plug\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[trajgym.derivers]\nplug = trajgym.rewards:GRPO\n")
    os.utime(tmp_path, (1, 1))  # not at the same moment, whatever the clock's resolution
    assert get_deriver("plug") == GRPO()
    info.rename(tmp_path / "gone")
    os.utime(tmp_path, (2, 2))
    assert "plug" not in list_derivers()


def test_rewards_and_advantages_never_mix() -> None:
    """Rewards add up and scale; adding an advantage to them is a TypeError."""
    table = TurnTable.build([], [session("s", 1.0, turns=2)])
    rewards = Rewards(table, [0.0, 1.0], Stamp("a", {}))
    advantages = Advantages(table, [0.5, 0.5], Stamp("b", {"k": 1}))
    total = rewards + 0.5 * rewards
    assert isinstance(total, Rewards)
    assert total.values.tolist() == [0.0, 1.5]
    assert total.stamp.deriver == "a + 0.5 * a"
    assert (2 * advantages).stamp == Stamp(
        "2 * b", {"terms": [{"factor": 2.0, "deriver": "b", "settings": {"k": 1}}]}
    )
    with pytest.raises(TypeError):
        rewards + advantages  # type: ignore[operator]
    with pytest.raises(TypeError):
        rewards * advantages  # type: ignore[operator]
    with pytest.raises(InvalidInput, match="different tables"):
        rewards + Rewards(TurnTable.build([], [session("s", 1.0, turns=2)]), [0, 0], rewards.stamp)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ([1.0], "shape"),
        ([0.0, np.nan, 0.0], "turn 1 of session s"),
        ([0.0, 0.0, 1.0], "not scored"),
    ],
)
def test_values_that_fit_no_turn_are_refused(values: list[float], message: str) -> None:
    """Wrong length, NaN, and a value on a failed session are refused by name."""
    trees = [session("s", 1.0, turns=2), session("f", None, status="failed:env")]
    with pytest.raises(InvalidInput, match=message):
        Rewards(TurnTable.build([], trees), values, Stamp("a", {}))


def test_apply_puts_values_where_they_belong() -> None:
    """A reward sits on the turn's last sampled token, an advantage on all of its sampled ones."""
    tree, _ = load_golden("two_versions")
    rows = build_rows(tree).rows
    table = TurnTable.build([], [tree])
    both = apply(rows, Rewards(table, [0.25, 1.0], Stamp("r", {})))
    both = apply(both, Advantages(table, [0.5, -0.5], Stamp("a", {"x": 1})))
    (row,) = both
    validate_row(row)
    assert row.reward is not None
    assert row.advantage is not None
    assert row.reward.tolist() == [0, 0, 0, 0, 0, 0.25, 0, 0, 0, 0, 0, 0, 1]
    assert row.advantage.tolist() == [0, 0, *[0.5] * 4, 0, -0.5, -0.5, 0, 0, -0.5, -0.5]
    assert row.advantage_stamp == Stamp("a", {"x": 1}, "gtwo_versions")
    assert rows[0].reward is None


def test_apply_refuses_what_is_not_in_the_table() -> None:
    """A row of another run is named, and raw arrays are not taken for rewards."""
    rows = build_rows(load_golden("fork")[0]).rows
    with pytest.raises(InvalidInput, match="session fork has no rewards"):
        apply(rows, OutcomeReward().derive(TurnTable.build([], [session("s", 1.0)])))
    with pytest.raises(TypeError, match="Rewards or Advantages"):
        apply(rows, np.zeros(3))  # type: ignore[arg-type]


class CountsFailures(Deriver):
    name = "counts_failures"

    def derive(self, table: TurnTable) -> Rewards:
        return Rewards(table, table.scored * table.attempt_scored.mean(), self.stamp)


class OrderMatters(Deriver):
    name = "order_matters"

    def derive(self, table: TurnTable) -> Rewards:
        return Rewards(table, table.scored * np.arange(len(table)), self.stamp)


class MutatesInput(Deriver):
    name = "mutates_input"

    def derive(self, table: TurnTable) -> Rewards:
        table.env_reward.flags.writeable = True
        table.env_reward[:] += 1
        return Rewards(table, np.zeros(len(table)), self.stamp)


class NotRelative(Deriver):
    name = "not_relative"
    group_relative = True

    def derive(self, table: TurnTable) -> Advantages:
        return Advantages(table, table.spread(table.attempt_score), self.stamp)


class ReturnsArray(Deriver):
    name = "returns_array"

    def derive(self, table: TurnTable) -> Any:
        return table.env_reward


class ComparesGroups(Deriver):
    """Relative to the mean of all groups, and declared as relative to its own."""

    name = "compares_groups"
    depends_on: ClassVar[Scope] = "group"

    def derive(self, table: TurnTable) -> Advantages:
        mean = table.attempt_score[table.attempt_scored].mean() if len(table) else 0.0
        return Advantages(table, table.spread(table.attempt_score - mean), self.stamp)


@pytest.mark.parametrize(
    ("deriver", "message"),
    [
        (CountsFailures(), "with failed sessions"),
        (OrderMatters(), "with another order of sessions"),
        (MutatesInput(), "changed column env_reward"),
        (NotRelative(), "instead of exactly 0"),
        (ReturnsArray(), "returned ndarray"),
        (ComparesGroups(), "with its group alone, although that is its scope"),
    ],
)
def test_check_finds_what_breaks_the_contract(deriver: Deriver, message: str) -> None:
    """Each clause of the contract has a deriver that breaks it, and the check names the clause."""
    with pytest.raises(DeriverFault, match=message):
        check_deriver(deriver)
