import pytest

from fieldtext import FieldTextError, read_records


def read(text, **options):
    return list(read_records(text, **options))


def test_plain_fields():
    assert read("a,b\nc,d\n") == [["a", "b"], ["c", "d"]]


def test_last_line_needs_no_end():
    assert read("a,b") == [["a", "b"]]


def test_other_separator():
    assert read("a;b,c\n", separator=";") == [["a", "b,c"]]


@pytest.mark.parametrize("separator", ["", ",,", '"', "\n"])
def test_bad_separator_is_refused(separator):
    with pytest.raises(ValueError, match="separator"):
        read("a", separator=separator)


def test_quotes_keep_separators():
    assert read('"a,b",c\n') == [["a,b", "c"]]


def test_doubled_quotes_are_quotes():
    assert read('"say ""hi""",x\n') == [['say "hi"', "x"]]


def test_quotes_keep_line_ends():
    assert read('"two\nlines",x\ny,z\n') == [["two\nlines", "x"], ["y", "z"]]


def test_empty_lines_are_skipped():
    assert read("a\n\nb\n") == [["a"], ["b"]]


def test_windows_line_ends():
    assert read("a,b\r\nc,d\r\n") == [["a", "b"], ["c", "d"]]


def test_empty_fields_inside():
    assert read("a,,b\n,c\n") == [["a", "", "b"], ["", "c"]]


def test_open_quote_is_an_error():
    with pytest.raises(FieldTextError, match="line 1: a quote is never closed"):
        read('"abc')


def test_text_after_quote_is_an_error():
    with pytest.raises(FieldTextError, match="closing quote"):
        read('"a"b\n')
