"""Fixtures that many test modules share."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

from tests.clock import forward
from tests.installing import archives, checkout, installed
from tests.workers import on_a_host_of_its_own, sendable
from trajgym.trajectory import SessionTree

__all__ = ["archives", "checkout", "forward", "installed"]  # fixtures

try:
    from hypothesis import HealthCheck, settings
except ModuleNotFoundError:  # the environment of the agents' tests has no hypothesis
    pass
else:
    # The time that an example takes, or its generation, depends more on the machine's load than on
    # the code. The examples are the same in every run, so that no outcome depends on chance, unless
    # others are asked for.
    slow = [HealthCheck.too_slow]
    settings.register_profile(
        "trajgym",
        deadline=None,
        derandomize=os.environ.get("TRAJGYM_TEST_CHANCE", "0") == "0",
        print_blob=True,
        suppress_health_check=slow,
    )
    settings.load_profile("trajgym")

# Threads of OpenMP wait for each other in busy loops: where other processes want the processors,
# two need a hundred times as long as one. Inherited by what the tests start; read when PyTorch is
# imported.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# A suite in the background of a script inherits ignored signals, and so would the commands that the
# tests start and interrupt.
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
if signal.getsignal(signal.SIGHUP) == signal.SIG_IGN:
    signal.signal(signal.SIGHUP, signal.SIG_DFL)

on_a_host_of_its_own()


@pytest.hookimpl(wrapper=True)
def pytest_report_to_serializable() -> Generator[None, Any, Any]:
    """Let a worker report tests that print what is no Unicode."""
    return sendable((yield))


def pytest_make_parametrize_id(val: object, argname: str) -> str | None:
    """Name a test with binary data after the data's size.

    All workers must collect the same names, and what a compressor makes differs with the time.
    """
    if isinstance(val, bytes) and not val.decode("latin-1").isprintable():
        return f"{argname}-{len(val)}-bytes"
    return None


GOLDEN = Path(__file__).parent / "golden"
GOLDEN_NAMES = sorted(path.stem for path in GOLDEN.glob("*.json"))


def load_golden(name: str) -> tuple[SessionTree, dict[str, Any]]:
    """Return a hand-made session and what is expected of it."""
    document = json.loads((GOLDEN / f"{name}.json").read_text())
    parts = {key: document[key] for key in ("session", "turns", "attempts")}
    return SessionTree.from_json(parts), document["expect"]


@pytest.fixture(params=GOLDEN_NAMES)
def golden(request: pytest.FixtureRequest) -> tuple[SessionTree, dict[str, Any]]:
    """Every hand-made session in turn."""
    return load_golden(request.param)
