"""The catalogue of a run: filtered, sorted and searched lists of its sessions and groups."""

from __future__ import annotations

import sqlite3
import threading
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias, get_args

from trajgym.trajectory._closing import Closing
from trajgym.trajectory._errors import InvalidInput, StoreError
from trajgym.trajectory.catalog._indexer import Indexer
from trajgym.trajectory.catalog._schema import TEXT_BITS, default_path, open_reader, open_writer
from trajgym.trajectory.catalog._text import match_of, reason_of

if TYPE_CHECKING:
    import os

__all__ = ["Catalog", "Page", "Progress", "SessionFilter", "SortBy"]

SortBy: TypeAlias = Literal[
    "begun", "task", "status", "score", "reward", "turns", "calls", "tokens", "seconds", "id"
]
"""What a list of sessions is sorted by."""

_ORDER: dict[str, str] = {
    "begun": "key",
    "task": "task",
    "status": "status",
    "score": "score",
    "reward": "reward",
    "turns": "turns",
    "calls": "calls",
    "tokens": "completion_tokens",
    "seconds": "seconds",
    "id": "id",
}
_GROUP_ORDER: dict[str, str] = {
    "begun": "place",
    "task": "task",
    "members": "members",
    "solved": "share",
    "mean": "mean",
    "spread": "spread",
    "turns": "turns",
}
_OUTCOMES = {
    "solved": "solved > 0",
    "unsolved": "scored > 0 AND solved = 0",
    "unscored": "scored = 0",
}
_FACETS = 200
"""Most values of a field that are counted."""


@dataclass(slots=True, kw_only=True)
class SessionFilter:
    """Which sessions are listed; several values of one field are alternatives.

    Args:
        text: words (by their start), "phrases" and -words, all of which a session's texts match.
        status: statuses, of which one of the session's attempts has one.
        outcome: ``solved`` (an attempt passed), ``unsolved`` (scored, none passed), ``unscored``.
        task: ids of tasks.
        env: ids of environments.
        policy: policies, as the sessions' labels name them.
        tool: names of tools; the session called one of them.
        group: id of a group.
        cause: what ended an attempt, as :meth:`Catalog.failures` names it.
        min_score: smallest score of the session's best attempt.
        max_score: largest.
        min_reward: smallest sum of the environment's step rewards.
        max_reward: largest.
        min_turns: smallest number of turns.
        max_turns: largest.
    """

    text: str = ""
    status: list[str] = field(default_factory=list)
    outcome: list[str] = field(default_factory=list)
    task: list[str] = field(default_factory=list)
    env: list[str] = field(default_factory=list)
    policy: list[str] = field(default_factory=list)
    tool: list[str] = field(default_factory=list)
    group: str | None = None
    cause: str | None = None
    min_score: float | None = None
    max_score: float | None = None
    min_reward: float | None = None
    max_reward: float | None = None
    min_turns: int | None = None
    max_turns: int | None = None


class Page(NamedTuple):
    """A part of a list, and the length of the whole list."""

    total: int
    rows: list[dict[str, Any]]


class Progress(NamedTuple):
    """How much of a run has been read."""

    revision: int
    """Grows whenever the catalogue has changed."""
    read: int
    """Turns that have been read."""
    turns: int
    """Turns of the run, as far as is known."""
    live: bool
    """A process writes the run now."""


class Catalog(Closing):
    """An index of a run, kept in a file beside it and brought up to date a piece at a time.

    :meth:`refresh` reads what the run has gained; the other methods answer from the index, from
    any thread, also while it is being refreshed. Several processes may share a catalogue.

    Args:
        run: a run directory, or one ``*.sqlite`` file.
        path: file of the catalogue; by default in ``$XDG_CACHE_HOME/trajgym/catalog``. It can be
            deleted at any time: it is made again from the run.

    Raises:
        StoreError: there is no run, or the catalogue can't be written.
    """

    def __init__(
        self, run: str | os.PathLike[str], *, path: str | os.PathLike[str] | None = None
    ) -> None:
        self.run = Path(run)
        if not self.run.exists():
            raise StoreError(f"{self.run}: no run here")
        self.path = Path(path) if path is not None else default_path(self.run)
        self._writer = open_writer(self.path)
        self._indexer = Indexer(self.run, self._writer)
        self._writing, self._reading = threading.Lock(), threading.Lock()
        self._closed = False
        self._facets: tuple[int, dict[str, Any]] | None = None
        self._totals: tuple[int, dict[str, Any]] | None = None
        try:
            self._reader = open_reader(self.path)
        except BaseException:
            self._writer.close()
            raise

    def refresh(self, seconds: float = 0.5) -> bool:
        """Read what is new for about ``seconds``; return whether everything has been read.

        Sessions come first, then their turns: until all turns have been read, figures, tools and
        texts are incomplete.

        Raises:
            StoreError: a file of the run can't be read, or the catalogue is closed.
            StoreCorrupt: a file of the run is damaged.
        """
        with self._writing:
            if self._closed:
                raise StoreError(f"{self.path}: the catalogue is closed")
            try:
                return self._indexer.refresh(seconds)
            except sqlite3.Error as error:
                raise StoreError(f"{self.path}: {error}") from error

    def close(self) -> None:
        """Close the files. Idempotent; waits for calls in other threads."""
        with self._writing, self._reading:
            if not self._closed:
                self._closed = True
                self._indexer.close()
                self._reader.close()
                self._writer.close()

    def progress(self) -> Progress:
        """Return how much of the run has been read."""
        (row,) = self._query(
            "SELECT (SELECT value FROM meta WHERE key = 'revision') AS revision, "
            "coalesce(sum(turn), 0) AS read, coalesce(sum(turns), 0) AS turns, "
            "coalesce(max(alive), 0) AS live FROM files"
        )
        return Progress(int(row["revision"] or 0), row["read"], row["turns"], bool(row["live"]))

    def totals(self) -> dict[str, Any]:
        """Return the counts of the whole run: sessions, attempts, scored, solved, turns, ..."""
        revision = self.progress().revision
        if self._totals is None or self._totals[0] != revision:
            self._totals = revision, self._count()
        return self._totals[1]

    def _count(self) -> dict[str, Any]:
        (row,) = self._query(
            "SELECT count(*) AS sessions, coalesce(sum(attempts), 0) AS attempts, "
            "coalesce(sum(scored), 0) AS scored, coalesce(sum(solved), 0) AS solved, "
            "coalesce(sum(score_sum), 0) AS score_sum, coalesce(sum(turns), 0) AS turns, "
            "coalesce(sum(completion_tokens), 0) AS tokens, coalesce(sum(exact), 0) AS exact, "
            "coalesce(sum(calls), 0) AS calls, coalesce(sum(failed_calls), 0) AS failed_calls, "
            "coalesce(sum(seconds), 0) AS seconds, coalesce(sum(images), 0) AS images, "
            "count(reward) AS rewarded, min(created) AS created FROM sessions"
        )
        (groups,) = self._query(
            "SELECT count(*) AS groups, coalesce(sum(sealed), 0) AS sealed FROM groups"
        )
        statuses = self._query(
            "SELECT status, count(*) AS n FROM attempts GROUP BY status ORDER BY n DESC"
        )
        return {
            **row,
            **groups,
            "statuses": {one["status"]: one["n"] for one in statuses},
            "running": sum(one["n"] for one in statuses if one["status"] == "running"),
        }

    def sessions(
        self,
        chosen: SessionFilter | None = None,
        *,
        sort: SortBy = "begun",
        descending: bool = False,
        offset: int = 0,
        limit: int = 100,
    ) -> Page:
        """Return a part of the list of the sessions that a filter chooses.

        Raises:
            InvalidInput: an unknown order or outcome.
        """
        if sort not in get_args(SortBy):
            raise InvalidInput(f"sort {sort!r}: expected one of {', '.join(get_args(SortBy))}")
        where, values = _where(chosen or SessionFilter())
        direction = "DESC" if descending else "ASC"
        order = f"{_ORDER[sort]} {direction} NULLS LAST, key {direction}"
        # Only keys are sorted; whole rows would be several times as slow. A condition that reads
        # another table is evaluated once, for the page and the total together.
        once = bool(chosen and (chosen.text or chosen.tool))
        total = ", count(*) OVER () AS n" if once else ""
        sql = f"SELECT key{total} FROM sessions{where} ORDER BY {order} LIMIT ? OFFSET ?"  # noqa: S608
        page = self._query(sql, *values, limit, offset)
        if once and page:
            n = page[0]["n"]
        else:
            n = self._query(f"SELECT count(*) AS n FROM sessions{where}", *values)[0]["n"]  # noqa: S608
        return Page(n, self._rows([row["key"] for row in page]))

    def _rows(self, keys: list[int]) -> list[dict[str, Any]]:
        sql = f"SELECT * FROM sessions WHERE key IN ({', '.join('?' * len(keys))})"  # noqa: S608
        found = {row["key"]: row for row in self._query(sql, *keys)}
        return [found[key] for key in keys if key in found]

    def find(self, start: str) -> str:
        """Return the id of the session with this id, or with this unique start of its id.

        Raises:
            InvalidInput: there is none, or there are several.
        """
        sql = "SELECT id FROM sessions WHERE id >= ? AND id < ? ORDER BY id LIMIT 2"
        found = [row["id"] for row in self._query(sql, start, f"{start}\U0010ffff")]
        if start in found:
            return start
        if len(found) != 1:
            what = "no session starts" if not found else "several sessions start"
            raise InvalidInput(f"{self.run}: {what} with {start!r}")
        return str(found[0])

    def attempts(self, sessions: list[str]) -> dict[str, list[dict[str, Any]]]:
        """Return how the attempts of these sessions ended, by session."""
        marks = ", ".join("?" * len(sessions))
        rows = self._query(
            "SELECT id, number, attempts.status, attempts.cause, attempts.score, passed "  # noqa: S608
            "FROM sessions JOIN attempts ON attempts.session = key "
            f"WHERE id IN ({marks}) ORDER BY key, number",
            *sessions,
        )
        found: dict[str, list[dict[str, Any]]] = {}
        for row in rows:
            found.setdefault(row.pop("id"), []).append(row)
        return found

    def facets(self) -> dict[str, list[dict[str, Any]]]:
        """Return the values of the fields that can be filtered by, with counts, most first."""
        revision = self.progress().revision
        if self._facets is not None and self._facets[0] == revision:
            return self._facets[1]
        found: dict[str, list[dict[str, Any]]] = {
            "status": self._query(
                "SELECT status AS value, count(*) AS n FROM attempts GROUP BY status "
                "ORDER BY n DESC LIMIT ?",
                _FACETS,
            ),
            "tool": self._query(
                "SELECT name AS value, count(*) AS n, sum(calls) AS calls, sum(failed) AS failed "
                "FROM tools GROUP BY name ORDER BY n DESC LIMIT ?",
                _FACETS,
            ),
        }
        for name in ("task", "env", "policy"):
            found[name] = self._query(
                f"SELECT {name} AS value, count(*) AS n, sum(solved) AS solved, "  # noqa: S608
                f"sum(scored) AS scored FROM sessions WHERE {name} != '' GROUP BY {name} "
                "ORDER BY n DESC, value LIMIT ?",
                _FACETS,
            )
        sums = (f"coalesce(sum({sql}), 0) AS {name}" for name, sql in _OUTCOMES.items())
        (row,) = self._query(f"SELECT {', '.join(sums)} FROM sessions")  # noqa: S608
        found["outcome"] = [{"value": name, "n": row[name]} for name in _OUTCOMES]
        self._facets = revision, found
        return found

    def groups(
        self,
        *,
        task: str | None = None,
        mixed: bool = False,
        sort: str = "begun",
        descending: bool = False,
        offset: int = 0,
        limit: int = 100,
    ) -> Page:
        """Return a part of the list of groups, with the scores of their attempts.

        Args:
            task: only groups of this task.
            mixed: only groups whose scores differ: the others give no group-relative advantage.
            sort: ``begun``, ``task``, ``members``, ``solved`` (share), ``mean`` or ``spread``
                (standard deviation) of scores, or ``turns``.
            descending: largest first.
            offset: groups that are left out at the start.
            limit: most groups.

        Raises:
            InvalidInput: an unknown order.
        """
        if sort not in _GROUP_ORDER:
            raise InvalidInput(f"sort {sort!r}: expected one of {', '.join(_GROUP_ORDER)}")
        direction = "DESC" if descending else "ASC"
        conditions = [sql for sql, used in (("task = ?", task), ("spread > 1e-9", mixed)) if used]
        where = f" WHERE {' AND '.join(conditions)}" if conditions else ""
        values = [task] if task else []
        listed = f"WITH listed AS ({_GROUPS}) SELECT"
        (count,) = self._query(f"{listed} count(*) AS n FROM listed{where}", *values)
        rows = self._query(
            f"{listed} * FROM listed{where} ORDER BY {_GROUP_ORDER[sort]} {direction} NULLS LAST, "
            f"place LIMIT ? OFFSET ?",
            *values,
            limit,
            offset,
        )
        for row in rows:
            row["attempts"] = self._query(
                "SELECT sessions.id, sample, number, attempts.status, attempts.score, passed "
                "FROM sessions JOIN attempts ON attempts.session = key WHERE grp = ? "
                "ORDER BY sample, key, number LIMIT 64",
                row["id"],
            )
        return Page(count["n"], rows)

    def failures(self) -> list[dict[str, Any]]:
        """Return how attempts ended other than completed, by status and cause, most first.

        A cause is its first line, with numbers and addresses replaced by ``N``.
        """
        rows = self._query(
            "SELECT status, reason, count(*) AS n, count(score) AS scored, "
            "coalesce(sum(passed), 0) AS passed, min(session) AS first, min(cause) AS cause "
            "FROM attempts WHERE status NOT IN ('completed', 'running') "
            "GROUP BY status, reason ORDER BY n DESC LIMIT ?",
            _FACETS,
        )
        for row in rows:
            sql = "SELECT id, task FROM sessions WHERE key = ?"
            (row["example"],) = self._query(sql, row.pop("first"))
        return rows

    def _query(self, sql: str, *values: Any) -> list[dict[str, Any]]:
        with self._reading:
            if self._closed:
                raise StoreError(f"{self.path}: the catalogue is closed")
            try:
                return [dict(row) for row in self._reader.execute(sql, values)]
            except sqlite3.Error as error:
                raise StoreError(f"{self.path}: {error}") from error


_GROUPS = """
SELECT groups.*, scored, solved, session_turns AS turns,
       CASE WHEN scored THEN 1.0 * solved / scored END AS share,
       CASE WHEN scored THEN total / scored END AS mean,
       CASE WHEN scored THEN sqrt(max(0, squares / scored - total / scored * total / scored)) END
           AS spread
FROM groups LEFT JOIN (
    SELECT grp, sum(scored) AS scored, sum(solved) AS solved, sum(score_sum) AS total,
           sum(score_squares) AS squares, sum(turns) AS session_turns
    FROM sessions WHERE grp IS NOT NULL GROUP BY grp
) ON grp = groups.id
"""


def _where(chosen: SessionFilter) -> tuple[str, list[Any]]:
    """Return the condition of a filter in SQL, empty if it chooses everything, and its values."""
    conditions: list[str] = []
    values: list[Any] = []

    def add(condition: str, *given: Any) -> None:
        conditions.append(condition)
        values.extend(given)

    if chosen.text.strip():
        match = match_of(chosen.text)
        if match:
            add(
                f"key IN (SELECT rowid >> {TEXT_BITS} FROM texts WHERE texts MATCH ?)",  # noqa: S608
                match,
            )
        else:
            add("0")  # signs that are in no index
    if chosen.status:
        marks = _marks(chosen.status)
        add(
            f"(CASE WHEN attempts < 2 THEN status IN ({marks}) ELSE EXISTS (SELECT 1 FROM attempts "  # noqa: S608
            f"WHERE session = key AND attempts.status IN ({marks})) END)",
            *chosen.status,
            *chosen.status,
        )
    if unknown := set(chosen.outcome) - set(_OUTCOMES):
        raise InvalidInput(f"outcome {unknown.pop()!r}: expected one of {', '.join(_OUTCOMES)}")
    if chosen.outcome:
        add("(" + " OR ".join(f"({_OUTCOMES[one]})" for one in chosen.outcome) + ")")
    for column in ("task", "env", "policy"):
        if given := getattr(chosen, column):
            add(f"{column} IN ({_marks(given)})", *given)
    if chosen.tool:
        add(
            f"key IN (SELECT session FROM tools WHERE name IN ({_marks(chosen.tool)}))",  # noqa: S608
            *chosen.tool,
        )
    if chosen.group is not None:
        add("grp = ?", chosen.group)
    if chosen.cause is not None:
        add("key IN (SELECT session FROM attempts WHERE reason = ?)", reason_of(chosen.cause))
    for name, column in (("score", "score"), ("reward", "reward"), ("turns", "turns")):
        if (low := getattr(chosen, f"min_{name}")) is not None:
            add(f"{column} >= ?", low)
        if (high := getattr(chosen, f"max_{name}")) is not None:
            add(f"{column} <= ?", high)
    return (f" WHERE {' AND '.join(conditions)}" if conditions else ""), values


def _marks(values: list[str]) -> str:
    return ", ".join("?" * len(values))
