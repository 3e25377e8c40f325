"""The interface of inference engines, which sample token ids after prompt ids."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Literal, NamedTuple

from trajgym.rollout._policy import PolicyRejected

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from trajgym.rollout.rendering._image_spans import ShownImage
    from trajgym.trajectory import IntArray, Sampling, Segment

__all__ = ["Generation", "TokenEngine"]


class Generation(NamedTuple):
    """The ids that an engine sampled after a prompt."""

    ids: Sequence[int]
    """``[N]`` sampled ids, including the stop id if one ended the response."""
    logprobs: Sequence[float]
    """``[N]`` behaviour log-probs (nats), in the engine's mode (`Sampling.logprob_mode`)."""
    segments: tuple[Segment, ...]
    """Runs of policy versions over the ids; one run unless weights changed during sampling."""
    finish: Literal["stop", "length", "abort"]
    paused_seconds: float = 0.0


class TokenEngine(ABC):
    """Samples ids after prompt ids, and reports log-probs."""

    name: str
    logprob_mode: Literal["processed", "raw", "unknown"] = "unknown"
    """The distribution of its log-probs, see :class:`trajgym.trajectory.Sampling`."""
    synthetic: bool = False
    """True for fake engines only, whose samples are not to be trained on."""

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
        """Sample until a stop id, ``max_tokens``, or an abort after which it can't continue.

        Args:
            prompt_ids: ``[P]`` ids.
            sampling: sampling parameters, except for ``max_tokens`` and ``stop_ids``.
            max_tokens: at least 1.
            stop_ids: ids that end the response, of which they are part.
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
        """Sample after a prompt with images; otherwise like :meth:`generate`.

        Optional. An engine without support for images raises, so that nothing is sampled after
        placeholders without their pixels.

        Args:
            prompt_ids: ``[P]`` ids, each image as its placeholders.
            images: every image of the prompt, in order.
            sampling: see :meth:`generate`.
            max_tokens: see :meth:`generate`.
            stop_ids: see :meth:`generate`.
            session: see :meth:`generate`.

        Raises:
            PolicyRejected: this engine does not support images.
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

        Optional; used for teachers and to score given answers. For ids that :meth:`generate`
        sampled, the log-probs are the same except for rounding.

        Args:
            prompt_ids: ``[P]`` ids, at least one.
            response_ids: ``[N]`` ids.
            sampling: the temperature of the distribution.

        Raises:
            PolicyRejected: this engine can't score ids.
            trajgym.rollout.PolicyError: the engine gave no answer.
        """
        del prompt_ids, response_ids, sampling
        raise PolicyRejected(f"engine {self.name!r} can't score given ids")

    async def close(self) -> None:
        """Release the engine's resources. Idempotent."""
