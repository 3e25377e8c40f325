"""The interface of a renderer: the one owner of messages <-> ids."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Literal, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from trajgym.trajectory import ImageRef, IntArray, Message, Span, ToolSchema

__all__ = ["Parsed", "Renderer"]


class Parsed(NamedTuple):
    """What response ids say."""

    message: Message
    """Assistant message in chat form; a malformed call stays, its text as the arguments."""
    spans: tuple[Span, ...]
    """Reasoning and tool calls over the response ids, in order."""
    finish: Literal["stop", "tool_calls", "length"]
    """``length`` if no stop id ended the response."""


class Renderer(ABC):
    """Messages to prompt ids, response ids to a message. Immutable; serves many sessions.

    Response ids are only ever decoded. What was sampled stays as it was sampled: a longer prompt is
    made by appending to it, or, where the template forbids that, by rendering afresh.
    """

    stop_ids: frozenset[int]
    """Ids that end a response."""
    opening_ids: tuple[int, ...]
    """Ids that open an assistant turn; empty if the template marks it with nothing."""
    reasoning_open_ids: tuple[int, ...]
    """Ids that open reasoning; empty if this model does not reason."""
    reasoning_close_ids: tuple[int, ...]
    """Ids that close reasoning that ran out of budget; empty if this model does not reason."""
    placeholder_ids: frozenset[int] = frozenset()
    """Ids that stand for pieces of images and for nothing else; empty if it reads text only."""

    def showing(self, images: Mapping[str, bytes]) -> Renderer:
        """Return this renderer, able to show these stored images where it can show any.

        Args:
            images: encoded images by their sha256 (hex).
        """
        del images
        return self

    def images_in(
        self, prompt_ids: IntArray | Sequence[int], messages: Sequence[Message]
    ) -> tuple[ImageRef, ...]:
        """Return where the images of the messages stand in the ids that show them, in order.

        Raises:
            PolicyRejected: the ids do not show exactly these images.
        """
        del prompt_ids, messages
        return ()

    @abstractmethod
    def render(self, messages: Sequence[Message], tools: Sequence[ToolSchema] = ()) -> list[int]:
        """Return the ids of a prompt that ends where the assistant's next turn begins.

        Raises:
            PolicyRejected: the template refuses these messages, or they hold an image that can't
                be shown.
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
        """Return ``prefix_ids`` followed by what the messages after the first ``held`` add.

        Args:
            prefix_ids: ``[S]`` prompt and response ids of the last turn, exactly.
            messages: the whole conversation.
            tools: as they were given for the prefix.
            held: how many of ``messages`` the prefix holds; the last of them is the response.

        Returns:
            Prompt ids that start with ``prefix_ids``, or None where a fresh render would not
            (stripped thinking, moved tools): the turn is then a ``rewrite``.

        Raises:
            PolicyRejected: as for :meth:`render`.
        """

    @abstractmethod
    def parse(
        self,
        response_ids: IntArray | Sequence[int],
        prompt_ids: IntArray | Sequence[int] = (),
        tools: Sequence[ToolSchema] = (),
    ) -> Parsed:
        """Read a response. The prompt says whether reasoning was opened there; never fails."""

    @abstractmethod
    def reasoning_is_open(
        self,
        response_ids: IntArray | Sequence[int],
        prompt_ids: IntArray | Sequence[int] = (),
    ) -> bool:
        """Return True if the response so far ends inside reasoning."""

    @abstractmethod
    def shown(
        self, messages: Sequence[Message], tools: Sequence[ToolSchema] = ()
    ) -> list[Message] | None:
        """Return the messages as a fresh render shows them, or None if it shows them all.

        Reasoning that the template strips is missing from them.
        """

    @abstractmethod
    def encode_response(self, message: Message | str) -> list[int]:
        """Return the ids of a response that says this, its stop id included.

        For fake engines and tests only: what a real engine sampled is never encoded.
        """
