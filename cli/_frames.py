"""`trajgym frames`: the pictures of sessions as files, with what the agent did drawn on."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from rich.console import Console

from trajgym.cli._marks import draw_marks, marks_of
from trajgym.cli._show import find_session
from trajgym.trajectory import InvalidInput, Run, blob_hashes

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from trajgym.trajectory import Attempt, SessionTree, Turn

__all__ = ["write_frames"]

_ENDINGS = {"image/png": "png", "image/jpeg": "jpg", "image/webp": "webp", "image/gif": "gif"}


class _Frame(NamedTuple):
    """A picture as it was shown, and the turn that was decided while it was the newest."""

    name: str
    blob: str
    decided: Turn | None


def write_frames(path: Path, out: Path, session: str | None, *, plain: bool = False) -> int:
    """Write the pictures of a run, or of one session, and say where they are.

    A file is named after the turn whose answer showed the picture (``start`` for what came first).
    The newest one before a turn has that turn's clicks, drags and keys drawn on; the others, and
    all if ``plain``, are the bytes as they were stored.

    Returns:
        How many files were written.

    Raises:
        InvalidInput: no such session, no picture at all, or bytes that are no picture.
        MissingExtra: Pillow is not installed.
    """
    console = Console()
    written = 0
    with Run(path) as run:
        names = [find_session(run, session)] if session else _ids(run)
        for name in names:
            tree = run.session(name)
            for frame in _frames(tree):
                folder = out / name
                folder.mkdir(parents=True, exist_ok=True)
                data, media_type = run.blob(frame.blob)
                if frame.decided is not None and not plain:
                    marks, screen = marks_of(frame.decided)
                    data = draw_marks(data, marks, screen) if marks else data
                file = folder / f"{frame.name}.{_ending(data, media_type)}"
                file.write_bytes(data)
                console.print(str(file), highlight=False, soft_wrap=True)
                written += 1
    if not written:
        raise InvalidInput(f"{path}: no picture was shown in {session or 'any session'}")
    return written


def _ids(run: Run) -> list[str]:
    return [summary.record.id for summary in run.summaries()]


def _ending(data: bytes, media_type: str) -> str:
    if data.startswith(b"\x89PNG"):
        return "png"
    return _ENDINGS.get(media_type, "bin")


def _frames(tree: SessionTree) -> Iterator[_Frame]:
    """Yield every picture of every attempt, but what attempts share once."""
    seen: set[tuple[str, int | None]] = set()
    for attempt in tree.attempts:
        for frame in _of_attempt(tree, attempt):
            key = (frame.name, None if frame.decided is None else frame.decided.index)
            if key in seen:
                continue
            again = any(name == frame.name for name, _ in seen)
            seen.add(key)
            name = f"{frame.name}-attempt{attempt.index}" if again else frame.name
            yield frame._replace(name=name)


def _of_attempt(tree: SessionTree, attempt: Attempt) -> Iterator[_Frame]:
    turns = tree.trajectory(attempt)
    if not turns:
        return
    shown = [("start", list(blob_hashes(turns[0].context)))]
    shown += [(f"turn-{turn.index:03d}", list(blob_hashes(turn.observation))) for turn in turns]
    for (name, blobs), decided in zip(shown, [*turns, None], strict=True):
        for number, blob in enumerate(blobs):
            newest = number == len(blobs) - 1
            label = name if len(blobs) == 1 else f"{name}-{number}"
            yield _Frame(label, blob, decided if newest else None)
