"""Arguments of a workflow, from the trainer's configuration."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from trajgym.trajectory import InvalidInput

__all__ = ["workflow_kwargs"]


def workflow_kwargs(config: Any, **arguments: Any) -> dict[str, Any]:
    """Return ``workflow_kwargs`` for :class:`TrajgymWorkflow`, as plain data.

    ::

        trainer.train(
            workflow="trajgym.adapters.areal.TrajgymWorkflow",
            workflow_kwargs=workflow_kwargs(config, env="my_module:MyEnv", store="runs/one"),
        )

    The sampling parameters are those of ``config.gconfig``, the tokenizer that of
    ``config.tokenizer_path``, so that sessions are sampled as the trainer is configured.

    Args:
        config: AReaL's configuration, with ``gconfig``, ``tokenizer_path`` and ``actor``.
        **arguments: of the workflow; they override those from ``config``.

    Raises:
        InvalidInput: ``gconfig.n_samples`` is not 1, or its temperature is not
            ``actor.temperature``.
    """
    gconfig = config.gconfig
    if gconfig.n_samples != 1:
        raise InvalidInput(
            f"gconfig.n_samples is {gconfig.n_samples}: AReaL would run every group that many "
            "times; set it to 1, and pass samples to the workflow",
        )
    sampled, trained = gconfig.temperature, config.actor.temperature
    if sampled != trained:
        raise InvalidInput(
            f"gconfig.temperature is {sampled}, but actor.temperature is {trained}: set both alike",
        )
    plain = dict(gconfig) if isinstance(gconfig, Mapping) else asdict(gconfig)
    return {"tokenizer": config.tokenizer_path, "gconfig": plain, **arguments}
