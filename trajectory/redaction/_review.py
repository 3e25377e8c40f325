"""The file in which people decide what is redacted."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from trajgym.trajectory._errors import InvalidInput

if TYPE_CHECKING:
    import os

    from trajgym.trajectory.redaction._redactor import Redactor

__all__ = ["Decisions", "read_decisions", "write_decisions"]


class Decisions(NamedTuple):
    """What a decisions file says; both are arguments of `Redactor`."""

    key: bytes
    decisions: dict[str, str]


def read_decisions(path: str | os.PathLike[str]) -> Decisions:
    """Read a decisions file that :func:`write_decisions` wrote and a person may have edited.

    Raises:
        InvalidInput: it can't be read or is malformed.
    """
    try:
        found = json.loads(Path(path).read_text(encoding="utf-8"))
        key = bytes.fromhex(found["key"])
        decisions = {one["id"]: one["decision"] for one in found["findings"]}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InvalidInput(f"{path}: not a decisions file: {error!r}") from error
    if len(key) < 16:
        raise InvalidInput(f"{path}: the key has {len(key)} bytes; it needs 16")
    return Decisions(key, decisions)


def write_decisions(path: str | os.PathLike[str], redactor: Redactor) -> None:
    """Write what a redactor found, with a decision for each: ``redact`` unless it was kept.

    Decisions about values that it did not find stay. The file contains no value, but its key
    allows to confirm guesses: keep it private. It is created with mode 0600.
    """
    found = redactor.report.findings
    lines = [
        {"decision": "keep" if one.kept else "redact"}
        | {name: value for name, value in asdict(one).items() if name != "kept"}
        for one in found.values()
    ]
    lines += [
        {"decision": decision, "id": name}
        for name, decision in redactor.decisions.items()
        if name not in found
    ]
    file = Path(path)
    part = file.with_name(f".{file.name}.part")
    part.unlink(missing_ok=True)
    part.touch(mode=0o600)
    text = json.dumps({"key": redactor.key.hex(), "findings": lines}, indent=1, ensure_ascii=False)
    part.write_text(text + "\n", encoding="utf-8", errors="replace")
    part.replace(file)
