"""What a fleet starts its workers with, and local processes as one way to do it."""

from __future__ import annotations

import multiprocessing
import pickle
from dataclasses import dataclass
from multiprocessing.reduction import ForkingPickler
from typing import TYPE_CHECKING, Protocol

from trajgym.rollout.fleet._child import serve
from trajgym.rollout.fleet._spawned import Spawned
from trajgym.rollout.fleet._tidy import tidy
from trajgym.trajectory import InvalidInput

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence
    from typing import Any

    from trajgym.envs import EnvSpec
    from trajgym.rollout.fleet._child import Recipe

__all__ = ["Launcher", "Link", "ProcessLauncher", "Room"]


@dataclass(frozen=True, slots=True, eq=False)
class Room:
    """Room for a worker.

    Args:
        node: id of the machine; empty for this one.
        sessions: most sessions that the worker may run at the same time.
    """

    node: str
    sessions: int


class Link(Protocol):
    """The fleet's side of a running worker. Only :meth:`join` blocks."""

    @property
    def pid(self) -> int:
        """The worker's process id on its machine; 0 if it is not known yet."""
        ...

    @property
    def end(self) -> str:
        """How the worker ended, in words; empty while it is alive."""
        ...

    @property
    def lost(self) -> bool:
        """Whether it ended because its machine left, which is no fault of its sessions."""
        ...

    def send(self, *message: Any) -> None:
        """Send a message; ignored if the worker has ended."""
        ...

    def kill(self) -> None:
        """End the worker now."""
        ...

    def join(self, seconds: float) -> bool:
        """Wait for the worker to end and read its last messages; on timeout kill it (False)."""
        ...


class Launcher(Protocol):
    """Starts the workers of a fleet, and knows where there is room for them.

    Used on one event loop, by one fleet at a time.
    """

    streamed: bool
    """Whether workers send their records to the fleet, which writes them, instead of writing files
    in the run directory."""

    def check(self, parts: Sequence[object]) -> None:
        """Raise ``InvalidInput`` for what can't be sent to a worker."""
        ...

    async def open(self, environments: Sequence[EnvSpec]) -> None:
        """Prepare for a fleet whose sessions run in these environments."""
        ...

    async def close(self) -> None:
        """Undo :meth:`open`."""
        ...

    async def reserve(self, sessions: int) -> Room | None:
        """Reserve room for a worker of at most ``sessions`` sessions; None if there is none now."""
        ...

    def release(self, room: Room) -> None:
        """Give back what was reserved."""
        ...

    def shortage(self) -> str:
        """Return why there is no room, in words."""
        ...

    def launch(
        self,
        recipe: Recipe,
        room: Room,
        index: int,
        *,
        receive: Callable[[Any], None],
        on_end: Callable[[], None],
    ) -> Link:
        """Start a worker.

        Args:
            recipe: what it makes its runner from; see :func:`serve`.
            room: where it runs.
            index: of the worker in the fleet.
            receive: called with each of its messages, in order, in a thread; may block.
            on_end: called in that thread when no more messages will come.
        """
        ...

    async def leaving(self) -> Collection[str]:
        """Return the nodes that are about to leave; their workers get no more tasks."""
        ...

    async def tidy(self, node: str, environments: Sequence[EnvSpec]) -> bool:
        """Remove what dead workers left on a node; return False if the node has left."""
        ...


class ProcessLauncher:
    """Starts workers as spawned processes of this machine, which write the run directory."""

    streamed = False

    def __init__(self) -> None:
        self._context = multiprocessing.get_context("spawn")

    def check(self, parts: Sequence[object]) -> None:
        """Raise ``InvalidInput`` for what can't be pickled."""
        for part in parts:
            try:
                ForkingPickler.dumps(part)  # as the start of a process does
            except (pickle.PicklingError, AttributeError, TypeError) as error:
                raise InvalidInput(
                    f"{part!r} can't be pickled for another process: {error}. Use module-level "
                    "functions and classes (no lambdas)",
                ) from error
            except RuntimeError:
                continue  # shared memory, which only the start of a process can pass on

    async def open(self, environments: Sequence[EnvSpec]) -> None:
        """Do nothing."""

    async def close(self) -> None:
        """Do nothing."""

    async def reserve(self, sessions: int) -> Room | None:
        """Return room for all sessions: what is too much is for the caller to know."""
        return Room("", sessions)

    def release(self, room: Room) -> None:
        """Do nothing."""

    def shortage(self) -> str:
        """Return nothing: there is always room."""
        return ""

    def launch(
        self,
        recipe: Recipe,
        room: Room,
        index: int,
        *,
        receive: Callable[[Any], None],
        on_end: Callable[[], None],
    ) -> Link:
        """Spawn a process."""
        del room
        return Spawned(
            self._context,
            serve,
            (recipe,),
            name=f"trajgym-fleet-{index}",
            receivers=[receive],
            on_end=on_end,
        )

    async def leaving(self) -> Collection[str]:
        """Return nothing: this machine stays."""
        return ()

    async def tidy(self, node: str, environments: Sequence[EnvSpec]) -> bool:
        """Remove what dead processes left."""
        del node
        await tidy(environments)
        return True
