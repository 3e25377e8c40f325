"""Bearer tokens and what each permits."""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
from typing import TYPE_CHECKING, Literal, TypeAlias

from trajgym.server._errors import Refused
from trajgym.trajectory import InvalidInput

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["Auth", "Right", "bearer_of", "check_bind", "is_loopback"]

Right: TypeAlias = Literal["admin", "judge", "trainer"]
"""Who may use an endpoint besides an admin."""
_MARK = "tg-"


class Auth:
    """Checks tokens; without a secret every client may do everything (loopback only).

    A session's token is derived from the secret and the session's id: it stays valid after a
    restart, and it identifies the session of agents that can only be given an API key.

    Args:
        secret: the admin token.
        judge: a token that may read sessions and add signals.
        trainer: a token that may read the feed, and pause, resume and announce weight updates.
    """

    def __init__(
        self, secret: str | None = None, judge: str | None = None, trainer: str | None = None
    ) -> None:
        self._secret = secret
        self._others = {"judge": judge, "trainer": trainer}

    @property
    def required(self) -> bool:
        """True if there is a secret."""
        return self._secret is not None

    def session_token(self, session_id: str) -> str:
        """Return the token that lets an agent use a session."""
        return f"{_MARK}{session_id}~{self._mac(session_id)}"

    def session_of(self, token: str | None) -> str | None:
        """Return the session that a token is valid for; None if the token is not a session's."""
        if token is None or not token.startswith(_MARK):
            return None
        name, _, mac = token[len(_MARK) :].rpartition("~")
        if not name or not hmac.compare_digest(mac.encode(), self._mac(name).encode()):
            return None
        return name

    def check_session(self, token: str | None, session_id: str) -> None:
        """Check that a token belongs to a session's agent or to an admin.

        Raises:
            Refused: 401.
        """
        if self._secret is None or self._is(token, self._secret):
            return
        if self.session_of(token) != session_id:
            raise _unknown()

    def check(self, token: str | None, right: Right = "admin") -> None:
        """Check that a token belongs to an admin, or to the role that ``right`` names.

        Raises:
            Refused: 401.
        """
        if self._secret is None or self._is(token, self._secret):
            return
        other = self._others.get(right)
        if other is not None and self._is(token, other):
            return
        raise _unknown()

    def _mac(self, session_id: str) -> str:
        key = (self._secret or "").encode()
        return hmac.new(key, session_id.encode(), hashlib.sha256).hexdigest()[:40]

    @staticmethod
    def _is(token: str | None, secret: str) -> bool:
        return token is not None and hmac.compare_digest(token.encode(), secret.encode())


def _unknown() -> Refused:
    return Refused(401, "missing or wrong token", kind="authentication_error")


def bearer_of(headers: Iterable[tuple[bytes, bytes]]) -> str | None:
    """Return the token of a request: ``Authorization: Bearer``, ``x-api-key`` or ``api-key``."""
    for name, value in headers:
        if name == b"authorization":
            scheme, _, token = value.decode("latin-1").partition(" ")
            if scheme.lower() == "bearer":
                return token.strip()
        elif name in {b"x-api-key", b"api-key"}:
            return value.decode("latin-1").strip()
    return None


def is_loopback(host: str) -> bool:
    """Return whether an address can be reached from this machine only."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def check_bind(host: str, auth: Auth) -> None:
    """Check that a server without a secret binds to a loopback address only.

    Raises:
        InvalidInput: the address is not loopback and there is no secret.
    """
    if not is_loopback(host) and not auth.required:
        raise InvalidInput(
            f"{host} is reachable from other machines: set a secret (TRAJGYM_SERVER_SECRET) or "
            "bind to 127.0.0.1",
        )
