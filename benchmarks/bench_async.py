"""Wall-clock of collection and training, synchronous and asynchronous, on a simulated engine.

The real :class:`Runner` with its store, admission rule and seals runs on an event loop with a
virtual clock: where nothing can happen before the next timer, the clock is advanced to it. So hours
of a cluster pass in seconds, through the code that runs in production; only the engine and the
trainer are simulated:

* Lengths of responses are log-normal, cut at ``CAP`` tokens. Their parameters are assumptions:
  ``math`` (median 6,000, 99th percentile at the cap) stands for reasoning models on mathematics,
  ``agent`` (median 1,500, a tenth above 8,000) for sessions whose lengths differ more, and ``even``
  for hardly any tail.
* The engine decodes a step for all running sequences in ``STEP + EACH * n`` seconds, for n
  sequences on one device: 256 sequences give 10,000 tokens a second, about what AReaL reports for
  its 1.5B model (231,000 on four nodes, three quarters of which generate, arXiv 2505.24298). At
  most 256 sequences run on a device.
* Training is assumed to take 30,000 tokens a second on each device, so that AReaL's split of 3 : 1
  is balanced; an update of weights takes ``UPDATE`` seconds, in which nothing is decoded.
  Sequences continue after it.
* A batch has 256 sequences for each device, as AReaL's 512 groups of 16 on 32 devices; one device
  is simulated, of which an asynchronous schedule gives three quarters to generation.

``sync`` uses all devices for generation, then all for training. ``eta`` N uses three quarters and
one quarter at the same time, with ``Admission(staleness=N)``.

``bound`` is the work-conserving schedule: a simulation of its own, without the SDK, that fills
every slot at the instant at which the rule admits a group. ``ideal`` is the larger of pure
generation and pure training time at full rate, which no schedule beats.

Usage: python -m benchmarks.bench_async [--steps 12] [--lengths math agent even]
           [--eta 0 1 2 4 8] [--json FILE] [--plot FILE]
"""

from __future__ import annotations

import argparse
import asyncio
import heapq
import json
import math
import random
import selectors
import statistics
import tempfile
import time
from collections import deque
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from trajgym.envs import Budgets, Env, EnvSpec, Reply, Sampled, ToolResult, tool
from trajgym.rollout import Policy, PolicyRequest, Runner, call
from trajgym.rollout._sample import oldest_version
from trajgym.rollout.rules import Admission
from trajgym.trajectory import Segment, Store, Task

CAP = 32768
STEP, EACH, SLOTS = 0.010, 0.00006, 256
TRAIN_RATE, UPDATE = 30_000.0, 2.0
BATCH, SAMPLES = 32, 8
GENERATE, TRAIN = 0.75, 0.25
LENGTHS = {"math": (6000.0, 0.73), "agent": (1500.0, 1.3), "even": (6000.0, 0.1)}


def length_of(kind: str, group: int, sample: int) -> int:
    """Return the tokens of a session, the same in every schedule."""
    median, sigma = LENGTHS[kind]
    chance = random.Random(f"{kind}/{group}/{sample}")
    return max(1, min(CAP, round(chance.lognormvariate(math.log(median), sigma))))


# A clock that waits for nothing ---------------------------------------------------------------


class _Selector(selectors.DefaultSelector):  # type: ignore[misc,valid-type]
    """Advances the loop's clock instead of waiting, unless a thread works for the loop."""

    loop: VirtualLoop

    def select(self, timeout: float | None = None) -> Any:
        if found := super().select(0):
            return found
        if timeout == 0:
            return []
        if self.loop.busy() or timeout is None:
            return super().select(0.005)
        self.loop.now += timeout
        return []


class VirtualLoop(asyncio.SelectorEventLoop):
    """An event loop whose clock is advanced to the next timer when there is nothing to do."""

    def __init__(self) -> None:
        self.now = 0.0
        self.threads = 0
        self.stores: list[WatchedStore] = []
        selector = _Selector()
        selector.loop = self
        super().__init__(selector)

    def time(self) -> float:
        return self.now

    def busy(self) -> bool:
        """Return whether a thread will call back."""
        return self.threads > 0 or any(store.writing for store in self.stores)

    def run_in_executor(self, executor: Any, function: Any, *args: Any) -> Any:
        self.threads += 1
        future = super().run_in_executor(executor, function, *args)
        future.add_done_callback(lambda _: setattr(self, "threads", self.threads - 1))
        return future


class WatchedStore(Store):
    """A store that says whether its thread has something to write that is waited for."""

    def __init__(self, path: Path) -> None:
        self._acks: deque[Any] = deque()
        super().__init__(path)

    @property
    def writing(self) -> bool:
        while self._acks and self._acks[0].done:
            self._acks.popleft()
        return bool(self._acks)

    def _write(self, sql: str, *values: Any, lazy: bool = False) -> Any:
        ack = super()._write(sql, *values, lazy=lazy)
        if not lazy:
            self._acks.append(ack)
        return ack


# The simulated cluster -----------------------------------------------------------------------


def step_seconds(running: int, devices: float) -> float:
    """Return the seconds in which each running sequence gets a token."""
    return STEP + EACH * running / devices


class Engine:
    """Decodes all running sequences together; they share the devices.

    Args:
        devices: number of devices, which may be a fraction.
    """

    def __init__(self, devices: float) -> None:
        self.devices = devices
        self.version = 0
        self.tokens = 0
        self._served = 0.0
        """Tokens that a sequence has got that runs since the beginning."""
        self._at = 0.0
        self._ends: list[tuple[float, int, asyncio.Future[None]]] = []
        self._n = 0
        self._stopped = False
        self._timer: asyncio.TimerHandle | None = None

    async def generate(self, tokens: int) -> list[int]:
        """Return when the tokens are decoded; with the versions that decoded them."""
        loop = asyncio.get_running_loop()
        self._advance(loop.time())
        first = self.version
        done: asyncio.Future[None] = loop.create_future()
        self._n += 1
        heapq.heappush(self._ends, (self._served + tokens, self._n, done))
        self._plan(loop)
        await done
        self.tokens += tokens
        return list(range(first, self.version + 1))

    def hold(self) -> None:
        """Stop decoding."""
        loop = asyncio.get_running_loop()
        self._advance(loop.time())
        self._stopped = True
        self._plan(loop)

    def go(self, version: int) -> None:
        """Continue with other weights."""
        loop = asyncio.get_running_loop()
        self._at, self._stopped, self.version = loop.time(), False, version
        self._plan(loop)

    def _advance(self, now: float) -> None:
        if self._ends and not self._stopped:
            self._served += (now - self._at) / step_seconds(len(self._ends), self.devices)
        self._at = now

    def _plan(self, loop: asyncio.AbstractEventLoop) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._ends and not self._stopped:
            left = max(0.0, self._ends[0][0] - self._served)
            seconds = left * step_seconds(len(self._ends), self.devices)
            self._timer = loop.call_at(self._at + seconds, self._finish)

    def _finish(self) -> None:
        loop = asyncio.get_running_loop()
        self._advance(loop.time())
        while self._ends and self._ends[0][0] <= self._served + 1e-6:
            done = heapq.heappop(self._ends)[2]
            if not done.done():  # its session was cancelled
                done.set_result(None)
        self._plan(loop)


class Answer(Env):
    """A question that is answered in one turn."""

    budgets: ClassVar[Budgets] = Budgets(turns=None, seconds=None, seconds_per_turn=None)

    async def reset(self, task: Task, seed: int | None) -> str:  # noqa: ARG002
        return "Answer."

    @tool
    async def answer(self) -> ToolResult:
        """Answer."""
        return ToolResult(content="", done=True)

    async def verify(self) -> float:
        return 1.0


class Simulated(Policy):
    """Takes as long as the engine does; one recorded token for each version that took part."""

    name = "engine:simulated"

    def __init__(self, engine: Engine, kind: str) -> None:
        self.engine = engine
        self.kind = kind

    async def sample(self, request: PolicyRequest) -> Reply:
        assert request.task is not None
        tokens = length_of(self.kind, request.task.data["number"], request.sample)
        versions = await self.engine.generate(tokens)
        return Reply(
            message=call("answer"),
            sampled=Sampled(
                prompt_ids=np.array([1, 2], dtype=np.int32),
                response_ids=np.arange(3, 3 + len(versions), dtype=np.int32),
                logprobs=np.full(len(versions), -1.0, dtype=np.float32),
                segments=tuple(Segment(1, version, version) for version in versions),
            ),
        )


@dataclass(slots=True)
class Schedule:
    """What a schedule took.

    Args:
        seconds: until the last update.
        waited: seconds in which the trainer waited for groups.
        staleness: versions that the oldest token of each session was behind when it was used.
        tokens: tokens that the trainer used.
    """

    seconds: float = 0.0
    waited: float = 0.0
    staleness: list[int] = field(default_factory=list)
    tokens: int = 0


def tokens_of(kind: str, number: int) -> int:
    return sum(length_of(kind, number, sample) for sample in range(SAMPLES))


async def play(kind: str, steps: int, eta: int, generate: float, train: float) -> Schedule:
    """Train on the runner's groups."""
    loop = asyncio.get_running_loop()
    assert isinstance(loop, VirtualLoop)
    engine, found = Engine(generate), Schedule()
    number = 0

    def tasks() -> Any:
        nonlocal number
        while True:
            yield Task(id=f"t{number}", data={"number": number})
            number += 1

    with tempfile.TemporaryDirectory() as folder:
        async with WatchedStore(Path(folder) / "run.sqlite") as store:
            loop.stores.append(store)
            async with Runner(
                EnvSpec(id="benchmarks.bench_async:Answer"),
                tasks(),
                Simulated(engine, kind),
                store=store,
                samples=SAMPLES,
                concurrency=round(SLOTS * generate),
                admission=Admission(batch=BATCH, staleness=eta),
                deadline=1e9,
            ) as runner:
                for step in range(steps):
                    since = loop.time()
                    batch = [await anext(runner) for _ in range(BATCH)]
                    found.waited += loop.time() - since
                    for sealed in batch:
                        versions = [oldest_version(tree) or 0 for tree in sealed.sessions]
                        found.staleness += [step - version for version in versions]
                    n = sum(tokens_of(kind, int(one.group.task[1:])) for one in batch)
                    found.tokens += n
                    await asyncio.sleep(n / (TRAIN_RATE * train))
                    engine.hold()
                    await asyncio.sleep(UPDATE)
                    engine.go(step + 1)
                    runner.set_version(step + 1)
                found.seconds = loop.time()
            loop.stores.remove(store)
    return found


def simulated(kind: str, steps: int, eta: int, generate: float, train: float) -> Schedule:
    loop = VirtualLoop()
    try:
        return loop.run_until_complete(play(kind, steps, eta, generate, train))
    finally:
        loop.run_until_complete(loop.shutdown_default_executor())
        loop.close()


# The bounds ----------------------------------------------------------------------------------


def bound(kind: str, steps: int, eta: int, generate: float, train: float) -> float:
    """Return the seconds of the work-conserving schedule, by a simulation without the SDK."""
    slots = round(SLOTS * generate)
    now = served = 0.0
    running: list[tuple[float, int]] = []  # end in served tokens, group
    queue: deque[tuple[int, int]] = deque()
    left: dict[int, int] = {}
    begun = version = 0
    ready: list[int] = []  # a heap: the group that was begun first is used first
    busy_until, phase = math.inf, "wait"
    while version < steps:
        # Everything that can happen at this instant.
        while len(running) < slots:
            if not queue:
                if begun >= (eta + version + 1) * BATCH:
                    break
                queue.extend((begun, sample) for sample in range(SAMPLES))
                left[begun] = SAMPLES
                begun += 1
            group, sample = queue.popleft()
            heapq.heappush(running, (served + length_of(kind, group, sample), group))
        if phase == "wait" and len(ready) >= BATCH:
            batch = [heapq.heappop(ready) for _ in range(BATCH)]
            busy_until = now + sum(tokens_of(kind, one) for one in batch) / (TRAIN_RATE * train)
            phase = "train"
        # The next event: the end of a sequence, or of the trainer's phase.
        ends = math.inf
        if running and phase != "update":
            ends = now + (running[0][0] - served) * step_seconds(len(running), generate)
        then = min(ends, busy_until)
        if running and phase != "update":
            served += (then - now) / step_seconds(len(running), generate)
        now = then
        while running and running[0][0] <= served + 1e-6:
            group = heapq.heappop(running)[1]
            left[group] -= 1
            if not left[group]:
                heapq.heappush(ready, group)
        if now >= busy_until:
            if phase == "train":
                busy_until, phase = now + UPDATE, "update"
            else:
                busy_until, phase, version = math.inf, "wait", version + 1
    return now


def ideal(tokens: int, generate: float, train: float, steps: int) -> float:
    """Return the larger of pure generation and pure training time."""
    slots = round(SLOTS * generate)
    decode = tokens * step_seconds(slots, generate) / slots
    return max(decode, tokens / (TRAIN_RATE * train)) + steps * UPDATE


def row_of(kind: str, steps: int, eta: int, generate: float, train: float) -> dict[str, Any]:
    begun = time.perf_counter()
    found = simulated(kind, steps, eta, generate, train)
    best = bound(kind, steps, eta, generate, train)
    return {
        "seconds": found.seconds,
        "bound": best,
        "over_bound": found.seconds / best,
        "ideal": ideal(found.tokens, generate, train, steps),
        "trainer_idle": found.waited / found.seconds,
        "tokens_per_second": found.tokens / found.seconds,
        "staleness_mean": statistics.fmean(found.staleness),
        "staleness_max": max(found.staleness),
        "sessions": len(found.staleness),
        "real_seconds": time.perf_counter() - begun,
    }


def plot(result: dict[str, Any], path: Path) -> None:
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot

    figure, (left, right) = pyplot.subplots(1, 2, figsize=(10, 4), layout="constrained")
    for kind, rows in result["lengths"].items():
        etas = [int(eta) for eta in rows["eta"]]
        places = range(len(etas))
        ratios = [rows["eta"][str(eta)]["speedup"] for eta in etas]
        best = [rows["sync"]["bound"] / rows["eta"][str(eta)]["bound"] for eta in etas]
        name = f"{kind} (median {rows['median']:g}, sigma {rows['sigma']:g})"
        (line,) = left.plot(places, ratios, "o-", label=name)
        left.plot(places, best, "x:", color=line.get_color())
        old = [rows["eta"][str(eta)]["staleness_mean"] for eta in etas]
        right.plot(places, old, "o-", color=line.get_color(), label=kind)
    left.axhline(1.0, color="grey", linewidth=0.8)
    left.axhline(2.77, color="grey", linewidth=0.8, linestyle="--")
    left.text(len(etas) - 1, 2.73, "AReaL's best, 2.77", ha="right", va="top", fontsize=8)
    left.plot([], [], "x:", color="grey", label="work-conserving bound")
    left.set_ylabel("times faster than synchronous")
    right.set_ylabel("mean age of a session's oldest token (versions)")
    for axes in (left, right):
        axes.set_xticks(range(len(etas)), [str(eta) for eta in etas])
        axes.set_xlabel("staleness of the admission rule (eta)")
        axes.set_ylim(bottom=0.0)
        axes.legend(fontsize=8, loc="lower right")
        axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=120)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--lengths", nargs="+", choices=list(LENGTHS), default=list(LENGTHS))
    parser.add_argument("--eta", type=int, nargs="+", default=[0, 1, 2, 4, 8])
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    parser.add_argument("--plot", type=Path, help="also draw them")
    given = parser.parse_args()
    lengths: dict[str, Any] = {}
    for kind in given.lengths:
        median, sigma = LENGTHS[kind]
        print(f"{kind}: log-normal, median {median:g}, sigma {sigma:g}, {given.steps} updates")
        sync = row_of(kind, given.steps, 0, 1.0, 1.0)
        rows: dict[str, Any] = {}
        lengths[kind] = {"median": median, "sigma": sigma, "sync": sync, "eta": rows}
        show("sync", sync, 1.0)
        for eta in given.eta:
            row = row_of(kind, given.steps, eta, GENERATE, TRAIN)
            row["speedup"] = sync["seconds"] / row["seconds"]
            rows[str(eta)] = row
            show(f"eta {eta}", row, row["speedup"])
    result = {
        "when": datetime.now(UTC).isoformat(timespec="seconds"),
        "steps": given.steps,
        "parameters": {
            "cap": CAP,
            "step_seconds": STEP,
            "seconds_per_sequence": EACH,
            "slots": SLOTS,
            "train_tokens_per_second": TRAIN_RATE,
            "update_seconds": UPDATE,
            "groups_per_batch": BATCH,
            "samples": SAMPLES,
            "generate": GENERATE,
            "train": TRAIN,
        },
        "lengths": lengths,
    }
    if given.json:
        given.json.write_text(json.dumps(result, indent=1) + "\n")
    if given.plot:
        plot(result, given.plot)


def show(name: str, row: dict[str, Any], speedup: float) -> None:
    print(
        f"  {name:6} {row['seconds']:8.0f} s  {speedup:5.2f} x sync  "
        f"{row['over_bound']:6.4f} x bound  {row['seconds'] / row['ideal']:5.2f} x ideal  "
        f"trainer idle {row['trainer_idle']:4.0%}  age {row['staleness_mean']:.2f} "
        f"(most {row['staleness_max']})  {row['real_seconds']:.0f} s real",
        flush=True,
    )


if __name__ == "__main__":
    main()
