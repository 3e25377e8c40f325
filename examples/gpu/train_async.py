"""Train the fine-tuned model with TRL's asynchronous GRPO trainer, and record measurements.

    CUDA_VISIBLE_DEVICES=0 python examples/gpu/train_async.py --model SFT --out RESULTS \
        --work SCRATCH --runs outcome:0,gigpo:0

A run is DERIVER:SEED. Each writes a store, a record of the engine's answers, and results as JSON
lines.
"""

from __future__ import annotations

import argparse
import gc
import json
import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attention
import numpy as np
from lab import (
    MAX_TOKENS,
    SAMPLES,
    LoggedTransfer,
    Results,
    busy,
    evaluate,
    load_calls,
    transfer_for,
)
from play import DERIVERS, Play, worker_for

from trajgym.trajectory import Run

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from lab import Call

    from trajgym.adapters.trl import RolloutProcesses, RolloutWorker

_TURNS = 6
"""Approximate number of turns of a session; a dense deriver gives a sample for each."""


def settings(given: argparse.Namespace, folder: Path, **options: Any) -> Any:
    """Return the trainer's settings."""
    import torch
    from trl.experimental.async_grpo import AsyncGRPOConfig

    on_gpu = torch.cuda.is_available()
    wanted = {
        "vllm_server_base_url": given.server,
        "max_steps": given.steps,
        "num_generations": SAMPLES,
        "per_device_train_batch_size": given.batch,
        "gradient_accumulation_steps": given.accumulate,
        "token_budget": given.token_budget,
        "max_completion_length": MAX_TOKENS,
        "learning_rate": given.learning_rate,
        "max_staleness": given.max_staleness,
        "max_inflight_tasks": given.concurrency,
        "request_timeout": 60,
        "weight_sync_timeout": 120,
        "heartbeat_stale_after_s": 120,
        "logging_steps": 1,
        "save_strategy": "no",
        "report_to": "none",
        "gradient_checkpointing": False,
        "disable_tqdm": True,
        "bf16": on_gpu,
        "use_cpu": not on_gpu,
    }
    return AsyncGRPOConfig(str(folder), **wanted | options)


class Watch:
    """A trainer's callback: logs steps, evaluates, saves weights, stops at the deadline."""

    def __init__(self, given: argparse.Namespace, name: str, results: Results, folder: Path):
        self.given, self.name, self.results, self.folder = given, name, results, folder
        self.trainer: Any = None
        self.looks: list[tuple[float, float]] = []
        """Start and end times of evaluations."""
        self.begun = self.ended = 0.0
        """End times of the first and of the last update."""
        self.steps = 0
        self.cut = False

    def callback(self) -> Any:
        """Return the callback; add it after the trainer's own, which sends the weights."""
        from transformers import TrainerCallback

        watch = self

        class Callback(TrainerCallback):  # type: ignore[misc]
            def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
                del args
                watch.step(state.global_step)
                if time.time() > watch.given.deadline:
                    watch.cut = control.should_training_stop = True

            def on_log(self, args: Any, state: Any, control: Any, logs: Any, **_: Any) -> None:
                del args, control
                if "loss" in logs:
                    values = {k: v for k, v in logs.items() if isinstance(v, int | float)}
                    watch.results.write(
                        "step", run=watch.name, step=state.global_step, values=values
                    )

        return Callback()

    def step(self, number: int) -> None:
        """Record the end of an update."""
        self.steps, self.ended = number, time.time()
        self.begun = self.begun or self.ended
        if number in self.given.keep:
            self.keep(number + 1)
        if number in self.given.eval_at:
            self.look(number)

    def look(self, number: int) -> None:
        """Evaluate the current weights."""
        begun = time.time()
        found = evaluate(self.given, self.trainer.processing_class, self.given.eval_games)
        self.looks.append((begun, time.time()))
        self.results.write("eval", run=self.name, step=number, **found)

    @property
    def eval_seconds(self) -> float:
        """Seconds of evaluations before the end of the last update."""
        return sum(end - begin for begin, end in self.looks if end <= self.ended)

    def keep(self, version: int) -> None:
        """Save the weights of a version in bfloat16, as the engine uses them."""
        import torch

        model = self.trainer.accelerator.unwrap_model(self.trainer.model)
        weights = {n: p.detach().to(torch.bfloat16).cpu() for n, p in model.named_parameters()}
        torch.save(weights, self.folder / f"version-{version}.pt")


class Staleness:
    """Counts samples by their staleness when the trainer takes them."""

    def __init__(self, worker: RolloutWorker | RolloutProcesses) -> None:
        self.samples: Counter[int] = Counter()
        self._get, self._clock = worker.rollout_buffer.get, worker.versions
        worker.rollout_buffer.get = self.get  # type: ignore[method-assign]

    def get(self, *args: Any, **options: Any) -> Any:
        sample = self._get(*args, **options)
        self.samples[self._clock.version - sample.model_version] += 1
        return sample


class Lab:
    """Does several training runs over one connection to the server."""

    def __init__(self, given: argparse.Namespace, transfer: Any = None) -> None:
        from transformers import AutoTokenizer

        self.given = given
        self.results = Results(given.out)
        self.tokenizer = AutoTokenizer.from_pretrained(given.model)
        wrapped = transfer is None or isinstance(transfer, LoggedTransfer)
        self.transfer = transfer if wrapped else LoggedTransfer(transfer)
        kind = attention.install(given.attention)
        self.results.write("attention", taken=kind)

    def run(
        self, name: str, deriver: str, seed: int, *, groups: int = 0, **options: Any
    ) -> dict[str, Any]:
        """Train once; write the measurements, and return them.

        Args:
            name: name of the run.
            deriver: a name of ``DERIVERS``.
            seed: seed of the trainer, tasks and sessions.
            groups: groups that begin with each version; with 0, sessions run continuously.
            options: settings of the trainer that override those of :func:`settings`.
        """
        given, begun = self.given, time.time()
        folder = given.work / name.replace(":", "-")
        folder.mkdir(parents=True)
        args = settings(given, folder / "trainer", seed=seed, **options)
        # The trainer's data loader reads one micro-batch ahead.
        ahead = -(-args.per_device_train_batch_size // SAMPLES)
        play = Play(
            server=given.server,
            served=given.served,
            model=str(given.model),
            folder=folder,
            deriver=deriver,
            seed=seed,
            temperature=args.temperature,
            concurrency=given.concurrency,
            max_staleness=args.max_staleness,
            waiting=given.waiting * (1 if deriver == "outcome" else _TURNS),
            stream=given.stream,
            first=groups + ahead if groups else 0,
            groups=groups,
        )
        worker = worker_for(play, given.processes)
        watch = Watch(given, name, self.results, folder)
        staleness = Staleness(worker)
        trainer = self.trainer(args, worker)
        watch.trainer = trainer
        trainer.add_callback(watch.callback())
        started = time.time()
        trainer.train()
        trained = time.time()
        if given.eval_at and watch.steps not in given.eval_at:
            watch.look(watch.steps)
        assert self.transfer is not None
        calls = load_calls(folder)
        log = list(self.transfer.log)
        logs = [row for row in trainer.state.log_history if "loss" in row]
        report = {
            "run": name,
            "deriver": DERIVERS[deriver].name,
            "processes": given.processes,
            "concurrency": given.concurrency,
            "seed": seed,
            "steps": watch.steps,
            "cut": watch.cut,
            "start_seconds": started - begun,
            "train_seconds": trained - started,
            "eval_seconds": watch.eval_seconds,
            **shares(watch, logs),
            "engine": busy(calls, watch.begun, watch.ended),
            "staleness": dict(sorted(staleness.samples.items())),
            "updates": [
                {k: round(v - log[0]["begun"], 4) if k != "version" else v for k, v in one.items()}
                for one in log
            ],
            **account(play.store, calls, worker, watch),
        }
        self.results.write("run", **report)
        (folder / "updates.json").write_text(json.dumps(log))
        return report

    def trainer(self, args: Any, worker: RolloutWorker | RolloutProcesses) -> Any:
        """Return a trainer for the worker, connected to the server."""
        from datasets import Dataset
        from trl.experimental.async_grpo import AsyncGRPOTrainer

        if self.transfer is not None:
            self.transfer.restart()
        trainer = AsyncGRPOTrainer(
            model=str(self.given.model),
            args=args,
            # The worker has the tasks, but TRL requires a data set.
            train_dataset=Dataset.from_list([{"prompt": [{"role": "user", "content": "-"}]}]),
            processing_class=self.tokenizer,
            rollout_worker=worker,
            weight_transfer=self.transfer,
        )
        if self.transfer is None:
            self.transfer = transfer_for(trainer.model, self.given.server)
            trainer.weight_transfer = self.transfer
        worker.attach(trainer)
        return trainer


def shares(watch: Watch, logs: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the parts of the trainer's time between the ends of the first and last updates."""
    wall = watch.ended - watch.begun
    later = logs[1:]

    def total(key: str) -> float:
        return float(sum(row.get(key) or 0.0 for row in later))

    training = max(wall - watch.eval_seconds, 1e-9)
    waited, synced = total("perf/rollout_wait_s"), total("perf/weight_sync_s")
    return {
        "wall_seconds": wall,
        "training_seconds": training,
        "seconds_per_update": training / max(len(later), 1),
        "trainer_idle_share": (waited + synced) / training,
        "waiting_share": waited / training,
        "sync_share": synced / training,
        "fwd_bwd_share": total("perf/fwd_bwd_s") / training,
        "trained_tokens_per_s": total("batch/trained_tokens_per_step") / training,
        "forwarded_tokens_per_s": total("batch/forwarded_tokens_per_step") / training,
        "first_ratio": logs[0].get("ratio") if logs else None,
        "reward_first_10": _mean(logs[:10]),
        "reward_last_10": _mean(logs[-10:]),
    }


def account(
    store: Path, calls: Sequence[Call], worker: RolloutWorker | RolloutProcesses, watch: Watch
) -> dict[str, Any]:
    """Return counts of the sessions by result, and the SDK's overhead per turn."""
    tally, buffer = worker.tally, worker.rollout_buffer
    statuses: Counter[str] = Counter()
    overheads, turns, ended = [], 0, 0
    asked: dict[str, float] = {}
    for call in calls:
        asked[call.session] = asked.get(call.session, 0.0) + call.ended - call.begun
    with Run(store) as run:
        for summary in run.summaries():
            attempt = summary.attempts[0]
            statuses[str(attempt.status)] += 1
            turns += summary.turns
            if not attempt.status.scored or attempt.ended_at is None:
                continue
            ended += watch.begun <= attempt.ended_at <= watch.ended
            spent = attempt.ended_at - summary.record.created_at
            overheads.append((spent - asked.get(summary.record.id, 0.0)) / max(summary.turns, 1))
        groups = list(run.groups())
    sealed = [g for g in groups if g.sealed]
    members = sum(len(g.members) for g in sealed)
    dropped, left = sum(tally.dropped.values()), sum(tally.left.values())
    gaps = np.array(overheads or [0.0]) * 1e3
    return {
        "sessions": sum(statuses.values()),
        "statuses": dict(statuses),
        "turns": turns,
        "sessions_per_s": ended / max(watch.ended - watch.begun, 1e-9),
        "overhead_ms_per_turn": {
            "median": float(np.median(gaps)),
            "mean": float(gaps.mean()),
            "p95": float(np.quantile(gaps, 0.95)),
        },
        "account": {
            "sealed_members": members,
            "counted": tally.sessions,
            "left": dict(tally.left),
            "dropped": dict(tally.dropped),
            "rows": tally.rows,
            "samples": tally.samples,
            "taken": buffer.taken,
            "stale_in_queue": buffer.stale,
            "cut": buffer.cut,
            "waiting": len(buffer.queue),
            "in_open_groups": sum(len(g.members) for g in groups if not g.sealed),
            # Groups that were sealed while the worker stopped are only in the store.
            "sealed_not_harvested": members - tally.sessions - left,
            "trained": tally.trained,
            "closes": tally.sessions == tally.trained + dropped,
        },
    }


def _mean(rows: Iterable[dict[str, Any]]) -> float | None:
    values = [row["reward"] for row in rows if row.get("reward") is not None]
    return float(np.mean(values)) if values else None


def train(given: argparse.Namespace, transfer: Any = None) -> None:
    """Do the requested runs one after another."""
    lab = Lab(given, transfer)
    for wanted in given.runs.split(","):
        deriver, _, seed = wanted.partition(":")
        lab.run(wanted, deriver, int(seed or 0))
        release()


def release() -> None:
    """Free the GPU memory of a run."""
    import torch

    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    made.add_argument("--model", required=True, help="directory written by prepare.py")
    made.add_argument("--out", type=Path, default=Path("results"))
    made.add_argument("--work", type=Path, default=Path("work"), help="stores and weights")
    made.add_argument("--runs", default="outcome:0,gigpo:0", help="DERIVER:SEED, by commas")
    made.add_argument("--server", default="http://127.0.0.1:8000")
    made.add_argument("--served", default="policy", help="the model's name on the server")
    made.add_argument("--steps", type=int, default=100)
    made.add_argument("--batch", type=int, default=16)
    made.add_argument("--accumulate", type=int, default=4)
    made.add_argument("--token-budget", type=int, default=5120, help="unique tokens per batch")
    made.add_argument("--learning-rate", type=float, default=1e-5)
    made.add_argument("--max-staleness", type=int, default=4)
    made.add_argument("--concurrency", type=int, default=64)
    made.add_argument("--waiting", type=int, default=128, help="sessions waiting to be trained")
    made.add_argument("--processes", type=int, default=4, help="worker processes; 0: a thread")
    made.add_argument("--eval-at", type=_numbers, default=(20, 50, 100), help="updates")
    made.add_argument("--eval-games", type=int, default=256)
    made.add_argument("--stream", action="store_true", help="stream, to see updates in responses")
    made.add_argument("--attention", choices=["auto", "flash", "mask"], default="auto")
    made.add_argument("--keep", type=_numbers, default=(5, 50, 99), help="updates to save")
    made.add_argument("--deadline", type=float, default=float("inf"), help="Unix time (s)")
    return made


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split(",") if part)


if __name__ == "__main__":
    train(parser().parse_args())
