"""Overlap between training data and evaluation tasks.

Overlap is measured exactly, by an index of the word n-grams of the evaluation tasks, which are few.
Sketches such as MinHash are for two large sides: they estimate the similarity of whole texts, and
so miss a task that is a small part of a long trajectory.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from trajgym.trajectory._codec import decode
from trajgym.trajectory._errors import InvalidInput
from trajgym.trajectory._records import Task
from trajgym.trajectory._run import Run
from trajgym.trajectory.datasets._operations import derive
from trajgym.trajectory.datasets._source import Source, unit_of

if TYPE_CHECKING:
    import os
    from collections.abc import Iterable, Iterator

    from trajgym.trajectory._records import Turn
    from trajgym.trajectory.datasets._operations import Derived

__all__ = ["Contamination", "Overlap", "decontaminate_run", "find_contamination"]

NGRAM = 13
"""Words per n-gram, as in the decontamination of GPT-3 (arXiv 2005.14165, appendix C)."""
_WORD = re.compile(r"\w+")
_COMMON = 0.02
"""N-grams of more than this share of the evaluation tasks are templates."""
_FEW = 3
"""But not those of at most this number of tasks."""
_OWN = 0.1
"""A part with a smaller share of n-grams that are not templates is not compared by its words."""
_BEST = 5
"""Matches listed per evaluation task."""
_EXCERPT = 30
"""Words of an excerpt."""


class Overlap(NamedTuple):
    """An evaluation task that training data contains, wholly or in part."""

    kind: str
    """``id``, ``task`` (equal prompt and data), ``text`` (words of a training task) or
    ``trajectory`` (words of a session's messages)."""
    task: str
    """Id of the evaluation task."""
    found_in: str
    """Id of the training task."""
    session: str | None
    """Id of the session, for ``trajectory``."""
    where: str
    """Part of the evaluation task: ``prompt``, ``data.patch``."""
    share: float
    """Share of that part's n-grams that were found; 1 for ``id`` and ``task``."""
    excerpt: str
    """Words that were found, in lower case."""


@dataclass(slots=True)
class Contamination:
    """The overlap between training data and evaluation tasks.

    Args:
        tasks: number of evaluation tasks.
        train_tasks: number of training tasks.
        sessions: number of training sessions.
        overlaps: for each evaluation task at most five of each kind, the largest shares first.
        found: ids of all evaluation tasks that were found.
        found_in: ids of all training tasks that contain one.
        found_sessions: ids of all sessions that contain one.
        unindexed: evaluation tasks without a text of enough words of their own; they are only
            compared whole.
        templates: n-grams that many evaluation tasks share, which are ignored.
    """

    tasks: int = 0
    train_tasks: int = 0
    sessions: int = 0
    overlaps: list[Overlap] = field(default_factory=list)
    found: set[str] = field(default_factory=set)
    found_in: set[str] = field(default_factory=set)
    found_sessions: set[str] = field(default_factory=set)
    unindexed: int = 0
    templates: int = 0

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON values."""
        return {
            "tasks": self.tasks,
            "train_tasks": self.train_tasks,
            "sessions": self.sessions,
            "found": sorted(self.found),
            "found_in": sorted(self.found_in),
            "found_sessions": sorted(self.found_sessions),
            "unindexed": self.unindexed,
            "templates": self.templates,
            "overlaps": [overlap._asdict() for overlap in self.overlaps],
        }


def find_contamination(
    train: str | os.PathLike[str],
    evaluation: str | os.PathLike[str],
    *,
    ngram: int = NGRAM,
    overlap: float = 0.5,
) -> Contamination:
    """Search a run for the tasks of an evaluation set.

    Compared are ids; prompt and data as a whole, without case, spacing and punctuation; and, part
    by part, the word n-grams of prompts and data with those of the training tasks and of the
    sessions' messages, tool calls included. A part is found if at least ``overlap`` of its n-grams
    are. N-grams that more than three and more than 2 % of the evaluation tasks share are templates
    and ignored. Memory grows with the evaluation tasks and what was found, not with the run.

    Args:
        train: the run.
        evaluation: a run, of which the tasks are used, or a JSON Lines file of tasks.
        ngram: words per n-gram.
        overlap: least share of a part's n-grams, above 0 and at most 1.

    Raises:
        InvalidInput: a setting is out of range, or the file is not one of tasks.
        StoreLocked: a process is writing the run.
    """
    if ngram < 1 or not 0 < overlap <= 1:
        raise InvalidInput(
            f"contamination: ngram is {ngram} and overlap {overlap}; they must be at least 1, and "
            "above 0 up to 1"
        )
    index = _Index(_tasks(Path(evaluation)), ngram)
    report = Contamination(
        tasks=len(index.ids), unindexed=index.unindexed, templates=index.templates
    )
    found = _Found(report, index, overlap)
    with Source(train) as source:
        for task in source.run.tasks():
            report.train_tasks += 1
            found.add_task(task)
        for place in source.places():
            report.sessions += 1
            record = place.record
            if record.task in index.ids:
                found.add("id", record.task, record.task, "id", 1.0)
            hits = _Hits(index)
            for turn in place.shard.turns(place.key):
                for text in _spoken(turn):
                    hits.search(text)
            found.add_hits("trajectory", hits, record.task, record.id)
    report.overlaps = found.best()
    return report


def decontaminate_run(
    train: str | os.PathLike[str], out: str | os.PathLike[str], report: Contamination
) -> Derived:
    """Copy a run without what :func:`find_contamination` found; groups stay whole.

    Args:
        train: the run.
        out: directory of the new run.
        report: on this run.

    Raises:
        InvalidInput: ``out`` has a run.
        StoreLocked: a process is writing the source.
    """
    with Source(train) as source:
        units: set[str] = set()
        bad: set[str] = set()
        for place in source.places():
            record = place.record
            unit = unit_of(record)
            units.add(unit)
            if record.task in report.found_in or record.id in report.found_sessions:
                bad.add(unit)
        arguments = {"evaluation_tasks": report.tasks, "found": len(report.found)}
        return derive(source, out, units - bad, "decontaminate", arguments)


class _Part(NamedTuple):
    """A text of an evaluation task."""

    task: str
    where: str
    size: int
    """Number of its n-grams."""


class _Index:
    """The n-grams of the evaluation tasks; words are numbered."""

    def __init__(self, tasks: Iterable[Task], ngram: int) -> None:
        self.ngram = ngram
        self.ids: set[str] = set()
        self.wholes: dict[bytes, str] = {}
        self.words: dict[str, int] = {}
        self.parts: list[_Part] = []
        self.grams: dict[tuple[int, ...], list[int]] = defaultdict(list)
        owners: dict[tuple[int, ...], set[str]] = defaultdict(set)
        grams_of: list[tuple[str, str, set[tuple[int, ...]]]] = []
        for task in tasks:
            self.ids.add(task.id)
            self.wholes.setdefault(_whole(task), task.id)
            for where, text in _texts(task):
                numbers = [self.words.setdefault(word, len(self.words)) for word in _words(text)]
                grams = {tuple(numbers[at : at + ngram]) for at in range(len(numbers) - ngram + 1)}
                if grams:
                    grams_of.append((task.id, where, grams))
                for gram in grams:
                    owners[gram].add(task.id)
        most = max(_FEW, _COMMON * len(self.ids))
        templates = {gram for gram, owner in owners.items() if len(owner) > most}
        self.templates = len(templates)
        indexed = set()
        for task_id, where, grams in grams_of:
            own = grams - templates
            if len(own) >= _OWN * len(grams):
                indexed.add(task_id)
                for gram in own:
                    self.grams[gram].append(len(self.parts))
                self.parts.append(_Part(task_id, where, len(own)))
        self.unindexed = len(self.ids - indexed)


class _Hits:
    """The n-grams of evaluation tasks that some texts contain."""

    def __init__(self, index: _Index) -> None:
        self._index = index
        self.parts: dict[int, set[tuple[int, ...]]] = defaultdict(set)
        self.first: dict[int, str] = {}
        """Words where each part was found first."""

    def search(self, text: str) -> None:
        """Add what a text contains."""
        ngram, grams = self._index.ngram, self._index.grams
        words = _words(text)
        if len(words) < ngram:
            return
        numbers = list(map(self._index.words.get, words))
        start = 0
        for end, number in enumerate(numbers):
            if number is None:  # no n-gram has this word
                start = end + 1
            elif end - start + 1 >= ngram:
                gram: tuple[Any, ...] = tuple(numbers[end - ngram + 1 : end + 1])
                for part in grams.get(gram, ()):
                    self.parts[part].add(gram)
                    if part not in self.first:
                        at = end - ngram + 1
                        self.first[part] = " ".join(words[at : at + _EXCERPT])


class _Found:
    """Overlaps so far; the best of each evaluation task and kind are kept."""

    def __init__(self, report: Contamination, index: _Index, overlap: float) -> None:
        self._report, self._index, self._least = report, index, overlap
        self._kept: dict[tuple[str, str], list[Overlap]] = defaultdict(list)

    def add_task(self, task: Task) -> None:
        """Compare a training task."""
        if task.id in self._index.ids:
            self.add("id", task.id, task.id, "id", 1.0)
        same = self._index.wholes.get(_whole(task))
        if same is not None:
            self.add("task", same, task.id, "prompt and data", 1.0)
        hits = _Hits(self._index)
        for _, text in _texts(task):
            hits.search(text)
        self.add_hits("text", hits, task.id, None)

    def add_hits(self, kind: str, hits: _Hits, found_in: str, session: str | None) -> None:
        """Add the parts of which enough n-grams were found."""
        for number, grams in hits.parts.items():
            part = self._index.parts[number]
            if (share := len(grams) / part.size) >= self._least:
                excerpt = hits.first[number]
                self.add(kind, part.task, found_in, part.where, share, session, excerpt)

    def add(
        self,
        kind: str,
        task: str,
        found_in: str,
        where: str,
        share: float,
        session: str | None = None,
        excerpt: str = "",
    ) -> None:
        """Add an overlap."""
        self._report.found.add(task)
        if session is None:
            self._report.found_in.add(found_in)
        else:
            self._report.found_sessions.add(session)
        kept = self._kept[task, kind]
        one = Overlap(kind, task, found_in, session, where, share, excerpt)
        if one not in kept:
            kept.append(one)
            kept.sort(key=lambda overlap: -overlap.share)
            del kept[_BEST:]

    def best(self) -> list[Overlap]:
        """Return the kept overlaps, by evaluation task."""
        order = ("id", "task", "text", "trajectory")
        keys = sorted(self._kept, key=lambda key: (key[0], order.index(key[1])))
        return [overlap for key in keys for overlap in self._kept[key]]


def _words(text: str) -> list[str]:
    return _WORD.findall(text.casefold())


def _whole(task: Task) -> bytes:
    """Return a digest of prompt and data without case, spacing and punctuation."""
    parts = [[where, _words(text)] for where, text in _texts(task)]
    rest = json.dumps(_without_texts(task.data), sort_keys=True)
    if not any(words for _, words in parts) and rest == "{}":
        return task.id.encode()  # nothing but its id
    return hashlib.sha256(json.dumps([parts, rest]).encode("utf-8", "surrogatepass")).digest()


def _texts(task: Task) -> Iterator[tuple[str, str]]:
    if task.prompt:
        yield "prompt", task.prompt
    yield from _strings(task.data, "data")


def _strings(value: Any, where: str) -> Iterator[tuple[str, str]]:
    if isinstance(value, str):
        yield where, value
    elif isinstance(value, dict):
        for key, one in value.items():
            yield from _strings(one, f"{where}.{key}")
    elif isinstance(value, list):
        for number, one in enumerate(value):
            yield from _strings(one, f"{where}.{number}")


def _without_texts(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_texts(one) for key, one in value.items()}
    if isinstance(value, list):
        return [_without_texts(one) for one in value]
    return None if isinstance(value, str) else value


def _spoken(turn: Turn) -> Iterator[str]:
    """Yield the texts of a turn's new messages; arguments of calls as the values they stand for."""
    for message in (*turn.context, turn.message, *turn.observation):
        for _, text in _strings(message.get("content"), ""):
            yield text
        for name in ("reasoning", "reasoning_content"):
            if isinstance(thought := message.get(name), str):
                yield thought
        for call in message.get("tool_calls") or []:
            arguments = call.get("function", {}).get("arguments", "")
            try:
                value = json.loads(arguments)
            except (TypeError, ValueError):
                value = arguments
            for _, text in _strings(value, ""):
                yield text


def _tasks(path: Path) -> Iterator[Task]:
    if path.is_file() and path.suffix != ".sqlite":
        try:
            with path.open(encoding="utf-8") as lines:
                for number, line in enumerate(lines, start=1):
                    if line.strip():
                        yield _task(line, path, number)
        except (OSError, UnicodeDecodeError) as error:
            raise InvalidInput(f"{path}: can't be read: {error}") from error
        return
    with Run(path) as run:
        yield from run.tasks()


def _task(line: str, path: Path, number: int) -> Task:
    try:
        return decode(Task, line)
    except InvalidInput as error:
        raise InvalidInput(f"{path}, line {number}: {error}") from error
