"""The endpoints that a sandbox may reach, from its spec."""

from __future__ import annotations

import ipaddress
import re
from typing import TYPE_CHECKING, NamedTuple

from trajgym.trajectory import InvalidInput

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["Route", "hosts_of", "plan_routes"]

FIRST = ipaddress.IPv4Address("127.64.0.1")
NAME = re.compile(r"(?!-)[A-Za-z0-9_-]{1,63}(\.[A-Za-z0-9_-]{1,63})*\.?")


class Route(NamedTuple):
    """One endpoint that may be reached."""

    host: str
    """Name or IPv4 address that programs inside use."""
    port: int
    address: str
    """Address on which the relay listens, inside the sandbox's own network."""
    target: str
    """Name or address that the sandbox's host connects to."""
    target_port: int
    given: bool
    """Whether the target was given separately: then it need not be a public address."""


def plan_routes(allow: Sequence[str]) -> list[Route]:
    """Read the entries of a spec; see :class:`SandboxSpec`.

    Raises:
        InvalidInput: an entry is not ``host:port`` or ``host:port=target:port``.
    """
    addresses: dict[str, str] = {}
    routes: dict[tuple[str, int], Route] = {}
    for entry in allow:
        inside, given, outside = entry.partition("=")
        host, port = _split(inside, entry)
        target, target_port = _split(outside, entry) if given else (host, port)
        address = addresses.setdefault(host, _address(host, len(addresses), entry))
        route = Route(host, port, address, target, target_port, bool(given) or host == address)
        if routes.setdefault((host, port), route) != route:
            raise InvalidInput(f"allow entry {entry!r}: {host}:{port} has another target already")
    return list(routes.values())


def hosts_of(routes: Sequence[Route]) -> dict[str, str]:
    """Return names and their addresses, for ``/etc/hosts`` inside."""
    return {route.host: route.address for route in routes if route.host != route.address}


def _split(text: str, entry: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    if not NAME.fullmatch(host) or len(host) > 253:
        raise InvalidInput(
            f"allow entry {entry!r}: name every host, like example.org:443 or "
            "api.test:80=127.0.0.1:8080; patterns and IPv6 addresses are not understood"
        )
    if not (port.isascii() and port.isdigit() and 0 < int(port) < 1 << 16):
        raise InvalidInput(f"allow entry {entry!r}: {port!r} is not a port")
    return host.lower().rstrip("."), int(port)


def _address(host: str, number: int, entry: str) -> str:
    if not re.fullmatch(r"[0-9.]+|(.*\.)?localhost", host):
        return str(FIRST + number)
    try:
        address = ipaddress.IPv4Address("127.0.0.1" if host.endswith("localhost") else host)
    except ValueError:
        raise InvalidInput(f"allow entry {entry!r}: {host} is not an IPv4 address") from None
    if address.is_loopback or address.is_unspecified or address.is_multicast:
        raise InvalidInput(
            f"allow entry {entry!r}: inside, {host} is the sandbox itself; give the service a "
            f"name, like service.test:80={host}:8080"
        )
    return host
