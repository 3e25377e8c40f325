"""Which paths of a change are taken."""

from __future__ import annotations

import pytest

from trajgym.envs.swe._paths import Change, parse_raw_diff, refusal

TESTS = ["tests/test_new.py", "checks/cases.py"]


def change(path: str, status: str = "A", mode: str = "100644") -> Change:
    old = "000000" if status == "A" else "100644"
    return Change(path.encode(), status, old, mode)


@pytest.mark.parametrize(
    ("path", "reason"),
    [
        ("src/tests/data.txt", "test"),
        ("test_new.py", "test"),
        ("src/pkg/thing_test.py", "test"),
        ("checks/cases.py", "test"),
        ("checks", "test"),
        ("checks/cases.py/x", "test"),
        ("a/b/conftest.py", "test configuration"),
        ("pyproject.toml", "test configuration"),
        ("Tox.ini", "test configuration"),
        ("src/sitecustomize.py", "interpreter start-up"),
        ("usercustomize/__init__.py", "interpreter start-up"),
        ("src/a.pth", "interpreter start-up"),
        ("src/pkg/__pycache__/m.cpython-311.pyc", "compiled"),
        ("src/pkg/m.so", "compiled"),
        ("src/pkg/.git/config", "git"),
        ("src/plugin-1.0.dist-info/entry_points.txt", "package metadata"),
        ("src/packaging/__init__.py", "shadows the test runner"),
        ("src/_pytest/__init__.py", "shadows the test runner"),
        ("src/re.py", "shadows the test runner"),
        ("src/pkg/re.py", None),
        ("src/pkg/testing_tools.py", None),
        ("src/pkg/latest.py", None),
        ("re.py", None),
        ("docs/index.rst", None),
    ],
)
def test_refusal_by_path(path: str, reason: str | None) -> None:
    """Each path is taken, or left out with a reason."""
    assert refusal(change(path), ["src"], TESTS) == reason


@pytest.mark.parametrize("mode", ["120000", "160000"])
def test_links_and_repositories_are_refused(mode: str) -> None:
    """Symbolic links and nested repositories are never taken."""
    assert refusal(change("src/pkg/x.py", mode=mode), ["src"], []) == "not a regular file"


def test_existing_module_may_be_changed() -> None:
    """A repository that has a module of a standard name may see it fixed."""
    assert refusal(change("src/re.py", status="M"), ["src"], []) is None


def test_module_called_tests_may_be_source() -> None:
    """What the gold patch changes is source, whatever its name; the task's own tests never are."""
    module = change("src/pkg/tests.py", status="M")
    assert refusal(module, ["src"], TESTS) == "test"
    assert refusal(module, ["src"], TESTS, {"src/pkg/tests.py"}) is None
    own = change("tests/test_new.py")
    assert refusal(own, ["src"], TESTS, {"tests/test_new.py"}) == "test"


def test_raw_listing_keeps_odd_names() -> None:
    """Names with blanks, line ends and bytes that are not UTF-8 come through."""
    listing = b":000000 100644 0 1 A\0a b\nc\0:100644 100755 1 1 M\0\xff\0"
    assert parse_raw_diff(listing) == [
        Change(b"a b\nc", "A", "000000", "100644"),
        Change(b"\xff", "M", "100644", "100755"),
    ]
    assert parse_raw_diff(listing)[1].text == "\\xff"
