"""Signals of annotators as numbers of the table, and the derivers that read them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.rewards.build import group, session
from trajgym.rewards import (
    RLOO,
    DirectiveHints,
    NextStateVotes,
    SignalProgress,
    TurnTable,
    apply,
)
from trajgym.trajectory import (
    Attempt,
    InvalidInput,
    Outcome,
    Segment,
    SessionRecord,
    SessionTree,
    Span,
    Status,
    Turn,
    TurnTokens,
    build_rows,
    validate_row,
)


def exact(signals: dict[str, Any], *, status: str = "completed") -> SessionTree:
    """A turn of eight ids, the third inserted, with a call inside a fold and an answer."""
    tokens = TurnTokens(
        prompt_kept=0,
        prompt_ids=np.array([1, 2], np.int32),
        response_ids=np.arange(8, dtype=np.int32),
        logprobs=np.array([-1, -1, 0, -1, -1, -1, -1, -1], np.float32),
        segments=(Segment(2, 0, 0), Segment(1, -1, -1, sampled=False), Segment(5, 0, 0)),
        spans=(Span("fold", 1, 5), Span("tool_call", 3, 5, "c"), Span("answer", 6, 8)),
    )
    turn = Turn(
        index=0,
        parent=None,
        message={"role": "assistant", "content": "x"},
        context=[{"role": "user", "content": "go"}],
        tokens=tokens,
        signals=signals,
    )
    parsed = Status.parse(status)
    outcome = Outcome(score=1.0, passed=True) if parsed.scored else None
    attempt = Attempt(leaf=0, status=parsed, outcome=outcome, cause="x")
    record = SessionRecord(id="s", task="t", env={"id": "e", "config": {}}, group="g")
    return SessionTree(record, [turn], [attempt])


GAPS = [1.0, 2.0, 99.0, 4.0, 6.0, -1.0, 3.0, 5.0]


def test_lists_are_means_over_sampled_ids() -> None:
    """A turn has the mean over its sampled ids and a span over its own; inserted ids count not."""
    table = TurnTable.build([], [exact({"hint_gaps": GAPS})], signals=["hint_gaps"])
    signal = table.signal("hint_gaps")
    assert signal.values.tolist() == [pytest.approx(20 / 7)]
    assert signal.spans.tolist() == [4.0, 5.0, 4.0]
    assert signal.known.tolist() == [True]


def test_numbers_hold_for_the_turn_and_its_spans() -> None:
    """One number is everywhere in the turn; a turn without the signal is not known."""
    table = TurnTable.build([], [exact({"n": 2}), session("b", 1.0)], signals=["n"])
    signal = table.signal("n")
    assert signal.values.tolist() == [2.0, 0.0]
    assert signal.known.tolist() == [True, False]
    assert signal.spans.tolist() == [2.0, 2.0, 2.0]
    with pytest.raises(InvalidInput, match="signal 'vote'"):
        table.signal("vote")


@pytest.mark.parametrize("bad", ["yes", [1.0], [*GAPS[:7], None], [*GAPS[:7], float("inf")], []])
def test_signals_that_are_no_numbers_are_refused(bad: Any) -> None:
    """Text, or a list that does not fit the response ids, is refused with session and turn."""
    with pytest.raises(InvalidInput, match="session s: turn 0: signal n"):
        TurnTable.build([], [exact({"n": bad})], signals=["n"])


def test_hints_over_a_turn_and_over_its_spans() -> None:
    """Over spans, outermost spans carry their own mean and the other tokens the turn's."""
    tree = exact({"hint_gaps": GAPS})
    mean = 20 / 7
    for over, expected in (
        ("turn", [mean] * 8),
        ("span", [mean, 4, 0, 4, 4, mean, 4, 4]),
    ):
        deriver = DirectiveHints(over=over)  # type: ignore[arg-type]
        values = deriver.derive(deriver.table([], [tree]))
        (row,) = apply(build_rows(tree).rows, values)
        validate_row(row)
        assert row.advantage is not None
        wanted = np.where(row.loss_mask[2:], expected, 0.0)
        assert row.advantage[2:] == pytest.approx(wanted)


def test_hints_are_clipped_and_weighed() -> None:
    """A mean above the clip is cut to it, then weighed."""
    deriver = DirectiveHints(clip=1.5, weight=2.0)
    values = deriver.derive(deriver.table([], [exact({"hint_gaps": GAPS})]))
    assert values.values.tolist() == [3.0]


def test_votes_and_hints_add_up_on_one_table() -> None:
    """The paper's combination is a sum of two advantages over the same table."""
    tree = exact({"vote": -1, "hint_gaps": GAPS})
    table = TurnTable.build([], [tree], signals=["vote", "hint_gaps"])
    both = NextStateVotes().derive(table) + 0.5 * DirectiveHints().derive(table)
    assert both.values.tolist() == [pytest.approx(-1 + 10 / 7)]


@pytest.mark.parametrize("deriver", [NextStateVotes(), DirectiveHints(over="span")])
def test_a_failed_attempt_has_no_value_for_its_signals(deriver: Any) -> None:
    """Signals of a session that failed are not trained."""
    tree = exact({"vote": 1, "hint_gaps": GAPS}, status="failed:env")
    values = deriver.derive(deriver.table([], [tree]))
    assert not values.values.any()
    assert values.spans is None or not values.spans.any()


def test_rloo_by_hand() -> None:
    """Each score less the mean of the others; alone 0, or the raw score as in verl."""
    trees = [session(f"s{i}", score) for i, score in enumerate((1.0, 0.0, 0.5))]
    alone = session("t", 0.7, group="h")
    table = TurnTable.build([group(*trees), group(alone, name="h")], [*trees, alone])
    assert RLOO().derive(table).values.tolist() == pytest.approx([0.75, -0.75, 0.0, 0.0])
    official = RLOO(variant="verl").derive(table).values
    assert official.tolist() == pytest.approx([0.75, -0.75, 0.0, 0.7])


def counted(name: str, counts: list[int | None], rival: tuple[int | None, ...] = ()) -> SessionTree:
    """A chain whose turns count what is left; a rival follows the first turn."""
    tree = session(name, 0.0, turns=len(counts), forks=[1.0] if rival else ())
    for turn, count in zip(tree.turns, [*counts, *rival], strict=True):
        turn.signals = {} if count is None else {"left": count}
    return tree


def gains(*trees: SessionTree, **settings: Any) -> list[float]:
    deriver = SignalProgress(signal="left", **settings)
    return deriver.derive(deriver.table([group(*trees)], trees)).values.tolist()


def test_progress_is_the_fall_of_a_count_as_a_share_of_its_first_value() -> None:
    """Four left, three, four again, none: turns without the count keep the last one."""
    assert gains(counted("a", [None, 4, 3, None, 4, 0])) == [0, 0, 0.25, 0, -0.25, 1.0]
    assert gains(counted("a", [4, 2]), counted("b", [1, 3])) == [0, 0.5, 0, -2.0]
    assert gains(counted("a", [4, 2]), scale=3.0) == [0, 1.5]


def test_progress_without_a_count_or_with_nothing_left_is_zero_or_not_divided() -> None:
    """Without any count all is 0; from a first count of 0, each new failure costs 1."""
    assert gains(counted("a", [None, None])) == [0, 0]
    assert gains() == []
    assert gains(counted("a", [0, 2])) == [0, -2.0]


def test_progress_of_rivals_starts_at_their_common_turn() -> None:
    """The rival's turn is compared with the last count above the fork."""
    assert gains(counted("a", [4, 3, 2], rival=(1,))) == [0, 0.25, 0.25, 0.75]


def test_progress_of_a_failed_attempt_is_zero() -> None:
    """An attempt that failed has no rewards."""
    tree = session("a", None, turns=2, status="failed:sandbox")
    for turn, count in zip(tree.turns, (4, 0), strict=True):
        turn.signals = {"left": count}
    assert gains(tree) == [0, 0]
