"""Failures from outside: of the engine, of sandboxes and of the fleet's processes."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
from collections import Counter
from typing import TYPE_CHECKING

from benchmarks.soak._machine import below, children

if TYPE_CHECKING:
    from collections.abc import Callable

    from benchmarks.soak._machine import Machine
    from benchmarks.soak._plan import Plan

_SPARED = "worker 0"
"""Not killed nor stopped: the memory of a process that lives through it all shows a leak."""


class Chaos:
    """Lets parts fail when so many sessions have ended.

    Args:
        plan: has the numbers of sessions; victims are drawn from its seed.
        restart_engine: kills the engine and starts it again.
    """

    def __init__(self, plan: Plan, restart_engine: Callable[[], None]) -> None:
        self.done: Counter[str] = Counter()
        self._plan = plan
        self._chance = random.Random(plan.seed)
        self._kinds: dict[str, Callable[[Machine], bool]] = {
            "engine killed": lambda _: restart_engine() is None,
            "sandbox killed": self._sandbox,
            "worker killed": lambda machine: self._worker(machine, signal.SIGKILL),
            "worker stopped": lambda machine: self._worker(machine, signal.SIGSTOP),
            "parent killed": self._parent,
        }
        every = {
            "engine killed": plan.engine_every,
            "sandbox killed": plan.sandbox_every,
            "worker killed": plan.kill_every,
            "worker stopped": plan.stop_every,
        }
        self._due = sorted(
            (self._chance.randint(at - number // 2, at), kind)
            for kind, number in every.items()
            if number
            for at in range(number, plan.sessions, number)
        )
        if plan.parent_at:
            self._due = sorted([*self._due, (int(plan.sessions * plan.parent_at), "parent killed")])

    def act(self, machine: Machine, ended: int) -> None:
        """Let fail what is due; what finds no victim is tried again the next time."""
        again = []
        while self._due and self._due[0][0] <= ended:
            at, kind = self._due.pop(0)
            if self._kinds[kind](machine):
                self.done[kind] += 1
            else:
                again.append((at, kind))
            if kind == "parent killed":
                break
        self._due = again + self._due

    def _parent(self, machine: Machine) -> bool:
        os.kill(machine.parent, signal.SIGKILL)
        return True

    def _worker(self, machine: Machine, number: signal.Signals) -> bool:
        pids = [pid for role, pid in machine.workers().items() if role != _SPARED]
        victims = [pid for pid in pids if below(pid)]  # has sandboxes
        if self._plan.sandbox == "docker":
            owners = {owner for _, owner in containers()}
            victims = [pid for pid in pids if pid in owners]
        if not victims:
            return False
        os.kill(self._chance.choice(victims), number)
        return True

    def _sandbox(self, machine: Machine) -> bool:
        pids = set(machine.workers().values())
        if self._plan.sandbox == "docker":
            names = [name for name, owner in containers() if owner in pids]
            if not names:
                return False
            command = self._chance.choice([["rm", "-f"], ["kill"]])
            done = subprocess.run(
                ["docker", *command, self._chance.choice(names)], capture_output=True
            )
            return done.returncode == 0
        found = [child for pid in pids for child in children(pid)]
        if not found:
            return False
        victim = self._chance.choice(found)
        for pid in [victim, *below(victim)]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        return True


def containers() -> list[tuple[str, int]]:
    """Return the ids of the containers of all fleets of this host, with the pid of their owner."""
    line = '{{.ID}} {{.Label "trajgym.owner"}}'
    command = ["docker", "ps", "-a", "--filter", "label=trajgym.owner", "--format", line]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    found = []
    for one in done.stdout.splitlines():
        name, _, owner = one.partition(" ")
        found.append((name, int(owner.split(".")[3])))
    return found
