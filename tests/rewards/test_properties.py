"""Laws that hold for whatever was recorded."""

from __future__ import annotations

from dataclasses import replace
from inspect import isabstract

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.conftest import load_golden
from tests.rewards.build import group, session
from tests.strategies import exact_trees
from trajgym import rewards
from trajgym.rewards import (
    GRPO,
    HGPO,
    IGPO,
    MSGRPO,
    Deriver,
    GiGPO,
    OutcomeReward,
    ReturnToGo,
    Stepwise,
    ToolCalls,
    ToolPO,
    TreeGRPO,
    TreeRL,
    TurnTable,
    apply,
    get_deriver,
    list_derivers,
)
from trajgym.trajectory import SessionTree, attempt_turns, build_rows

RELATIVE = [
    GRPO(),
    TreeGRPO(),
    TreeRL(),
    ToolPO(missing_spans="ignore"),
    MSGRPO(),
    Stepwise(),
    GiGPO(mode="mean_std_norm"),
    HGPO(),
    IGPO(),
]
scores = st.lists(
    st.tuples(st.sampled_from([0.0, 0.1, 0.2, 0.3, 0.7, 1.0]), st.integers(1, 4)),
    min_size=1,
    max_size=8,
)


def trees(members: list[tuple[float, int]]) -> list[SessionTree]:
    found = [session(f"s{i}", score, turns=turns) for i, (score, turns) in enumerate(members)]
    for tree in found:
        for turn in tree.turns:
            turn.observation = [{"role": "user", "content": f"state {turn.index % 2}"}]
            turn.reward = turn.index / 4
    return found


def values(deriver: Deriver, sessions: list[SessionTree]) -> dict[str, list[float]]:
    derived = deriver.derive(deriver.table([group(*sessions)], sessions))
    return {tree.record.id: derived.of(tree.record.id).tolist() for tree in sessions}


@pytest.mark.parametrize("deriver", RELATIVE, ids=lambda d: d.name)
@settings(max_examples=40, deadline=None)
@given(members=scores, data=st.data())
def test_order_and_failures_change_nothing(
    deriver: Deriver, members: list[tuple[float, int]], data: st.DataObject
) -> None:
    """Sessions in another order, with failed ones among them, have exactly the same values."""
    sessions = trees(members)
    failed = [session(f"f{i}", None, turns=2, status="failed:sandbox") for i in range(2)]
    expected = values(deriver, sessions)
    found = values(deriver, data.draw(st.permutations(sessions + failed)))
    assert {name: found[name] for name in expected} == expected
    assert not any(map(any, (found["f0"], found["f1"])))


@pytest.mark.parametrize("variant", ["paper", "verl", "mean_only"])
@settings(max_examples=60, deadline=None)
@given(members=scores.filter(lambda members: len(members) > 1))
def test_group_advantages_sum_to_zero(variant: str, members: list[tuple[float, int]]) -> None:
    """What one attempt of a group gains, the others lose."""
    sessions = [session(f"s{i}", score) for i, (score, _) in enumerate(members)]
    derived = get_deriver("grpo", variant=variant)
    assert sum(map(sum, values(derived, sessions).values())) == pytest.approx(0.0, abs=1e-9)


@settings(max_examples=60, deadline=None)
@given(
    members=scores, scale=st.sampled_from([0.25, 3.0, 100.0]), shift=st.sampled_from([-2.0, 0.5])
)
def test_scaling_laws(members: list[tuple[float, int]], scale: float, shift: float) -> None:
    """Divided by a std, advantages ignore the unit of scores; returns and TreeRL follow it."""
    sessions = [session(f"s{i}", score, turns=n) for i, (score, n) in enumerate(members)]
    other = [
        session(f"s{i}", scale * score + shift, turns=n) for i, (score, n) in enumerate(members)
    ]
    for deriver, factor in (
        (GRPO(), 1.0),
        (TreeGRPO(), 1.0),
        (MSGRPO(), 1.0),
        (GRPO(variant="mean_only"), scale),
        (TreeRL(), scale),
        (TreeRL(variant="official"), scale),
    ):
        before, after = values(deriver, sessions), values(deriver, other)
        for name, own in before.items():
            assert after[name] == pytest.approx([factor * x for x in own], rel=1e-6, abs=1e-6)
    for shifted in (False, True):
        more = 0.0 if not shifted else shift
        raw = [session("s", scale * 0.5 + more, turns=2)]
        assert values(ReturnToGo(), raw)["s"] == pytest.approx([scale * 0.5 + more] * 2)


def test_rewards_compose() -> None:
    """Rewards add up: outcome + 0.3 * tool_calls is one, and an estimator takes it."""
    sessions = trees([(1.0, 2), (0.0, 2)])
    table = TurnTable.build([group(*sessions)], sessions)
    rewards = OutcomeReward().derive(table) + 0.3 * ToolCalls().derive(table)
    derived = GRPO().derive_from(rewards)
    assert derived.of("s0").tolist() == [1.0, 1.0]
    assert derived.stamp.settings["rewards"]["deriver"] == "outcome + 0.3 * tool_calls"
    assert MSGRPO().derive_from(rewards).values.tolist() == derived.values.tolist()


def softmax_gradient(weights: np.ndarray, before: int, token: int) -> np.ndarray:
    """Of log p(token | the token before) under ``softmax(weights[before])``."""
    gradient = np.zeros_like(weights)
    logits = weights[before] - weights[before].max()
    gradient[before] = -np.exp(logits) / np.exp(logits).sum()
    gradient[before, token] += 1.0
    return gradient


def separate(tree: SessionTree, advantages: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """The gradient of training every attempt as a whole sequence of its own."""
    total = np.zeros_like(weights)
    for attempt in tree.attempts:
        if not attempt.status.scored:
            continue
        for index in attempt_turns(tree, attempt):
            tokens = tree.turns[index].tokens
            assert tokens is not None
            ids = tree.sequence(tree.turns[index])
            start = ids.size - tokens.response_ids.size
            for offset in np.flatnonzero(tokens.sampled_mask).tolist():
                at = start + offset
                step = softmax_gradient(weights, int(ids[at - 1]), int(ids[at]))
                total += advantages[attempt.index] * step
    return total


def of_rows(tree: SessionTree, table: TurnTable, weights: np.ndarray, rule: str) -> np.ndarray:
    """The gradient of training the rows, in which a shared prefix stands once."""
    derived = TreeGRPO().derive(table)
    if rule == "mean":
        mean = table.spread(sum(TreeGRPO().of_leaves(table).values()), "mean")
        derived = type(derived)(table, mean, derived.stamp)
    total = np.zeros_like(weights)
    for row in apply(build_rows(tree).rows, derived):
        assert row.advantage is not None
        for at in np.flatnonzero(row.loss_mask).tolist():
            step = softmax_gradient(weights, int(row.input_ids[at - 1]), int(row.input_ids[at]))
            total += float(row.advantage[at]) * step
    return total


@settings(max_examples=40, deadline=None)
@given(tree=exact_trees(max_turns=8), seed=st.integers(0, 2**16))
def test_prefix_rule_sum_gives_the_gradient_of_every_leaf(tree: SessionTree, seed: int) -> None:
    """Shared tokens trained once with the summed advantage move a softmax policy as n copies do.

    Without clipping, at ratio 1, with a loss summed over tokens.
    """
    weights = np.random.default_rng(seed).normal(size=(50, 50))
    table = TurnTable.build([group(tree)], [tree])
    advantages = sum(TreeGRPO().of_leaves(table).values())
    expected = separate(tree, advantages, weights)
    assert np.allclose(of_rows(tree, table, weights, "sum"), expected, atol=1e-5)


def test_prefix_rule_mean_does_not() -> None:
    """The law above can fail: with the mean, a prefix of two rivals gets half of its gradient."""
    tree = _forked()
    weights = np.zeros((50, 50))
    other = session("o", 0.0)
    table = TurnTable.build([group(tree, other)], [tree, other])
    advantages = sum(TreeGRPO().of_leaves(table).values())
    expected = separate(tree, advantages, weights)
    assert np.allclose(of_rows(tree, table, weights, "sum"), expected, atol=1e-5)
    assert not np.allclose(of_rows(tree, table, weights, "mean"), expected, atol=1e-2)


def _forked() -> SessionTree:
    tree, _ = load_golden("fork")
    for attempt, score in zip(tree.attempts, (1.0, 0.5), strict=True):
        assert attempt.outcome is not None
        attempt.outcome = replace(attempt.outcome, score=score)
    return tree


def test_every_shipped_deriver_is_registered() -> None:
    """The registry holds every method by the name that it stamps on its values."""
    public = [value for value in vars(rewards).values() if isinstance(value, type)]
    made_of_others = {rewards.WeightedSum, rewards.Estimated}
    shipped = {
        k.name
        for k in public
        if issubclass(k, Deriver) and not isabstract(k) and k not in made_of_others
    }
    assert len(shipped) > 20
    assert shipped <= set(list_derivers())
    for name in list_derivers():
        assert get_deriver(name).name == name
