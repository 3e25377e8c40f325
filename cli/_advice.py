"""What to do about common causes of failed sessions."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from trajgym.rollout import Progress, Runner
    from trajgym.rollout.fleet import Fleet

__all__ = ["RefusedKey", "advice_for"]

_REFUSED = r"\b40[13]\b|AuthenticationError|PermissionDenied"
_FIRST = 8

_ADVICE = (
    (
        _REFUSED,
        "The endpoint refused the API key: check --api-key-env or --api-key-file.",
    ),
    (
        r"(?i)model_not_found|model\W.{0,80}(does not exist|not found)|unknown model",
        "The endpoint does not have this model: check --model.",
    ),
    (
        r"\b40[45]\b|(?i:<!doctype html|<html|<body)",
        "There is no such API at this URL: check --base-url, which usually ends in /v1.",
    ),
    (
        r"\b429\b",
        "The endpoint limits requests: lower --concurrency, raise --patience, or check the credit.",
    ),
    (
        r"no answer within",
        "The endpoint did not answer in time: check that it is up, or raise --request-timeout.",
    ),
    (
        r"APIConnectionError|no connection",
        "The endpoint can't be reached: check --base-url, and that the server is running.",
    ),
    (r"\b5\d\d\b", "The endpoint failed: check its log, or raise --patience."),
    (r"ImageNotFound", "Build the base image with: trajgym sandboxes prepare"),
)


def advice_for(causes: Iterable[str]) -> list[str]:
    """Return a line of advice for each known kind of cause, in the order of the causes."""
    found = []
    for cause in causes:
        line = next((line for pattern, line in _ADVICE if re.search(pattern, cause)), None)
        if line is not None and line not in found:
            found.append(line)
    return found


class RefusedKey:
    """Stops a run whose first sessions all failed because the endpoint refused the API key."""

    def __init__(self) -> None:
        self.stopped = ""
        """Why the run was stopped; empty if it was not."""
        self._refused = 0
        self._accepted = False
        self._runner: Runner | Fleet | None = None

    def watch(self, runner: Runner | Fleet) -> None:
        """Set the runner to stop."""
        self._runner = runner

    def note(self, event: Progress) -> None:
        """Count a refused session; counting stops at a turn or at a session that ends otherwise."""
        if event.kind == "turn":
            self._accepted = True
        elif event.kind == "ended" and not self._accepted:
            refused = event.status == "failed:policy" and re.search(_REFUSED, event.cause)
            self._refused += bool(refused)
            self._accepted = not refused
        if self._refused >= _FIRST and not self._accepted and not self.stopped:
            self.stopped = f"the endpoint refused the API key in the first {_FIRST} sessions"
            if self._runner is not None:
                self._runner.stop()
