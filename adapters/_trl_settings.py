"""What a rollout worker takes from the settings of TRL's asynchronous trainer."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from trajgym.trajectory import InvalidInput

__all__ = ["check_distribution", "plain_settings", "sessions_at_once"]

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
    "vllm_server_base_url",
    "world_size",
)


def check_distribution(args: Any) -> None:
    """Refuse settings that cut or bend the distribution.

    Raises:
        InvalidInput: there is one.
    """
    for name, allowed in _PLAIN.items():
        if (value := getattr(args, name)) not in allowed:
            raise InvalidInput(
                f"{name}={value}: the engine would sample from another distribution than the "
                f"trainer's loss assumes; leave it at {allowed[0]}",
            )


def sessions_at_once(args: Any) -> int:
    """Return the sessions at once, by the trainer's own rule where the setting leaves it open."""
    if args.max_inflight_tasks > 0:
        return int(args.max_inflight_tasks)
    step = args.per_device_train_batch_size * args.gradient_accumulation_steps * args.world_size
    return int(max(args.max_staleness, 1) * step)


def plain_settings(args: Any) -> SimpleNamespace:
    """Return what a worker reads of ``args``, without the trainer's devices and process groups."""
    return SimpleNamespace(**{name: getattr(args, name) for name in _READ})
