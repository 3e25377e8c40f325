"""Fine-tune SmolLM2 on games of a noisy walker until it solves some of the held-out mazes.

    CUDA_VISIBLE_DEVICES=0 python examples/gpu/prepare.py --model MODEL --sft SFT --out RESULTS

The games are collected and exported with trajgym. At intervals, the current weights are sent to a
vLLM server (see run_all.sh) and evaluated on held-out mazes; training stops at a success of
--enough, and the model is saved.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import tempfile
import time
from pathlib import Path
from typing import Any

from lab import LoggedTransfer, Results, evaluate, transfer_for
from maze import SPEC, tasks, walker

from trajgym.adapters.trl import sft_dataset
from trajgym.rollout import ScriptedPolicy, collect
from trajgym.rollout.rendering import TemplateRenderer
from trajgym.trajectory import Run

_IGNORED = -100


def conversations(folder: Path, games: int, noise: float) -> list[Any]:
    """Run the walker, and return the conversations that trajgym exports."""
    policy = ScriptedPolicy(walker(noise), name="walker")
    asyncio.run(collect(SPEC, tasks(games, seed=50), policy, folder, concurrency=32))
    with Run(folder) as run:
        sessions = [run.session(s.record.id) for s in run.summaries()]
        data = sft_dataset(sessions, run.groups(), include="all")
    return [row["messages"] for row in data]


def tokens(renderer: TemplateRenderer, messages: list[Any]) -> tuple[list[int], list[int]]:
    """Return ids and labels of a conversation; only the assistant's tokens have labels."""
    ids: list[int] = []
    labels: list[int] = []
    for i, message in enumerate(messages):
        if message["role"] != "assistant":
            continue
        prompt = renderer.render(messages[:i])
        assert prompt[: len(ids)] == ids, "the chat template changes earlier messages"
        said = renderer.encode_response(message["content"])
        labels += [_IGNORED] * (len(prompt) - len(ids)) + said
        ids = prompt + said
    return ids, labels


def batch(rows: list[tuple[list[int], list[int]]], pad: int, device: Any) -> dict[str, Any]:
    """Return padded tensors."""
    import torch

    width = max(len(ids) for ids, _ in rows)
    ids = torch.full((len(rows), width), pad)
    labels = torch.full((len(rows), width), _IGNORED)
    mask = torch.zeros(len(rows), width, dtype=torch.long)
    for i, (one, wanted) in enumerate(rows):
        ids[i, : len(one)] = torch.tensor(one)
        labels[i, : len(one)] = torch.tensor(wanted)
        mask[i, : len(one)] = 1
    tensors = {"input_ids": ids, "labels": labels, "attention_mask": mask}
    return {name: tensor.to(device) for name, tensor in tensors.items()}


def push(transfer: LoggedTransfer, model: Any) -> None:
    """Send a model's weights to the server."""
    transfer.init_weight_transfer()
    transfer.pause()
    transfer.send_weights((name, p.detach()) for name, p in model.named_parameters())
    transfer.resume()


def prepare(given: argparse.Namespace, transfer: Any = None) -> LoggedTransfer:
    """Fine-tune the model and save it; return the connection to the server."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    results, begun = Results(given.out), time.time()
    torch.manual_seed(given.seed)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    tokenizer = AutoTokenizer.from_pretrained(given.model)
    model = AutoModelForCausalLM.from_pretrained(given.model, dtype=torch.float32).to(device)
    with tempfile.TemporaryDirectory() as folder:  # while the server starts
        said = conversations(Path(folder), given.games, given.noise)
    rows = [tokens(TemplateRenderer(tokenizer), one) for one in said]
    longest, seconds = max(len(ids) for ids, _ in rows), time.time() - begun
    results.write("sft_data", conversations=len(rows), longest=longest, seconds=seconds)
    link = transfer if isinstance(transfer, LoggedTransfer) else None
    link = link or (LoggedTransfer(transfer) if transfer else transfer_for(model, given.server))
    optimizer = torch.optim.AdamW(model.parameters(), lr=given.learning_rate, weight_decay=0.0)
    chance, pad = random.Random(given.seed), tokenizer.pad_token_id or tokenizer.eos_token_id
    found: dict[str, float] = {"success": 0.0}
    loss = torch.tensor(0.0)
    for step in range(1, given.steps + 1):
        for group in optimizer.param_groups:
            group["lr"] = given.learning_rate * min(1.0, step / 10)
        with torch.autocast(device, dtype=torch.bfloat16, enabled=device == "cuda"):
            loss = model(**batch(chance.sample(rows, given.batch), pad, device)).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        if step % given.every and step != given.steps:
            continue
        push(link, model)
        found = evaluate(given, tokenizer, given.eval_games)
        results.write("sft", step=step, loss=loss.item(), **found)
        if found["success"] >= given.enough:
            break
    model.save_pretrained(given.sft)
    tokenizer.save_pretrained(given.sft)
    results.write("prepared", loss=loss.item(), **found | {"seconds": time.time() - begun})
    return link


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    made.add_argument("--model", required=True, help="directory of a chat model")
    made.add_argument("--sft", type=Path, default=Path("sft"), help="directory of the new model")
    made.add_argument("--out", type=Path, default=Path("results"))
    made.add_argument("--server", default="http://127.0.0.1:8000")
    made.add_argument("--served", default="policy", help="the model's name on the server")
    made.add_argument("--concurrency", type=int, default=128)
    made.add_argument("--games", type=int, default=1000)
    made.add_argument("--noise", type=float, default=0.6)
    made.add_argument("--steps", type=int, default=300)
    made.add_argument("--every", type=int, default=25, help="steps between two evaluations")
    made.add_argument("--enough", type=float, default=0.25, help="success at which to stop")
    made.add_argument("--batch", type=int, default=32)
    made.add_argument("--learning-rate", type=float, default=1e-4)
    made.add_argument("--eval-games", type=int, default=256)
    made.add_argument("--seed", type=int, default=0)
    return made


if __name__ == "__main__":
    prepare(parser().parse_args())
