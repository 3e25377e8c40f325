"""Errors of the session server.

::

    TrajgymError
    └── ServerError
        ├── Refused            the request is answered with an HTTP error
        └── UpstreamError      the engine is unreachable, or its answer is malformed
"""

from __future__ import annotations

from trajgym.trajectory import TrajgymError

__all__ = ["Refused", "ServerError", "UpstreamError"]


class ServerError(TrajgymError):
    """Root of the server's errors."""


class Refused(ServerError):
    """A request that is answered with an HTTP error.

    Args:
        status: HTTP status.
        message: what was wrong and what to do.
        kind: type of the error, as client libraries name it.
        retry_after: seconds after which the client should try again.
        allow: methods that the resource has, for a 405.
    """

    def __init__(
        self,
        status: int,
        message: str,
        *,
        kind: str = "invalid_request_error",
        retry_after: float | None = None,
        allow: str = "",
    ) -> None:
        super().__init__(message)
        self.status = status
        self.kind = kind
        self.retry_after = retry_after
        self.allow = allow

    @property
    def headers(self) -> list[tuple[bytes, bytes]]:
        """The headers of the response that belong to the error."""
        found = []
        if self.retry_after is not None:
            found.append((b"retry-after", b"%d" % max(1, self.retry_after)))
        if self.allow:
            found.append((b"allow", self.allow.encode()))
        return found


class UpstreamError(ServerError):
    """The engine could not be reached, or its answer is malformed."""
