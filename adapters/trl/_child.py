"""The main function of a rollout worker's process."""

from __future__ import annotations

import contextlib
import os
import pickle
import queue
import signal
import threading
import traceback
from typing import TYPE_CHECKING, Any, NamedTuple

from trajgym.adapters.trl._versions import ClockReader
from trajgym.rollout.fleet._spawned import private
from trajgym.trajectory import InvalidInput

if TYPE_CHECKING:
    from collections.abc import MutableSequence
    from multiprocessing.connection import Connection

    from trajgym.adapters.trl._worker import RolloutWorker
    from trajgym.rollout.fleet import Shard

__all__ = ["Expected", "serve"]

_BEAT = 0.25
"""Seconds between two reports to the trainer's process."""
_BATCH = 64
"""Most samples in one message."""
_DEVICES = ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES")
_RANK = {"RANK", "LOCAL_RANK", "GROUP_RANK", "ROLE_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE"}
_RANK |= {"ROLE_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"}


class Expected(NamedTuple):
    """Settings of the worker that the trainer's process relies on."""

    temperature: float
    max_staleness: int


def serve(
    make: bytes,
    cells: MutableSequence[int],
    expected: Expected,
    shard: Shard,
    control: Connection,
    samples: Connection,
) -> None:
    """Make a worker and run it until the trainer's process sends ``stop`` or exits.

    Args:
        make: pickled function that makes the worker.
        cells: shared memory of the clock.
        expected: settings that the worker must have.
        shard: index and number of the workers.
        control: commands in; health, metrics and failures out.
        samples: receives lists of pairs of session and sample.
    """
    # Ctrl-C is sent to the whole process group; the trainer's process handles it.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    ended = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: ended.set())
    private(control, samples)
    # Before any import that reads these variables: sessions must not use the trainer's GPU, and
    # this process is not a rank of the trainer's process group.
    for name in _DEVICES:
        os.environ[name] = ""
    for name in [name for name in os.environ if name in _RANK or name.startswith("TORCHELASTIC_")]:
        del os.environ[name]
    parent = os.getppid()
    try:
        worker = _made(make, cells, expected, shard)
        worker.start()
        threading.Thread(target=_feed, args=(worker, samples), daemon=True).start()
        try:
            with contextlib.suppress(EOFError, OSError):  # the trainer's process exited
                _obey(worker, control, parent, ended)
        finally:
            worker.stop()
    except BaseException:  # noqa: BLE001 - boundary: sent to the trainer's process, which raises
        with contextlib.suppress(OSError):
            control.send(("failed", traceback.format_exc()[-4000:]))
    else:
        with contextlib.suppress(OSError):
            _report(worker, control)


def _made(
    make: bytes, cells: MutableSequence[int], expected: Expected, shard: Shard
) -> RolloutWorker:
    build = pickle.loads(make)  # noqa: S301 - pickled by the trainer's process
    worker: RolloutWorker = build(versions=ClockReader(cells=cells), shard=shard)
    found = Expected(worker.temperature, worker.max_staleness)
    if found != expected:
        raise InvalidInput(
            f"the worker has temperature={found.temperature} and max_staleness="
            f"{found.max_staleness}, but RolloutProcesses was made with "
            f"temperature={expected.temperature} and max_staleness={expected.max_staleness}"
        )
    if not isinstance(worker.versions, ClockReader):
        raise InvalidInput("the worker has its own clock: make it with versions=versions")
    return worker


def _obey(worker: RolloutWorker, control: Connection, parent: int, ended: threading.Event) -> None:
    # If the parent changed, the trainer's process died while another child holds the pipe open.
    while os.getppid() == parent:
        if ended.is_set():
            control.send(("failed", "the process received SIGTERM"))
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
        return  # the trainer's process exited; so will this one
