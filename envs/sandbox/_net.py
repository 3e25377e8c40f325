"""Network namespaces, and sockets that listen in them. Everything here blocks for a moment."""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import os
import socket
import struct
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from trajgym.envs.sandbox._routes import Route

__all__ = ["listen_in", "new_namespace", "visiting"]

T = TypeVar("T")
CLONE_NEWNET = 0x40000000
SIOCSIFFLAGS, SIOCSIFADDR, SIOCSIFNETMASK = 0x8914, 0x8916, 0x891C
IFF_UP = 1
BACKLOG = 64
OWN = "/proc/thread-self/ns/net"

_libc = ctypes.CDLL(None, use_errno=True)


def new_namespace() -> int:
    """Make a namespace with a loopback interface of its own and nothing else.

    Returns:
        A descriptor; the namespace exists as long as it is open or a process is inside.

    Raises:
        OSError: this process is not permitted to.
    """

    def make() -> int:
        _check(_libc.unshare(CLONE_NEWNET), "a network namespace can't be made")
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
            flags = struct.pack("16sH14x", b"lo", IFF_UP)
            fcntl.ioctl(control, SIOCSIFFLAGS, flags)
        return os.open(OWN, os.O_RDONLY | os.O_CLOEXEC)

    return _in_thread(make)


def listen_in(namespace: int, routes: Sequence[Route]) -> list[socket.socket]:
    """Open a listening socket for each route in a namespace; it is used from outside of it.

    Args:
        namespace: a descriptor.
        routes: addresses outside 127.0.0.0/8 are added to the namespace's loopback interface.

    Raises:
        OSError: this process is not permitted to, or an address is in use.
    """

    def listen() -> list[socket.socket]:
        _check(_libc.setns(namespace, CLONE_NEWNET), "the network namespace can't be entered")
        _add_addresses(sorted({r.address for r in routes if not r.address.startswith("127.")}))
        made: list[socket.socket] = []
        try:
            for route in routes:
                made.append(socket.socket(socket.AF_INET, socket.SOCK_STREAM))
                made[-1].setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                made[-1].bind((route.address, route.port))
                made[-1].listen(BACKLOG)
                made[-1].settimeout(0.0)
        except BaseException:
            for each in made:
                each.close()
            raise
        return made

    return _in_thread(listen)


@contextlib.contextmanager
def visiting(namespace: int | None) -> Iterator[None]:
    """Run this thread, and processes that it starts, in a namespace; None changes nothing.

    Raises:
        OSError: it can't be entered or left.
    """
    if namespace is None:
        yield
        return
    home = os.open(OWN, os.O_RDONLY | os.O_CLOEXEC)
    try:
        _check(_libc.setns(namespace, CLONE_NEWNET), "the network namespace can't be entered")
        try:
            yield
        finally:
            _check(_libc.setns(home, CLONE_NEWNET), "the network namespace can't be left")
    finally:
        os.close(home)


def _add_addresses(addresses: Sequence[str]) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
        for number, address in enumerate(addresses):
            for request, text in ((SIOCSIFADDR, address), (SIOCSIFNETMASK, "255.255.255.255")):
                name = f"lo:{number}".encode()
                packed = struct.pack("16sHH4s8x", name, socket.AF_INET, 0, socket.inet_aton(text))
                fcntl.ioctl(control, request, packed)


def _in_thread(work: Callable[[], T]) -> T:
    """Run in a new thread: the namespace that it enters must not affect other work."""
    with ThreadPoolExecutor(1, "trajgym-net") as pool:
        return pool.submit(work).result()


def _check(result: int, what: str) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")
