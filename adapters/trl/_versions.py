"""The policy version of the inference server while a trainer updates its weights."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from trajgym.trajectory import InvalidInput

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, MutableSequence

__all__ = ["ClockReader", "VersionClock", "WatchedTransfer", "watch"]


class VersionClock:
    """The range of versions that a server may have; safe to call from any thread.

    Calling it returns the oldest and the newest possible version. They differ during an update, and
    always if :meth:`begin_update` is not called: the server may then be one ahead of the last
    announced version.

    Args:
        version: the initial version.
        cells: two integers that hold the state; in shared memory, several processes can read the
            clock, and one of them updates it.
    """

    def __init__(self, version: int = 0, *, cells: MutableSequence[int] | None = None) -> None:
        # Both ends of the range are in one integer, so that readers never see only one of them.
        self._cells: MutableSequence[int] = [2 * version, 0] if cells is None else cells

    def __call__(self) -> tuple[int, int]:
        low, updating = divmod(self._cells[0], 2)
        return low, low + (updating if self.watched else 1)

    @property
    def watched(self) -> bool:
        """Whether :meth:`begin_update` is called for every update."""
        return bool(self._cells[1])

    @watched.setter
    def watched(self, value: bool) -> None:
        self._cells[1] = int(value)

    @property
    def version(self) -> int:
        """The last announced version."""
        return self._cells[0] // 2

    def begin_update(self) -> None:
        """Record that an update started: tokens may now come from the next version."""
        self._cells[0] |= 1

    def announce(self, version: int) -> None:
        """Record that the server has ``version`` and no older weights."""
        self._cells[0] = 2 * version


class ClockReader(VersionClock):
    """A clock that another process updates; calls in this process have no effect."""

    def begin_update(self) -> None:
        """Do nothing."""

    def announce(self, version: int) -> None:
        """Do nothing."""


class WatchedTransfer:
    """TRL's weight transfer, which also reports the start of each update.

    Args:
        inner: the actual transfer.
        clock: updated when an update starts.
        pause: called before the server pauses.
        resume: called after it resumed.
    """

    def __init__(
        self,
        inner: Any,
        clock: VersionClock,
        pause: Callable[[], None],
        resume: Callable[[], None],
    ) -> None:
        self.inner = inner
        self._clock = clock
        self._pause = pause
        self._resume = resume
        clock.watched = True

    def init_weight_transfer(self) -> None:
        """See TRL's ``WeightTransferProtocol``."""
        self.inner.init_weight_transfer()

    def pause(self) -> None:
        """See TRL's ``WeightTransferProtocol``."""
        self._pause()
        self.inner.pause()

    def send_weights(self, iterator: Iterator[Any]) -> None:
        """See TRL's ``WeightTransferProtocol``."""
        self._clock.begin_update()
        self.inner.send_weights(iterator)

    def resume(self) -> None:
        """See TRL's ``WeightTransferProtocol``."""
        self.inner.resume()
        self._resume()

    def destroy(self) -> None:
        """See TRL's ``WeightTransferProtocol``."""
        self.inner.destroy()


class _Worker(Protocol):
    temperature: float
    max_staleness: int
    versions: VersionClock

    def pause(self) -> None: ...

    def resume(self) -> None: ...


def watch(worker: _Worker, trainer: Any) -> None:
    """Report the trainer's weight updates to a worker with the same settings.

    Raises:
        InvalidInput: temperature or ``max_staleness`` differ, or LoRA adapters are served under
            separate names.
    """
    for name in ("temperature", "max_staleness"):
        mine, theirs = getattr(worker, name), getattr(trainer.args, name)
        if mine != theirs:
            raise InvalidInput(f"the worker has {name}={mine}, but the trainer has {theirs}")
    if getattr(trainer, "_lora_sync", False):
        raise InvalidInput(
            "the server was started with --enable-lora, so that each version has its own model "
            "name: start it without the flag, so that merged weights are sent",
        )
    if trainer.weight_transfer is not None:
        trainer.weight_transfer = WatchedTransfer(
            trainer.weight_transfer, worker.versions, worker.pause, worker.resume
        )
