"""Runs made of foreign files."""

from __future__ import annotations

import hashlib
import json
import warnings
from collections import Counter
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from trajgym.adapters._new_run import new_run
from trajgym.adapters.interchange._incoming import Source
from trajgym.adapters.interchange._registry import get_format
from trajgym.trajectory import (
    Attempt,
    Group,
    InvalidInput,
    Member,
    SessionRecord,
    SessionTree,
    Task,
)

if TYPE_CHECKING:
    import os
    from collections.abc import Iterator, Sequence

    from trajgym.adapters.interchange._format import Format
    from trajgym.adapters.interchange._incoming import Draft
    from trajgym.trajectory import Ack, IntArray, Store

__all__ = ["ImportReport", "import_run"]


@dataclass(slots=True)
class ImportReport:
    """What an import made.

    Attributes:
        format: its name.
        files: number of files read.
        sessions: number of sessions made.
        turns: number of their turns.
        exact: turns with the engine's own ids and log-probs; the others are text turns.
        tasks: number of tasks.
        lost: what the files had and the run does not hold, with how often.
    """

    format: str
    files: int = 0
    sessions: int = 0
    turns: int = 0
    exact: int = 0
    tasks: int = 0
    lost: dict[str, int] = field(default_factory=dict)


def import_run(
    name: str, path: str | os.PathLike[str], out: str | os.PathLike[str]
) -> ImportReport:
    """Make a run of files in a foreign format; one file at a time is in memory.

    Turns are text turns, unless the format carries ids and log-probs. The sessions of one task
    form a sealed group.

    Args:
        name: of the format; see :func:`list_formats`.
        path: a file, or a directory whose files are read that have a name of the format.
        out: directory of the run, which must be empty or missing; it appears when it is complete.

    Raises:
        UnknownFormat: there is no format of that name.
        InvalidInput: ``out`` is not empty, ``path`` has no such file, or a file is malformed; the
            message names the file. No run is made.
        MissingExtra: the format needs a package that is not installed.
    """
    form = get_format(name)
    paths = _files(form, Path(path))
    report = ImportReport(name, files=len(paths))
    with new_run(out) as store:
        images: list[Ack] = []
        source = Source(paths, lambda data, kind: _put(store, images, data, kind), form.drops)
        writer = _Writer(form, store, report)
        for draft in _drafts(form, source, path):
            for ack in images:
                ack.wait()
            images.clear()
            _add(writer, draft, source.where or str(path))
        if not report.sessions:
            raise InvalidInput(f"{path}: no session in {len(paths)} {name} files")
        report.lost = dict(source.lost)
        writer.close()
    return report


def _add(writer: _Writer, draft: Draft, where: str) -> None:
    """Store a session; a value of the wrong type, of which pydantic only warns, is an error."""
    with warnings.catch_warnings():
        warnings.filterwarnings("error", "Pydantic serializer warnings", UserWarning)
        try:
            writer.add(draft)
        except UserWarning as error:
            detail = str(error).partition("\n")[2].strip() or str(error)
            raise InvalidInput(f"{where}: a value has the wrong type: {detail}") from error


def _drafts(form: Format, source: Source, path: str | os.PathLike[str]) -> Iterator[Draft]:
    """Yield the sessions of files; one of another shape than the format's is an input error."""
    try:
        yield from form.read(source)
    except InvalidInput as error:
        where = source.where or str(path)
        if where.partition(":")[0] in str(error):
            raise
        raise InvalidInput(f"{where}: {error}") from error
    except (AttributeError, LookupError, TypeError, ValueError, OverflowError) as error:
        raise InvalidInput(
            f"{source.where or path}: not as {form.name} is written "
            f"({type(error).__name__}: {error})"
        ) from error


def _put(store: Store, acks: list[Ack], data: bytes, media_type: str) -> str:
    name, ack = store.put_blob(data, media_type)
    acks.append(ack)
    return name


def _files(form: Format, path: Path) -> Sequence[Path]:
    if path.is_file():
        return [path]
    found = sorted({file for pattern in form.files for file in path.rglob(pattern)})
    if not found:
        wanted = " or ".join(form.files)
        raise InvalidInput(f"{path}: no file {wanted} here; name a {form.name} file or a directory")
    return found


class _Writer:
    """Gives drafts ids and groups, and stores them."""

    def __init__(self, form: Format, store: Store, report: ImportReport) -> None:
        self._form, self._store, self._report = form, store, report
        self._ids: Counter[str] = Counter()
        self._groups: dict[str, Group] = {}
        self._tasks: dict[str, bytes] = {}

    def add(self, draft: Draft) -> None:
        task = self._task(draft)
        group = self._group(f"{task}\n{draft.group}", task)
        sample = len(group.members)
        session = self._free(draft.session or f"{group.id}-{sample}")
        group.members.append(
            Member(session, sample, "" if draft.status.scored else str(draft.status))
        )
        record = SessionRecord(
            id=session,
            task=task,
            env=draft.env or {"id": f"imported:{self._form.name}", "config": {}},
            group=group.id,
            sample=sample,
            seed=draft.seed,
            tools=draft.tools,
            budgets=draft.budgets,
            labels=draft.labels,
            created_at=draft.started,
        )
        main = [turn.index for turn in draft.turns if turn.agent == "main"]
        attempt = Attempt(
            leaf=main[-1] if main else None,
            status=draft.status,
            cause=draft.cause,
            error=draft.error,
            outcome=draft.outcome,
            ended_at=draft.ended,
        )
        tree = SessionTree(record, draft.turns, [attempt])
        _share_prompts(tree)
        self._write(tree)

    def _write(self, tree: SessionTree) -> None:
        self._store.put_session(tree).wait()
        self._report.sessions += 1
        self._report.turns += len(tree.turns)
        self._report.exact += sum(turn.exact for turn in tree.turns)

    def _task(self, draft: Draft) -> str:
        """Return the id of the draft's task; equal ids with other contents get a number."""
        found = _digest([draft.prompt, draft.data])
        task, number = draft.task, 1
        while (known := self._tasks.get(task)) not in {None, found}:
            number += 1
            task = f"{draft.task}-{number}"
        if known is None:
            self._tasks[task] = found
            self._store.put_task(Task(id=task, prompt=draft.prompt, data=draft.data)).wait()
            self._report.tasks += 1
        return task

    def _group(self, key: str, task: str) -> Group:
        name = f"g{_digest(key).hex()[:16]}"
        return self._groups.setdefault(name, Group(id=name, task=task, planned=0, sealed=True))

    def _free(self, wanted: str) -> str:
        self._ids[wanted] += 1
        number = self._ids[wanted]
        return wanted if number == 1 else self._free(f"{wanted}-{number}")

    def close(self) -> None:
        """Store the groups and where the run came from."""
        for group in self._groups.values():
            group.planned = len(group.members)
            self._store.put_group(group).wait()
        made = {"format": self._form.name, "files": self._report.files, "lost": self._report.lost}
        self._store.set_meta("import", json.dumps(made)).wait()


def _share_prompts(tree: SessionTree) -> None:
    """Store whole prompts as deltas to the turns that they continue."""
    sequences: dict[int, IntArray] = {}
    for turn in tree.turns:
        if turn.tokens is None or turn.tokens.prompt_kept:
            continue
        prompt = turn.tokens.prompt_ids
        sequences[turn.index] = np.concatenate([prompt, turn.tokens.response_ids])
        base = tree.base(turn)
        if base is None or (before := sequences.get(base.index)) is None:
            continue
        shared = min(prompt.size, before.size)
        differ = np.flatnonzero(prompt[:shared] != before[:shared])
        kept = int(differ[0]) if differ.size else shared
        kept = min([kept, *(one.start for one in turn.tokens.images if one.end > kept)])
        turn.tokens = replace(
            turn.tokens,
            prompt_kept=kept,
            prompt_ids=prompt[kept:],
            images=tuple(one.moved(-kept) for one in turn.tokens.images if one.start >= kept),
        )


def _digest(value: object) -> bytes:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).digest()
