"""Operations that make new runs from runs; groups are never divided."""

from __future__ import annotations

import hashlib
import json
import math
from collections import defaultdict
from contextlib import ExitStack
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from trajgym.trajectory._codec import encode
from trajgym.trajectory._errors import InvalidInput
from trajgym.trajectory.datasets._copy import Copy
from trajgym.trajectory.datasets._expression import Expression
from trajgym.trajectory.datasets._identity import DATASET, LINEAGE, lineage_json
from trajgym.trajectory.datasets._source import FIELDS, GROUP_FIELDS, Source, unit_of

if TYPE_CHECKING:
    import os
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from trajgym.trajectory._records import Group, SessionRecord

__all__ = [
    "Derived",
    "dedup_run",
    "derive",
    "filter_run",
    "merge_runs",
    "sample_run",
    "split_run",
    "stratify_run",
]


class Derived(NamedTuple):
    """A run that an operation has made."""

    path: Path
    sessions: int
    groups: int
    tasks: int
    left_out: int = 0
    """Sessions of its sources that it does not have."""
    renamed: int = 0
    """Sessions that got another id, because an earlier source has one of that id or group."""


def merge_runs(sources: Sequence[str | os.PathLike[str]], out: str | os.PathLike[str]) -> Derived:
    """Put the sessions of several runs into one.

    Groups with the same id in two sources stay separate: those of the later one are renamed to
    ``ID-2``, as are sessions with an id that is taken. A group or a session that is the same in
    both, with all its turns, is taken once.

    Args:
        sources: the runs, in order.
        out: directory of the new run.

    Raises:
        InvalidInput: ``out`` has a run, or two tasks with one id have different contents.
        StoreLocked: a process is writing a source.
    """
    if not sources:
        raise InvalidInput("merge: name at least one run")
    with ExitStack() as stack:
        opened = [stack.enter_context(Source(path)) for path in sources]
        copy = stack.enter_context(Copy(out))
        names = _Names()
        read = renamed = 0
        for source in opened:
            digests = {place.record.id: source.whole(place) for place in source.places()}
            for group in names.begin(source.run.groups(), digests):
                copy.add_group(group)
            for place in source.places():
                read += 1
                record = names.of(place.record)
                if record is None:
                    continue
                renamed += record.id != place.record.id
                copy.add_session(source, place, record)
            for task in source.run.tasks():
                copy.add_task(source.task_body(task.id), task.id)
        metas = [source.run.meta() for source in opened]
        for key, value in metas[0].items():
            if key not in {DATASET, LINEAGE} and all(m.get(key) == value for m in metas):
                copy.set_meta(key, value)
        copy.set_meta(LINEAGE, lineage_json("merge", {}, opened))
    left_out = read - copy.sessions
    return Derived(copy.path, copy.sessions, copy.groups, copy.tasks, left_out, renamed)


def split_run(
    source: str | os.PathLike[str],
    out: str | os.PathLike[str],
    parts: Mapping[str, float],
    *,
    seed: int = 0,
    by: str = "task",
) -> dict[str, Derived]:
    """Split a run by task into parts, such as training and evaluation data.

    All sessions of a task go to the same part. The tasks are ordered by a hash of seed and id and
    cut at the shares, so the result depends on the tasks and the seed only.

    Args:
        source: the run.
        out: directory in which a run is made for each part, under its name.
        parts: share of the tasks by name of the part; they add up to 1.
        seed: of the order.
        by: expression over fields of the task; tasks with an equal value stay together, for
            example ``data.repo``.

    Raises:
        InvalidInput: the shares don't add up to 1, a name is not a file name, the expression is
            invalid, or a part's directory has a run.
        StoreLocked: a process is writing the source.
    """
    _check_parts(parts)
    key = Expression(by, ["task", "data", "prompt"])
    with Source(source) as opened:
        tasks: dict[str, list[str]] = defaultdict(list)
        for task_id, fields in _tasks_of(opened, key.names).items():
            tasks[_stable(key(fields))].append(task_id)
        part_of = _cut(tasks, parts, seed)
        arguments = {"parts": dict(parts), "seed": seed, "by": by}
        made = {}
        for name in parts:
            units = {
                unit_of(place.record)
                for place in opened.places()
                if part_of[place.record.task] == name
            }
            shown = {**arguments, "part": name}
            made[name] = derive(opened, Path(out) / name, units, "split", shown)
        return made


def filter_run(
    source: str | os.PathLike[str],
    out: str | os.PathLike[str],
    where: str,
    *,
    match: Literal["any", "all"] = "any",
) -> Derived:
    """Keep the groups, and the sessions without a group, for which an expression is true.

    Args:
        source: the run.
        out: directory of the new run.
        where: see :class:`Expression`; its fields are the keys of :data:`FIELDS`.
        match: ``any`` keeps a group if the expression is true for one of its sessions, ``all`` if
            it is for each; groups stay whole.

    Raises:
        InvalidInput: the expression is invalid or does not fit the values, or ``out`` has a run.
        StoreLocked: a process is writing the source.
    """
    if match not in {"any", "all"}:
        raise InvalidInput(f"match is {match!r}; use 'any' or 'all'")
    wanted = Expression(where, FIELDS)
    with Source(source) as opened:
        kept: dict[str, bool] = {}
        for place, fields in opened.records(wanted.names):
            unit, holds = unit_of(place.record), bool(wanted(fields))
            before = kept.get(unit, match == "all")
            kept[unit] = (before or holds) if match == "any" else (before and holds)
        units = {unit for unit, keep in kept.items() if keep}
        return derive(opened, out, units, "filter", {"where": where, "match": match})


def dedup_run(
    source: str | os.PathLike[str],
    out: str | os.PathLike[str],
    *,
    by: Literal["content", "task"] = "content",
) -> Derived:
    """Keep the first of equal groups, and of equal sessions without a group.

    Args:
        source: the run.
        out: directory of the new run.
        by: ``content`` compares tasks (prompt and data) and all messages of all sessions, in any
            order of the sessions and without the ids of tool calls; ``task`` compares the tasks
            only, and keeps one group of each.

    Raises:
        InvalidInput: ``out`` has a run.
        StoreLocked: a process is writing the source.
    """
    if by not in {"content", "task"}:
        raise InvalidInput(f"by is {by!r}; use 'content' or 'task'")
    with Source(source) as opened:
        digests: dict[str, int | bytes] = {}
        for place in opened.places():
            unit = unit_of(place.record)
            if by == "task":
                digests[unit] = opened.task_content(place.record.task)
            else:  # a sum does not depend on the order of the sessions
                one = int.from_bytes(opened.content(place), "big")
                digests[unit] = int(digests.get(unit, 0)) + one
        first: dict[int | bytes, str] = {}
        for unit, digest in digests.items():
            first.setdefault(digest, unit)
        return derive(opened, out, set(first.values()), "dedup", {"by": by})


def sample_run(
    source: str | os.PathLike[str],
    out: str | os.PathLike[str],
    *,
    n: int | None = None,
    share: float | None = None,
    seed: int = 0,
) -> Derived:
    """Keep a random sample of the groups, and of the sessions without a group.

    Args:
        source: the run.
        out: directory of the new run.
        n: how many; give either this or ``share``.
        share: how many, as a share from 0 to 1.
        seed: of the choice, which depends on it and on the ids only.

    Raises:
        InvalidInput: the size is missing or out of range, or ``out`` has a run.
        StoreLocked: a process is writing the source.
    """
    if (n is None) == (share is None):
        raise InvalidInput("sample: give either n or share")
    if n is not None and n < 1:
        raise InvalidInput(f"sample: n is {n}; it must be at least 1")
    if share is not None and not 0 < share <= 1:
        raise InvalidInput(f"sample: share is {share}; it must be more than 0 and at most 1")
    with Source(source) as opened:
        units = {unit_of(place.record) for place in opened.places()}
        size = round(len(units) * share) if share is not None else n
        chosen = set(_shuffled(units, seed)[:size])
        arguments = {"n": n, "share": share, "seed": seed}
        return derive(opened, out, chosen, "sample", arguments)


def stratify_run(
    source: str | os.PathLike[str],
    out: str | os.PathLike[str],
    by: str,
    *,
    per: int | None = None,
    seed: int = 0,
) -> Derived:
    """Keep equally many groups (and sessions without a group) of each value of an expression.

    Args:
        source: the run.
        out: directory of the new run.
        by: expression whose value is the same for all sessions of a group, for example ``task``,
            ``data.level`` or ``solve_rate > 0.5``.
        per: how many of each value; a value with fewer keeps all. By default as many as the
            rarest value has.
        seed: of the choice.

    Raises:
        InvalidInput: the expression is invalid or differs within a group, or ``out`` has a run.
        StoreLocked: a process is writing the source.
    """
    if per is not None and per < 1:
        raise InvalidInput(f"stratify: per is {per}; it must be at least 1")
    key = Expression(by, FIELDS)
    with Source(source) as opened:
        value_of: dict[str, str] = {}
        for place, fields in opened.records(key.names):
            unit, value = unit_of(place.record), _stable(key(fields))
            if value_of.setdefault(unit, value) != value:
                raise InvalidInput(
                    f"stratify: {by!r} is {value_of[unit]} and {value} in {unit}, and groups stay "
                    f"whole: use fields of tasks or groups ({', '.join(GROUP_FIELDS)})"
                )
        strata: dict[str, set[str]] = defaultdict(set)
        for unit, value in value_of.items():
            strata[value].add(unit)
        size = per or min((len(units) for units in strata.values()), default=0)
        chosen = {unit for units in strata.values() for unit in _shuffled(units, seed)[:size]}
        arguments = {"by": by, "per": per, "seed": seed}
        return derive(opened, out, chosen, "stratify", arguments)


def derive(
    source: Source,
    out: str | os.PathLike[str],
    units: Collection[str],
    operation: str,
    arguments: Mapping[str, Any],
) -> Derived:
    """Make a run of the sessions that belong to some units of another one."""
    read = 0
    with Copy(out) as copy:
        for group in source.run.groups():
            if f"group {group.id}" in units:
                copy.add_group(group)
                copy.add_task(source.task_body(group.task), group.task)
        for place in source.places():
            read += 1
            if unit_of(place.record) in units:
                copy.add_session(source, place, place.record)
        for key, value in source.run.meta().items():
            if key not in {DATASET, LINEAGE}:
                copy.set_meta(key, value)
        copy.set_meta(LINEAGE, lineage_json(operation, arguments, [source]))
    return Derived(copy.path, copy.sessions, copy.groups, copy.tasks, read - copy.sessions)


class _Names:
    """The ids that a merged run has so far, and those that the current source's get."""

    def __init__(self) -> None:
        self._number = 0
        self._digests: Mapping[str, bytes] = {}
        self._groups: dict[str, bytes] = {}
        self._sessions: dict[str, bytes] = {}
        self._known: set[str] = set()
        self._group_names: dict[str, str] = {}
        self._session_names: dict[str, str] = {}

    def begin(self, groups: Iterable[Group], digests: Mapping[str, bytes]) -> list[Group]:
        """Start with the next source; return its groups that are new, under their new ids.

        Args:
            groups: of the source.
            digests: of the contents of its sessions, by id.
        """
        self._number += 1
        self._digests = digests
        self._known, self._group_names, self._session_names = set(), {}, {}
        new = []
        for group in groups:
            if group.id in self._group_names:
                continue  # stored in several files of the source
            digest = _digest(group, digests)
            if self._groups.get(group.id) == digest:
                self._known.add(group.id)
                continue
            name = self._group_name(group.id, digest)
            members = []
            for member in group.members:
                session = self._free(member.session, self._sessions)
                self._sessions[session] = b""
                self._session_names[member.session] = session
                members.append(member._replace(session=session))
            new.append(replace(group, id=name, members=members))
        return new

    def of(self, record: SessionRecord) -> SessionRecord | None:
        """Return a session's record under its new ids; None if an earlier source has it.

        Raises:
            InvalidInput: it is not a member of its group, which an earlier source has as well.
        """
        digest, group = self._digests[record.id], record.group
        if group is None or group in self._known:
            if self._sessions.get(record.id) == digest:
                return None
            if group is not None:
                raise InvalidInput(
                    f"merge: session {record.id!r} is not among the members of its group "
                    f"{group!r}, which another run has too"
                )
        elif group not in self._group_names:
            self._group_name(group, b"")  # only its sessions were stored
        name = self._session_names.get(record.id) or self._free(record.id, self._sessions)
        self._sessions[name] = digest
        return replace(record, id=name, group=group and self._group_names[group])

    def _group_name(self, group: str, digest: bytes) -> str:
        name = self._group_names[group] = self._free(group, self._groups)
        self._groups[name] = digest
        return name

    def _free(self, name: str, taken: Collection[str]) -> str:
        if name not in taken:
            return name
        return next(new for n in count(self._number) if (new := f"{name}-{n}") not in taken)


def _digest(group: Group, sessions: Mapping[str, bytes]) -> bytes:
    found = hashlib.sha256(encode(group))
    for member in group.members:
        found.update(sessions.get(member.session, b""))
    return found.digest()


def _check_parts(parts: Mapping[str, float]) -> None:
    for name, share in parts.items():
        if not name or Path(name).name != name:
            raise InvalidInput(f"split: {name!r} is not a name of a part: parts are directories")
        if not 0 < share <= 1:
            raise InvalidInput(f"split: the share of {name!r} is {share}; it must be from 0 to 1")
    if not math.isclose(sum(parts.values()), 1, abs_tol=1e-6):
        raise InvalidInput(f"split: the shares add up to {sum(parts.values()):g}, not 1")


def _tasks_of(source: Source, names: frozenset[str]) -> dict[str, dict[str, Any]]:
    """Return the fields of the tasks that have sessions."""
    found: dict[str, dict[str, Any]] = {}
    for place in source.places():
        task_id = place.record.task
        if task_id in found:
            continue
        found[task_id] = {"task": task_id}
        if names & {"data", "prompt"}:
            task = source.task(task_id)
            found[task_id]["data"] = {} if task is None else task.data
            found[task_id]["prompt"] = None if task is None else task.prompt
    return found


def _cut(tasks: Mapping[str, list[str]], parts: Mapping[str, float], seed: int) -> dict[str, str]:
    """Return the part of each task; tasks are listed under the value that keeps them together."""
    total = sum(len(ids) for ids in tasks.values())
    names = list(parts)
    found: dict[str, str] = {}
    position, end, placed = 0, parts[names[0]] * total, 0
    for value in _shuffled(tasks, seed):
        # A cluster goes to the part in which its middle falls.
        while placed + len(tasks[value]) / 2 > end + 1e-9 and position < len(names) - 1:
            position += 1
            end += parts[names[position]] * total
        found |= dict.fromkeys(tasks[value], names[position])
        placed += len(tasks[value])
    return found


def _shuffled(names: Iterable[str], seed: int) -> list[str]:
    def place(name: str) -> tuple[bytes, str]:
        return hashlib.sha256(f"{seed}:{name}".encode()).digest(), name

    return sorted(names, key=place)


def _stable(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, sort_keys=True)
