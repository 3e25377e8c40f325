"""What the owner of a session's environment takes part in: its calls, one by one."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trajgym.server.dialects import ClientCall
    from trajgym.trajectory import Turn

__all__ = ["CallWatch"]


class CallWatch:
    """Follows the calls of a session; by default it permits all of them and does nothing."""

    def asked(self, call: ClientCall, running: int) -> None:
        """Permit a new call, and edit its body; called at its arrival.

        Args:
            call: the request.
            running: number of calls without an answer so far.

        Raises:
            Refused: the session may make no further call.
        """

    async def admit(self) -> None:
        """Wait until the engine may be asked.

        Raises:
            Refused: that took too long.
        """

    def recorded(self, turns: Sequence[Turn]) -> None:
        """Take the turns of an answered call, which are durable now."""

    def failed(self, status: int, cause: str) -> None:
        """Note a call that got no answer.

        Args:
            status: HTTP status that the client received; below 500 the engine's own.
            cause: the message.
        """
