"""Checks that the images a turn shows are exactly those that its token ids stand for."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from trajgym.trajectory._errors import InvalidRow
from trajgym.trajectory._messages import blob_hashes

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from trajgym.trajectory._messages import Message
    from trajgym.trajectory._records import Turn
    from trajgym.trajectory._tree import SessionTree

__all__ = ["UnsupportedModality", "check_media", "shown_media"]


class UnsupportedModality(InvalidRow):
    """Images or audio appear where they can't be trained on.

    Either an exact turn was shown media whose tokens are not recorded, or a row with images is
    exported to a format that can't hold their pixels. Placeholders are never trained without
    their pixels.
    """


def shown_media(turn: Turn, base: Turn | None) -> bool:
    """Return whether this turn showed the policy new content other than text."""
    new = turn.context if base is None else [*base.observation, *turn.context]
    return any(
        part.get("type") != "text"
        for message in new
        if type(message.get("content")) is list
        for part in message["content"]
    )


def check_media(tree: SessionTree, turn: Turn, *, allowed: bool) -> None:
    """Raise if a turn's ids do not stand for exactly the images that its messages show."""
    where = f"session {tree.record.id}: turn {turn.index}"
    context = tree.context(turn)
    for part in _media(context):
        if part.get("type") != "image_url":
            raise UnsupportedModality(
                f"{where} was shown a {part.get('type')!r} part, which no row can hold; export the "
                "session as sft or preference data",
            )
    shown, held = list(blob_hashes(context)), [image.blob for image in tree.images(turn)]
    if len(shown) != sum(1 for _ in _media(context)) or (shown and not held):
        raise UnsupportedModality(
            f"{where} was shown an 'image_url' part; which ids stand for it is not recorded, so it "
            "has no training row; sample with a VisionRenderer, or export the session as sft or "
            "preference data",
        )
    if shown != held:
        raise UnsupportedModality(
            f"{where} was shown {len(shown)} images ({_short(shown)}), but its ids stand for "
            f"{len(held)} ({_short(held)}): they must be the same, in the same order",
        )
    if held and not allowed:
        raise UnsupportedModality(
            f"{where} was shown {len(held)} images, and this export does not carry their pixels: "
            "placeholders must not be trained without them",
        )


def _media(messages: Sequence[Message]) -> Iterator[dict[str, Any]]:
    for message in messages:
        if type(message.get("content")) is list:
            yield from (part for part in message["content"] if part.get("type") != "text")


def _short(blobs: Sequence[str]) -> str:
    return ", ".join(blob[:12] for blob in blobs[:4]) + (", ..." if len(blobs) > 4 else "")
