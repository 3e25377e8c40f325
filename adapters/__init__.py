"""Handing sessions over: data sets and rows in the form that each trainer takes."""

from trajgym.adapters._errors import UnknownExport
from trajgym.adapters._export import export, list_exports
from trajgym.adapters._images import row_inputs, row_pictures
from trajgym.adapters._rows import read_rows
from trajgym.adapters._stream import ExportReport

__all__ = [
    "ExportReport",
    "UnknownExport",
    "export",
    "list_exports",
    "read_rows",
    "row_inputs",
    "row_pictures",
]
