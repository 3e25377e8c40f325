"""Finding images in a prompt's ids."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from trajgym.rollout._ids import as_list, holds_any
from trajgym.rollout._policy import PolicyGarbage, PolicyRejected
from trajgym.trajectory import ImageRef

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Sequence

    from trajgym.trajectory import IntArray

__all__ = ["ShownImage", "find_images", "refuse_placeholders"]


class ShownImage(NamedTuple):
    """An image for an engine: its bytes, and where its placeholders are in the prompt."""

    ref: ImageRef
    data: bytes
    """The encoded image (PNG, JPEG, ...)."""


def find_images(
    ids: Sequence[int],
    blobs: Iterable[str],
    *,
    ids_of: Callable[[str], Sequence[int]],
    placeholder_ids: Collection[int],
    processor: str,
) -> tuple[ImageRef, ...]:
    """Return the spans of the images, in order.

    Args:
        ids: ids of the whole prompt.
        blobs: hashes of the images that it must show, in order.
        ids_of: returns the placeholders of an image.
        placeholder_ids: ids that stand for parts of images only.
        processor: name of the processor.

    Raises:
        PolicyRejected: the ids do not show exactly these images.
    """
    ids = as_list(ids)
    found: list[ImageRef] = []
    end = 0
    for blob in blobs:
        wanted = list(ids_of(blob))
        start = _find(ids, wanted, end)
        if start is None:
            raise PolicyRejected(f"the prompt's ids do not show image {blob[:12]!r}")
        end = start + len(wanted)
        found.append(ImageRef(start, end, blob, processor))
    held = sum(i in placeholder_ids for ref in found for i in ids[ref.start : ref.end])
    if held != sum(i in placeholder_ids for i in ids):
        raise PolicyRejected(
            f"the prompt's ids hold placeholders of more than the {len(found)} images that the "
            "messages show",
        )
    return tuple(found)


def refuse_placeholders(
    placeholder_ids: frozenset[int], response: IntArray | Sequence[int], name: str
) -> None:
    """Raise if a response contains placeholders of images, for which there are no pixels.

    Args:
        placeholder_ids: ids that stand for parts of images only.
        response: the sampled ids.
        name: name of the policy, for the error message.

    Raises:
        PolicyGarbage: the response contains a placeholder.
    """
    if holds_any(np.asarray(response), placeholder_ids):
        wrong = placeholder_ids.intersection(as_list(response))
        raise PolicyGarbage(
            f"{name}: the model sampled an image's placeholder (id {min(wrong)}), which can't be "
            "trained without its pixels: suppress this id in the engine",
        )


def _find(ids: list[int], wanted: list[int], start: int) -> int | None:
    size = len(wanted)
    while True:
        try:
            start = ids.index(wanted[0], start)
        except ValueError:
            return None
        if ids[start : start + size] == wanted:
            return start
        start += 1
