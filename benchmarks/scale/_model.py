"""A discrete-event model of collection: engines, collecting processes, sandboxes, one trainer.

A session takes a place, waits for a sandbox on its node, and repeats turns: CPU of its collecting
process, the engine, an action on a core of its node. Then it is verified there, and the next
session takes its place. Once all of its group have ended, the group is delivered by a process that
the trainer reads from, which makes its rows. No session begins while as many are undelivered as
there are places.

A process is a queue with one server; a node's cores are servers of one queue. An engine's speed is
that of its number of sequences when a turn begins.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from heapq import heappop, heappush, heapreplace
from math import ceil
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from benchmarks.scale._calibrate import Costs

__all__ = ["Cluster", "Found", "Workload", "simulate"]

_DRAWS = 1 << 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """Sessions; every figure is an assumption about an environment, not a measurement.

    Args:
        turns: of a session.
        tokens: median of a turn's sampled tokens, log-normal.
        tokens_sigma: its shape.
        action: median of the seconds of an action on a core, log-normal.
        action_sigma: its shape.
        verify: seconds of verification on a core.
        samples: sessions of a group.
    """

    turns: int = 12
    tokens: float = 200.0
    tokens_sigma: float = 0.8
    action: float = 0.3
    action_sigma: float = 1.2
    verify: float = 8.0
    samples: int = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """Machines.

    Args:
        engines: GPUs that generate.
        sandboxes: most at a time; as many sessions run.
        node_sandboxes: most on a node.
        node_cores: of a node.
        kind: of sandboxes, ``docker`` or ``embedded``.
        processes: that collect.
        deliveries: processes that sealed groups are delivered to, each with a share of them.
        ready: sandboxes that a pool starts ahead of need on each node; 0 is no pool.
        step: seconds of a decoding step of an engine with one sequence.
        each: seconds more for each further sequence.
        version: seconds from one weight update to the next.
        update: seconds of an update, in which nothing is generated.
    """

    engines: int
    sandboxes: int
    node_sandboxes: int = 200
    node_cores: int = 64
    kind: str = "docker"
    processes: int = 1
    deliveries: int = 1
    ready: int = 0
    step: float = 0.010
    each: float = 0.00006
    version: float = 300.0
    update: float = 5.0


@dataclass(slots=True)
class Found:
    """What a simulation gave, over its measured part.

    Args:
        sessions_per_second: delivered.
        turns_per_second: of these sessions.
        tokens_per_second: of these sessions.
        waits: mean seconds of a session by cause; ``group`` and ``delivery`` come after its end.
        busy: share of the time in which processes, deliveries and cores work; ``sequences`` is the
            mean number of sequences of an engine.
        staleness: mean number of weight updates between a session's first turn and its delivery.
        store_mb_per_second: written.
    """

    sessions_per_second: float = 0.0
    turns_per_second: float = 0.0
    tokens_per_second: float = 0.0
    waits: dict[str, float] = field(default_factory=dict)
    busy: dict[str, float] = field(default_factory=dict)
    staleness: float = 0.0
    store_mb_per_second: float = 0.0


class _Server:
    """A queue with one server, first come first served."""

    __slots__ = ("free", "worked")

    def __init__(self) -> None:
        self.free = 0.0
        self.worked = 0.0

    def end(self, now: float, seconds: float, ahead: int = 0) -> float:
        """Return when work that arrives now is done; up to ``ahead`` units were done before."""
        self.free = max(now - ahead * seconds, self.free) + seconds
        self.worked += seconds
        return max(now, self.free)


class _Node:
    """The cores of a node, and what starts its sandboxes."""

    __slots__ = ("cores", "starter", "worked")

    def __init__(self, cores: int) -> None:
        self.cores = [0.0] * cores
        self.starter = _Server()
        self.worked = 0.0

    def end(self, now: float, seconds: float) -> float:
        """Return when work that arrives now is done by one of the cores."""
        end = max(now, self.cores[0]) + seconds
        heapreplace(self.cores, end)
        self.worked += seconds
        return end


class _Session:
    __slots__ = ("begun", "ended", "engine", "node", "number", "process", "tokens", "turn")

    def __init__(self, number: int, simulation: _Simulation) -> None:
        self.number = number
        self.node = simulation.nodes[number % len(simulation.nodes)]
        self.process = simulation.processes[number % len(simulation.processes)]
        self.engine = number % len(simulation.running)
        self.turn = self.tokens = 0
        self.begun = self.ended = 0.0


def _draws(median: float, sigma: float, seed: int) -> list[float]:
    """Return log-normal numbers, the same in every simulation."""
    found: list[float] = (
        np.random.default_rng(seed).lognormal(np.log(median), sigma, _DRAWS).tolist()
    )
    return found


def simulate(cluster: Cluster, workload: Workload, costs: Costs, generations: float = 4.0) -> Found:
    """Simulate until ``generations`` sessions for each place have been delivered.

    The first half of them fills the queues and is not measured.
    """
    return _Simulation(cluster, workload, costs).run(generations)


_Step = Callable[[float, Any], None]


class _Simulation:
    def __init__(self, cluster: Cluster, workload: Workload, costs: Costs) -> None:
        self.cluster, self.workload, self.costs = cluster, workload, costs
        nodes = ceil(cluster.sandboxes / cluster.node_sandboxes)
        self.nodes = [_Node(cluster.node_cores) for _ in range(nodes)]
        self.processes = [_Server() for _ in range(cluster.processes)]
        self.deliveries = [_Server() for _ in range(cluster.deliveries)]
        self.running = [0] * cluster.engines
        self.tokens = _draws(workload.tokens, workload.tokens_sigma, 1)
        self.actions = _draws(workload.action, workload.action_sigma, 2)
        self.start = 1.0 / costs.starts[cluster.kind]
        self.alone = 0.0 if cluster.ready else costs.start[cluster.kind]
        self.command = costs.command[cluster.kind]
        self.delivery = (costs.delivery + costs.rows) * workload.turns / costs.delivered
        self.events: list[tuple[float, int, _Step, Any]] = []
        self.order = 0
        self.numbers = 0
        self.undelivered = 0
        self.held: deque[float] = deque()
        """Since when places are free that no session may take."""
        self.groups: dict[int, list[_Session]] = {}
        self.reset()

    def reset(self) -> None:
        """Begin to measure."""
        self.waits: defaultdict[str, float] = defaultdict(float)
        self.delivered = self.sampled = self.stale = 0

    def run(self, generations: float) -> Found:
        goal = ceil(generations * self.cluster.sandboxes / 2)
        for _ in range(self.cluster.sandboxes):
            self.begin(0.0)
        now = 0.0
        while self.delivered < goal:
            now = self.next()
        self.reset()
        since, before = now, self.worked(now)
        while self.delivered < goal:
            now = self.next()
        return self.found(now, now - since, before)

    def next(self) -> float:
        now, _, step, subject = heappop(self.events)
        step(now, subject)
        return now

    def at(self, when: float, step: _Step, subject: Any) -> None:
        self.order += 1
        heappush(self.events, (when, self.order, step, subject))

    # A session ----------------------------------------------------------------------------

    def begin(self, now: float) -> None:
        """Give a free place to a session, unless too many wait for delivery."""
        if self.undelivered >= self.cluster.sandboxes:
            self.held.append(now)
            return
        session = _Session(self.numbers, self)
        self.numbers += 1
        ready = session.node.starter.end(now, self.start, self.cluster.ready) + self.alone
        self.waits["start"] += ready - now
        self.at(ready, self.started, session)

    def started(self, now: float, session: _Session) -> None:
        session.begun = now
        self.sample(now, session, self.costs.session + self.costs.turn)

    def sample(self, now: float, session: _Session, cpu: float) -> None:
        asked = session.process.end(now, cpu)
        tokens = self.tokens[(session.number * 31 + session.turn) % _DRAWS]
        session.tokens += round(tokens)
        self.running[session.engine] += 1
        speed = self.cluster.step + self.cluster.each * self.running[session.engine]
        end = asked + tokens * speed
        # Nothing is generated while weights are updated.
        version = self.cluster.version
        end += (end // version - asked // version) * self.cluster.update
        self.waits["process"] += asked - now
        self.waits["engine"] += end - asked
        self.at(end, self.sampled_turn, session)

    def sampled_turn(self, now: float, session: _Session) -> None:
        self.running[session.engine] -= 1
        seconds = self.actions[(session.number * 17 + session.turn) % _DRAWS]
        end = session.node.end(now, seconds) + self.command
        self.waits["action"] += seconds + self.command
        self.waits["core"] += end - now - seconds - self.command
        self.at(end, self.acted, session)

    def acted(self, now: float, session: _Session) -> None:
        session.turn += 1
        if session.turn < self.workload.turns:
            self.sample(now, session, self.costs.turn)
            return
        end = session.node.end(now, self.workload.verify)
        self.waits["verify"] += self.workload.verify
        self.waits["core"] += end - now - self.workload.verify
        self.at(end, self.verified, session)

    def verified(self, now: float, session: _Session) -> None:
        session.ended = now
        self.undelivered += 1
        number = session.number // self.workload.samples
        group = self.groups.setdefault(number, [])
        group.append(session)
        if len(group) == self.workload.samples:
            del self.groups[number]
            server = self.deliveries[number % len(self.deliveries)]
            end = server.end(now, self.delivery * len(group))
            self.waits["group"] += sum(now - one.ended for one in group)
            self.waits["delivery"] += (end - now) * len(group)
            self.at(end, self.deliver, group)
        self.begin(now)

    def deliver(self, now: float, group: list[_Session]) -> None:
        version = self.cluster.version
        for session in group:
            self.sampled += session.tokens
            self.stale += int(now // version - session.begun // version)
        self.delivered += len(group)
        self.undelivered -= len(group)
        for _ in range(min(len(group), len(self.held))):
            self.waits["held"] += now - self.held.popleft()
            self.begin(now)

    # Figures ------------------------------------------------------------------------------

    def worked(self, now: float) -> list[float]:
        """Return the seconds of work done so far by processes, deliveries and cores."""
        served = [
            sum(one.worked - max(0.0, one.free - now) for one in pool)
            for pool in (self.processes, self.deliveries)
        ]
        ahead = sum(max(0.0, free - now) for node in self.nodes for free in node.cores)
        return [*served, sum(node.worked for node in self.nodes) - ahead]

    def found(self, now: float, seconds: float, before: list[float]) -> Found:
        cluster, rate = self.cluster, self.delivered / seconds
        servers = (
            len(self.processes),
            len(self.deliveries),
            len(self.nodes) * cluster.node_cores,
        )
        names = ("processes", "delivery", "cores")
        busy = {
            name: (after - then) / seconds / number
            for name, after, then, number in zip(
                names, self.worked(now), before, servers, strict=True
            )
        }
        waits = {cause: total / self.delivered for cause, total in self.waits.items()}
        turns = rate * self.workload.turns
        return Found(
            sessions_per_second=rate,
            turns_per_second=turns,
            tokens_per_second=self.sampled / seconds,
            waits=waits,
            busy=busy | {"sequences": waits["engine"] * rate / cluster.engines},
            staleness=self.stale / self.delivered,
            store_mb_per_second=turns * self.costs.turn_bytes / 1e6,
        )
