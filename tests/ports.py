"""A port for a server that a test starts later, or starts again."""

from __future__ import annotations

import random
import socket

__all__ = ["free_port"]

_CHANCE = random.SystemRandom()  # Hypothesis seeds the global one, alike in all workers


def free_port() -> int:
    """Return a port of 127.0.0.1 that is free.

    It lies below those that the kernel gives to connections and servers without a port, so that
    none of another process takes it before the server binds it, or between two servers.
    """
    for _ in range(1000):
        port = _CHANCE.randrange(20_000, 30_000)
        try:
            with socket.create_server(("127.0.0.1", port)):
                return port
        except OSError:
            continue
    raise OSError("no free port between 20000 and 30000")
