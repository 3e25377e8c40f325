"""What the processes of a fleet get from a rollout worker: its policy, and its way to samples."""

from __future__ import annotations

import asyncio
import os
import pickle
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trajgym.adapters.trl._versions import ClockReader
from trajgym.rollout.fleet import Shard
from trajgym.trajectory import InvalidInput, Store

if TYPE_CHECKING:
    from collections.abc import Callable, MutableSequence

    from trajgym.adapters._annotating import Annotators
    from trajgym.adapters.trl._group_samples import GroupSamples, SampleBuilder
    from trajgym.adapters.trl._worker import RolloutWorker
    from trajgym.rollout import Policy, SealedGroup

__all__ = ["Maker", "SampleHandler", "process_environ", "run_directory"]

_RANK = {"RANK", "LOCAL_RANK", "GROUP_RANK", "ROLE_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE"}
_RANK |= {"ROLE_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"}


class SampleHandler:
    """Annotates a group and makes its samples, in the process that has run its sessions.

    Args:
        build: makes the samples.
        annotators: run before; closed with it.
    """

    def __init__(self, build: SampleBuilder, annotators: Annotators | None) -> None:
        self._build = build
        self._annotators = annotators
        self._turn = asyncio.Lock()

    async def __call__(self, sealed: SealedGroup, store: Store) -> GroupSamples:
        """Return the samples of a group.

        Signals are recorded for the sessions that are in ``store``: if another process ran some
        of them and died, the group's signals are used and not recorded.

        Raises:
            MissingSignals: sessions lack signals that the deriver reads.
            UnsupportedModality: the sessions contain images.
            RolloutFailed: the annotators have given up.
        """
        if self._annotators is not None:
            own = await asyncio.to_thread(_holds, store, sealed)
            await self._annotators(sealed, store if own else None)
        async with self._turn:
            return await asyncio.to_thread(self._build, sealed)

    async def close(self) -> None:
        """Close the annotators."""
        if self._annotators is not None:
            await self._annotators.close()


class Maker:
    """Makes a worker in each process of a fleet, of which the fleet uses some parts.

    Args:
        make: pickled function that makes the worker. It is unpickled only after the environment
            of the process has been set, since it imports what reads it.
        cells: shared memory of the clock, which only the start of a process can pass on.
    """

    def __init__(self, make: bytes, cells: MutableSequence[int]) -> None:
        self.worker: RolloutWorker | None = None
        """The worker of this process, once it is made."""
        self._make = make
        self._cells = cells

    def policy(self) -> Policy:
        """Return the policy of this process."""
        return self._made().policy

    def handler(self) -> SampleHandler:
        """Return what makes samples in this process."""
        return self._made().handler

    def __getstate__(self) -> tuple[bytes, MutableSequence[int]]:
        return self._make, self._cells

    def __setstate__(self, state: tuple[bytes, MutableSequence[int]]) -> None:
        self.worker = None
        self._make, self._cells = state

    def _made(self) -> RolloutWorker:
        if self.worker is None:
            make: Callable[..., RolloutWorker] = pickle.loads(self._make)  # noqa: S301 - our parent's
            self.worker = make(versions=ClockReader(cells=self._cells), shard=Shard.current())
        return self.worker


def process_environ() -> dict[str, str | None]:
    """Return the changes to the environment of a process beside a trainer's.

    Sessions must not use the trainer's GPU, and their process is not a rank of its process group.
    """
    ranks = [name for name in os.environ if name in _RANK or name.startswith("TORCHELASTIC_")]
    return {"CUDA_VISIBLE_DEVICES": "", "HIP_VISIBLE_DEVICES": "", **dict.fromkeys(ranks)}


def run_directory(store: Any) -> Path:
    """Return the run directory of a worker that was made for a fleet.

    Raises:
        InvalidInput: the worker has an open store.
    """
    if isinstance(store, Store):
        raise InvalidInput("the worker has an open store; give it the path of a run directory")
    path = Path(store)
    return path.parent if path.suffix == ".sqlite" else path


def _holds(store: Store, sealed: SealedGroup) -> bool:
    with store.read() as run:
        return all(run.locate(tree.record.id) is not None for tree in sealed.sessions)
