"""Which policy version the inference server holds, while a trainer replaces it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = ["VersionClock", "WatchedTransfer"]


class VersionClock:
    """The version that a server holds, as far as it is known; safe to call from any thread.

    Calling it gives the oldest and the newest version possible. They differ while an update is
    under way, and always if nobody tells when updates begin: then a server can be one ahead of the
    last version that was announced.
    """

    def __init__(self, version: int = 0) -> None:
        self._range = (version, version)
        self.watched = False
        """True if :meth:`begin_update` is called for every update."""

    def __call__(self) -> tuple[int, int]:
        low, high = self._range
        return (low, high) if self.watched else (low, max(high, low + 1))

    @property
    def version(self) -> int:
        """The last version that was announced."""
        return self._range[0]

    def begin_update(self) -> None:
        """Say that from now on tokens can come from the next version."""
        low = self._range[0]
        self._range = (low, low + 1)

    def announce(self, version: int) -> None:
        """Say that the server holds ``version`` and nothing older."""
        self._range = (version, version)


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
