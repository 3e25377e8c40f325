"""The interface to an inference engine that speaks token ids."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Literal, NamedTuple

from trajgym.rollout._policy import PolicyRejected

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from trajgym.trajectory import ImageRef, IntArray, Sampling, Segment

__all__ = ["Generation", "ShownImage", "TokenEngine"]


class Generation(NamedTuple):
    """What an engine sampled after a prompt."""

    ids: Sequence[int]
    """``[N]`` sampled ids, the stop id included if one ended it."""
    logprobs: Sequence[float]
    """``[N]`` behaviour log-probs (nats), in the engine's mode (`Sampling.logprob_mode`)."""
    segments: tuple[Segment, ...]
    """Runs of policy versions over the ids; one run unless weights changed meanwhile."""
    finish: Literal["stop", "length", "abort"]
    paused_seconds: float = 0.0


class ShownImage(NamedTuple):
    """An image for an engine: where its placeholders stand in the prompt, and its bytes."""

    ref: ImageRef
    data: bytes
    """The encoded image, as it was given (PNG, JPEG, ...)."""


class TokenEngine(ABC):
    """Ids in, ids and log-probs out."""

    name: str
    logprob_mode: Literal["processed", "raw", "unknown"] = "unknown"
    """What its log-probs mean, see :class:`trajgym.trajectory.Sampling`."""
    synthetic: bool = False
    """True only for fake engines: what they sample trains nothing real."""

    @abstractmethod
    async def generate(
        self,
        prompt_ids: IntArray | Sequence[int],
        *,
        sampling: Sampling,
        max_tokens: int,
        stop_ids: Collection[int],
        session: str = "",
    ) -> Generation:
        """Sample until a stop id, ``max_tokens``, or an abort that the engine can't continue.

        Args:
            prompt_ids: ``[P]`` ids.
            sampling: temperature and the rest; ``max_tokens`` and ``stop_ids`` come apart.
            max_tokens: at least 1.
            stop_ids: ids that end the response (they are part of it).
            session: sticky key for prefix caches.

        Raises:
            trajgym.rollout.PolicyError: the engine gave no answer.
        """

    async def generate_seeing(
        self,
        prompt_ids: IntArray | Sequence[int],
        images: Sequence[ShownImage],
        *,
        sampling: Sampling,
        max_tokens: int,
        stop_ids: Collection[int],
        session: str = "",
    ) -> Generation:
        """Sample after a prompt with images; else like :meth:`generate`.

        Optional. An engine that can't refuses, so that nothing is sampled from placeholders
        without their pixels.

        Args:
            prompt_ids: ``[P]`` ids, each image as its placeholders.
            images: every image of the prompt, in order.
            sampling: see :meth:`generate`.
            max_tokens: see :meth:`generate`.
            stop_ids: see :meth:`generate`.
            session: see :meth:`generate`.

        Raises:
            PolicyRejected: this engine takes no images.
            trajgym.rollout.PolicyError: the engine gave no answer.
        """
        del prompt_ids, sampling, max_tokens, stop_ids, session
        raise PolicyRejected(
            f"engine {self.name!r} takes no images, and the prompt shows {len(images)}: use an "
            "engine with generate_seeing, such as LocalVisionEngine",
        )

    async def score(
        self,
        prompt_ids: IntArray | Sequence[int],
        response_ids: IntArray | Sequence[int],
        *,
        sampling: Sampling,
    ) -> Sequence[float]:
        """Return the log-prob (nats) of each given id after the prompt and the ids before it.

        Optional: for teachers and for values of given answers. What :meth:`generate` sampled has
        the same log-probs here, but for rounding.

        Args:
            prompt_ids: ``[P]`` ids, at least one.
            response_ids: ``[N]`` ids.
            sampling: the temperature that the log-probs are to be of.

        Raises:
            PolicyRejected: this engine can't.
            trajgym.rollout.PolicyError: the engine gave no answer.
        """
        del prompt_ids, response_ids, sampling
        raise PolicyRejected(f"engine {self.name!r} can't score given ids")

    async def close(self) -> None:
        """Free what the engine holds. Idempotent."""
