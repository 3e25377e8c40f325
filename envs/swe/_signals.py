"""Facts about a session's calls, for derivers; the agent does not see them."""

from __future__ import annotations

import difflib
import json
import re
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, Self

from trajgym.envs.swe._hunks import parse_patch

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trajgym.trajectory import Message

__all__ = ["Trace", "expert_actions", "localisation"]

_TESTS = re.compile(r"\b(pytest|unittest|tox|nox)\b")
_COUNTS = re.compile(rb"(\d+) (passed|failed|error)")


def expert_actions(messages: Sequence[Message]) -> list[str]:
    """Return an expert trajectory's actions, one per assistant message, as `SRL` compares them.

    Put the list into a task's data as ``expert_actions``: it is then part of the outcome, and each
    turn has the signal ``expert_distance``.
    """
    actions = []
    for message in messages:
        if message.get("role") == "assistant":
            calls = message.get("tool_calls") or []
            functions = [call["function"] for call in calls]
            text = "\n".join(f"{f['name']} {f['arguments']}" for f in functions)
            content = message.get("content")
            actions.append(text or (content if isinstance(content, str) else ""))
    return actions


def localisation(patch: str, gold: str) -> dict[str, float]:
    """Compare the files of two patches.

    Returns:
        ``recall``: share of gold's files that the change touches; ``precision``: share of the
        change's files that are gold's, 0.0 if it touches none.
    """
    touched = {change.path for change in parse_patch(patch)}
    wanted = {change.path for change in parse_patch(gold)}
    both = len(touched & wanted)
    return {
        "recall": both / len(wanted) if wanted else 0.0,
        "precision": both / len(touched) if touched else 0.0,
    }


@dataclass(slots=True)
class Trace:
    """The agent's actions so far. JSON values only, since snapshots contain it.

    Args:
        gold: files of the gold patch.
        expert: the expert's actions, if the task has any.
        test_cmd: the task's own command for running tests.
    """

    gold: list[str] = field(default_factory=list)
    expert: list[str] = field(default_factory=list)
    test_cmd: str = ""
    calls: int = 0
    edited: list[str] = field(default_factory=list)
    seen: list[str] = field(default_factory=list)
    commands: dict[str, int] = field(default_factory=dict)
    tests_run: int = 0
    edits_since_tests: int = 0

    @classmethod
    def of_json(cls, data: dict[str, Any]) -> Self:
        """Restore the result of :meth:`to_json`."""
        return cls(**data)

    def to_json(self) -> dict[str, Any]:
        """Return everything as JSON values."""
        return asdict(self)

    def call(self, name: str, arguments: dict[str, Any]) -> dict[str, Any]:
        """Count a call; return the distance to the expert's action at this place, if there is one.

        ``expert_distance`` is 0.0 for the expert's own call and 1.0 for nothing in common.
        """
        place, self.calls = self.calls, self.calls + 1
        if place >= len(self.expert):
            return {}
        given = {key: value for key, value in arguments.items() if value is not None}
        action = f"{name} {json.dumps(given)}"
        matcher = difflib.SequenceMatcher(None, action, self.expert[place], autojunk=False)
        return {"expert_distance": round(1.0 - matcher.ratio(), 6)}

    def look(self, path: str) -> dict[str, Any]:
        """Record that a file was shown."""
        _note(self.seen, path)
        return {"viewed": path, **self._located()}

    def edit(self, path: str) -> dict[str, Any]:
        """Record that a file was changed."""
        _note(self.seen, path)
        _note(self.edited, path)
        self.edits_since_tests += 1
        self.commands.clear()
        return {"files_edited_so_far": list(self.edited), **self._located()}

    def command(self, line: str, stdout: bytes, ok: bool) -> dict[str, Any]:
        """Record a command; ``repeated`` counts its earlier runs on the same files."""
        key = line.strip()
        repeated = self.commands.get(key, 0)
        self.commands[key] = repeated + 1
        signals: dict[str, Any] = {"repeated": repeated}
        for path in self.gold:
            if path in line:
                _note(self.seen, path)
        if _TESTS.search(line) or (self.test_cmd and self.test_cmd in line):
            self.tests_run += 1
            self.edits_since_tests = 0
            signals |= {"tests_run": True, "tests_ok": ok}
            for count, kind in _COUNTS.findall(stdout[-2000:]):
                signals[f"tests_{kind.decode()}"] = int(count)
        return {**signals, **self._located()}

    def submit(self) -> dict[str, Any]:
        """Record the end: whether tests were run, and whether files were edited after them."""
        return {
            "submitted": True,
            "tests_before_submit": self.tests_run > 0,
            "edits_since_tests": self.edits_since_tests,
            **self._located(),
        }

    def _located(self) -> dict[str, Any]:
        if not self.gold:
            return {}
        gold = set(self.gold)
        return {
            "gold_files_seen": len(gold.intersection(self.seen)) / len(gold),
            "gold_files_edited": len(gold.intersection(self.edited)) / len(gold),
        }


def _note(paths: list[str], path: str) -> None:
    if path not in paths:
        paths.append(path)
