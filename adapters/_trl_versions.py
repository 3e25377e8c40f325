"""Which policy version the inference server holds, while a trainer replaces it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from trajgym.trajectory import InvalidInput

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, MutableSequence

__all__ = ["ClockReader", "VersionClock", "WatchedTransfer", "watch"]


class VersionClock:
    """The version that a server holds, as far as it is known; safe to call from any thread.

    Calling it gives the oldest and the newest version possible. They differ while an update is
    under way, and always if nobody tells when updates begin: then a server can be one ahead of the
    last version that was announced.

    Args:
        version: the first one.
        cells: two integers to keep the state in; shared memory makes it a clock for several
            processes, one of which tells it of updates.
    """

    def __init__(self, version: int = 0, *, cells: MutableSequence[int] | None = None) -> None:
        # Both ends of the range in one integer: no reader sees one end without the other.
        self._cells: MutableSequence[int] = [2 * version, 0] if cells is None else cells

    def __call__(self) -> tuple[int, int]:
        low, updating = divmod(self._cells[0], 2)
        return low, low + (updating if self.watched else 1)

    @property
    def watched(self) -> bool:
        """True if :meth:`begin_update` is called for every update."""
        return bool(self._cells[1])

    @watched.setter
    def watched(self, value: bool) -> None:
        self._cells[1] = int(value)

    @property
    def version(self) -> int:
        """The last version that was announced."""
        return self._cells[0] // 2

    def begin_update(self) -> None:
        """Say that from now on tokens can come from the next version."""
        self._cells[0] |= 1

    def announce(self, version: int) -> None:
        """Say that the server holds ``version`` and nothing older."""
        self._cells[0] = 2 * version


class ClockReader(VersionClock):
    """A clock that another process sets. News that arrive here by another way are old."""

    def begin_update(self) -> None:
        """Do nothing."""

    def announce(self, version: int) -> None:
        """Do nothing."""


class WatchedTransfer:
    """TRL's weight transfer, with word of each update sent ahead.

    Args:
        inner: the transfer that does the work.
        clock: learns when an update begins.
        pause: called before the server pauses.
        resume: called when it goes on.
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
    """Let a worker know when the trainer's weight updates begin, if the two fit together.

    Raises:
        InvalidInput: another temperature or bound of staleness, or LoRA adapters that are served
            under names of their own.
    """
    for name in ("temperature", "max_staleness"):
        mine, theirs = getattr(worker, name), getattr(trainer.args, name)
        if mine != theirs:
            raise InvalidInput(f"the worker has {name}={mine}, the trainer {theirs}")
    if getattr(trainer, "_lora_sync", False):
        raise InvalidInput(
            "the server was started with --enable-lora, where each version has another model "
            "name: start it without, so that merged weights are sent",
        )
    if trainer.weight_transfer is not None:
        trainer.weight_transfer = WatchedTransfer(
            trainer.weight_transfer, worker.versions, worker.pause, worker.resume
        )
