"""A scripted agent for demonstrations and tests: real tool calls, some wrong on purpose."""

from __future__ import annotations

import copy
import json
import shlex
from typing import TYPE_CHECKING, Any

from trajgym.envs.swe._hunks import FileChange, Hunk, parse_patch
from trajgym.envs.swe._record import SweRecord
from trajgym.envs.swe._sources import base_tree

if TYPE_CHECKING:
    from pathlib import Path

    from trajgym.trajectory import Message, Task

__all__ = ["demo_agent"]

_written: dict[tuple[str, str, str, bool, Path | None], list[Message]] = {}
"""Cached scripts by their inputs: policies request the same one at every turn."""
_KEPT = 64
_STYLES = ("solve", "half", "slips then solve", "nothing", "delete tests", "solve untested")


def demo_agent(
    task: Task, sample: int, *, editor: bool = True, cache_dir: Path | None = None
) -> list[Message]:
    """Return the assistant messages of one scripted session.

    The script is made from the gold patch, which no real agent sees. Samples 0, 2 and 5 of every
    six solve the task (2 after malformed arguments and an unknown tool), 1 does half of the change,
    3 changes nothing, 4 deletes the failing tests instead.

    Args:
        task: a SWE task.
        sample: number of the sample in its group; selects the style.
        editor: whether the environment has ``view`` and the editing tools besides ``bash``.
        cache_dir: instead of the user's cache.
    """
    record = SweRecord.of(task)
    style = _STYLES[sample % len(_STYLES)]
    key = (record.instance_id, record.base_commit, style, editor, cache_dir)
    if key not in _written:
        while len(_written) >= _KEPT:
            _written.pop(next(iter(_written)))
        _written[key] = _write(record, style, editor, cache_dir)
    return copy.deepcopy(_written[key])


def _write(record: SweRecord, style: str, editor: bool, cache_dir: Path | None) -> list[Message]:
    changes = parse_patch(record.patch)
    script = _Script(record, changes, editor, cache_dir)
    script.explore()
    if style == "slips then solve":
        script.slip()
    if style in {"solve", "slips then solve", "solve untested"}:
        script.edit(changes)
    elif style == "half":
        script.edit(_half(changes))
    elif style == "delete tests":
        script.delete_tests()
    if style != "solve untested":
        script.test()
    script.submit()
    return script.messages


class _Script:
    """Builds messages with numbered call ids."""

    def __init__(
        self,
        record: SweRecord,
        changes: list[FileChange],
        editor: bool,
        cache_dir: Path | None,
    ) -> None:
        self.editor = editor
        self.record = record
        self.changes = changes
        self.repo = base_tree(record, cache_dir).repo
        self.messages: list[Message] = []
        self._calls = 0

    def explore(self) -> None:
        first = self.changes[0]
        self.say("Let me look at the repository.", ("bash", {"command": "git log --oneline; ls"}))
        if first.old_path:
            start = max(1, first.hunks[0].old_start - 5) if first.hunks else 1
            end = start + 40
            where = {"path": first.old_path, "start": start, "end": end}
            command = {"command": f"sed -n {start},{end}p {first.old_path}"}
            look = ("view", where) if self.editor else ("bash", command)
            self.say("This file looks relevant.", look)

    def slip(self) -> None:
        self.say("Searching.", ("grep", {"pattern": "def "}))
        self.say("Then with a shell.", ("bash", '{"command": "grep -rn def '))
        self.say("An edit.", ("str_replace", {"path": self.changes[0].path, "old": 1}))

    def edit(self, changes: list[FileChange]) -> None:
        for change in changes:
            calls = self._edits(change)
            if calls:
                self.say(f"Changing {change.path}.", *calls)

    def test(self) -> None:
        files = sorted({test.split("::")[0] for test in self.record.FAIL_TO_PASS})
        self.say("Running the tests.", ("bash", {"command": f"pytest -q {' '.join(files)} | tail"}))

    def delete_tests(self) -> None:
        files = sorted({test.split("::")[0] for test in self.record.FAIL_TO_PASS})
        self.say("These tests get in the way.", ("bash", {"command": f"rm -f {' '.join(files)}"}))

    def submit(self) -> None:
        self.say("Done.", ("submit", {}))

    def say(self, text: str, *calls: tuple[str, dict[str, Any] | str]) -> None:
        self.messages.append(
            {
                "role": "assistant",
                "content": text,
                "tool_calls": [self._call(name, arguments) for name, arguments in calls],
            }
        )

    def _call(self, name: str, arguments: dict[str, Any] | str) -> dict[str, Any]:
        self._calls += 1
        text = arguments if isinstance(arguments, str) else json.dumps(arguments)
        return {
            "id": f"call_{self._calls}",
            "type": "function",
            "function": {"name": name, "arguments": text},
        }

    def _edits(self, change: FileChange) -> list[tuple[str, dict[str, Any] | str]]:
        """Return the calls that make a change: editor calls where possible, else `git apply`."""
        if not self.editor:
            return [("bash", {"command": _by_shell(change)})]
        if not change.old_path and change.hunks:
            return [("create", {"path": change.path, "content": change.hunks[0].new})]
        text = self._text(change.old_path)
        calls: list[tuple[str, dict[str, Any] | str]] = []
        for hunk in change.hunks if change.new_path else []:
            old, new = hunk.trimmed()
            if text.count(old) != 1 or not old:
                old, new = hunk.old, hunk.new
            if not old or text.count(old) != 1:
                break
            text = text.replace(old, new)
            calls.append(("str_replace", {"path": change.path, "old": old, "new": new}))
        if len(calls) == len(change.hunks) and calls:
            return calls
        return [("bash", {"command": _by_shell(change)})]

    def _text(self, path: str) -> str:
        file = self.repo / path
        return file.read_bytes().decode("utf-8", "replace") if path and file.is_file() else ""


def _by_shell(change: FileChange) -> str:
    if not change.text:  # half of a change is not a valid patch: append a comment
        return f"echo '# TODO: look here again' >> {shlex.quote(change.path)}"
    return f"git apply - <<'TRAJGYM_END'\n{change.text}TRAJGYM_END"


def _half(changes: list[FileChange]) -> list[FileChange]:
    """Return the first half of a change; for a single hunk, only a comment in its place."""
    hunks = [(change, hunk) for change in changes for hunk in change.hunks]
    if len(hunks) > 1:
        return [
            change._replace(hunks=kept, text="")
            for change in changes[: max(1, len(changes) // 2)]
            if (kept := change.hunks[: max(1, len(change.hunks) // 2)])
        ]
    change, hunk = hunks[0]
    line, _, rest = hunk.old.partition("\n")
    indent = line[: len(line) - len(line.lstrip())]
    noted = Hunk(hunk.old_start, hunk.old, f"{line}\n{indent}# TODO: look here again\n{rest}")
    return [change._replace(hunks=(noted,), text="")]
