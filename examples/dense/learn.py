"""Reinforcement learning on small SWE tasks with one deriver and one seed, in one process.

    python examples/dense/learn.py --model SFT --arm steps --seed 0 --out RESULTS

The runner runs sessions with an engine in this process, a deriver computes the advantages of their
rows, and each batch gives one optimizer step on the clipped objective of
`tests/gradient/reference.py`.
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from arms import ARMS, MAX_TOKENS, SPEC, budgets
from common import Batches, Log, credited, seen
from slots import SlotEngine

from trajgym.envs.swe.small import small_tasks
from trajgym.rewards import apply
from trajgym.rollout import Runner, TokenPolicy, collect
from trajgym.rollout.rendering import TemplateRenderer
from trajgym.trajectory import Run, Sampling, Store, build_rows

if TYPE_CHECKING:
    from trajgym.rewards import Advantages
    from trajgym.rollout import SealedGroup
    from trajgym.trajectory import TrainingRow

CLIP = 0.2
_EVAL_SEED = 90


class Learner:
    """A model with its optimizer and objective."""

    def __init__(self, model: Any, learning_rate: float, tokens: int) -> None:
        self.model = model
        self.tokens = tokens
        self.optimizer = torch.optim.AdamW(
            model.parameters(), lr=learning_rate, weight_decay=0.0, betas=(0.9, 0.95)
        )

    def step(self, rows: list[TrainingRow]) -> dict[str, float]:
        """Do one optimizer step on all rows, or none if every advantage is 0."""
        trained = sum(int(row.loss_mask.sum()) for row in rows)
        useful = [row for row in rows if row.advantage is not None and row.advantage.any()]
        found = {"trained_tokens": trained, "useful_rows": len(useful), "rows": len(rows)}
        if not useful:
            return found
        self.model.train()
        losses, off = 0.0, 0.0
        for batch in _batches(useful, self.tokens):
            loss, gap = self._loss(batch)
            (loss / trained).backward()
            losses += float(loss.detach()) / trained
            off += float(gap)
        norm = torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        used = sum(int(row.loss_mask.sum()) for row in useful)
        return found | {"loss": losses, "norm": float(norm), "logprob_gap": off / used}

    def _loss(self, rows: list[TrainingRow]) -> tuple[Any, Any]:
        """Return the summed loss, and the summed distance to the engine's log-probs."""
        device, width = self.model.device, max(len(row.input_ids) for row in rows)
        ids = torch.zeros(len(rows), width, dtype=torch.long)
        seen = torch.zeros(len(rows), width, dtype=torch.long)
        mask = torch.zeros(len(rows), width, dtype=torch.bool)
        told: list[Any] = []
        for i, row in enumerate(rows):
            n = len(row.input_ids)
            ids[i, :n] = torch.from_numpy(row.input_ids.astype(np.int64))
            seen[i, :n], mask[i, :n] = 1, torch.from_numpy(row.loss_mask.copy())
            assert row.advantage is not None
            told.append(np.stack([row.logprobs[row.loss_mask], row.advantage[row.loss_mask]]))
        ids, seen, mask = (t.to(device) for t in (ids, seen, mask))
        behaviour, advantage = torch.from_numpy(np.concatenate(told, 1)).float().to(device)
        with torch.autocast(device.type, dtype=torch.bfloat16, enabled=device.type == "cuda"):
            states = self.model.model(input_ids=ids, attention_mask=seen).last_hidden_state
            logits = self.model.lm_head(states[:, :-1][mask[:, 1:]])
        logprobs = torch.log_softmax(logits.float(), -1)
        now = logprobs.gather(1, ids[:, 1:][mask[:, 1:]][:, None])[:, 0]
        ratio = (now - behaviour).exp()
        gain = torch.min(ratio * advantage, ratio.clamp(1 - CLIP, 1 + CLIP) * advantage)
        return -gain.sum(), (now - behaviour).abs().sum().detach()


def _batches(rows: list[TrainingRow], tokens: int) -> list[list[TrainingRow]]:
    """Return the rows in batches whose padded size is at most ``tokens``, if possible."""
    found: list[list[TrainingRow]] = [[]]
    for row in sorted(rows, key=len):
        if found[-1] and (len(found[-1]) + 1) * len(row) > tokens:
            found.append([])
        found[-1].append(row)
    return found


def advantages(arm: str, sealed: list[SealedGroup]) -> tuple[Advantages, list[TrainingRow]]:
    """Return the advantages of a batch of groups, and the rows that have them."""
    values = credited(arm, sealed)
    trees = [tree for one in sealed for tree in one.sessions]
    return values, [row for tree in trees for row in apply(build_rows(tree).rows, values)]


async def evaluate(policy: TokenPolicy, n: int, bugs: int, concurrency: int) -> dict[str, Any]:
    """Return the success on held-out packages at temperature 1."""
    tasks = small_tasks(n, bugs=bugs, seed=_EVAL_SEED, held_out=True)
    with tempfile.TemporaryDirectory() as folder:
        await collect(SPEC, tasks, policy, folder, concurrency=concurrency, budgets=budgets(bugs))
        with Run(folder) as run:
            of_task = {s.record.task: s.attempts[0] for s in run.summaries()}
            ended = list(of_task.values())
            turns = [len(run.session(s.record.id).turns) for s in run.summaries()]
    scores = [a.outcome.score for a in ended if a.status.scored and a.outcome is not None]
    shares = [a.outcome.details.get("f2p", 0.0) for a in ended if a.status.scored and a.outcome]
    success = float(np.mean(scores)) if scores else 0.0
    return {
        "bugs": bugs,
        "tasks": len(scores),
        "scores": {
            task: attempt.outcome.score
            for task, attempt in of_task.items()
            if attempt.status.scored and attempt.outcome is not None
        },
        "success": success,
        "error": float(np.sqrt(success * (1 - success) / max(len(scores), 1))),
        "share_mended": float(np.mean(shares)) if shares else 0.0,
        "turns_mean": float(np.mean(turns)),
        "statuses": dict(Counter(str(a.status) for a in ended)),
    }


def loaded(folder: str, device: str) -> tuple[Any, Any]:
    """Return the model (in float32) and the tokenizer of a directory."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    return model.to(device), AutoTokenizer.from_pretrained(folder)


async def learn(given: argparse.Namespace) -> None:
    """Train until all updates are done or the deadline has passed."""
    torch.manual_seed(given.seed)
    torch.set_num_threads(1)
    log = Log(given.out / f"{given.arm}-{given.seed}.jsonl", arm=given.arm, seed=given.seed)
    model, tokenizer = loaded(given.model, given.device)
    if given.checkpointing:
        model.gradient_checkpointing_enable({"use_reentrant": False})
        model.config.use_cache = False
    engine = SlotEngine(model, slots=given.concurrency, length=given.length)
    sampling = Sampling(temperature=1.0)
    policy = TokenPolicy(
        engine, TemplateRenderer(tokenizer), sampling=sampling, max_tokens=MAX_TOKENS
    )
    learner = Learner(model, given.learning_rate, given.tokens)
    batches = Batches(
        small_tasks(given.updates * given.groups, bugs=given.bugs, seed=1 + given.seed)
    )
    given.work.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=given.work) as folder:
        async with policy:
            await _updates(given, log, Path(folder), policy, engine, learner, batches)
            if given.eval_last:
                found = await evaluate(policy, given.eval_last, given.bugs, given.concurrency)
                log.write("eval", update=engine.version, **found)
    log.write("done")


async def _updates(
    given: argparse.Namespace,
    log: Log,
    folder: Path,
    policy: TokenPolicy,
    engine: SlotEngine,
    learner: Learner,
    batches: Batches,
) -> None:
    arm = ARMS[given.arm]
    async with (
        Store(folder) as store,
        Runner(
            SPEC,
            batches.read(),
            policy,
            store=store,
            samples=arm.samples,
            concurrency=given.concurrency,
            seed=given.seed,
            budgets=budgets(given.bugs),
            **arm.settings,
        ) as runner,
    ):
        for update in range(1, given.updates + 1):
            if time.time() > given.deadline:
                log.write("stopped", update=update - 1)
                break
            began = time.monotonic()
            batches.more(given.groups)
            sealed = [await anext(runner) for _ in range(given.groups)]
            played = time.monotonic()
            values, rows = advantages(given.arm, sealed)
            facts = seen(sealed, values)
            derived = time.monotonic()
            stepped = learner.step(rows)
            engine.load(learner.model, update)
            runner.set_version(update)
            log.write(
                "update",
                update=update,
                **facts,
                **stepped,
                seconds_play=played - began,
                seconds_derive=derived - played,
                seconds_step=time.monotonic() - derived,
                engine_busy=engine.busy,
                engine_bursts=engine.bursts,
                engine_prefilled=engine.prefilled,
            )
            if update in given.eval_at:
                found = await evaluate(policy, given.eval, given.bugs, given.concurrency)
                log.write("eval", update=update, **found)


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    made.add_argument("--model", required=True, help="directory of a fine-tuned Llama model")
    made.add_argument("--arm", choices=sorted(ARMS), default="outcome")
    made.add_argument("--seed", type=int, default=0)
    made.add_argument("--out", type=Path, default=Path("results"))
    made.add_argument("--work", type=Path, default=Path("work"))
    made.add_argument("--updates", type=int, default=40)
    made.add_argument("--groups", type=int, default=8, help="tasks per update")
    made.add_argument("--bugs", type=int, default=3)
    made.add_argument("--learning-rate", type=float, default=1e-5)
    made.add_argument("--tokens", type=int, default=12_000, help="tokens of a training batch")
    made.add_argument("--concurrency", type=int, default=48)
    made.add_argument(
        "--length", type=int, default=3584, help="maximum number of tokens of a session"
    )
    made.add_argument("--eval", type=int, default=128, help="held-out tasks")
    made.add_argument("--eval-last", type=int, default=0, help="held-out tasks at the end")
    made.add_argument(
        "--eval-at", type=lambda s: {int(n) for n in s.split(",") if n}, default=set()
    )
    made.add_argument("--deadline", type=float, default=float("inf"), help="Unix time (s)")
    made.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    made.add_argument("--checkpointing", action="store_true")
    return made


if __name__ == "__main__":
    asyncio.run(learn(parser().parse_args()))
