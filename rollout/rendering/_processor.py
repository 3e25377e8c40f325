"""transformers processors of images: their names, placeholders, and a model's inputs."""

from __future__ import annotations

import hashlib
import io
import json
from typing import TYPE_CHECKING, Any

from trajgym.trajectory import InvalidInput, UnsupportedModality
from trajgym.trajectory._internal import MissingExtra

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trajgym.rollout.rendering._image_spans import ShownImage
    from trajgym.trajectory import IntArray

__all__ = ["open_image", "pixels_of", "placeholder_ids", "placeholder_of", "processor_name"]


_FORMATS = ("PNG", "JPEG", "WEBP", "GIF")
_MOST_PIXELS = 1 << 26
"""Images are untrusted: only recorded formats are opened, and their size is limited."""


def processor_name(processor: Any) -> str:
    """Return a name for a processor that depends on its settings: ``Class:12 hex digits``.

    Processors with the same name make the same placeholders and pixels from an image.
    """
    settings = processor.image_processor.to_dict()
    text = json.dumps(settings, sort_keys=True, default=str)
    return f"{type(processor).__name__}:{hashlib.sha256(text.encode()).hexdigest()[:12]}"


def placeholder_of(processor: Any) -> str:
    """Return the token that represents an image in a conversation's text.

    Raises:
        InvalidInput: the processor has no such token.
    """
    token = getattr(processor, "boi_token", None) or getattr(processor, "image_token", None)
    if not token:
        raise InvalidInput(f"{type(processor).__name__} has no image_token: it takes no images")
    return str(token)


def placeholder_ids(processor: Any) -> frozenset[int]:
    """Return the ids that stand for parts of images only."""
    names = ("image_token", "boi_token", "video_token")
    tokens = [str(token) for name in names if (token := getattr(processor, name, None))]
    encode = processor.tokenizer.encode
    found = [encode(token, add_special_tokens=False) for token in tokens]
    return frozenset(int(ids[0]) for ids in found if len(ids) == 1)


def open_image(data: bytes) -> Any:
    """Decode an image into a PIL image in RGB.

    Raises:
        InvalidInput: the bytes are not an image of a supported format, or it is too large.
        MissingExtra: Pillow is not installed.
    """
    try:
        from PIL import Image, UnidentifiedImageError
    except ImportError as error:
        raise MissingExtra("pillow", "gui") from error
    try:
        with Image.open(io.BytesIO(data), formats=_FORMATS) as image:
            if image.width * image.height > _MOST_PIXELS:
                raise InvalidInput(
                    f"an image of {image.width} x {image.height} pixels is too large"
                )
            return image.convert("RGB")
    except (UnidentifiedImageError, OSError, SyntaxError) as error:
        raise InvalidInput(f"an image of {len(data)} bytes can't be read: {error}") from error


def pixels_of(
    processor: Any, ids: IntArray | Sequence[int], images: Sequence[ShownImage]
) -> dict[str, Any]:
    """Return the inputs of a vision-language model's ``forward``, as a batch of one.

    Args:
        processor: the processor that made the placeholders. It runs in the calling thread.
        ids: ``[T]`` ids of a prompt or a row; passed on unchanged.
        images: all images in them, in order.

    Returns:
        ``input_ids`` and ``attention_mask``, int64 ``[1, T]``, and the image processor's tensors
        (``pixel_values`` and others that the model needs); also ``mm_token_type_ids``, int64
        ``[1, T]``, if the processor makes them.

    Raises:
        UnsupportedModality: this processor makes placeholders other than those in the ids.
        InvalidInput: an image's bytes can't be read.
    """
    import torch

    held = torch.tensor([int(i) for i in ids])[None]
    found = {"input_ids": held, "attention_mask": torch.ones_like(held)}
    if not images:
        return found
    name = processor_name(processor)
    if other := {image.ref.processor for image in images} - {name}:
        raise UnsupportedModality(
            f"the placeholders were made by processor {min(other)!r}, this one is {name!r}: use "
            "the same one for renderer, engine and trainer",
        )
    text = placeholder_of(processor) * len(images)
    made = processor(
        text=[text],
        images=[open_image(image.data) for image in images],
        add_special_tokens=False,
        return_tensors="pt",
    )
    places = [i for image in images for i in range(image.ref.start, image.ref.end)]
    if held[0, places].tolist() != made.pop("input_ids")[0].tolist():
        raise UnsupportedModality(
            f"the ids at the spans of {len(images)} images are not the placeholders that "
            f"{name!r} makes from them: the pixels would not match",
        )
    del made["attention_mask"]
    if (types := made.pop("mm_token_type_ids", None)) is not None:
        found["mm_token_type_ids"] = torch.zeros_like(held)
        found["mm_token_type_ids"][0, places] = types[0].to(held.dtype)
    return found | dict(made)
