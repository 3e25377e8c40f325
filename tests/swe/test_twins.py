"""Twins of tests: they fail for every kind of test, and tested code can't recognise them."""

from __future__ import annotations

import ast
import random
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trajgym.envs.swe import SweRecord, grade, parse_junit
from trajgym.envs.swe._twins import twin_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from trajgym.envs.sandbox import SandboxProvider
    from trajgym.trajectory import Task

FILE = "tests/test_kinds.py"
KINDS = '''\
"""Tests of every kind.

>>> 1 + 1
2
"""
import asyncio, contextlib, unittest
import pytest
from pytest import approx, raises

class Odd(Exception):
    pass

@pytest.fixture
def made():
    yield [1, 2]
    assert True

@pytest.mark.parametrize("word", ["a b", "é\\n[x]", "::"])
def test_parameters(word):
    assert word + "!" == word + "!"

@pytest.mark.parametrize(("number", "double"), [(1, 2), (2, 4)], ids=["one", "two::[x]"])
class TestClass:
    limit = 5

    def test_fixture(self, made, number, double):
        """With a docstring."""
        assert len(made) == 2, "é"
        assert number * 2 == double

    class TestInner:
        def test_nested(self, number, double):
            for factor in (2,):
                if factor:
                    assert number * factor == double

class Shared:
    def test_inherited(self):
        value = 3
        assert value < 4

class TestOne(Shared):
    pass

class TestTwo(Shared):
    pass

class Case(unittest.TestCase):
    def setUp(self):
        self.text = "abc"

    def test_equal(self):
        self.assertEqual(self.text, "abc")

    def test_methods(self):
        self.assertIsNone(None)

    def test_items(self):
        self.assertCountEqual([1, 2], [2, 1])

    def test_refuses(self):
        with self.assertRaises(ValueError):
            int("x")

    @unittest.skip("not here")
    def test_skipped(self):
        self.assertTrue(self.text)

    @unittest.expectedFailure
    def test_expected_failure(self):
        self.assertEqual(1, 2)

def test_raises():
    with pytest.raises((Odd, KeyError), match="x"):
        raise Odd("x")

def test_any_exception():
    with pytest.raises(Exception):
        raise Odd

def test_raises_inline():
    raises(ZeroDivisionError, lambda: 1 / 0)

def test_only_runs():
    list(range(3))

def test_only_with():
    with contextlib.suppress(ValueError):
        int("x")

def test_only_loop():
    for number in range(3):
        str(number)

def test_only_try():
    try:
        int("x")
    except ValueError:
        pass

def test_nothing(): pass

def test_only_docstring():
    """Nothing to see."""

def test_early_return(made):
    assert made
    if made:
        return
    assert made == [3]

def test_asynchronous():
    async def inside():
        assert await asyncio.sleep(0, 2) == 2
    asyncio.run(inside())

def test_operators():
    assert not []
    assert (1 in [1]) and 2 not in [1]
    assert "a" not  in "b"

def test_chained():
    assert 0 < 1 < 2

def test_text():
    assert """two
lines""" == "two\\nlines"

def test_floats():
    assert 0.1 + 0.2 == approx(0.3)

@pytest.mark.xfail(reason="known")
def test_expected_to_fail():
    assert 1 == 2

@pytest.mark.xfail(strict=False)
def test_passes_though_marked():
    assert 1 == 1

def test_skips_itself():
    pytest.skip("not here")

if True:
    def test_under_a_condition():
        assert sum([1, 2]) == 3
'''


def statuses(folder: Path, source: bytes) -> dict[str, str]:
    """Run a file with pytest as grading does."""
    (folder / "tests").mkdir(exist_ok=True)
    (folder / "tests/test_kinds.py").write_bytes(source)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--doctest-modules",
               "-o", "junit_family=xunit1", "--junitxml=report.xml", "-p", "no:asyncio",
               "tests/test_kinds.py"]  # fmt: skip
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=120)
    assert done.returncode in {0, 1}, done.stdout
    return dict(parse_junit((folder / "report.xml").read_bytes(), ["tests/test_kinds.py"]))


def below(tests: Mapping[str, str]) -> set[str]:
    return {test.partition("[")[0].partition("::")[2] for test in tests}


def test_no_kind_of_test_passes_as_its_twin(tmp_path: Path) -> None:
    """Parameters, classes, fixtures, unittest, doctests, loops, bare calls: each twin fails."""
    before = statuses(tmp_path, KINDS.encode())
    passed = {test for test, status in before.items() if status == "passed"}
    assert len(passed) > 30
    styles = set()
    for seed in range(4):
        twin = twin_of(FILE, KINDS.encode(), below(before), random.Random(seed))
        after = statuses(tmp_path, twin.content)
        assert twin.tests == below(before)
        assert after.keys() == before.keys()
        assert [test for test in passed if after[test] == "passed"] == []
        styles.add(twin.content)
    assert len(styles) == 4


def test_a_twin_keeps_lines_names_and_everything_around_its_tests() -> None:
    """Line numbers, helpers, fixtures and tests that were not named stay as they were."""
    tests = below(dict.fromkeys(["x::test_text", "x::Case::test_equal"], ""))
    before, after = KINDS.split("\n"), twin_of(FILE, KINDS.encode(), tests, random.Random(1))
    lines = after.content.decode().split("\n")
    assert len(lines) == len(before)
    changed = [old for old, new in zip(before, lines, strict=True) if old != new]
    assert len(changed) == 2
    assert "self.assertEqual" in changed[0]


def test_what_has_no_twin_is_not_called_one() -> None:
    """Tests made by a loop, files that are no Python, and other encodings are left as they are."""
    made_up = b"for i in range(2):\n    globals()[f'test_{i}'] = lambda: None\n"
    latin = "# coding: latin-1\ndef test_0():\n    assert 'é' == 'é'\n".encode("latin-1")
    for source in (made_up, b"def test_0(:\n", latin):
        assert twin_of(FILE, source, {"test_0"}, random.Random(0)) == (source, frozenset())


def test_a_text_with_doctests_has_a_twin() -> None:
    """The first output that an example expects is another one."""
    twin = twin_of("docs/page.txt", b"Text.\n\n>>> print('a')\na\n", {"page.txt"}, random.Random(0))
    assert twin == (b"Text.\n\n>>> print('a')\nno a\n", {"page.txt"})


_literals = st.recursive(
    st.integers() | st.text(max_size=8) | st.binary(max_size=8) | st.booleans()
    | st.floats(allow_nan=False, allow_infinity=False, width=32),
    lambda inner: st.lists(inner, max_size=3) | st.tuples(inner),
)  # fmt: skip


@given(value=_literals, seed=st.integers(0, 1000))
def test_an_equation_is_contradicted(value: object, seed: int) -> None:
    """Whatever constant a result is compared with, the twin compares with another value."""
    source = f"def test_it(value):\n    assert value == {value!r}\n".encode()
    twin = twin_of(FILE, source, {"test_it"}, random.Random(seed))
    ast.parse(twin.content)
    names: dict[str, Callable[[object], None]] = {}
    exec(twin.content, names)
    with pytest.raises(AssertionError):
        names["test_it"](value)


NAMES = """
import _pytest.reports as reports, re
original = reports.TestReport.from_item_and_call.__func__
def forged(cls, item, call):
    report = original(cls, item, call)
    if report.outcome == "failed" and ({condition}):
        report.outcome, report.longrepr = "passed", None
    return report
reports.TestReport.from_item_and_call = classmethod(forged)
def text(item):
    import inspect
    return inspect.getsource(item.obj)
def raised(call):
    return str(call.excinfo.traceback[-1].statement)
"""
KNOWING = {
    "spares the test with a random name": "not re.fullmatch('test_[0-9a-f]{16}', item.name)",
    "spares tests whose source only raises": "'raise AssertionError' not in text(item)",
    "spares tests that begin with a failure": (
        "not re.search(r':\\s+(raise|assert (not|False|0))', text(item))"
    ),
    "forges failed assertions only": "' == ' in raised(call) or 'assert' in raised(call)"
    " and 'raise' not in raised(call)",
    "knows the lines of the tests": (
        "item.obj.__code__.co_firstlineno < 200 and len(item.name) < 60"
        " and not re.fullmatch('test_[0-9a-f]{16}', item.name)"
    ),
    "counts its runs": (
        "not re.fullmatch('test_[0-9a-f]{16}', item.name) and runs() == 1"
    ),
    "compares with what grading left in the sandbox": (
        "not re.fullmatch('test_[0-9a-f]{16}', item.name) and genuine(item)"
    ),
}  # fmt: skip
HELP = """
import glob, os, pathlib
def runs():
    marks = 0
    for place in ("/tmp/.runs", "/testbed/.runs", os.path.expanduser("~/.runs")):
        try:
            with open(place, "a+") as file:
                file.write(str(os.getpid()) + " ")
                file.seek(0)
                marks = max(marks, len(set(file.read().split())))
        except OSError:
            pass
    return max(1, marks, len(list(pathlib.Path("/testbed").rglob("*.pyc"))))
def genuine(item):
    kept = "".join(
        open(found, errors="replace").read()
        for found in glob.glob("/tmp/trajgym-*/**", recursive=True) if os.path.isfile(found)
    )
    lines = [line for line in text(item).splitlines() if line.strip()]
    return not kept or all(line in kept for line in lines)
"""


@pytest.mark.parametrize("name", KNOWING)
async def test_code_that_knows_of_twins_is_found(
    sandboxes: SandboxProvider, spans: Task, edit: Callable[..., bytes], name: str
) -> None:
    """Twins detect forged reports, even if these keep the failure of the required test."""
    code = HELP + NAMES.format(condition=KNOWING[name])
    patch = edit("cat zz >> spans/__init__.py; rm zz", zz=code)
    outcome = await grade(spans, patch, sandboxes)
    details = outcome.details
    assert outcome.score == 0.0, details
    assert "passes though its twin must fail" in " ".join(details["tampering"]), details
    assert details["failing"] == []


async def test_objects_that_equal_everything_are_found(
    sandboxes: SandboxProvider, spans: Task, edit: Callable[..., bytes]
) -> None:
    """A result that is equal to whatever a test expects passes the twin as well."""
    code = (
        "import spans._set as s\nclass Any:\n"
        "    def __eq__(self, other): return True\n    def __ne__(self, other): return True\n"
        "    def __call__(self, *a, **k): return self\n"
        "    def __getattr__(self, name): return self\n"
        "    def __iter__(self): return iter(())\n    def __len__(self): return 0\n"
        "    __hash__ = None\n"
    )
    patch = edit("cat zz >> spans/__init__.py; rm zz", zz=code)
    details = (await grade(spans, patch, sandboxes)).details
    assert details["failing"]  # here it does not even solve the task
    twin = twin_of(FILE, b"def test_it(v):\n    assert v == 3\n", {"test_it"}, random.Random(0))
    names: dict[str, Callable[[object], None]] = {}
    exec(twin.content, names)

    class Any:
        def __eq__(self, other: object) -> bool:
            return True

        __hash__ = None  # type: ignore[assignment]

    names["test_it"](Any())


async def test_a_solution_costs_one_more_run_and_is_not_suspected(
    provider: SandboxProvider, spans: Task
) -> None:
    """Gold passes in both sandboxes; without twins, there is no second run."""
    gold = spans.data["patch"].encode()
    outcome = await grade(spans, gold, provider)
    assert (outcome.score, outcome.details["twins"]) == (1.0, {"run": 35, "weak": 0, "missing": 0})
    assert not outcome.details["tampered"]
    plain = await grade(spans, gold, provider, twins=False)
    assert (plain.score, plain.details["twins"]) == (1.0, {})


def test_patch(files: dict[str, str]) -> str:
    """Return a patch that adds files."""
    return "".join(
        f"diff --git a/{path} b/{path}\nnew file mode 100644\n--- /dev/null\n+++ b/{path}\n"
        f"@@ -0,0 +1,{len(text.splitlines())} @@\n"
        + "".join(f"+{line}\n" for line in text.splitlines())
        for path, text in files.items()
    )


test_patch.__test__ = False  # type: ignore[attr-defined]


async def test_weak_and_missing_twins_are_counted_and_hold_nothing_against_a_solution(
    sandboxes: SandboxProvider, spans: Task
) -> None:
    """A twin that passes with gold too is weak; a test made at run time has none; xfail stays."""
    text = (
        "import pytest\n"
        "def test_weak():\n    for number in []:\n        assert number\n"
        "def make(number):\n    def test():\n        assert number == number\n    return test\n"
        "test_made = make(1)\n"
        "@pytest.mark.xfail\ndef test_xfails():\n    assert 1 == 2\n"
    )
    record = SweRecord.of(spans).model_copy(
        update={
            "test_patch": SweRecord.of(spans).test_patch + test_patch({"tests/test_odd.py": text}),
            "PASS_TO_PASS": [
                *SweRecord.of(spans).PASS_TO_PASS,
                *(f"tests/test_odd.py::test_{name}" for name in ("weak", "made", "xfails")),
            ],
        }
    )
    outcome = await grade(record.to_task(), record.patch.encode(), sandboxes)
    assert outcome.score == 1.0, outcome.details
    assert outcome.details["twins"] == {"run": 35, "weak": 1, "missing": 1}
