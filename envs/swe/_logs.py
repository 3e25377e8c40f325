"""Parses the output of a test run with the ``swebench`` package's own parsers.

For data sets whose test ids come from such a parser: ids are cut at blanks, skipped tests count as
passing for PASS_TO_PASS, and so on. The parsers are that package's, unchanged, and so are the rules
for each status.
"""

from __future__ import annotations

import re
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from trajgym.envs.swe._errors import InvalidTask
from trajgym.trajectory._internal import MissingExtra

if TYPE_CHECKING:
    from collections.abc import Mapping

    from trajgym.envs.swe._junit import TestStatus

__all__ = ["R2E", "log_status", "parse_log", "parser_names", "r2e_id"]

R2E = "r2e"
_COLOUR = re.compile(r"\x1b\[[0-9;]*m|\r")
_STATUS: dict[str, TestStatus] = {
    "PASSED": "passed",
    "FAILED": "failed",
    "SKIPPED": "skipped",
    "ERROR": "error",
    "XFAIL": "xfailed",
}


def parser_names() -> list[str]:
    """Return the names of the parsers that the installed ``swebench`` package has.

    Raises:
        MissingExtra: it is not installed.
    """
    return sorted(_registry())


def parse_log(
    log: str, parser: str, *, instance_id: str = "", version: str = ""
) -> dict[str, TestStatus]:
    """Return ``{test id: status}`` from the output of a test run.

    Args:
        log: what the test command printed, untrusted.
        parser: a name from :func:`parser_names`, as in a record's ``log_parser``, or ``r2e``.
        instance_id: id of the record; a few parsers read it.
        version: version of the record; a few parsers read it.

    Raises:
        InvalidTask: there is no such parser, or it needs data of its own harness to read this
            log.
        MissingExtra: ``swebench`` is not installed.
    """
    if parser == R2E:
        return _r2e(log)
    found = _registry().get(parser)
    if found is None:
        raise InvalidTask(f"log_parser {parser!r} is not in swebench; it has {parser_names()}")
    try:
        statuses = found(log, SimpleNamespace(instance_id=instance_id, version=version))
    except Exception as error:  # another project's code reads untrusted text
        raise InvalidTask(
            f"{parser} can't read the log: {type(error).__name__}: {error}"
        ) from error
    return {str(test): _STATUS.get(str(status), "error") for test, status in statuses.items()}


def r2e_id(name: str) -> str:
    """Return a test's name as R2E-Gym compares it: without colours and the reason after " - "."""
    return _COLOUR.sub("", name).split(" - ")[0]


def _r2e(log: str) -> dict[str, TestStatus]:
    """Parse pytest's short summary, naming tests as R2E-Gym's records do: ids without the file.

    https://github.com/R2E-Gym/R2E-Gym, ``execution_log_parser``.
    """
    results: dict[str, TestStatus] = {}
    for line in _COLOUR.sub("", log).partition("short test summary info")[2].splitlines():
        word, _, test = line.strip().partition(" ")
        if word in {"PASSED", "FAILED", "ERROR"}:
            parts = test.split("::")[1:]
            results[r2e_id(".".join(parts) if parts else test)] = _STATUS[word]
    return results


def log_status(test: str, results: Mapping[str, TestStatus]) -> TestStatus | None:
    """Return the status of a listed test, None if it did not run.

    A listed id that was cut inside its parameters (more ``[`` than ``]``) means all results that
    begin with it, if either all or none of these passed.
    """
    if test in results:
        return results[test]
    if test.count("[") <= test.count("]"):
        return None
    found = [status for name, status in results.items() if name.startswith(test)]
    if len({status in {"passed", "xfailed"} for status in found}) == 1:
        return found[0]
    return None


def _registry() -> dict[str, Any]:
    try:
        from swebench.harness.log_parsers import PARSER_REGISTRY
    except ImportError:
        raise MissingExtra("swebench", "swebench") from None
    return dict(PARSER_REGISTRY)
