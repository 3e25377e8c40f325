"""Reinforcement learning of a game with TRL's asynchronous GRPO trainer.

Start vLLM on one GPU:

    VLLM_SERVER_DEV_MODE=1 CUDA_VISIBLE_DEVICES=1 vllm serve MODEL --max-model-len 4096 \
        --logprobs-mode processed_logprobs --weight-transfer-config '{"backend": "nccl"}'

and train on the other:

    CUDA_VISIBLE_DEVICES=0 python examples/trl_async_grpo.py --model MODEL --store runs/guess

MODEL is what trl_sft.py wrote, or any chat model. --smoke runs the same code on a CPU with a tiny
model and a server that plays vLLM, in a checkout of the project.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from guess import SPEC, tasks

from trajgym.adapters.trl import RolloutProcesses, RolloutWorker


def settings(given: argparse.Namespace) -> Any:
    """Return the trainer's settings; the worker takes its own from them."""
    from trl.experimental.async_grpo import AsyncGRPOConfig

    smoke = {"use_cpu": True, "bf16": False, "token_budget": 4096} if given.smoke else {}
    return AsyncGRPOConfig(
        str(given.out),
        vllm_server_base_url=given.server,
        max_steps=given.steps,
        num_generations=4 if given.smoke else 8,
        per_device_train_batch_size=8,
        gradient_accumulation_steps=1 if given.smoke else 4,
        max_completion_length=16,
        learning_rate=1e-6,
        max_staleness=4,
        logging_steps=1,
        save_strategy="no",
        report_to="none",
        gradient_checkpointing=False,
        **smoke,
    )


def train(given: argparse.Namespace, transfer: Any = None) -> Any:
    """Train, and return the trainer."""
    from datasets import Dataset
    from transformers import AutoTokenizer
    from trl.experimental.async_grpo import AsyncGRPOTrainer

    args = settings(given)
    tokenizer = AutoTokenizer.from_pretrained(given.model)
    options = {
        "model": given.served or given.model,
        "tokenizer": tokenizer,
        "store": given.store,
        "stream": given.stream,
    }
    worker: RolloutWorker | RolloutProcesses
    if given.processes:
        options["processes"] = given.processes
        worker = RolloutProcesses.for_vllm(args, SPEC, tasks(64), **options)
    else:
        worker = RolloutWorker.for_vllm(args, SPEC, tasks(64), **options)
    trainer = AsyncGRPOTrainer(
        model=given.model,
        args=args,
        # The tasks are the worker's; TRL wants a data set all the same.
        train_dataset=Dataset.from_list([{"prompt": [{"role": "user", "content": "-"}]}]),
        processing_class=tokenizer,
        rollout_worker=worker,
        weight_transfer=transfer,
    )
    worker.attach(trainer)
    trainer.train()
    print(
        f"{trainer.state.global_step} updates from {worker.tally.sessions} sessions in "
        f"{worker.tally.groups} groups, recorded in {given.store}",
    )
    return trainer


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="sft", help="folder or name of a chat model")
    parser.add_argument("--served", help="the model's name on the server, if it is another")
    parser.add_argument("--server", default="http://localhost:8000")
    parser.add_argument("--store", type=Path, default=Path("runs/guess"))
    parser.add_argument("--out", type=Path, default=Path("grpo"))
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--stream", action="store_true", help="see weight updates in responses")
    parser.add_argument(
        "--processes", type=int, default=0, help="that run sessions; 0: a thread of the trainer's"
    )
    parser.add_argument("--smoke", action="store_true", help="tiny model, CPU, two updates")
    given = parser.parse_args(arguments)
    if not given.smoke:
        train(given)
        return
    sys.path.insert(0, str(Path(__file__).parent.parent))
    from tests.trl import cpu
    from tests.trl.server import Transfer, serving
    from tests.trl.tiny import make

    cpu.patch()
    with ExitStack() as stack:
        scratch = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        tiny = make(scratch / "model", words=("3", "7", "12", "18"))
        server = stack.enter_context(serving(tiny))
        given.model, given.served, given.server, given.steps = tiny.path, "tiny", server.url, 2
        given.store, given.out, given.stream = scratch / "run", scratch / "out", True
        train(given, Transfer(server))


if __name__ == "__main__":
    main()
