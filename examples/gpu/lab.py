"""Shared by the scripts here: a recording engine, a log of weight updates, evaluation, results."""

from __future__ import annotations

import asyncio
import contextvars
import json
import os
import tempfile
import time
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from maze import SPEC, tasks

from trajgym.rollout import TokenPolicy, VLLMEngine, collect
from trajgym.rollout.rendering import TemplateRenderer
from trajgym.trajectory import Sampling

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    import numpy.typing as npt

MAX_TOKENS = 8
SAMPLES = 8
"""Sessions of a group."""


class Call(NamedTuple):
    """A request with the server's answer, recorded in the HTTP client."""

    session: str
    prompt: int
    ids: list[int]
    logprobs: list[float]
    begun: float
    ended: float


_raw: contextvars.ContextVar[tuple[list[int], list[float]]] = contextvars.ContextVar("raw")


class RecordingEngine(VLLMEngine):
    """An engine that records the ids of the server's answers, and the times of each request.

    Args:
        record: file to which the calls are written as JSON lines when the engine is closed.
    """

    def __init__(self, *args: Any, record: Path, **options: Any) -> None:
        super().__init__(*args, **options)
        self.calls: list[Call] = []
        self._record = record

    async def close(self) -> None:
        await super().close()
        await asyncio.to_thread(save_calls, self.calls, self._record)

    async def generate(self, prompt_ids: Any, *, session: str = "", **options: Any) -> Any:
        ids: list[int] = []
        logprobs: list[float] = []
        token, begun = _raw.set((ids, logprobs)), time.time()
        try:
            return await super().generate(prompt_ids, session=session, **options)
        finally:
            _raw.reset(token)
            call = Call(session, len(prompt_ids), ids, logprobs, begun, time.time())
            self.calls.append(call)

    def _read(self, answer: Any, prompt: list[int]) -> Any:
        piece = super()._read(answer, prompt)
        ids, logprobs = _raw.get()
        for choice in answer["choices"][:1]:
            ids += choice.get("token_ids") or ()
            logprobs += (choice.get("logprobs") or {}).get("token_logprobs") or ()
        return piece


class LoggedTransfer:
    """TRL's weight transfer, connected once for all runs of a process; logs every update."""

    def __init__(self, inner: Any) -> None:
        self.inner = inner
        self.log: list[dict[str, float]] = []
        """Version and Unix times of each update since ``restart``; versions begin at 1."""
        self._ready = False
        self._paused = 0.0

    def restart(self) -> None:
        """Restart the count of versions, for another run."""
        self.log = []

    def init_weight_transfer(self) -> None:
        if not self._ready:
            self.inner.init_weight_transfer()
            self._ready = True

    def pause(self) -> None:
        self._paused = time.time()
        self.inner.pause()

    def send_weights(self, iterator: Iterator[Any]) -> None:
        import torch

        if torch.cuda.is_available():
            torch.cuda.synchronize()  # the sender uses other streams than the optimizer
        begun = time.time()
        self.inner.send_weights(iterator)
        entry = {"version": len(self.log) + 1, "paused": self._paused, "begun": begun}
        self.log.append({**entry, "sent": time.time()})

    def resume(self) -> None:
        self.inner.resume()
        self.log[-1]["resumed"] = time.time()

    def destroy(self) -> None:
        """Do nothing: the connection is used again by the next run."""


def transfer_for(model: Any, url: str) -> LoggedTransfer:
    """Return TRL's NCCL transfer of a model's weights to a vLLM server."""
    from accelerate import PartialState
    from trl.experimental.async_grpo.vllm_client import VLLMClient
    from trl.experimental.async_grpo.weight_transfer import WeightTransferClient

    PartialState()  # TRL's client logs through accelerate, which requires this state
    parameters = list(model.named_parameters())
    manifest = {
        "names": [name for name, _ in parameters],
        "dtype_names": [str(p.dtype).removeprefix("torch.") for _, p in parameters],
        "shapes": [list(p.shape) for _, p in parameters],
    }
    client = WeightTransferClient(VLLMClient(url), manifest, weight_sync_timeout=120)
    return LoggedTransfer(client)


def evaluate(given: Any, tokenizer: Any, n: int) -> dict[str, float]:
    """Run held-out mazes on the server at temperature 1, and return the share of solved ones."""
    begun = time.time()

    async def play(folder: str) -> Any:
        engine = VLLMEngine(given.server, given.served, timeout=60)
        sampling = Sampling(temperature=1.0)
        renderer = TemplateRenderer(tokenizer)
        policy = TokenPolicy(engine, renderer, sampling=sampling, max_tokens=MAX_TOKENS)
        async with policy:
            mazes = tasks(n, held_out=True)
            return await collect(SPEC, mazes, policy, folder, concurrency=given.concurrency)

    with tempfile.TemporaryDirectory() as folder:
        report = asyncio.run(play(folder))
    share = report.solved / max(report.sessions, 1)
    error = float(np.sqrt(share * (1 - share) / max(report.sessions, 1)))
    failed = sum(count for name, count in report.statuses.items() if name.startswith("failed"))
    return {
        "success": share,
        "standard_error": error,
        "games": report.sessions,
        "failed": failed,
        "seconds": time.time() - begun,
    }


class Results:
    """A file to which JSON lines are appended; a line is on disk when ``write`` returns."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.path = folder / "results.jsonl"

    def write(self, kind: str, **fields: Any) -> None:
        line = json.dumps({"kind": kind, "time": time.time(), **fields}, default=_plain)
        with self.path.open("a") as file:
            file.write(line + "\n")
            file.flush()
            os.fsync(file.fileno())
        if kind != "step":
            print(line[:600], flush=True)


def busy(calls: Sequence[Call], begun: float, ended: float) -> dict[str, float]:
    """Return rates and utilisation of the engine between two times."""
    inside = [c for c in calls if begun <= c.ended <= ended]
    seconds = max(ended - begun, 1e-9)
    edges = sorted((max(c.begun, begun), c.ended) for c in inside)
    covered, until = 0.0, begun
    for start, end in edges:
        covered += max(0.0, end - max(start, until))
        until = max(until, end)
    waits = np.array([c.ended - c.begun for c in inside] or [0.0])
    return {
        "seconds": seconds,
        "requests": len(inside),
        "requests_per_s": len(inside) / seconds,
        "sampled_tokens_per_s": sum(len(c.ids) for c in inside) / seconds,
        "prompt_tokens_per_s": sum(c.prompt for c in inside) / seconds,
        "engine_idle_share": 1 - covered / seconds,
        "requests_at_once": float(waits.sum()) / seconds,
        "request_ms_median": float(np.median(waits)) * 1e3,
    }


def save_calls(calls: Sequence[Call], path: Path) -> None:
    """Write calls as JSON lines."""
    with path.open("w") as file:
        for call in calls:
            file.write(json.dumps(call) + "\n")


def load_calls(folder: Path) -> list[Call]:
    """Read the files that the workers of a run wrote with ``save_calls``."""
    calls = []
    for path in sorted(folder.glob("calls-*.jsonl")):
        with path.open() as file:
            calls += [Call(*json.loads(line)) for line in file]
    return calls


def _plain(value: npt.NDArray[Any] | np.generic) -> Any:
    return value.tolist()
