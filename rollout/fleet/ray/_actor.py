"""What runs on the nodes of a Ray cluster. Imported there by name."""

from __future__ import annotations

import asyncio
import contextlib
import os
import pickle
import threading
import time
import traceback
from typing import TYPE_CHECKING, Any, NamedTuple

from trajgym.rollout.fleet._child import Failure, Worker
from trajgym.rollout.fleet._tidy import tidy
from trajgym.rollout.fleet.ray._mailbox import Mailbox

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trajgym.envs import EnvSpec

__all__ = ["Capacity", "FleetActor", "probe", "tidy_node"]

_FETCH = 1.0
"""Seconds that a call waits for a message."""
_MEMORY = 256 * 1024**2
"""Bytes of memory that a sandbox is assumed to need where a node does not declare its capacity."""


class Capacity(NamedTuple):
    """How many sandboxes a node can hold, from what its processors and its memory allow."""

    by_cpu: int
    """In all."""
    by_memory: int
    """Besides what is running now."""


class FleetActor:
    """A worker of a fleet, in a thread of an actor.

    The actor is detached, so that it can close its sessions and their sandboxes when the fleet's
    process dies: without a call for ``lease`` seconds, it does so and exits.

    Args:
        lease: seconds without a call after which the fleet is gone.
        directory: working directory, if the node has it.
    """

    def __init__(self, lease: float, directory: str) -> None:
        with contextlib.suppress(OSError):
            os.chdir(directory)
        self._lease = lease
        self._mailbox = Mailbox()
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self, recipe: bytes) -> int:
        """Start the worker, unless it has been started; return the process id."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, args=(recipe,), daemon=True)
            self._thread.start()
            threading.Thread(target=self._watch, daemon=True).start()
        return os.getpid()

    def put(self, number: int, message: Any) -> None:
        """Pass a message to the worker; see :meth:`Mailbox.put`."""
        self._mailbox.put(number, message)

    def fetch(self, received: int) -> tuple[list[Any], bool]:
        """Return the worker's next messages; see :meth:`Mailbox.fetch`."""
        return self._mailbox.fetch(received, _FETCH)

    def _run(self, recipe: bytes) -> None:
        try:
            worker = Worker(pickle.loads(recipe), self._mailbox)  # noqa: S301 - from the fleet
        except Exception:  # noqa: BLE001 - boundary: sent to the fleet, which raises it
            text = traceback.format_exc()[-4000:]
            self._mailbox.send(("failed", Failure(None, f"on node {os.uname().nodename}: {text}")))
            self._mailbox.close()
        else:
            worker.run()
        self._ended.set()

    def _watch(self) -> None:
        """End this process once the fleet is gone and the sessions are closed."""
        while time.monotonic() - self._mailbox.fetched_at < self._lease:
            time.sleep(_FETCH)
        self._mailbox.lose()  # the worker closes its sessions, and has a deadline for it
        self._ended.wait()
        os._exit(0)


def probe() -> Capacity:
    """Return the capacity of the node that this is called on."""
    with open("/proc/meminfo") as file:  # noqa: PTH123 - not a path of ours
        lines = dict(line.split(":", 1) for line in file)
    free = int(lines["MemAvailable"].split()[0]) * 1024
    return Capacity(4 * len(os.sched_getaffinity(0)), free // _MEMORY)


def tidy_node(environments: Sequence[EnvSpec], directory: str) -> None:
    """Remove what dead workers left on the node that this is called on."""
    with contextlib.suppress(OSError):
        os.chdir(directory)
    asyncio.run(tidy(environments))
