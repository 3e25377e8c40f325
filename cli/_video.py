"""`trajgym frames --video`: the pictures of an attempt as a video file."""

from __future__ import annotations

import io
import math
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, get_args

from trajgym.rollout.rendering import open_image
from trajgym.trajectory import InvalidInput
from trajgym.trajectory._internal import MissingExtra

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["VideoForm", "encode_video", "video_form"]

VideoForm: TypeAlias = Literal["webp", "mp4", "webm"]
_QUALITY = 75
_RATE = 10
"""Lowest frame rate (1/s): players do not seek well at a lower one."""
_CODECS: dict[str, tuple[str, dict[str, str]]] = {
    "mp4": ("libx264", {"crf": "23", "preset": "veryfast", "movflags": "faststart"}),
    "webm": ("libvpx-vp9", {"crf": "32", "b": "0", "deadline": "realtime", "cpu-used": "8"}),
}


def video_form(name: str) -> VideoForm:
    """Return the format of that name.

    Raises:
        InvalidInput: there is no such format.
    """
    for form in get_args(VideoForm):
        if form == name:
            return form  # type: ignore[no-any-return]
    raise InvalidInput(f"video format {name!r}: use one of {', '.join(get_args(VideoForm))}")


def encode_video(pictures: Sequence[bytes], seconds: float, form: VideoForm = "webp") -> bytes:
    """Encode pictures as a video; the last one is shown twice as long.

    Args:
        pictures: PNG, JPEG, WebP or GIF; all are scaled to the size of the first.
        seconds: how long each is shown.
        form: ``webp`` (animated, needs Pillow only), ``mp4`` (H.264) or ``webm`` (VP9).

    Raises:
        InvalidInput: there is no picture, or one can't be read.
        MissingExtra: Pillow is not installed, or PyAV for ``mp4`` and ``webm``.
    """
    if not pictures:
        raise InvalidInput("a video needs at least one picture")
    frames = [open_image(data) for data in pictures]
    size = frames[0].size
    fitted = [frame if frame.size == size else frame.resize(size) for frame in frames]
    return _animated(fitted, seconds) if form == "webp" else _encoded(fitted, seconds, form)


def _animated(frames: Sequence[Any], seconds: float) -> bytes:
    shown = round(seconds * 1000)
    out = io.BytesIO()
    frames[0].save(
        out,
        "WEBP",
        save_all=True,
        append_images=list(frames[1:]),
        duration=[shown] * (len(frames) - 1) + [2 * shown],
        quality=_QUALITY,
        loop=0,
    )
    return out.getvalue()


def _encoded(frames: Sequence[Any], seconds: float, form: VideoForm) -> bytes:
    try:
        import av
    except ImportError as error:
        raise MissingExtra("av", "video") from error
    codec, options = _CODECS[form]
    made: Any = av.VideoFrame  # its methods have no annotations
    rate = max(_RATE, math.ceil(1 / seconds))
    # yuv420p stores colours for blocks of 2 x 2 pixels: width and height must be even.
    width, height = (side + side % 2 for side in frames[0].size)
    out = io.BytesIO()
    with av.open(out, "w", format=form) as container:
        stream: Any = container.add_stream(codec, rate=rate, options=options)
        stream.width, stream.height, stream.pix_fmt = width, height, "yuv420p"
        for number, frame in enumerate(frames):
            picture = frame.crop((0, 0, width, height))
            times = round(seconds * rate) * (2 if number == len(frames) - 1 else 1)
            for _ in range(times):
                container.mux(stream.encode(made.from_image(picture)))
        container.mux(stream.encode())
    return out.getvalue()
