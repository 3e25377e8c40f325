"""Data sets and training rows in the formats of RL and SFT trainers."""

from trajgym.adapters._annotating import Annotators, as_annotators
from trajgym.adapters._errors import UnknownExport
from trajgym.adapters._export import describe_export, export, list_exports
from trajgym.adapters._fitness import Fitness, Hindrance, check_fitness
from trajgym.adapters._gate import Allowance, Gate
from trajgym.adapters._group_rows import GroupRows, MissingRule, RowBuilder, group_rows
from trajgym.adapters._lint import Linter, LintFinding, lint, list_linters
from trajgym.adapters.exports._images import row_inputs, row_pictures
from trajgym.adapters.exports._rows import read_rows
from trajgym.adapters.exports._stream import ExportReport

__all__ = [
    "Allowance",
    "Annotators",
    "ExportReport",
    "Fitness",
    "Gate",
    "GroupRows",
    "Hindrance",
    "LintFinding",
    "Linter",
    "MissingRule",
    "RowBuilder",
    "UnknownExport",
    "as_annotators",
    "check_fitness",
    "describe_export",
    "export",
    "group_rows",
    "lint",
    "list_exports",
    "list_linters",
    "read_rows",
    "row_inputs",
    "row_pictures",
]
