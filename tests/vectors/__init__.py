"""Compare the library with files of expected values: ``python -m tests.vectors FILE...``.

A file has ``{method, tolerance, cases: [{name, inputs, expected}]}``. A case is recognised by the
keys of its inputs, so unknown files can be run, too; a case for which there is no method is
reported as ``unsupported``, by name.
"""

from tests.vectors._run import Result, run_case, run_file

__all__ = ["Result", "run_case", "run_file"]
