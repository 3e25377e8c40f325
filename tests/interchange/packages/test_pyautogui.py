"""The recorded signatures of pyautogui are those of the installed package."""

from __future__ import annotations

import json
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.gui.signatures import RECORDED, signatures

pytestmark = pytest.mark.interchange


def test_the_recorded_signatures_are_current() -> None:
    """If a new version changes a function, the table must be recorded again."""
    found = find_spec("pyautogui")  # importing it needs a display
    assert found is not None
    assert found.origin is not None
    recorded = json.loads(RECORDED.read_text())
    assert recorded["functions"] == signatures(Path(found.origin).read_text())
    assert recorded["version"] == version("pyautogui")
