"""Fine-tune a small model on sessions of the scripted agent, which makes deliberate mistakes.

python examples/dense/sft.py --model MODEL --sft SFT --out RESULTS
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

from arms import SPEC

from trajgym.envs.swe.small import small_agent, small_tasks
from trajgym.rollout import PolicyRequest, ScriptedPolicy, collect
from trajgym.trajectory import Message, Run

if TYPE_CHECKING:
    from collections.abc import Iterator

_IGNORED = -100
_SEED = 50


def conversations(first: int, n: int, bugs: int, mistakes: float, model: str) -> list[Any]:
    """Run the scripted agent, and return ids and labels of its sessions; see :func:`tokens`."""
    from transformers import AutoTokenizer

    from trajgym.rollout.rendering import TemplateRenderer

    def answer(request: PolicyRequest) -> Message:
        assert request.task is not None
        said = sum(message["role"] == "assistant" for message in request.messages)
        return small_agent(request.task, request.sample, mistakes=mistakes)[said]

    tasks = small_tasks(first + n, bugs=bugs, seed=_SEED)[first:]
    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(collect(SPEC, tasks, ScriptedPolicy(answer), folder, concurrency=8))
        with Run(folder) as run:
            sessions = [run.session(s.record.id) for s in run.summaries()]
    renderer = TemplateRenderer(AutoTokenizer.from_pretrained(model))
    return [
        tokens(renderer, tree.conversation(tree.turns[-1]), tree.record.tools) for tree in sessions
    ]


def tokens(renderer: Any, messages: list[Any], tools: Any) -> tuple[list[int], list[int]]:
    """Return ids and labels of a conversation; only the assistant's tokens have labels."""
    ids: list[int] = []
    labels: list[int] = []
    for i, message in enumerate(messages):
        if message["role"] != "assistant":
            continue
        prompt = renderer.render(messages[:i], tools)
        if prompt[: len(ids)] != ids:
            raise ValueError("the chat template changes earlier messages")
        said = renderer.encode_response(message)
        labels += [_IGNORED] * (len(prompt) - len(ids)) + said
        ids = prompt + said
    return ids, labels


def batches(
    rows: list[tuple[list[int], list[int]]], size: int, steps: int, seed: int, device: str
) -> Iterator[dict[str, Any]]:
    """Yield padded batches of random rows."""
    import torch

    chance = random.Random(seed)
    for _ in range(steps):
        chosen = chance.sample(rows, min(size, len(rows)))
        width = max(len(ids) for ids, _ in chosen)
        made = {name: torch.zeros(len(chosen), width, dtype=torch.long) for name in ("ids", "mask")}
        labels = torch.full((len(chosen), width), _IGNORED)
        for i, (ids, wanted) in enumerate(chosen):
            made["ids"][i, : len(ids)] = torch.tensor(ids)
            made["mask"][i, : len(ids)] = 1
            labels[i, : len(ids)] = torch.tensor(wanted)
        yield {name: t.to(device) for name, t in {**made, "labels": labels}.items()}


async def _evaluated(model: Any, tokenizer: Any, given: argparse.Namespace) -> list[dict[str, Any]]:
    from learn import MAX_TOKENS, evaluate
    from slots import SlotEngine

    from trajgym.rollout import TokenPolicy
    from trajgym.rollout.rendering import TemplateRenderer
    from trajgym.trajectory import Sampling

    engine = SlotEngine(model, slots=given.concurrency, length=given.length)
    policy = TokenPolicy(
        engine,
        TemplateRenderer(tokenizer),
        sampling=Sampling(temperature=1.0),
        max_tokens=MAX_TOKENS,
    )
    async with policy:
        return [await evaluate(policy, given.eval, n, given.concurrency) for n in given.eval_bugs]


def collected(given: argparse.Namespace) -> list[Any]:
    """Return the rows of all sessions, which are run in several processes."""
    share = -(-given.sessions // given.processes)
    jobs = [
        (i * share, share, bugs, given.mistakes, given.model)
        for bugs in given.bugs
        for i in range(given.processes)
    ]
    with ProcessPoolExecutor(given.processes) as pool:
        parts = list(pool.map(conversations, *zip(*jobs, strict=True)))
    return [row for part in parts for row in part]


def main(given: argparse.Namespace) -> None:
    """Collect sessions, fine-tune the model, save it, and evaluate it."""
    import torch
    from common import Log
    from learn import loaded
    from torch.nn import functional

    log, began = Log(given.out / "sft.jsonl"), time.time()
    if given.rows.exists():
        rows = json.loads(given.rows.read_text())
    else:
        rows = collected(given)
        given.rows.parent.mkdir(parents=True, exist_ok=True)
        given.rows.write_text(json.dumps(rows))
    lengths = sorted(len(ids) for ids, _ in rows)
    middle = lengths[len(lengths) // 2]
    log.write("sft_data", sessions=len(rows), longest=lengths[-1], median=middle,
              seconds=time.time() - began)  # fmt: skip
    if given.only_rows:
        return
    model, tokenizer = loaded(given.model, given.device)
    torch.manual_seed(given.seed)
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=given.learning_rate, weight_decay=0.0, betas=(0.9, 0.95)
    )
    model.train()
    model.gradient_checkpointing_enable({"use_reentrant": False})
    device = torch.device(given.device)
    for step, batch in enumerate(batches(rows, given.batch, given.steps, given.seed, given.device)):
        rate = min(1.0, (step + 1) / 10) * min(1.0, 2 * (1 - step / given.steps))
        for group in optimizer.param_groups:
            group["lr"] = given.learning_rate * rate
        with torch.autocast(device.type, dtype=torch.bfloat16, enabled=device.type == "cuda"):
            states = model.model(input_ids=batch["ids"], attention_mask=batch["mask"])[0]
            wanted = batch["labels"][:, 1:]
            kept = wanted != _IGNORED
            logits = model.lm_head(states[:, :-1][kept])
        loss = functional.cross_entropy(logits.float(), wanted[kept])
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        if step % 10 == 9 or step == given.steps - 1:
            log.write("sft", step=step + 1, loss=loss.item(), seconds=time.time() - began)
    model.gradient_checkpointing_disable()
    model.save_pretrained(given.sft)
    tokenizer.save_pretrained(given.sft)
    log.write("saved", seconds=time.time() - began)
    for found_one in asyncio.run(_evaluated(model, tokenizer, given)):
        log.write("prepared", **found_one, seconds=time.time() - began)


def _numbers(text: str) -> list[int]:
    return [int(one) for one in text.split(",") if one]


def parser() -> argparse.ArgumentParser:
    import torch

    made = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    made.add_argument("--model", required=True, help="directory of a Llama chat model")
    made.add_argument("--sft", type=Path, default=Path("sft"), help="directory of the new model")
    made.add_argument("--out", type=Path, default=Path("results"))
    made.add_argument(
        "--rows", type=Path, default=Path("sft-rows.json"), help="file of rows; made if missing"
    )
    made.add_argument("--only-rows", action="store_true", help="only make the rows")
    made.add_argument("--sessions", type=int, default=400, help="for each number of bugs")
    made.add_argument("--bugs", type=_numbers, default=[2, 3, 4])
    made.add_argument("--mistakes", type=float, default=0.6)
    made.add_argument("--processes", type=int, default=8)
    made.add_argument("--steps", type=int, default=200)
    made.add_argument("--batch", type=int, default=16)
    made.add_argument("--learning-rate", type=float, default=2e-4)
    made.add_argument("--eval", type=int, default=128, help="held-out tasks")
    made.add_argument("--eval-bugs", type=_numbers, default=[2, 3, 4])
    made.add_argument("--concurrency", type=int, default=48)
    made.add_argument("--length", type=int, default=3584)
    made.add_argument("--seed", type=int, default=0)
    made.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    return made


if __name__ == "__main__":
    main(parser().parse_args())
