import pytest

from spans import SpanSet


def test_empty_set_has_no_members():
    assert list(SpanSet()) == []
    assert len(SpanSet()) == 0


def test_members_are_counted_once():
    numbers = SpanSet([(0, 5), (3, 8)])
    assert len(numbers) == 8
    assert list(numbers) == list(range(8))


@pytest.mark.parametrize(
    ("number", "inside"), [(-1, False), (0, True), (4, True), (5, False), (9, False), (10, True)]
)
def test_contains(number, inside):
    assert (number in SpanSet([(0, 5), (10, 12)])) is inside


def test_overlapping_spans_become_one():
    assert SpanSet([(0, 5), (3, 8)]).spans == ((0, 8),)


def test_adding_in_any_order_gives_equal_sets():
    assert SpanSet([(10, 12), (0, 5)]) == SpanSet([(0, 5), (10, 12)])


def test_adding_over_several_spans_swallows_them():
    numbers = SpanSet([(0, 2), (4, 6), (8, 10)])
    numbers.add(1, 9)
    assert numbers.spans == ((0, 10),)


def test_empty_span_adds_nothing():
    assert SpanSet([(3, 3)]).spans == ()


def test_backward_span_is_refused():
    with pytest.raises(ValueError, match="before it starts"):
        SpanSet([(5, 3)])


def test_discard_cuts_the_front():
    numbers = SpanSet([(0, 10)])
    numbers.discard(0, 4)
    assert numbers.spans == ((4, 10),)


def test_discard_cuts_the_back():
    numbers = SpanSet([(0, 10)])
    numbers.discard(6, 12)
    assert numbers.spans == ((0, 6),)


def test_discard_whole_spans():
    numbers = SpanSet([(0, 2), (4, 6), (8, 10)])
    numbers.discard(3, 7)
    assert numbers.spans == ((0, 2), (8, 10))


def test_gaps_between_spans():
    assert SpanSet([(2, 4), (6, 8)]).gaps(0, 10) == [(0, 2), (4, 6), (8, 10)]


def test_gaps_of_the_empty_set():
    assert SpanSet().gaps(1, 4) == [(1, 4)]
