"""Lower bounds for sandboxes, such as bare shells, and figures of this host."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = [
    "BareShell", "BareSocket", "Engine", "available", "descriptors", "grown_image", "held_by",
    "load", "resident",
]  # fmt: skip

BUFFER = 1 << 18


class BareSocket:
    """A shell in a container over one socket, which writes a mark after each line."""

    def __init__(self, api: Any, container: str) -> None:
        exec_id = api.exec_create(container, ["/bin/sh"], stdin=True)["Id"]
        body = json.dumps({"Detach": False, "Tty": False}).encode()
        head = (
            f"POST /exec/{exec_id}/start HTTP/1.1\r\nHost: d\r\nContent-Type: application/json\r\n"
        )
        head += f"Connection: Upgrade\r\nUpgrade: tcp\r\nContent-Length: {len(body)}\r\n\r\n"
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.connect("/var/run/docker.sock")
        self.socket.sendall(head.encode() + body)
        while b"\r\n\r\n" not in self.socket.recv(4096):
            pass

    def run(self, line: str) -> None:
        self.socket.sendall(f"{line}\necho END\n".encode())
        seen = b""
        while not seen.endswith(b"END\n"):
            seen += self.socket.recv(65536)

    def read(self, size: int) -> float:
        """Read so many bytes, discard them, and return the rate in MB per second."""
        buffer = bytearray(BUFFER)
        begun = time.perf_counter()
        self.socket.sendall(f"head -c {size} /dev/zero\n".encode())
        left = size
        while left > 0:
            left -= self.socket.recv_into(buffer)
        return size / 1e6 / (time.perf_counter() - begun)

    def close(self) -> None:
        self.socket.close()


class BareShell:
    """A shell of this host over two pipes."""

    def __init__(self) -> None:
        pipe = subprocess.PIPE
        self.process = subprocess.Popen(["/bin/sh"], stdin=pipe, stdout=pipe, bufsize=0)
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.stdin, self.stdout = self.process.stdin, self.process.stdout

    def run(self, line: str) -> None:
        self.stdin.write(f"{line}\necho END\n".encode())
        seen = b""
        while not seen.endswith(b"END\n"):
            seen += os.read(self.stdout.fileno(), 65536)

    def read(self, size: int) -> float:
        """Read so many bytes, discard them, and return the rate in MB per second."""
        begun = time.perf_counter()
        self.stdin.write(f"head -c {size} /dev/zero\n".encode())
        left = size
        while left > 0:
            left -= len(os.read(self.stdout.fileno(), BUFFER))
        return size / 1e6 / (time.perf_counter() - begun)

    def close(self) -> None:
        self.stdin.close()
        self.stdout.close()
        self.process.wait(10)


class Engine:
    """What a Docker engine does alone.

    Args:
        api: the low-level client of the Docker SDK.
        image: what containers are started from.
    """

    def __init__(self, api: Any, image: str) -> None:
        self._api = api
        self._image = image
        self._label = {"trajgym": "1", "trajgym-bench": str(os.getpid())}

    def start(self) -> str:
        """Create and start a container, and return its id."""
        api = self._api
        host = api.create_host_config(network_mode="none", init=True, cap_drop=["ALL"])
        command = ["sleep", "600"]
        made = api.create_container(self._image, command, host_config=host, labels=self._label)
        api.start(made["Id"])
        return str(made["Id"])

    def start_with_shell(self, _: int) -> str:
        """Start a container and a shell in it, as a sandbox that is ready has one."""
        made = self.start()
        command = ["/bin/sh", "-c", "echo ready; read line"]
        exec_id = self._api.exec_create(made, command, stdin=True)["Id"]
        stream = self._api.exec_start(exec_id, socket=True)
        stream._sock.recv(64)
        stream.close()
        return made

    def remove(self, name: str) -> None:
        self._api.remove_container(name, force=True)

    def seconds(self) -> float:
        """Return the seconds of one start."""
        begun = time.perf_counter()
        made = self.start()
        took = time.perf_counter() - begun
        self.remove(made)
        return took

    def rate(self, work: Callable[[int], str], count: int = 12) -> float:
        """Return the containers per second that are started in 4 threads."""
        with ThreadPoolExecutor(4) as threads:
            begun = time.perf_counter()
            ids = list(threads.map(work, range(count)))
            took = time.perf_counter() - begun
            list(threads.map(self.remove, ids))
        return count / took


def grown_image(base: str) -> str:
    """Build an image of more than 300 MB on a base image, unless it exists, and return its name."""
    image = "trajgym/bench:300"
    have = subprocess.run(["docker", "image", "inspect", image], capture_output=True)
    if have.returncode != 0:
        recipe = f"FROM {base}\nUSER root\nRUN head -c 150000000 /dev/urandom > /opt/large\n"
        command = ["docker", "build", "--quiet", "--network", "none", "--tag", image, "-"]
        subprocess.run(command, input=recipe.encode(), check=True, stdout=subprocess.DEVNULL)
    return image


def load() -> float:
    """Return the load average of the last minute."""
    return os.getloadavg()[0]


def available() -> float:
    """Return the MiB of memory that are available on the host."""
    return _kibibytes("/proc/meminfo", "MemAvailable") / 1024


def resident() -> float:
    """Return the MiB of memory that this process uses."""
    return _kibibytes("/proc/self/status", "VmRSS") / 1024


def held_by(names: list[str]) -> float:
    """Return the MiB of the processes of sandboxes; shared memory is counted proportionally.

    Args:
        names: texts that their control groups or, for the engine's helpers, command lines contain.
    """
    total = 0
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            words = (folder / "cgroup").read_text() + (folder / "cmdline").read_text()
            if any(name in words for name in names):
                total += _kibibytes(f"{folder}/smaps_rollup", "Pss:")
        except (OSError, StopIteration):
            continue  # it has exited
    return total / 1024


def descriptors() -> int:
    """Return the number of open file descriptors of this process."""
    return len(list(Path("/proc/self/fd").iterdir()))


def _kibibytes(path: str, name: str) -> int:
    lines = Path(path).read_text().splitlines()
    return int(next(line for line in lines if line.startswith(name)).split()[1])
