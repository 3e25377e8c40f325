"""Test ids and statuses from JUnit reports."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import xml.etree.ElementTree as ET
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trajgym.envs.swe import BadReport, parse_junit
from trajgym.envs.swe._junit import reported_id

if TYPE_CHECKING:
    from pathlib import Path

ODD = [
    "plain", "with blank", "line\nend", "tab\there", "a::b", "[", "]", "x]y[z", "dots.and/slash.py",
    "ünïcödé ✓", "quote'\"", "<&>", "back\\slash", "\x1b[0m", "::", "-", " lead", "trail ", "a-b",
]  # fmt: skip

SUITE = """
import json, pathlib, pytest, unittest
ODD = json.loads(pathlib.Path(__file__).with_name("odd.json").read_text())

@pytest.mark.parametrize("value", ODD)
def test_text(value):
    assert value != "plain"

@pytest.mark.parametrize("value", range(len(ODD)), ids=ODD)
def test_ids(value):
    pass

class TestOuter:
    class TestInner:
        @pytest.mark.parametrize("value", ["a b", "c.d"])
        def test_deep(self, value):
            pass

class TestCase(unittest.TestCase):
    def test_unit(self):
        pass

from shared.cases import Cases

class TestInherited(Cases):
    pass

@pytest.fixture
def torn():
    yield
    raise RuntimeError

def test_error_after_call(torn):
    pass

@pytest.mark.skip
def test_skipped():
    pass

@pytest.mark.xfail
def test_xfail():
    assert False
"""

RECORDER = """
import json, pathlib
seen = []
def pytest_collection_modifyitems(items):
    pathlib.Path("seen.json").write_text(json.dumps([item.nodeid for item in items]))
"""


@pytest.fixture(scope="module", params=["escaped", "raw"])
def suite(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A suite with odd names, run once by the real pytest."""
    root = tmp_path_factory.mktemp("suite")
    for folder in ("tests.v1/unit", "shared"):
        (root / folder).mkdir(parents=True)
    (root / "tests.v1/unit/test_odd.py").write_text(SUITE)
    (root / "tests.v1/unit/odd.json").write_text(json.dumps(ODD))
    (root / "shared/cases.py").write_text(
        "class Cases:\n    def test_shared(self):\n        pass\n"
    )
    (root / "conftest.py").write_text(RECORDER)
    raw = "disable_test_id_escaping_and_forfeit_all_rights_to_community_support = true\n"
    (root / "pytest.ini").write_text("[pytest]\n" + (raw if request.param == "raw" else ""))
    subprocess.run(
        [
            sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider",
            "-o", "junit_family=xunit1", "--junitxml=report.xml", "tests.v1/unit/test_odd.py",
        ],
        cwd=root,
        env={**os.environ, "PYTHONPATH": str(root), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        capture_output=True,
        timeout=120,
        check=False,
    )  # fmt: skip
    return root


def test_ids_of_a_real_report_are_pytest_s_own(suite: Path) -> None:
    """Every id that pytest collected comes out of its report, and no other."""
    collected = json.loads((suite / "seen.json").read_text())
    results = parse_junit((suite / "report.xml").read_bytes(), ["tests.v1/unit/test_odd.py"])
    assert len(collected) == len(set(collected)) > 2 * len(ODD)
    assert sorted(results) == sorted(map(reported_id, collected))


def test_statuses_of_a_real_report(suite: Path) -> None:
    """Failures, skips, expected failures and errors in teardown are distinguished."""
    file = "tests.v1/unit/test_odd.py"
    results = parse_junit((suite / "report.xml").read_bytes(), [file])
    assert results[f"{file}::test_text[plain]"] == "failed"
    assert results[f"{file}::test_text[with blank]"] == "passed"
    assert results[f"{file}::test_error_after_call"] == "error"
    assert results[f"{file}::test_skipped"] == "skipped"
    assert results[f"{file}::test_xfail"] == "xfailed"
    assert results[f"{file}::TestInherited::test_shared"] == "passed"


text = st.text(
    st.characters(exclude_categories=["Cs", "Cc"], include_characters="\n\t"), max_size=30
)
name = st.from_regex(r"[A-Za-z_][A-Za-z0-9_]{0,8}", fullmatch=True)


@given(
    folders=st.lists(st.from_regex(r"[a-z][a-z0-9._-]{0,6}[a-z]", fullmatch=True), max_size=3),
    module=name,
    classes=st.lists(name, max_size=2),
    test=name,
    parameters=st.none() | text,
)
def test_any_id_survives_the_report(
    folders: list[str], module: str, classes: list[str], test: str, parameters: str | None
) -> None:
    """Whatever the path, the classes and the parameters: the id is put together again."""
    path = "/".join([*folders, f"{module}.py"])
    last = test if parameters is None else f"{test}[{parameters}]"
    dotted = ".".join([path.removesuffix(".py").replace("/", "."), *classes])
    root = ET.Element("testsuites")
    ET.SubElement(root, "testcase", classname=dotted, name=last, file=path)
    report = ET.tostring(root)
    wanted = "::".join([path, *classes, last])
    assert parse_junit(report, [path]) == {wanted: "passed"}
    assert parse_junit(report, []) == {wanted: "passed"}


@pytest.mark.parametrize(
    "report",
    [
        b"",
        b"<testsuites>",
        b"<html/>",
        b'<!DOCTYPE x [<!ENTITY a "aaaa">]><testsuites><testcase name="&a;"/></testsuites>',
    ],
)
def test_what_pytest_never_writes_is_refused(report: bytes) -> None:
    """Damaged reports and entity bombs are refused with an error of ours."""
    with pytest.raises(BadReport):
        parse_junit(report, [])
