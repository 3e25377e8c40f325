"""Results from the output of a test run, read by the ``swebench`` package's own parsers.

For data sets whose test ids come from such a parser: ids are cut at blanks, skipped tests count as
kept, and so on. The parsers are that package's, unchanged; what a status is worth follows its
rules.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from trajgym.envs.swe._errors import InvalidTask
from trajgym.trajectory import MissingExtra

if TYPE_CHECKING:
    from collections.abc import Mapping

    from trajgym.envs.swe._junit import TestStatus

__all__ = ["log_status", "parse_log", "parser_names"]

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
        parser: a name out of :func:`parser_names`, as records carry it in ``log_parser``.
        instance_id: of the record; a few parsers read it.
        version: of the record; a few parsers read it.

    Raises:
        InvalidTask: there is no such parser, or it can't read this log without the data of its
            own harness.
        MissingExtra: ``swebench`` is not installed.
    """
    found = _registry().get(parser)
    if found is None:
        raise InvalidTask(f"log_parser {parser!r} is not in swebench; it has {parser_names()}")
    try:
        statuses = found(log, SimpleNamespace(instance_id=instance_id, version=version))
    except Exception as error:  # another project's code over untrusted text
        raise InvalidTask(
            f"{parser} can't read the log: {type(error).__name__}: {error}"
        ) from error
    return {str(test): _STATUS.get(str(status), "error") for test, status in statuses.items()}


def log_status(test: str, results: Mapping[str, TestStatus]) -> TestStatus | None:
    """Return the status of a listed test, None if it did not run.

    A listed id that was cut inside its parameters (more ``[`` than ``]``) stands for all results
    that begin with it, if these agree on whether they passed.
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
