import pytest

from fieldtext import FieldTextError, Table, write_records


def test_rows_by_name():
    table = Table.parse("name,age\nAda,36\nAlan,41\n")
    assert table.rows[1] == {"name": "Alan", "age": "41"}


def test_column():
    assert Table.parse("n,m\n1,2\n3\n").column("m") == ["2", None]


def test_unknown_column():
    with pytest.raises(KeyError):
        Table.parse("n\n1\n").column("m")


def test_empty_text_is_an_empty_table():
    assert Table.parse("").names == []


def test_double_name_is_an_error():
    with pytest.raises(FieldTextError, match="twice"):
        Table.parse("n,n\n")


def test_writer_quotes_where_needed():
    assert write_records([["a,b", 'x"y', 3]]) == '"a,b","x""y",3\n'
