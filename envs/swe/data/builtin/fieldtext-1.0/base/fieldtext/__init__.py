"""Tables as text."""

from fieldtext._reader import FieldTextError, read_records
from fieldtext._table import Table
from fieldtext._writer import write_records

__all__ = ["FieldTextError", "Table", "read_records", "write_records"]
