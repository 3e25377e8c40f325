"""The interface of renderers, which convert messages to token ids and back."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Literal, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from trajgym.trajectory import ImageRef, IntArray, Message, Span, ToolSchema

__all__ = ["Parsed", "Renderer"]


class Parsed(NamedTuple):
    """The content of response ids."""

    message: Message
    """Assistant message in chat form; a malformed call is kept, with its text as arguments."""
    spans: tuple[Span, ...]
    """Reasoning and tool calls over the response ids, in order."""
    finish: Literal["stop", "tool_calls", "length"]
    """``length`` if no stop id ended the response."""


class Renderer(ABC):
    """Converts messages to prompt ids and response ids to a message. Immutable and shareable.

    Response ids are only decoded, never encoded again: the next prompt is made by appending to them
    or, if the template does not allow that, by rendering the whole conversation.
    """

    stop_ids: frozenset[int]
    """Ids that end a response."""
    opening_ids: tuple[int, ...]
    """Ids that open an assistant turn; empty if the template has no marker for it."""
    reasoning_open_ids: tuple[int, ...]
    """Ids that open reasoning; empty if this model does not reason."""
    reasoning_close_ids: tuple[int, ...]
    """Ids that close reasoning that ran out of budget; empty if this model does not reason."""
    placeholder_ids: frozenset[int] = frozenset()
    """Ids that stand for parts of images only; empty if the renderer supports text only."""

    def showing(self, images: Mapping[str, bytes]) -> Renderer:
        """Return a renderer that can show these stored images; itself if it supports text only.

        Args:
            images: encoded images by their sha256 (hex).
        """
        del images
        return self

    def images_in(
        self, prompt_ids: IntArray | Sequence[int], messages: Sequence[Message]
    ) -> tuple[ImageRef, ...]:
        """Return the images of the messages with their places in the ids, in order.

        Raises:
            PolicyRejected: the ids do not show exactly these images.
        """
        del prompt_ids, messages
        return ()

    @abstractmethod
    def render(self, messages: Sequence[Message], tools: Sequence[ToolSchema] = ()) -> list[int]:
        """Return the ids of a prompt that ends where the assistant's next turn begins.

        Raises:
            PolicyRejected: the template refuses these messages, or they contain an image that
                can't be shown.
        """

    @abstractmethod
    def extend(
        self,
        prefix_ids: IntArray | Sequence[int],
        messages: Sequence[Message],
        tools: Sequence[ToolSchema] = (),
        *,
        held: int,
    ) -> list[int] | None:
        """Return ``prefix_ids`` followed by the ids of the messages after the first ``held``.

        Args:
            prefix_ids: ``[S]`` exact prompt and response ids of the last turn.
            messages: the whole conversation.
            tools: the same tools as for the prefix.
            held: how many of ``messages`` the prefix covers; the last of them is the response.

        Returns:
            Prompt ids that start with ``prefix_ids``, or None if the rendered conversation does
            not start with them (stripped thinking, moved tools): the turn is then a ``rewrite``.

        Raises:
            PolicyRejected: as for :meth:`render`.
        """

    def extension(
        self,
        prefix_ids: IntArray | Sequence[int],
        messages: Sequence[Message],
        tools: Sequence[ToolSchema] = (),
        *,
        held: int,
    ) -> IntArray | Sequence[int] | None:
        """Return the ids that :meth:`extend` appends to ``prefix_ids``, or None as it does.

        Optional: a renderer that needs few of the prefix's ids implements it, so that the time of a
        turn does not grow with them. The arguments are those of :meth:`extend`.

        Raises:
            PolicyRejected: as for :meth:`render`.
        """
        ids = self.extend(prefix_ids, messages, tools, held=held)
        size = len(prefix_ids)
        if ids is None or not np.array_equal(ids[:size], prefix_ids):
            return None
        return ids[size:]

    @abstractmethod
    def parse(
        self,
        response_ids: IntArray | Sequence[int],
        prompt_ids: IntArray | Sequence[int] = (),
        tools: Sequence[ToolSchema] = (),
    ) -> Parsed:
        """Parse a response; never fails. The prompt shows whether it already opened reasoning."""

    @abstractmethod
    def reasoning_is_open(
        self,
        response_ids: IntArray | Sequence[int],
        prompt_ids: IntArray | Sequence[int] = (),
    ) -> bool:
        """Return True if the response so far ends within reasoning."""

    @abstractmethod
    def shown(
        self, messages: Sequence[Message], tools: Sequence[ToolSchema] = ()
    ) -> list[Message] | None:
        """Return the messages as the model is shown them, or None if they are shown unchanged.

        The difference is reasoning that the template strips.
        """

    @abstractmethod
    def encode_response(self, message: Message | str) -> list[int]:
        """Return the ids of a response with this message, including its stop id.

        For fake engines and tests only: the responses of real engines are never encoded.
        """
