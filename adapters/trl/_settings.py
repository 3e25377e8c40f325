"""Settings that a rollout worker takes from TRL's ``AsyncGRPOConfig``."""

from __future__ import annotations

from dataclasses import fields
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from trajgym.rollout import RunSettings
from trajgym.trajectory import InvalidInput

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["check_distribution", "plain_settings", "sessions_at_once", "split_settings"]

_PLAIN = {"top_p": (1.0,), "top_k": (0, -1, None), "min_p": (None, 0.0)}
_PLAIN["repetition_penalty"] = (1.0,)
_READ = (
    *_PLAIN,
    "chat_template_kwargs",
    "gradient_accumulation_steps",
    "max_completion_length",
    "max_inflight_tasks",
    "max_staleness",
    "num_generations",
    "per_device_train_batch_size",
    "queue_maxsize",
    "request_timeout",
    "seed",
    "temperature",
    "token_budget",
    "vllm_server_base_url",
    "world_size",
)


def check_distribution(args: Any) -> None:
    """Refuse settings that change the sampling distribution.

    Raises:
        InvalidInput: ``top_p``, ``top_k``, ``min_p`` or ``repetition_penalty`` is set.
    """
    for name, allowed in _PLAIN.items():
        if (value := getattr(args, name)) not in allowed:
            raise InvalidInput(
                f"{name}={value}: the engine would not sample from the distribution that the "
                f"trainer's loss assumes; leave it at {allowed[0]}",
            )


def sessions_at_once(args: Any) -> int:
    """Return the number of concurrent sessions, by TRL's own rule if it is not set."""
    if args.max_inflight_tasks > 0:
        return int(args.max_inflight_tasks)
    step = args.per_device_train_batch_size * args.gradient_accumulation_steps * args.world_size
    return int(max(args.max_staleness, 1) * step)


def plain_settings(args: Any) -> SimpleNamespace:
    """Return the fields of ``args`` that a worker reads, which can be pickled."""
    return SimpleNamespace(**{name: getattr(args, name) for name in _READ})


def split_settings(
    args: Any, settings: RunSettings | None, options: Mapping[str, Any]
) -> tuple[RunSettings, dict[str, Any]]:
    """Return how sessions are run, and the remaining options.

    Args:
        args: the trainer's ``AsyncGRPOConfig``, used if ``settings`` is None.
        settings: the base settings.
        options: by name; run settings among them override the base settings.

    Raises:
        InvalidInput: a setting is invalid.
    """
    names = {one.name for one in fields(RunSettings)}
    given = {name: value for name, value in options.items() if name in names}
    base = settings or RunSettings(
        samples=args.num_generations,
        concurrency=sessions_at_once(args),
        max_staleness=args.max_staleness,
        seed=args.seed,
    )
    rest = {name: value for name, value in options.items() if name not in names}
    return RunSettings.of(base, given), rest
