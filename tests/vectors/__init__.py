"""Runs files of expected values against the library: ``python -m tests.vectors FILE...``.

A file holds ``{method, tolerance, cases: [{name, inputs, expected}]}``. A case is recognised by the
keys of its inputs, so files that nobody has seen run too; one for which there is no method is
``unsupported``, by name.
"""

from tests.vectors._run import Result, run_case, run_file

__all__ = ["Result", "run_case", "run_file"]
