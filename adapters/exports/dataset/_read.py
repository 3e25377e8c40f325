"""A run from a data set."""

from __future__ import annotations

import json
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trajgym.adapters._new_run import new_run
from trajgym.adapters.exports.dataset._tables import TABLES, JsonText, read_table
from trajgym.trajectory import (
    Group,
    InvalidInput,
    Member,
    Outcome,
    SessionTree,
    Task,
    TurnTokens,
)
from trajgym.trajectory._codec import decode

if TYPE_CHECKING:
    import os
    from collections.abc import Iterator

    from trajgym.trajectory import Ack, Store

__all__ = ["read_dataset"]


def read_dataset(path: str | os.PathLike[str], out: str | os.PathLike[str]) -> int:
    """Make the run that :func:`write_dataset` wrote as a data set; return its number of sessions.

    Memory does not grow with the data set.

    Args:
        path: directory of the data set, for example a downloaded snapshot.
        out: directory of the run, which must be empty or missing; it appears when it is complete.

    Raises:
        InvalidInput: ``out`` is not empty, or the data set is incomplete or malformed.
        MissingExtra: pyarrow is not installed.
    """
    with new_run(out) as store:
        return _read(Path(path), store)


def _read(path: Path, store: Store) -> int:
    for row in read_table(path, "meta"):
        store.set_meta(row["key"], row["value"])
    for row in _decoded(path, "tasks"):
        store.put_task(decode(Task, json.dumps(row))).wait()
    for row in read_table(path, "images"):
        _put_blob(store, row, row["image"]["bytes"])
    for row in read_table(path, "blobs"):
        _put_blob(store, row, row["data"])
    sessions = 0
    turns = _by_session(path, "turns")
    for row in _decoded(path, "sessions"):
        sessions += 1
        own = next(turns, (None, []))[1] if row["turns"] else []
        _put_session(store, row, own).wait()
    if sessions == 0 and not (path / "data").is_dir():
        raise InvalidInput(f"{path}: no data set here (no folder data/)")
    if next(turns, None) is not None:
        raise InvalidInput(f"{path}: turns without a session")
    for row in _decoded(path, "annotations"):
        store.add_signals(row["session"], row["turn"], row["signals"], source=row["source"]).wait()
    for row in read_table(path, "values"):
        store.put_derived(row["session"], row["name"], row["body"]).wait()
    for (session, name), rows in groupby(
        _decoded(path, "outcomes"), key=itemgetter("session", "name")
    ):
        store.put_outcomes(session, name, {row["attempt"]: _outcome(row) for row in rows}).wait()
    for row in read_table(path, "groups"):
        row["members"] = [Member(**member) for member in row["members"]]
        store.put_group(Group(**row)).wait()
    return sessions


def _put_blob(store: Store, row: dict[str, Any], data: bytes) -> None:
    name, ack = store.put_blob(data, row["media_type"])
    if name != row["hash"]:
        raise InvalidInput(f"data set: blob {row['hash']} has other contents (sha256 {name})")
    ack.wait()


def _put_session(store: Store, row: dict[str, Any], turns: list[dict[str, Any]]) -> Ack:
    session = row["id"]
    if len(turns) != row.pop("turns") or any(turn["session"] != session for turn in turns):
        raise InvalidInput(f"data set: session {session!r} does not have the turns that it states")
    attempts = []
    for attempt in row.pop("attempts"):
        score, passed, details = (attempt.pop(name) for name in ("score", "passed", "details"))
        if score is not None:
            outcome = {"score": score, "passed": passed, "details": json.loads(details)}
            attempt["outcome"] = outcome
        attempts.append(_known(attempt))
    plain = [_turn(turn) for turn in turns]
    tokens = [turn.pop("tokens", None) for turn in plain]
    tree = SessionTree.from_json({"session": _known(row), "turns": plain, "attempts": attempts})
    if not tree.attempts:
        raise InvalidInput(f"data set: session {session!r} has no attempt")
    for turn, ids in zip(tree.turns, tokens, strict=True):
        turn.tokens = None if ids is None else TurnTokens.from_json(ids)
    return store.put_session(tree)


def _turn(row: dict[str, Any]) -> dict[str, Any]:
    del row["session"]
    ids = {
        "prompt_kept": row.pop("prompt_kept"),
        "prompt_ids": row.pop("prompt_ids"),
        "response_ids": row.pop("response_ids"),
        "logprobs": row.pop("logprobs"),
        "segments": _tuples(row.pop("segments")),
        "spans": _tuples(row.pop("spans")),
        "images": _tuples(row.pop("token_images")),
    }
    plain = _known(row)
    plain["parent"] = row["parent"]  # None is a value of this field, not its default
    return plain if ids["prompt_kept"] is None else plain | {"tokens": ids}


def _known(row: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in row.items() if value is not None}


def _tuples(rows: list[dict[str, Any]] | None) -> list[tuple[Any, ...]]:
    return [tuple(row.values()) for row in rows or ()]


def _outcome(row: dict[str, Any]) -> Outcome:
    return Outcome(score=row["score"], passed=row["passed"], details=row["details"])


def _by_session(path: Path, name: str) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """Yield the rows of each session; those of one session follow each other."""
    for session, rows in groupby(_decoded(path, name), key=itemgetter("session")):
        yield session, list(rows)


def _decoded(path: Path, name: str) -> Iterator[dict[str, Any]]:
    texts = [column for column, kind in TABLES[name].items() if kind == JsonText]
    for row in read_table(path, name):
        for column in texts:
            if row[column] is not None:
                try:
                    row[column] = json.loads(row[column])
                except ValueError as error:
                    raise InvalidInput(f"data set: {name}.{column} is not JSON: {error}") from error
        yield row
