"""`trajgym frames`: write the images of sessions, with the agent's actions drawn on them."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from rich.console import Console

from trajgym.cli._show import find_session
from trajgym.cli._video import VideoForm, encode_video
from trajgym.server.viewer._marks import area_after, draw_marks, marks_of
from trajgym.trajectory import InvalidInput, Run, blob_hashes

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from trajgym.server.viewer._marks import Area
    from trajgym.trajectory import Attempt, SessionTree, Turn

__all__ = ["Frame", "draw_frame", "frames_of", "write_frames", "write_videos"]

_ENDINGS = {"image/png": "png", "image/jpeg": "jpg", "image/webp": "webp", "image/gif": "gif"}


class Frame(NamedTuple):
    """An image as it was shown, and the turn that was sampled while it was the newest."""

    name: str
    blob: str
    decided: Turn | None
    area: Area | None = None
    """The part of the screen that it shows; None for the whole screen."""


def write_frames(path: Path, out: Path, session: str | None, *, plain: bool = False) -> int:
    """Write the images of a run, or of one session, and print the paths.

    A file is named after the turn whose observation showed the image (``start`` for those before
    the first turn). Clicks, drags and keys of a turn are drawn on the newest image before it;
    other images, and all if ``plain``, are written as they were stored.

    Returns:
        The number of files written.

    Raises:
        InvalidInput: no such session, no image, or bytes that are not an image.
        MissingExtra: Pillow is not installed.
    """
    console = Console()
    written = 0
    with Run(path) as run:
        names = [find_session(run, session)] if session else _ids(run)
        for name in names:
            tree = run.session(name)
            for frame in frames_of(tree):
                folder = out / name
                folder.mkdir(parents=True, exist_ok=True)
                data, media_type = draw_frame(run, frame, plain=plain)
                file = folder / f"{frame.name}.{_ending(data, media_type)}"
                file.write_bytes(data)
                console.print(str(file), highlight=False, soft_wrap=True)
                written += 1
    if not written:
        raise InvalidInput(f"{path}: no image was shown in {session or 'any session'}")
    return written


def write_videos(
    path: Path,
    out: Path,
    session: str | None,
    *,
    plain: bool = False,
    seconds: float = 1.0,
    form: VideoForm = "webp",
) -> int:
    """Write a video of every attempt of a run, or of one session, and print its place.

    Args:
        path: of the run.
        out: directory for the files.
        session: only this session, by its id or the start of it.
        plain: whether the actions are left out.
        seconds: how long each picture is shown.
        form: ``webp`` (animated), ``mp4`` or ``webm``.

    Returns:
        How many files were written.

    Raises:
        InvalidInput: no such session, no picture at all, or bytes that are no picture.
        MissingExtra: Pillow is not installed, or PyAV for ``mp4`` and ``webm``.
    """
    if not 0.02 <= seconds <= 60:
        raise InvalidInput(f"--seconds {seconds:g}: use 0.02 to 60")
    console = Console()
    written = 0
    with Run(path) as run:
        for name in [find_session(run, session)] if session else _ids(run):
            tree = run.session(name)
            for attempt in tree.attempts:
                frames = [draw_frame(run, f, plain=plain)[0] for f in _of_attempt(tree, attempt)]
                if not frames:
                    continue
                out.mkdir(parents=True, exist_ok=True)
                label = f"-attempt{attempt.index}" if len(tree.attempts) > 1 else ""
                file = out / f"{name}{label}.{form}"
                file.write_bytes(encode_video(frames, seconds, form))
                console.print(str(file), highlight=False, soft_wrap=True)
                written += 1
    if not written:
        raise InvalidInput(f"{path}: no picture was shown in {session or 'any session'}")
    return written


def draw_frame(run: Run, frame: Frame, *, plain: bool = False) -> tuple[bytes, str]:
    """Return the picture of a frame with the actions drawn on, and its media type."""
    data, media_type = run.blob(frame.blob)
    if frame.decided is not None and not plain:
        marks, screen = marks_of(frame.decided)
        data = draw_marks(data, marks, screen, frame.area) if marks else data
    return data, media_type


def _ids(run: Run) -> list[str]:
    return [summary.record.id for summary in run.summaries()]


def _ending(data: bytes, media_type: str) -> str:
    if data.startswith(b"\x89PNG"):
        return "png"
    return _ENDINGS.get(media_type, "bin")


def frames_of(tree: SessionTree) -> Iterator[Frame]:
    """Yield the images of every attempt; those that attempts share are yielded once."""
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


def _of_attempt(tree: SessionTree, attempt: Attempt) -> Iterator[Frame]:
    turns = tree.trajectory(attempt)
    if not turns:
        return
    shown = [("start", list(blob_hashes(turns[0].context)))]
    shown += [(f"turn-{turn.index:03d}", list(blob_hashes(turn.observation))) for turn in turns]
    areas = [None, *map(area_after, turns)]
    for (name, blobs), area, decided in zip(shown, areas, [*turns, None], strict=True):
        for number, blob in enumerate(blobs):
            newest = number == len(blobs) - 1
            label = name if len(blobs) == 1 else f"{name}-{number}"
            yield Frame(label, blob, decided if newest else None, area if newest else None)
