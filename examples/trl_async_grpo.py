"""Reinforcement learning of a game with TRL's asynchronous GRPO trainer.

Start vLLM on one GPU:

    VLLM_SERVER_DEV_MODE=1 CUDA_VISIBLE_DEVICES=1 vllm serve MODEL --max-model-len 4096 \
        --logprobs-mode processed_logprobs --weight-transfer-config '{"backend": "nccl"}'

and train on the other:

    CUDA_VISIBLE_DEVICES=0 python examples/trl_async_grpo.py --model MODEL --store runs/guess

MODEL is the output of trl_sft.py, or any chat model.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from guess import SPEC, tasks

from trajgym.adapters.trl import RolloutProcesses, RolloutWorker


def settings(given: argparse.Namespace, **changes: Any) -> Any:
    """Return the trainer's settings, from which the worker's are derived."""
    from trl.experimental.async_grpo import AsyncGRPOConfig

    options: dict[str, Any] = {
        "vllm_server_base_url": given.server,
        "max_steps": given.steps,
        "num_generations": 8,
        "per_device_train_batch_size": 8,
        "gradient_accumulation_steps": 4,
        "max_completion_length": 16,
        "learning_rate": 1e-6,
        "max_staleness": 4,
        "logging_steps": 1,
        "save_strategy": "no",
        "report_to": "none",
        "gradient_checkpointing": False,
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

    args = settings(given, **changes)
    tokenizer = AutoTokenizer.from_pretrained(given.model)
    options = {"model": given.served or given.model, "tokenizer": tokenizer, "store": given.store}
    if given.processes:
        options["processes"] = given.processes
    kind: Any = RolloutProcesses if given.processes else RolloutWorker
    worker = kind.for_vllm(args, SPEC, tasks(64), stream=given.stream, **options)
    # The worker has the tasks, but TRL requires a data set.
    unused = Dataset.from_list([{"prompt": [{"role": "user", "content": "-"}]}])
    trainer = AsyncGRPOTrainer(
        model=given.model,
        args=args,
        train_dataset=unused,
        processing_class=tokenizer,
        rollout_worker=worker,
        weight_transfer=transfer,
    )
    worker.attach(trainer)
    trainer.train()
    print(f"{trainer.state.global_step} updates from {worker.tally.sessions} sessions")
    return trainer


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command-line options."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="sft", help="directory or name of a chat model")
    parser.add_argument("--served", help="the model's name on the server, if it differs")
    parser.add_argument("--server", default="http://localhost:8000")
    parser.add_argument("--store", type=Path, default=Path("runs/guess"))
    parser.add_argument("--out", type=Path, default=Path("grpo"))
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument(
        "--stream", action="store_true", help="stream, to record weight updates in responses"
    )
    parser.add_argument(
        "--processes",
        type=int,
        default=0,
        help="processes that run sessions; 0: a thread of the trainer's process",
    )
    return parser


if __name__ == "__main__":
    train(parser().parse_args())
