"""A copy of a run without secrets and personal data."""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING, Any

from trajgym.trajectory._codec import decode, encode
from trajgym.trajectory._records import Group, SessionRecord
from trajgym.trajectory.datasets._copy import Copy
from trajgym.trajectory.datasets._identity import DATASET, LINEAGE, lineage_json
from trajgym.trajectory.datasets._operations import Derived
from trajgym.trajectory.datasets._source import Source

if TYPE_CHECKING:
    import os
    from collections.abc import Iterator, Mapping

    from trajgym.trajectory.datasets._source import Place
    from trajgym.trajectory.redaction import Redactor

__all__ = ["redact_run", "review_run"]

_TEXTS = ("text/", "application/json", "application/x-ndjson", "application/xml")
"""Media types of blobs that are searched."""


def redact_run(
    source: str | os.PathLike[str], out: str | os.PathLike[str], redactor: Redactor
) -> Derived:
    """Copy a run, with secrets and personal data replaced by placeholders.

    All texts are searched: messages, arguments of tool calls, tool schemas, observations, signals,
    labels, causes and errors, details of outcomes, tasks, stored texts, metadata, and ids, which
    stay consistent because equal values get equal placeholders. Images and other binary data are
    copied unchanged and counted in the report.

    Token ids spell the texts, and can't be redacted in place. A turn keeps its ids only if nothing
    was replaced in its answer and in what its prompt shows; otherwise it becomes a text turn, which
    the report counts.

    Args:
        source: the run.
        out: directory of the new run.
        redactor: its report is filled.

    Raises:
        InvalidInput: ``out`` has a run, or two ids become equal.
        StoreLocked: a process is writing the source.
    """
    with Source(source) as opened, Copy(out) as copy:
        rewrite = _Rewrite(opened, redactor)
        rewrite.copy_blobs(copy)
        for place in opened.places():
            rewrite.copy_session(copy, place)
        for task in opened.run.tasks():
            body = rewrite.body(
                opened.task_body(task.id) or b"", f"task {redactor.masked(task.id)}"
            )
            copy.add_task(body, json.loads(body)["id"])
        for group in opened.run.groups():
            body = rewrite.body(encode(group), f"group {redactor.masked(group.id)}")
            copy.add_group(decode(Group, body))
        for key, value in opened.run.meta().items():
            if key not in {DATASET, LINEAGE}:
                copy.set_meta(key, redactor.text(value, f"metadata {key}"))
        rules = sorted({rule.name for rule in redactor.rules})
        made = lineage_json("redact", {"rules": rules}, [opened])
        copy.set_meta(LINEAGE, redactor.text(made, f"metadata {LINEAGE}"))
    return Derived(copy.path, copy.sessions, copy.groups, copy.tasks)


def review_run(source: str | os.PathLike[str], redactor: Redactor) -> None:
    """Search a run as :func:`redact_run` does, and write nothing; the redactor has the report.

    Raises:
        StoreLocked: a process is writing the source.
    """
    with Source(source) as opened:
        rewrite = _Rewrite(opened, redactor)
        rewrite.copy_blobs(None)
        for place in opened.places():
            rewrite.copy_session(None, place)
        for task in opened.run.tasks():
            rewrite.body(opened.task_body(task.id) or b"", f"task {redactor.masked(task.id)}")
        for group in opened.run.groups():
            rewrite.body(encode(group), f"group {redactor.masked(group.id)}")
        for key, value in opened.run.meta().items():
            if key not in {DATASET, LINEAGE}:
                redactor.text(value, f"metadata {key}")


class _Rewrite:
    """Redacts the stored rows of a run."""

    def __init__(self, source: Source, redactor: Redactor) -> None:
        self._source = source
        self._redactor = redactor
        self._moved: dict[str, str] = {}
        """New hashes of blobs whose text changed, by old hash."""

    def copy_blobs(self, copy: Copy | None) -> None:
        """Copy the blobs; those with texts are searched, and get another hash if they change."""
        report = self._redactor.report
        for name in self._source.run.blobs():
            data, media_type = self._source.run.blob(name)
            text = _text_of(data) if media_type.startswith(_TEXTS) else None
            if text is None:
                report.unexamined[media_type] += 1
            else:
                changed = self._redactor.text(text, f"stored text {name[:12]}").encode()
                if changed != data:
                    data = changed
                    self._moved[name] = hashlib.sha256(data).hexdigest()
            if copy is not None:
                copy.add_blob(self._moved.get(name, name), media_type, data)

    def copy_session(self, copy: Copy | None, place: Place) -> None:
        """Copy a session with everything that was added to it."""
        report = self._redactor.report
        where = f"session {self._redactor.masked(place.record.id)}"
        before = report.replaced
        record = self.body(encode(place.record), where)
        tools_changed = json.loads(record).get("tools", []) != place.record.tools
        rows = self._source.rows(place)
        turns = list(self._turns(rows.turns, where, tools_changed=tools_changed))
        signals = [
            (at, self._redactor.text(source, where), self.body(body, f"{where} signals"))
            for at, source, body in rows.signals
        ]
        attempts = [
            (number, running, self.body(body, f"{where} attempt {number}"))
            for number, running, body in rows.attempts
        ]
        derived = [
            (self._redactor.text(name, where), self.body(body, f"{where} values"))
            for name, body in rows.derived
        ]
        report.sessions += report.replaced > before
        if copy is not None:
            copy.write_session(
                decode(SessionRecord, record),
                rows._replace(turns=turns, signals=signals, attempts=attempts, derived=derived),
            )

    def _turns(
        self, rows: list[tuple[int, bytes, bytes | None]], where: str, *, tools_changed: bool
    ) -> Iterator[tuple[int, bytes, bytes | None]]:
        plain = [json.loads(body) for _, body, _ in rows]
        answers: list[bool] = []
        """Whether each turn's ids, up to the end of its answer, spell no replaced text."""
        observations: list[bool] = []
        lost = 0
        for (at, body, tokens), turn in zip(rows, plain, strict=True):
            index = len(answers)
            changed = self._value(turn, f"{where} turn {index}")
            clean = not tools_changed and all(
                changed.get(name) == turn.get(name) for name in ("context", "message", "wire")
            )
            base = _base(plain, index)
            if base is not None:
                clean = clean and answers[base] and observations[base]
            answers.append(clean)
            observations.append(changed.get("observation") == turn.get("observation"))
            lost += tokens is not None and not clean
            yield at, body if changed == turn else _dump(changed), tokens if clean else None
        self._redactor.report.turns_without_ids += lost
        self._redactor.report.sessions_without_ids += lost > 0

    def body(self, body: bytes, where: str) -> bytes:
        """Return a stored JSON body, redacted; a body that is not JSON is searched as text."""
        try:
            value = json.loads(body)
        except ValueError:
            text = _text_of(body)
            return body if text is None else self._redactor.text(text, where).encode()
        changed = self._value(value, where)
        return body if changed == value else _dump(changed)

    def _value(self, value: Any, where: str) -> Any:
        changed = self._redactor.value(value, where)
        return _moved(changed, self._moved) if self._moved else changed


def _base(turns: list[dict[str, Any]], index: int) -> int | None:
    """Return the turn that a turn's deltas refer to, as `SessionTree.base` does."""
    turn = turns[index]
    parent = turn.get("parent")
    if parent is None or turn.get("edge") == "spawn":
        return None
    agent = turn.get("agent", "main")
    while turns[parent].get("agent", "main") != agent:
        parent = turns[parent].get("parent")
        if parent is None:
            return None
    return int(parent)


def _moved(value: Any, names: Mapping[str, str]) -> Any:
    """Return a JSON value in which references to blobs have their new hashes."""
    if isinstance(value, str):
        kind, _, name = value.rpartition(":")
        if name in names and kind in {"", "blob"}:
            return value.removesuffix(name) + names[name]
        return value
    if isinstance(value, list):
        return [_moved(one, names) for one in value]
    if isinstance(value, dict):
        return {key: _moved(one, names) for key, one in value.items()}
    return value


def _text_of(data: bytes) -> str | None:
    try:
        return data.decode()
    except UnicodeDecodeError:
        return None


def _dump(value: Any) -> bytes:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()
