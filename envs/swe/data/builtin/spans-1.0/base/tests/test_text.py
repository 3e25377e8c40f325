import pytest

from spans import SpanSet, format_spans, parse_spans


@pytest.mark.parametrize("text", ["", "7", "1-3", "1-3,7", "1-3,7,9-12"])
def test_text_round_trip(text):
    assert format_spans(parse_spans(text)) == text


def test_blanks_are_ignored():
    assert parse_spans(" 1-3 , 7 ") == SpanSet([(1, 4), (7, 8)])


def test_nonsense_is_refused():
    with pytest.raises(ValueError, match="'1-x'"):
        parse_spans("1-x")
