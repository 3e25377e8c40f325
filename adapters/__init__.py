"""Handing sessions over: data sets and rows in the form that each trainer takes."""

from trajgym.adapters._errors import UnknownExport
from trajgym.adapters._export import export, list_exports
from trajgym.adapters._images import row_inputs, row_pictures
from trajgym.adapters._lint import Linter, LintFinding, lint, list_linters
from trajgym.adapters._rows import read_rows
from trajgym.adapters._stream import ExportReport

__all__ = [
    "ExportReport",
    "LintFinding",
    "Linter",
    "UnknownExport",
    "export",
    "lint",
    "list_exports",
    "list_linters",
    "read_rows",
    "row_inputs",
    "row_pictures",
]
