"""What TRL's asynchronous trainer needs to run without a GPU: a reference attention."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable


def attention(
    query: Any, key: Any, value: Any, starts: Any, key_starts: Any, *_: Any, **options: Any
) -> Any:
    """Causal attention over packed pieces; the last query of a piece sees all of its keys."""
    import torch

    scale = options.get("softmax_scale") or 1 / math.sqrt(query.shape[-1])
    repeat = query.shape[1] // key.shape[1]
    out = []
    for q0, q1, k0, k1 in zip(
        starts[:-1].tolist(),
        starts[1:].tolist(),
        key_starts[:-1].tolist(),
        key_starts[1:].tolist(),
        strict=True,
    ):
        q = query[q0:q1].transpose(0, 1)
        k = key[k0:k1].repeat_interleave(repeat, 1).transpose(0, 1)
        v = value[k0:k1].repeat_interleave(repeat, 1).transpose(0, 1)
        seen = torch.ones(q1 - q0, k1 - k0, dtype=torch.bool).tril(k1 - k0 - (q1 - q0))
        scores = (q @ k.transpose(-1, -2) * scale).masked_fill(~seen, float("-inf"))
        out.append((scores.softmax(-1) @ v).transpose(0, 1))
    return torch.cat(out)


def patch(put: Callable[[Any, str, Any], None] = setattr) -> None:
    """Replace the two parts that want a GPU.

    Args:
        put: sets an attribute; ``monkeypatch.setattr`` in tests.
    """
    from trl.experimental.async_grpo import async_grpo_trainer, packing

    kernels = SimpleNamespace(flash_attn_varlen_func=attention)
    put(packing, "_flash_attn", lambda: kernels)
    put(async_grpo_trainer, "get_peak_flops_per_device", lambda *_, **__: None)


def config(folder: Any, **options: Any) -> Any:
    """Return an AsyncGRPOConfig for a CPU."""
    from trl.experimental.async_grpo import AsyncGRPOConfig

    settings = {
        "per_device_train_batch_size": 4,
        "gradient_accumulation_steps": 1,
        "max_steps": 2,
        "token_budget": -1,
        "report_to": "none",
        "use_cpu": True,
        "bf16": False,
        "gradient_checkpointing": False,
        "save_strategy": "no",
        "num_generations": 2,
        "max_completion_length": 16,
        "disable_tqdm": True,
        "learning_rate": 1e-3,
        "logging_steps": 1,
    }
    return AsyncGRPOConfig(str(folder), **{**settings, **options})


def trainer(tiny: Any, args: Any, worker: Any, transfer: Any) -> Any:
    """Return an AsyncGRPOTrainer over the tiny model."""
    from datasets import Dataset
    from trl.experimental.async_grpo import AsyncGRPOTrainer

    rows = [{"prompt": [{"role": "user", "content": "-"}]}]
    return AsyncGRPOTrainer(
        model=tiny.path,
        args=args,
        train_dataset=Dataset.from_list(rows),
        processing_class=tiny.tokenizer,
        rollout_worker=worker,
        weight_transfer=transfer,
    )
