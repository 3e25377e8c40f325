"""From sessions to foreign files: the parts that all exports share."""

from __future__ import annotations

import base64
import json
import re
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias

from trajgym.adapters.interchange._features import features_of
from trajgym.rollout.hosted import without_native
from trajgym.trajectory import InvalidInput, Message
from trajgym.trajectory._internal import replace_surrogates

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from trajgym.adapters.exports._stream import Export
    from trajgym.adapters.interchange._format import Format
    from trajgym.trajectory import Attempt, SessionTree, Task, Turn

__all__ = [
    "Entry",
    "Include",
    "Track",
    "cleaned",
    "content_of",
    "conversation",
    "data_url",
    "entries_of",
    "file_name",
    "note_losses",
    "tracks",
    "write_documents",
    "write_json",
]

Include: TypeAlias = Literal["all", "scored", "passed"]
"""Which attempts an export takes; ``all`` includes failed and unscored ones."""

_BLOB = "blob:"


class Track(NamedTuple):
    """One attempt of a session: what becomes one trajectory of a foreign format."""

    tree: SessionTree
    attempt: Attempt
    leaf: Turn
    task: Task | None

    @property
    def id(self) -> str:
        """The session's id, with the attempt's number if it is not the first."""
        index = self.attempt.index
        return self.tree.record.id + (f"-attempt-{index}" if index else "")


class Entry(NamedTuple):
    """A message of a conversation, and the turn whose response it is."""

    message: Message
    turn: Turn | None = None


def tracks(export: Export, form: Format, include: str) -> Iterator[Track]:
    """Yield the attempts to write, and note what the format loses of each session.

    Raises:
        InvalidInput: ``include`` is unknown, or values were given.
    """
    if include not in {"all", "scored", "passed"}:
        raise InvalidInput(
            f"export {form.name}: include is {include!r}; use 'all', 'scored' or 'passed'"
        )
    if export.values:
        raise InvalidInput(f"export {form.name} takes no values: it writes what was recorded")
    for tree in export.sessions:
        task = export.task(tree.record.task)
        note_losses(export, form, tree, task)
        for attempt in tree.attempts:
            if reason := _refusal(attempt, include):
                export.report.drop(tree.record.id, attempt.index, reason)
            else:
                assert attempt.leaf is not None
                yield Track(tree, attempt, tree.turns[attempt.leaf], task)


def note_losses(export: Export, form: Format, tree: SessionTree, task: Task | None) -> None:
    """Count what a session has and the format does not hold."""
    for feature in features_of(tree, task):
        if feature not in form.holds:
            export.report.lost[feature] = export.report.lost.get(feature, 0) + 1


def write_documents(
    export: Export,
    form: Format,
    include: str,
    name: Callable[[str], str],
    document: Callable[[Export, Track], dict[str, Any]],
) -> None:
    """Write one JSON file per attempt, and report attempts that the format can't hold.

    Args:
        export: what to write.
        form: the format.
        include: see :func:`tracks`.
        name: returns a file's path below the export's directory, given the attempt's name.
        document: returns the content.
    """
    for track in tracks(export, form, include):
        path = name(file_name(track.id))
        try:
            write_json(export.out / path, document(export, track))
        except InvalidInput as error:
            export.report.drop(track.tree.record.id, track.attempt.index, str(error))
        else:
            export.file(path)
            export.report.count(synthetic=track.leaf.synthetic)


def _refusal(attempt: Attempt, include: str) -> str | None:
    if attempt.leaf is None:
        return f"no turns ({attempt.status})"
    if include == "all":
        return None
    if attempt.outcome is None:
        return f"not scored ({attempt.status})"
    if include == "passed" and not attempt.outcome.passed:
        return f"did not pass (score {attempt.outcome.score:g})"
    return None


def entries_of(tree: SessionTree, leaf: Turn) -> list[Entry]:
    """Return a turn's conversation, its observation included, with the turn of each answer."""
    chain = [leaf]
    while (base := tree.base(chain[-1])) is not None:
        chain.append(base)
    entries: list[Entry] = []
    for turn in reversed(chain):
        if turn.kept is not None:
            del entries[turn.kept :]
        entries += [Entry(cleaned(message)) for message in turn.context]
        entries.append(Entry(cleaned(turn.message), turn))
        entries += [Entry(cleaned(message)) for message in turn.observation]
    return entries


def conversation(track: Track) -> list[Entry]:
    """Return the conversation of an attempt at its end."""
    return entries_of(track.tree, track.leaf)


def cleaned(message: Message) -> Message:
    """Return a message without a provider's own parts and characters that UTF-8 lacks."""
    return dict(replace_surrogates(without_native(message)))


def data_url(export: Export, url: str) -> str:
    """Return the ``data:`` URL of a stored image; other URLs are returned unchanged.

    Raises:
        InvalidInput: the image is stored, and the export was given no blobs.
    """
    if not url.startswith(_BLOB):
        return url
    data, media_type = stored(export, url[len(_BLOB) :])
    return f"data:{media_type};base64,{base64.b64encode(data).decode()}"


def content_of(export: Export, message: Message) -> Any:
    """Return a message's content, with stored images as ``data:`` URLs.

    Raises:
        InvalidInput: see :func:`data_url`.
    """
    content = message.get("content")
    if not isinstance(content, list):
        return content
    return [_with_data(export, part) for part in content]


def _with_data(export: Export, part: dict[str, Any]) -> dict[str, Any]:
    if part.get("type") != "image_url":
        return part
    image = part["image_url"]
    return {**part, "image_url": {**image, "url": data_url(export, image["url"])}}


def stored(export: Export, name: str) -> tuple[bytes, str]:
    """Return a stored image and its media type.

    Raises:
        InvalidInput: the export was given no blobs.
    """
    if export.blobs is None:
        raise InvalidInput("the session has images; pass blobs=run.blob to export")
    found = export.blobs(name)
    return found.data, found.media_type


def file_name(text: str) -> str:
    """Return a text as part of a file name; different texts can give the same name."""
    return re.sub(r"[^\w.+=@-]+", "-", text).strip(".-")[:150] or "session"


def write_json(path: Path, value: Any) -> None:
    """Write a JSON file that appears once it is complete.

    Raises:
        InvalidInput: a value can't be written as JSON.
    """
    try:
        text = json.dumps(value, ensure_ascii=False, allow_nan=False, indent=1)
        data = text.encode()
    except (TypeError, ValueError) as error:
        raise InvalidInput(f"{path.name} can't be written as JSON: {error}") from error
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f".{path.name}.part")
    part.write_bytes(data)
    part.replace(path)
