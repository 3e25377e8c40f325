"""Train on small SWE tasks with TRL's asynchronous GRPO trainer and a vLLM server.

PYTHONPATH=examples/trainers/shared CUDA_VISIBLE_DEVICES=0 python examples/trainers/trl/train.py \
    --model SFT --server http://127.0.0.1:8000 --store runs/trl --steps 60
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from small_swe import CONTEXT, GROUPS, MAX_TOKENS, SAMPLES, SPEC, tasks

from trajgym.adapters.trl import RolloutProcesses

_SHARED = Path(__file__).parents[2] / "gpu"


def settings(given: argparse.Namespace, **changes: Any) -> Any:
    """Return the trainer's settings, from which the workers' are derived."""
    from trl.experimental.async_grpo import AsyncGRPOConfig

    options: dict[str, Any] = {
        "vllm_server_base_url": given.server,
        "max_steps": given.steps,
        "num_generations": SAMPLES,
        "per_device_train_batch_size": SAMPLES,
        "gradient_accumulation_steps": GROUPS,
        "max_completion_length": MAX_TOKENS,
        # Unique tokens of a micro-batch. TRL fills it up whatever the batch size is: with twice the
        # context, an update takes about GROUPS groups.
        "token_budget": 2 * CONTEXT,
        "learning_rate": given.learning_rate,
        "lr_scheduler_type": "constant",
        "max_staleness": 2,
        "queue_maxsize": GROUPS * SAMPLES,
        "request_timeout": 120,
        "weight_sync_timeout": 120,
        "logging_steps": 1,
        "save_strategy": "no",
        "report_to": "none",
        "gradient_checkpointing": False,
        "disable_tqdm": True,
        "bf16": True,
    }
    return AsyncGRPOConfig(str(given.out), **{**options, **changes})


def train(given: argparse.Namespace, transfer: Any = None, **changes: Any) -> Any:
    """Train, and return the trainer.

    Args:
        given: the command-line options.
        transfer: a replacement for TRL's transfer of weights.
        changes: trainer settings that override this example's.
    """
    from datasets import Dataset
    from transformers import AutoTokenizer
    from trl.experimental.async_grpo import AsyncGRPOTrainer

    sys.path.append(str(_SHARED))
    import attention

    attention.install()
    args = settings(given, **changes)
    tokenizer = AutoTokenizer.from_pretrained(given.model)
    worker = RolloutProcesses.for_vllm(
        args,
        SPEC,
        tasks(given.steps * GROUPS * 2),
        model=given.served,
        tokenizer=tokenizer,
        store=given.store,
        processes=given.processes,
        deadline=600.0,
    )
    trainer = AsyncGRPOTrainer(
        model=given.model,
        args=args,
        # The workers have the tasks, but TRL requires a data set.
        train_dataset=Dataset.from_list([{"prompt": [{"role": "user", "content": "-"}]}]),
        processing_class=tokenizer,
        rollout_worker=worker,
        weight_transfer=transfer,
    )
    worker.attach(trainer)
    trainer.train()
    given.out.mkdir(parents=True, exist_ok=True)
    (given.out / "log.json").write_text(json.dumps(trainer.state.log_history))
    print(
        f"{trainer.state.global_step} updates from {worker.tally.sessions} sessions in "
        f"{worker.tally.groups} groups, recorded in {given.store}",
    )
    return trainer


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command-line options."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", required=True, help="directory of a chat model")
    parser.add_argument("--served", default="policy", help="the model's name on the server")
    parser.add_argument("--server", default="http://127.0.0.1:8000")
    parser.add_argument("--store", type=Path, default=Path("runs/trl"))
    parser.add_argument("--out", type=Path, default=Path("trl"))
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--learning-rate", type=float, default=2e-5)
    parser.add_argument("--processes", type=int, default=4)
    return parser


if __name__ == "__main__":
    train(parser().parse_args())
