"""Sandboxes: latency of commands, reading, starts, forks, memory. Medians unless said otherwise.

    python benchmarks/bench_sandbox.py                   # everything but what follows
    python benchmarks/bench_sandbox.py --swe-rex PYTHON  # swe-rex too, by a Python that has it
    python benchmarks/bench_sandbox.py --row 1000        # so many sandboxes in a row, leaks counted

Needs the base image (scripts/base-image.sh) for the Docker part; without an engine it is left out.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import socket
import statistics
import subprocess
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trajgym.envs.sandbox import (
    DockerProvider,
    EmbeddedProvider,
    Limits,
    Sandbox,
    SandboxProvider,
    SandboxSpec,
    SandboxUnavailable,
    WarmPool,
)

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

IMAGE = "trajgym/base:bookworm"
COUNT = 200
PROGRAM = "ls / >/dev/null"
SWE_REX = """
import asyncio, json, statistics, sys, time
from swerex.deployment.local import LocalDeployment
from swerex.deployment.docker import DockerDeployment
from swerex.runtime.abstract import BashAction, CreateBashSessionRequest

async def measure(deployment):
    await deployment.start()
    try:
        await deployment.runtime.create_session(CreateBashSessionRequest())
        times = []
        for _ in range(40):
            begun = time.perf_counter()
            await deployment.runtime.run_in_session(BashAction(command="true"))
            times.append(time.perf_counter() - begun)
        return 1000 * statistics.median(times)
    finally:
        await deployment.stop()

async def main():
    found = {}
    docker = lambda: DockerDeployment(image=sys.argv[1])
    for name, make in (("local", LocalDeployment), ("docker", docker)):
        try:
            found[name] = await asyncio.wait_for(measure(make()), 120)
        except Exception as error:
            found[name] = f"{type(error).__name__}: {error}"[:120]
    print("RESULT", json.dumps(found))

asyncio.run(main())
"""


def say(what: str, value: float | str, unit: str = "ms") -> None:
    text = value if isinstance(value, str) else f"{value:10.3f} {unit}"
    print(f"  {what:<58}{text}", flush=True)


async def median(work: Callable[[], Awaitable[object]], count: int = COUNT) -> float:
    times = []
    for _ in range(count):
        begun = time.perf_counter()
        await work()
        times.append(time.perf_counter() - begun)
    return 1000 * statistics.median(times)


def median_blocking(work: Callable[[], object], count: int = COUNT) -> float:
    times = []
    for _ in range(count):
        begun = time.perf_counter()
        work()
        times.append(time.perf_counter() - begun)
    return 1000 * statistics.median(times)


class BareSocket:
    """The lower bound: a shell in a container behind one socket, a line and a mark, no more."""

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
        while b"END\n" not in seen:
            seen += self.socket.recv(65536)


async def commands(box: Sandbox) -> None:
    shell = await box.shell()
    say("shell with state: true", await median(lambda: shell.run("true")))
    say(f"shell with state: {PROGRAM}", await median(lambda: shell.run(PROGRAM)))
    say("fresh shell: true", await median(lambda: box.run("true")))
    say(f"fresh shell: {PROGRAM}", await median(lambda: box.run(PROGRAM)))
    say("write 1 kB", await median(lambda: box.write_file("f", b"x" * 1000), 50))
    say("read 1 kB", await median(lambda: box.read_file("f"), 50))
    blocked = asyncio.create_task(box.run("sleep 5"))
    await box.run("true")
    say("shell: true, while another command blocks", await median(lambda: shell.run("true")))
    blocked.cancel()
    await asyncio.wait({blocked})
    begun = time.perf_counter()
    done = await shell.run("head -c 50000000 /dev/zero")
    assert len(done.stdout) + done.dropped_stdout == 50_000_000
    say("50 MB of output read at", 50 / (time.perf_counter() - begun), "MB/s")


async def forks(box: Sandbox, provider: SandboxProvider) -> None:
    await box.run("head -c 1000000 /dev/urandom > blob; for i in $(seq 20); do echo $i > f$i; done")
    made: list[Sandbox] = []

    async def fork() -> None:
        made.append(await box.fork())

    say("fork, 21 files and 1 MB changed", await median(fork, 8))
    begun = time.perf_counter()
    made += await box.forks(16)
    say("16 forks at once", 1000 * (time.perf_counter() - begun))
    await asyncio.gather(*(sandbox.close() for sandbox in made))
    await box.run("mkdir many; cd many; for i in $(seq 5000); do echo $i > g$i; done")
    begun = time.perf_counter()
    async with await box.fork():
        say("fork, 5,000 files more", 1000 * (time.perf_counter() - begun))
    begun = time.perf_counter()
    snapshot = await box.snapshot()
    say("snapshot", 1000 * (time.perf_counter() - begun))
    begun = time.perf_counter()
    async with await provider.restore(snapshot, box.spec):
        say("restore", 1000 * (time.perf_counter() - begun))
    await provider.discard(snapshot)


async def pool(make: Callable[[], SandboxProvider], spec: SandboxSpec) -> None:
    async with WarmPool(make(), idle=8) as warm:
        await warm.warm(spec, 8)
        taken: list[Sandbox] = []

        async def take() -> None:
            taken.append(await warm.start(spec))

        say("warm acquire", await median(take, 8))
        begun = time.perf_counter()
        await taken[0].run("true")
        say("... and its first command", 1000 * (time.perf_counter() - begun))
        await warm.warm(spec, 8)
        begun = time.perf_counter()
        async with await taken[0].fork():
            say("fork into a ready sandbox", 1000 * (time.perf_counter() - begun))
        await asyncio.gather(*(sandbox.close() for sandbox in taken))


async def memory(provider: SandboxProvider, spec: SandboxSpec, count: int) -> None:
    before = _available()
    begun = time.perf_counter()
    boxes = await asyncio.gather(*(provider.start(spec, timeout=600) for _ in range(count)))
    say(f"{count} starts at once", count / (time.perf_counter() - begun), "starts/s")
    await asyncio.gather(*(box.run("true") for box in boxes))
    say(f"memory of the host for each of {count} idle", (before - _available()) / count, "MiB")
    await asyncio.gather(*(box.close() for box in boxes))


def _available() -> float:
    lines = Path("/proc/meminfo").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("MemAvailable")).split()[1]) / 1024


async def row(provider: SandboxProvider, spec: SandboxSpec, count: int) -> None:
    async def one() -> None:
        async with await provider.start(spec) as box:
            await box.run("echo x > f")

    for _ in range(5):
        await one()
    before, descriptors = _resident(), _descriptors()
    begun = time.perf_counter()
    for _ in range(count):
        await one()
    say(f"{count} sandboxes in a row, each", 1000 * (time.perf_counter() - begun) / count)
    say("... memory grown by", _resident() - before, "MiB")
    say("... descriptors grown by", float(_descriptors() - descriptors), "")


def _descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def _resident() -> float:
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("VmRSS")).split()[1]) / 1024


async def rivals(box: Sandbox, provider: DockerProvider) -> None:
    container = box.container  # type: ignore[attr-defined]
    bare = BareSocket(provider.engine.client(), container)
    say("bare socket: true", median_blocking(lambda: bare.run("true")))
    say(f"bare socket: {PROGRAM}", median_blocking(lambda: bare.run(PROGRAM)))
    command = ["docker", "exec", container, "true"]
    quiet = {"check": True, "stdout": subprocess.DEVNULL}
    say("docker exec: true", median_blocking(lambda: subprocess.run(command, **quiet), 40))  # type: ignore[call-overload]


def swe_rex(python: str) -> None:
    done = subprocess.run(
        [python, "-c", SWE_REX, IMAGE], capture_output=True, text=True, timeout=400
    )
    lines = [line for line in done.stdout.splitlines() if line.startswith("RESULT ")]
    found = json.loads(lines[0][7:]) if lines else {"any": done.stderr[-200:]}
    for name, value in found.items():
        say(f"swe-rex, {name}: true", value)


async def part(name: str, make: Callable[[], SandboxProvider], options: argparse.Namespace) -> None:
    spec = SandboxSpec(image=IMAGE, limits=Limits(memory=512 << 20))
    provider = make()
    try:
        await provider.check()
    except SandboxUnavailable as error:
        print(f"{name}: left out: {error}")
        await provider.close()
        return
    print(f"{name} (load {os.getloadavg()[0]:.1f})")
    async with provider:
        if options.row:
            await row(provider, spec, options.row)
            return
        begun = time.perf_counter()
        async with await provider.start(spec) as box:
            say("start", 1000 * (time.perf_counter() - begun))
            await commands(box)
            if isinstance(provider, DockerProvider):
                await rivals(box, provider)
        async with await provider.start(spec) as box:
            await forks(box, provider)
        await pool(make, spec)
        await memory(provider, spec, options.idle)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--swe-rex", metavar="PYTHON", help="interpreter that has swe-rex")
    parser.add_argument("--row", type=int, default=0, help="only this: so many in a row")
    parser.add_argument("--idle", type=int, default=50, help="idle sandboxes for the memory figure")
    parser.add_argument("--only", choices=["docker", "embedded"])
    options = parser.parse_args()
    kinds: dict[str, Callable[[], SandboxProvider]] = {
        "embedded": EmbeddedProvider,
        "docker": DockerProvider,
    }
    for name, make in kinds.items():
        if options.only in {None, name}:
            asyncio.run(part(name, make, options))
    if options.swe_rex:
        print("rivals")
        swe_rex(options.swe_rex)


if __name__ == "__main__":
    main()
