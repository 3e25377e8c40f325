"""Parses pytest's JUnit XML report, in its xunit1 family, into results per test.

Test ids are exactly those of pytest, including blanks, line ends and brackets in parameters. The
report does not contain the id itself: the class name is the id's path and classes joined by dots,
so the path is looked up among the files of the repository.
"""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from typing import TYPE_CHECKING, Literal, TypeAlias

from trajgym.trajectory import InvalidInput

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["BadReport", "TestStatus", "parse_junit", "reported_id"]

TestStatus: TypeAlias = Literal["passed", "failed", "error", "skipped", "xfailed"]

_WORST: dict[TestStatus, int] = {"passed": 0, "xfailed": 1, "skipped": 2, "failed": 3, "error": 4}
_NOT_IN_XML = re.compile("[^\t\n\r\x20-\x7e\x80-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_DECLARATION = re.compile(rb"<!(DOCTYPE|ENTITY)", re.IGNORECASE)


class BadReport(InvalidInput):
    """The report is not what pytest writes: damaged, or forged."""


def parse_junit(report: bytes, files: Iterable[str]) -> dict[str, TestStatus]:
    """Return ``{test id: status}``.

    Args:
        report: the XML, untrusted.
        files: paths of the test files, relative to the repository, as pytest was given them.

    A test that is reported twice (an error after its call) has its worst status.

    Raises:
        BadReport: not well-formed, declares entities, is not a JUnit report, or its counts of
            failures and errors differ from its content.
    """
    if _DECLARATION.search(report):
        raise BadReport("the test report declares entities; pytest never does")
    try:
        root = ET.fromstring(report)  # noqa: S314  # entities are refused above
    except ET.ParseError as error:
        raise BadReport(f"the test report is not XML: {error}") from error
    if root.tag not in {"testsuites", "testsuite"}:
        raise BadReport(f"the test report starts with <{root.tag}>, not <testsuites>")
    _check_counts(root)
    modules = {_dotted(path): path for path in files}
    results: dict[str, TestStatus] = {}
    for case in root.iter("testcase"):
        test, status = _test_id(case, modules), _status(case)
        if test not in results or _WORST[status] > _WORST[results[test]]:
            results[test] = status
    return results


def _check_counts(root: ET.Element) -> None:
    """Compare each suite's counts with its content: an edited report may not match."""
    for suite in root.iter("testsuite"):
        for attribute, tag in (("failures", "failure"), ("errors", "error")):
            said, held = suite.get(attribute, ""), sum(1 for _ in suite.iter(tag))
            if said.isdigit() and int(said) != held:
                raise BadReport(f"the test report counts {said} {attribute} and holds {held}")


def reported_id(test: str) -> str:
    """Return a test id as in reports: pytest writes characters that XML does not allow as #x1B."""
    return _NOT_IN_XML.sub(_hexadecimal, test)


def _hexadecimal(match: re.Match[str]) -> str:
    code = ord(match[0])
    return f"#x{code:02X}" if code <= 0xFF else f"#x{code:04X}"


def _dotted(path: str) -> str:
    return path.removesuffix(".py").replace("/", ".")


def _test_id(case: ET.Element, modules: dict[str, str]) -> str:
    name, classname = case.get("name", ""), case.get("classname", "")
    parts = classname.split(".")
    for end in range(len(parts), 0, -1):
        if path := modules.get(".".join(parts[:end])):
            return "::".join([path, *parts[end:], name])
    if not classname:
        # A module that can't be collected is a case named after its dotted path.
        return modules.get(name, name)
    return _by_file(case, name, classname)


def _by_file(case: ET.Element, name: str, classname: str) -> str:
    file = case.get("file", "")
    dotted = _dotted(file)
    if file and (classname == dotted or classname.startswith(f"{dotted}.")):
        classes = [part for part in classname[len(dotted) + 1 :].split(".") if part]
        return "::".join([file, *classes, name])
    return f"{classname}::{name}"


def _status(case: ET.Element) -> TestStatus:
    status: TestStatus = "passed"
    for child in case:
        found: TestStatus | None = None
        if child.tag == "failure":
            found = "failed"
        elif child.tag == "error":
            found = "error"
        elif child.tag == "skipped":
            found = "xfailed" if child.get("type") == "pytest.xfail" else "skipped"
        if found and _WORST[found] > _WORST[status]:
            status = found
    return status
