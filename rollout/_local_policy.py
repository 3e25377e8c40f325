"""A policy over a transformers model in this process."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Self

from trajgym.rollout._token_policy import TokenPolicy
from trajgym.rollout.engines._local import LocalEngine
from trajgym.rollout.engines._smollm2 import load_smollm2
from trajgym.rollout.rendering._template import TemplateRenderer

if TYPE_CHECKING:
    from pathlib import Path

    from trajgym.trajectory import Sampling

__all__ = ["LocalPolicy"]


class LocalPolicy(TokenPolicy):
    """A token-exact policy over a transformers model in this process.

    Args:
        model: a transformers causal language model.
        tokenizer: its tokenizer, with a chat template.
        sampling: temperature and the rest.
        max_tokens: largest number of response tokens per turn.
        cached_sessions: see :class:`LocalEngine`.
        name: recorded as ``local:<name>``.
    """

    def __init__(
        self,
        model: Any,
        tokenizer: Any,
        *,
        sampling: Sampling | None = None,
        max_tokens: int = 512,
        cached_sessions: int = 4,
        name: str = "model",
    ) -> None:
        super().__init__(
            LocalEngine(model, name=name, cached_sessions=cached_sessions),
            TemplateRenderer(tokenizer),
            sampling=sampling,
            max_tokens=max_tokens,
            name=f"local:{name}",
        )

    @classmethod
    def smollm2(cls, path: str | Path | None = None, **options: Any) -> Self:
        """Return a policy over SmolLM2-135M-Instruct. Blocks while it loads (half a minute).

        Args:
            path: the GGUF file, see :func:`load_smollm2`.
            options: more arguments of the class.

        Raises:
            MissingExtra: ``trajgym[local]`` is not installed.
            InvalidInput: the weights are not on this machine and can't be downloaded.
        """
        loaded = load_smollm2(path)
        return cls(loaded.model, loaded.tokenizer, name="smollm2", **options)
