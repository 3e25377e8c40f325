"""Single methods: what their vectors leave open."""

from __future__ import annotations

from difflib import SequenceMatcher
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.conftest import load_golden
from tests.rewards.build import group, session
from trajgym.rewards import (
    GRPO,
    MTGRPO,
    SRL,
    Advantages,
    Deriver,
    DeriverFault,
    GiGPO,
    OutcomeReward,
    Rewards,
    Stepwise,
    ToolPO,
    TreeGRPO,
    TreeRL,
    TurnGAE,
    TurnTable,
    apply,
    explain,
    plot_group,
    plot_tree,
)
from trajgym.rewards._scan import scan_back
from trajgym.rewards.filters import (
    DynamicSampling,
    ResampleOnCorrect,
    SpreadFilter,
    ZeroAdvantage,
    wanted_counts,
)
from trajgym.rewards.tokens import gae, gae_row, whiten
from trajgym.rewards.toolkit import SimilarityMatcher, similarity
from trajgym.rewards.trees import branch_probability, fork_points
from trajgym.trajectory import (
    CallResult,
    InvalidInput,
    InvalidRow,
    Segment,
    SessionTree,
    Span,
    Stamp,
    TurnTokens,
    build_rows,
    validate_row,
)


def spanned(name: str = "s", score: float = 1.0, *, inserted: bool = False) -> SessionTree:
    """A session of one exact turn: six response ids, a reasoning span, a call, and a fold in it."""
    tree = session(name, score)
    segments = (Segment(6, 0, 0),)
    if inserted:
        segments = (Segment(2, 0, 0), Segment(3, -1, -1, sampled=False), Segment(1, 0, 0))
    tree.turns[0].tokens = TurnTokens(
        prompt_kept=0,
        prompt_ids=np.array([1, 2], dtype=np.int32),
        response_ids=np.arange(3, 9, dtype=np.int32),
        logprobs=np.array([-1, -5, 0, 0, 0, -3] if inserted else [-1, -5, -2, -4, -2, -3]),
        segments=segments,
        spans=(Span("reasoning", 0, 2), Span("tool_call", 2, 5, "c"), Span("fold", 3, 4)),
    )
    return tree


@pytest.mark.parametrize("alphabet", ["ab", "abc", "abcdefghijklmnop "])
@settings(max_examples=150, deadline=None)
@given(data=st.data(), autojunk=st.booleans())
def test_matcher_equals_difflib(alphabet: str, data: st.DataObject, autojunk: bool) -> None:
    """The bit-parallel matcher gives difflib's ratio to the last bit, in either order."""
    text = st.text(alphabet, max_size=60)
    a, b = data.draw(text), data.draw(text)
    if data.draw(st.booleans()):
        a, b = a[: len(a) // 2] + b + a[len(a) // 2 :], b + a
    for left, right in ((a, b), (b, a)):
        expected = SequenceMatcher(None, left, right, autojunk).ratio()
        assert SimilarityMatcher(right, autojunk=autojunk).ratio(left) == expected
        assert similarity(left, right, autojunk=autojunk) == expected


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 2**16), kinds=st.integers(2, 40), autojunk=st.booleans())
def test_matcher_equals_difflib_on_long_texts(seed: int, kinds: int, autojunk: bool) -> None:
    """Also above 200 elements, where popular ones stop being seeds, and for tokens."""
    rng = np.random.default_rng(seed)
    b = rng.integers(0, kinds, 260).tolist()
    a = b[: int(rng.integers(100, 260))] + rng.integers(0, kinds, 40).tolist()
    a[10:20] = []
    expected = SequenceMatcher(None, a, b, autojunk).ratio()
    assert SimilarityMatcher(b, autojunk=autojunk).ratio(a) == expected


@settings(max_examples=80, deadline=None)
@given(
    sizes=st.lists(st.integers(0, 6), max_size=30),
    decay=st.sampled_from([0.0, 0.5, 1.0]),
    seed=st.integers(0, 99),
)
def test_scan_is_the_recurrence(sizes: list[int], decay: float, seed: int) -> None:
    """Many sequences at once, few, and empty ones: each is scanned from its own end."""
    values = np.random.default_rng(seed).normal(size=sum(sizes))
    starts = np.r_[0, np.cumsum(sizes, dtype=np.int64)]
    expected = values.copy()
    for start, stop in pairwise(starts.tolist()):
        for t in range(stop - 2, start - 1, -1):
            expected[t] += decay * expected[t + 1]
    assert scan_back(values, decay, starts).tolist() == expected.tolist()


@settings(max_examples=60, deadline=None)
@given(st.lists(st.booleans(), min_size=1, max_size=12), st.integers(0, 99))
def test_gae_skips_observations(mask: list[bool], seed: int) -> None:
    """With the masked tokens cut out, the trained ones have the same advantages and targets."""
    rewards, values = np.random.default_rng(seed).normal(size=(2, len(mask)))
    on = np.array(mask)
    whole = gae(rewards, values, mask=on, gamma=0.9, lambda_policy=0.8, lambda_critic=0.5)
    cut = gae(rewards[on], values[on], gamma=0.9, lambda_policy=0.8, lambda_critic=0.5)
    assert whole.advantages[on].tolist() == cut.advantages.tolist()
    assert whole.value_targets[on].tolist() == cut.value_targets.tolist()
    assert not whole.advantages[~on].any()


def test_gae_of_a_row() -> None:
    """A critic's values and a row's rewards become advantages on its trained tokens."""
    (row,) = build_rows(spanned()).rows
    with pytest.raises(InvalidInput, match="has no rewards"):
        gae_row(row, np.zeros(len(row)))
    (row,) = apply([row], OutcomeReward().derive(TurnTable.build([], [spanned()])))
    made = gae_row(row, np.full(len(row), 0.25), lambda_policy=1.0)
    validate_row(made)
    assert made.advantage is not None
    assert made.advantage.tolist() == [0, 0, *[0.75] * 6]
    with pytest.raises(InvalidInput, match="of equal length"):
        gae_row(row, np.zeros(3))
    assert whiten([3.0]).tolist() == [0.0]


def test_turn_gae_needs_values() -> None:
    """A turn without a critic's value is named."""
    with pytest.raises(InvalidInput, match="turn 0 of session s has no signal 'value'"):
        TurnGAE().derive(TurnTable.build([], [session("s", 1.0)]))


def test_span_values_land_on_their_tokens() -> None:
    """Advantages of spans cover their sampled tokens on top of the turn's; rewards end them."""
    tree = spanned()
    table = TurnTable.build([group(tree)], [tree])
    rows = build_rows(tree).rows
    stamp = Stamp("x", {})
    (row,) = apply(rows, Advantages(table, [1.0], stamp, spans=[0.0, 0.5, 0.25]))
    assert row.advantage is not None
    assert row.advantage.tolist() == [0, 0, 1, 1, 1.5, 1.75, 1.5, 1]
    (row,) = apply(rows, Rewards(table, [1.0], stamp, spans=[0.0, 0.5, 0.25]))
    validate_row(row)
    assert row.reward is not None
    assert row.reward.tolist() == [0, 0, 0, 0, 0, 0.25, 0.5, 1]
    row.reward[4] = 1.0
    with pytest.raises(InvalidRow, match="reward at token 4"):
        validate_row(row)


def test_inserted_tokens_of_a_span_get_nothing() -> None:
    """The reward of an inserted span is on its turn's last sampled token."""
    tree = spanned(inserted=True)
    table = TurnTable.build([group(tree)], [tree])
    rows = build_rows(tree).rows
    stamp = Stamp("x", {})
    (row,) = apply(rows, Advantages(table, [1.0], stamp, spans=[0.0, 0.5, 0.25]))
    assert row.advantage is not None
    assert row.advantage.tolist() == [0, 0, 1, 1, 0, 0, 0, 1]
    (row,) = apply(rows, Rewards(table, [1.0], stamp, spans=[0.0, 0.5, 0.25]))
    validate_row(row)
    assert row.reward is not None
    assert row.reward.tolist() == [0, 0, 0, 0, 0, 0, 0, 1.75]


def test_span_values_of_another_table_are_refused() -> None:
    """A row with spans that the table does not know is an error, not a shifted value."""
    tree, bare = spanned(), spanned()
    assert bare.turns[0].tokens is not None
    bare.turns[0].tokens.spans = ()
    table = TurnTable.build([group(bare)], [bare])
    with pytest.raises(InvalidInput, match="span 0 in the row but 0 spans in the table"):
        apply(build_rows(tree).rows, Advantages(table, [1.0], Stamp("x", {}), spans=[]))
    with pytest.raises(InvalidInput, match=r"shape .2,.; the table has 0 spans"):
        Rewards(table, [1.0], Stamp("x", {}), spans=[1.0, 2.0])


def called(name: str, score: float, status: Any) -> SessionTree:
    tree = spanned(name, score)
    tree.turns[0].calls = [CallResult(call_id="c", name="f", status=status)]
    return tree


def test_toolpo_counts_a_fold_inside_a_call_once() -> None:
    """The mask is 0 or 1: nested spans do not add the action advantage twice."""
    trees = [called("a", 1.0, "ok"), called("b", 0.0, "error")]
    table = TurnTable.build([group(*trees)], trees)
    derived = ToolPO().derive(table)
    (row,) = apply(build_rows(trees[0]).rows, derived)
    assert row.advantage is not None
    assert row.advantage.tolist() == [0, 0, 0.5, 0.5, 1, 1, 1, 0.5]
    spans = explain(ToolPO(), table, "a")[0].spans
    assert spans == {"tool_call[2:5]": 0.5}


def test_toolpo_does_not_lose_calls_without_spans() -> None:
    """Calls without a location are an error by default, or weight their whole turn."""
    trees = [called("a", 1.0, "ok"), called("b", 0.0, "error")]
    for tree in trees:
        assert tree.turns[0].tokens is not None
        tree.turns[0].tokens.spans = ()
    table = TurnTable.build([group(*trees)], trees)
    with pytest.raises(InvalidInput, match="turn 0 of session a has successful tool calls"):
        ToolPO().derive(table)
    assert ToolPO(missing_spans="turn").derive(table).values.tolist() == [1.0, -0.5]
    assert ToolPO(missing_spans="ignore").derive(table).values.tolist() == [0.5, -0.5]


def test_states_ignore_ids_of_tool_calls() -> None:
    """Two sessions that saw the same tool result are at the same anchor."""
    trees = [session(f"s{i}", float(i), turns=2) for i in range(2)]
    for i, tree in enumerate(trees):
        seen = {"role": "tool", "tool_call_id": f"random-{i}", "content": "3 files"}
        tree.turns[0].observation = [seen]
    table = GiGPO().table([group(*trees)], trees)
    assert table.state.tolist() == [0, 1, 0, 1]
    # Both halves of both turns: 0.5 from the episode, and half the gap of the returns.
    assert GiGPO(gamma=1.0).derive(table).of("s1").tolist() == [1.0, 1.0]
    with pytest.raises(InvalidInput, match="digests=True"):
        GiGPO().derive(TurnTable.build([group(*trees)], trees))


def test_similar_states_are_one_anchor() -> None:
    """With the similarity option, states that differ in a digit are compared; others are not."""
    texts = [
        "you are in the kitchen with 1 apple",
        "you are in the kitchen with 2 apple",
        "outside",
    ]
    trees = [session(f"s{i}", float(i == 0)) for i in range(3)]
    for tree, text in zip(trees, texts, strict=True):
        tree.turns[0].context = [{"role": "user", "content": text}]
    found = []
    for similar in (None, 0.95):
        deriver = GiGPO(similarity=similar)
        table = deriver.table([group(*trees)], trees)
        found.append(deriver.terms(table)["step"].tolist())
    assert found == [[0, 0, 0], [0.5, -0.5, 0]]


def test_srl_reads_actions_and_formats() -> None:
    """A turn's calls or text are compared with the expert's; a bad format costs 1."""
    tree = session("s", 1.0, turns=3)
    tree.turns[0].message = {
        "role": "assistant",
        "content": "thinking",
        "tool_calls": [{"id": "c", "function": {"name": "ls", "arguments": "{}"}}],
    }
    tree.turns[0].signals = {"expert_action": "ls {}"}
    tree.turns[1].signals = {"expert_action": "x", "format_ok": False}
    table = SRL().table([], [tree])
    assert SRL().derive(table).values.tolist() == [1.0, -1.0, 0.0]
    with pytest.raises(InvalidInput, match="texts=True"):
        SRL().derive(TurnTable.build([], [tree]))


def test_stepwise_compares_the_same_index() -> None:
    """First turns are compared with first turns; an index that one attempt reached gives 0."""
    trees = [session("a", 1.0, turns=3), session("b", 0.0, turns=2)]
    derived = Stepwise().derive(TurnTable.build([group(*trees)], trees))
    assert derived.of("a").tolist() == [1.0, 1.0, 0.0]
    assert derived.of("b").tolist() == [-1.0, -1.0]


def test_mt_grpo_splits_at_the_first_tool_result() -> None:
    """Turns up to the first call have both parts, later ones the outcome's."""
    trees = [session("a", 1.0, turns=3), session("b", 0.0, turns=3)]
    for tree, reward in zip(trees, (0.0, 1.0), strict=True):
        tree.turns[1].calls = [CallResult(call_id="c", name="f", status="ok")]
        tree.turns[1].reward = reward
    derived = MTGRPO(coef=0.5).derive(TurnTable.build([group(*trees)], trees))
    assert derived.of("a").tolist() == [0.5, 0.5, 1.0]
    assert derived.of("b").tolist() == [-0.5, -0.5, -1.0]


def test_filters_name_what_they_drop() -> None:
    """A group of equal outcomes is dropped with a reason, and no longer counts."""
    trees = [session("a", 1.0), session("b", 1.0)]
    more = [session("c", 1.0, group="h"), session("d", 0.0, group="h")]
    failed = session("e", None, group="h", status="failed:env")
    groups = [group(*trees), group(*more, failed, name="h")]
    table = TurnTable.build(groups, [*trees, *more, failed])
    for filter_ in (DynamicSampling(), SpreadFilter(), ZeroAdvantage(deriver=GRPO())):
        kept = filter_.select(table)
        assert kept.sessions == ["c", "d"]
        assert [(d.session, d.attempt) for d in kept.dropped] == [("a", 0), ("b", 0)]
        assert all(d.reason for d in kept.dropped)
        assert kept.table.scored.tolist() == [False, False, True, True, False]
    assert GRPO().derive(kept.table).values.tolist() == [0.0, 0.0, 1.0, -1.0, 0.0]


def rocked(n: int) -> tuple[TurnTable, list[SessionTree]]:
    trees = [session(f"s{i}", float(i % 2)) for i in range(n)]
    for i, tree in enumerate(trees):
        tree.record.sample = i
        tree.turns[0].signals = {"answers": 1 + i % 3}
    return TurnTable.build([group(*trees)], trees), trees


def test_resample_draws_by_its_seed() -> None:
    """The paper's draw needs a seed, repeats with it, and differs between seeds."""
    table, _ = rocked(16)
    drawn = [
        ResampleOnCorrect(draw="sampled", seed=seed).select(table).sessions for seed in (1, 1, 2)
    ]
    assert drawn[0] == drawn[1] != drawn[2]
    assert len(drawn[0]) == 8
    with pytest.raises(ValueError, match="needs a seed"):
        ResampleOnCorrect(draw="sampled")
    kept = ResampleOnCorrect().select(table)
    # Of the passes, the three with a single answer and the first of the others.
    assert kept.sessions == ["s0", "s1", "s2", "s3", "s4", "s6", "s9", "s15"]


def test_resample_drops_groups_that_official_shares_do_not_fit() -> None:
    """If the released code stops with an assertion, the group is dropped with a reason."""
    table, _ = rocked(6)
    kept = ResampleOnCorrect(variant="official", keep=3, min_negatives=1, min_positives=1).select(
        table
    )
    assert kept.sessions == []
    assert "3 negatives and 3 positives round to 2 + 2, not 3" in kept.dropped[0].reason
    assert ResampleOnCorrect(keep=9).select(table).sessions == []
    assert wanted_counts(5, 0, 2) == (2, 0)


def test_fork_points_are_the_most_surprising_tokens() -> None:
    """The largest surprisal first, without a turn's first token, inserted ids and closed tails."""
    points = fork_points(spanned(), 2)
    assert [(p.token, p.surprisal) for p in points] == [(1, 5.0), (3, 4.0)]
    assert [p.token for p in fork_points(spanned(inserted=True), 9)] == [1, 5]
    assert [p.token for p in fork_points(spanned(), 9, closed_after=[(0, 3)])] == [1, 2]
    assert fork_points(session("t", 1.0), 3) == []
    with pytest.raises(InvalidInput, match="count is -1"):
        fork_points(spanned(), -1)
    with pytest.raises(InvalidInput, match="entropies"):
        branch_probability(float("nan"), 0.0)


def test_truncated_rivals_count_and_failed_ones_do_not() -> None:
    """Tree-GRPO sums over the scored leaves below a turn."""
    tree = session("s", 1.0, turns=2, status="truncated:turns", forks=[0.0, 0.0])
    tree.attempts[2].outcome = None
    tree.attempts[2].status = tree.attempts[2].status.parse("failed:env")
    other = session("o", 0.0)
    table = TurnTable.build([group(tree, other)], [tree, other])
    intra = TreeGRPO().terms(table)["intra"]
    assert intra.tolist() == [0.0, 1.0, -1.0, 0.0, 0.0]
    assert TreeRL().derive(table).of("s")[3] == 0.0


def test_explained_terms_add_up() -> None:
    """Each turn's terms sum to its value, for a method of two terms."""
    trees = [session("a", 1.0, turns=2, forks=[0.0]), session("b", 0.0)]
    table = TurnTable.build([group(*trees)], trees)
    rows = explain(TreeGRPO(), table, "a")
    assert [row.turn for row in rows] == [0, 1, 2]
    assert rows[1].terms.keys() == {"intra", "inter"}
    for row in rows:
        assert sum(row.terms.values()) == pytest.approx(row.value)
    with pytest.raises(InvalidInput, match="session z is not in the table"):
        explain(TreeGRPO(), table, "z")


class Liar(Deriver):
    name = "liar"

    def derive(self, table: TurnTable) -> Rewards:
        return Rewards(table, np.ones(len(table)), self.stamp)

    def terms(self, table: TurnTable) -> dict[str, Any]:
        return {"half": np.full(len(table), 0.5)}


def test_terms_that_do_not_add_up_are_a_fault() -> None:
    """An explanation of another value is not shown as one."""
    with pytest.raises(DeriverFault, match=r"add up to 0.5, its value is 1.0"):
        explain(Liar(), TurnTable.build([], [session("s", 1.0)]), "s")


def test_plots_show_values_and_scores(tmp_path: Path) -> None:
    """The tree's picture has its values and scores, the group's its attempts; PNG works too."""
    tree, _ = load_golden("fork")
    tree.record.group = "g"
    other = session("other", 0.0)
    table = TurnTable.build([group(tree, other)], [tree, other])
    derived = TreeGRPO().derive(table)
    plot_tree(derived, "fork", tmp_path / "tree.svg")
    plot_group(derived, "g", tmp_path / "group.svg")
    plot_group(derived, "g", tmp_path / "group.png")
    drawn = (tmp_path / "tree.svg").read_text()
    for turn in derived.of("fork").tolist():
        assert f"<!-- {turn:+.2f} -->" in drawn
    assert "<!-- score 1 -->" in drawn
    assert "<!-- other: 0 -->" in (tmp_path / "group.svg").read_text()
    assert (tmp_path / "group.png").read_bytes().startswith(b"\x89PNG")
    for name, where in (("fork", "tree"), ("z", "tree.svg")):
        with pytest.raises(InvalidInput):
            plot_tree(derived, name, tmp_path / where)
    with pytest.raises(InvalidInput, match="group z is not in the table"):
        plot_group(derived, "z", tmp_path / "x.svg")


@pytest.mark.parametrize(
    ("signals", "message"),
    [
        ({"value": "high"}, "turn 0: signal value is 'high'"),
        ({"gold_logprob": [float("nan")]}, "signal gold_logprob"),
    ],
)
def test_signals_that_are_no_numbers_are_refused(signals: dict[str, Any], message: str) -> None:
    """A signal that a deriver computes with must be a number; the error names the signal."""
    tree = session("s", 1.0)
    tree.turns[0].signals = signals
    with pytest.raises(InvalidInput, match=message):
        TurnTable.build([], [tree])


def test_gold_logprobs_chain_through_the_tree() -> None:
    """What a turn started from is what its parent ended with, on every branch."""
    tree = session("s", 1.0, turns=2, forks=[0.0])
    for turn, after in zip(tree.turns, (-2.0, -1.0, -3.0), strict=True):
        turn.signals = {"gold_logprob": [after - 1, after + 1]}
    tree.turns[0].signals["gold_logprob_before"] = -4.0
    table = TurnTable.build([], [tree])
    assert table.gold_before.tolist() == [-4.0, -2.0, -2.0]
    assert table.gold_after.tolist() == [-2.0, -1.0, -3.0]
    assert table.has_gold.all()
