"""Images of training rows, for exports and model inputs."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from trajgym.rollout.rendering import ShownImage, open_image, pixels_of

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from trajgym.trajectory import Blob, TrainingRow

__all__ = [
    "IMAGE_COLUMNS",
    "BlobReader",
    "ImageForm",
    "image_values",
    "row_inputs",
    "row_pictures",
    "write_image",
]

ImageForm: TypeAlias = Literal["none", "bytes", "refs"]
"""How an export treats a row's images: refuse them, write their bytes, or write references."""

BlobReader: TypeAlias = "Callable[[str], Blob]"
"""Returns stored bytes by their hash: the ``blob`` method of a run."""

IMAGE_COLUMNS = {"images": "list:binary", "image_refs": "string"}
"""Encoded images in order, and references: JSON ``[[start, end, sha256, processor], ...]``."""


def image_values(row: TrainingRow, blob: BlobReader | None) -> dict[str, Any]:
    """Return the values of :data:`IMAGE_COLUMNS`."""
    held = [] if blob is None else [blob(image.blob).data for image in row.images]
    return {"images": held, "image_refs": json.dumps(row.images)}


def write_image(out: Path, name: str, blob: BlobReader) -> str:
    """Write a stored image to ``out/images`` if it is not there; return its path below ``out``."""
    data, media_type = blob(name)
    path = out / "images" / f"{name}.{media_type.rpartition('/')[2].replace('jpeg', 'jpg')}"
    if not path.exists():
        path.parent.mkdir(exist_ok=True)
        part = path.with_name(f".{path.name}.part")
        part.write_bytes(data)
        part.replace(path)
    return str(path.relative_to(out))


def row_pictures(row: TrainingRow, blob: BlobReader) -> list[Any]:
    """Return a row's images in order, as decoded PIL images in RGB.

    Raises:
        InvalidInput: the bytes are missing or not an image.
        MissingExtra: Pillow is not installed.
    """
    return [open_image(blob(image.blob).data) for image in row.images]


def row_inputs(row: TrainingRow, processor: Any, blob: BlobReader) -> dict[str, Any]:
    """Return what a vision-language model's ``forward`` takes for a row, as a batch of one.

    Args:
        row: with or without images.
        processor: the trainer's; it must produce the placeholders that the row contains.
        blob: the ``blob`` method of the run.

    Returns:
        Torch tensors: ``input_ids`` and ``attention_mask``, int64 ``[1, T]``, and the processor's
        output for the images (``pixel_values``, ...).

    Raises:
        UnsupportedModality: the row was made with another processor, or its placeholders differ.
        InvalidInput: the bytes are missing or not an image.
    """
    images = [ShownImage(ref, blob(ref.blob).data) for ref in row.images]
    return pixels_of(processor, row.input_ids, images)
