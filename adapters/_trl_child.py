"""What runs in the process of a rollout worker."""

from __future__ import annotations

import contextlib
import os
import pickle
import queue
import signal
import threading
import traceback
from typing import TYPE_CHECKING, Any, NamedTuple

from trajgym.adapters._trl_versions import ClockReader
from trajgym.trajectory import InvalidInput

if TYPE_CHECKING:
    from collections.abc import MutableSequence
    from multiprocessing.connection import Connection

    from trajgym.adapters._trl_shard import Shard
    from trajgym.adapters._trl_worker import RolloutWorker

__all__ = ["Promise", "serve"]

_BEAT = 0.25
"""Seconds between two words to the trainer's process."""
_BATCH = 64
"""Samples that go in one message at most."""
_DEVICES = ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES")
_RANK = {"RANK", "LOCAL_RANK", "GROUP_RANK", "ROLE_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE"}
_RANK |= {"ROLE_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"}


class Promise(NamedTuple):
    """What the trainer's side says of the worker."""

    temperature: float
    max_staleness: int


def serve(
    make: bytes,
    cells: MutableSequence[int],
    promise: Promise,
    shard: Shard,
    samples: Connection,
    control: Connection,
) -> None:
    """Make a worker and run it until the trainer's process says stop, or is gone.

    Args:
        make: pickled function that makes it.
        cells: of the clock.
        promise: what the worker must be like.
        shard: which of the workers it is.
        samples: takes lists of pairs of session and sample.
        control: commands in; health, metrics and failures out.
    """
    # Ctrl-C reaches the whole group; the trainer's process decides what it means.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    told = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: told.set())
    for pipe in (samples, control):  # what sessions start must not hold them
        os.set_inheritable(pipe.fileno(), False)  # noqa: FBT003 - the function takes no keywords
    # Before anything that could look: a trainer's GPU is not for its sessions, and no library
    # here is a rank of its process group.
    for name in _DEVICES:
        os.environ[name] = ""
    for name in [name for name in os.environ if name in _RANK or name.startswith("TORCHELASTIC_")]:
        del os.environ[name]
    parent = os.getppid()
    try:
        worker = _made(make, cells, promise, shard)
        worker.start()
        threading.Thread(target=_feed, args=(worker, samples), daemon=True).start()
        try:
            with contextlib.suppress(EOFError, OSError):  # the trainer's process is gone
                _obey(worker, control, parent, told)
        finally:
            worker.stop()
    except BaseException:  # noqa: BLE001 - boundary: the trainer's process raises it
        with contextlib.suppress(OSError):
            control.send(("failed", traceback.format_exc()[-4000:]))
    else:
        with contextlib.suppress(OSError):
            _report(worker, control)


def _made(
    make: bytes, cells: MutableSequence[int], promise: Promise, shard: Shard
) -> RolloutWorker:
    build = pickle.loads(make)  # noqa: S301 - the trainer's process made it
    worker: RolloutWorker = build(versions=ClockReader(cells=cells), shard=shard)
    found = Promise(worker.temperature, worker.max_staleness)
    if found != promise:
        raise InvalidInput(f"the worker that was made has {found}, its RolloutProcesses {promise}")
    if not isinstance(worker.versions, ClockReader):
        raise InvalidInput("the worker has a clock of its own: make it with versions=versions")
    return worker


def _obey(worker: RolloutWorker, control: Connection, parent: int, told: threading.Event) -> None:
    # Another parent: the trainer's process died, though a child of it still holds the pipe.
    while os.getppid() == parent:
        if told.is_set():
            control.send(("failed", "SIGTERM told it to end"))
            return
        if control.poll(_BEAT):
            command, *arguments = control.recv()
            if command == "stop":
                return
            _COMMANDS[command](worker, *arguments)
        _report(worker, control)


_COMMANDS: dict[str, Any] = {
    "pause": lambda worker: worker.pause(),
    "resume": lambda worker: worker.resume(),
    "version": lambda worker, version: worker.update_model_version(version),
}


def _report(worker: RolloutWorker, control: Connection) -> None:
    while True:
        try:
            control.send(("metrics", worker.metrics_queue.get_nowait()))
        except queue.Empty:
            break
    control.send(("health", worker.health))


def _feed(worker: RolloutWorker, samples: Connection) -> None:
    try:
        while True:
            samples.send(worker.rollout_buffer.get_pairs(_BATCH))
    except OSError:
        return  # the trainer's process is gone, and so will be this one
