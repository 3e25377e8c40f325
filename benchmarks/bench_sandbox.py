"""Sandboxes: latency of commands, reading, starts, forks, pools. Medians unless stated otherwise.

    python benchmarks/bench_sandbox.py                   # every goal, in less than four minutes
    python benchmarks/bench_sandbox.py --swe-rex PYTHON  # also swe-rex, with that interpreter
    python benchmarks/bench_sandbox.py --row 1000        # only: leaks of 1,000 in sequence
    python benchmarks/bench_sandbox.py --idle 200        # only: memory of 200 at once
    python benchmarks/bench_sandbox.py --repeats 5       # only: commands and a fork, 5 times

Every figure with a goal is compared with a lower bound or a peer measured in the same run. The
Docker part needs the base image (scripts/base-image.sh) and is left out without a Docker engine.
`--json FILE` writes the figures to a file.
"""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
import json
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

sys.path.insert(0, str(Path(__file__).parent))

from bounds import (
    BareShell,
    BareSocket,
    Engine,
    available,
    descriptors,
    grown_image,
    held_by,
    load,
    resident,
)

from trajgym.envs.sandbox import (
    DockerProvider,
    EmbeddedProvider,
    HostShares,
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
MB = 1_000_000


class Report:
    """Figures with their goals, printed as they are measured."""

    def __init__(self) -> None:
        self.kind = ""
        self.repeats = COUNT
        """Largest number of measurements of one figure."""
        self.rows: list[dict[str, object]] = []

    def head(self, kind: str) -> None:
        self.kind = kind
        print(f"\n{kind} (load {load():.1f})", flush=True)

    def say(
        self,
        what: str,
        value: float,
        unit: str = "ms",
        *,
        below: float | None = None,
        above: float | None = None,
        beside: tuple[str, float] | None = None,
    ) -> float:
        """Print a figure, whether it meets its goal, and its ratio to ``beside``."""
        row: dict[str, object] = {"kind": self.kind, "what": what, "value": value, "unit": unit}
        line = f"  {what:<46}{value:10.3f} {unit:<5}"
        for word, goal, met in (
            ("<", below, below is not None and value < below),
            (">", above, above is not None and value > above),
        ):
            if goal is not None:
                row["goal"] = f"{word} {goal:g}"
                row["met"] = met
                line += f" {word} {goal:<7g} {'met ' if met else 'MISSED'}"
        if beside is not None:
            name, other = beside
            row["beside"], row["ratio"] = {name: other}, value / other if other else None
            line += f"  {value / other:.3g} x {name} ({other:.3g})" if other else ""
        self.rows.append(row)
        print(line, flush=True)
        return value

    def note(self, text: str) -> None:
        self.rows.append({"kind": self.kind, "note": text})
        print(f"  {text}", flush=True)


report = Report()
say = report.say


async def median(work: Callable[[], Awaitable[object]], count: int = COUNT) -> float:
    times = []
    for _ in range(min(count, report.repeats)):
        begun = time.perf_counter()
        await work()
        times.append(time.perf_counter() - begun)
    return 1000 * statistics.median(times)


def median_blocking(work: Callable[[], object], count: int = COUNT) -> float:
    times = []
    for _ in range(min(count, report.repeats)):
        begun = time.perf_counter()
        work()
        times.append(time.perf_counter() - begun)
    return 1000 * statistics.median(times)


async def once(work: Awaitable[object]) -> float:
    begun = time.perf_counter()
    await work
    return 1000 * (time.perf_counter() - begun)


def bare_shell(box: Any) -> BareSocket | BareShell:
    if hasattr(box, "container"):
        return BareSocket(box.engine.client(), box.container)
    return BareShell()


async def side_by_side(
    ours: Callable[[], Awaitable[object]], theirs: Callable[[], object]
) -> tuple[float, float]:
    """Return both medians; calls alternate, so that other load on the host affects both."""
    found: tuple[list[float], list[float]] = ([], [])
    for _ in range(report.repeats):
        begun = time.perf_counter()
        theirs()
        middle = time.perf_counter()
        await ours()
        found[0].append(time.perf_counter() - middle)
        found[1].append(middle - begun)
    return 1000 * statistics.median(found[0]), 1000 * statistics.median(found[1])


async def commands(box: Sandbox) -> None:
    bare = await asyncio.to_thread(bare_shell, box)
    shell, other = await box.shell(), await box.shell()
    true, floor = await side_by_side(lambda: shell.run("true"), lambda: bare.run("true"))
    say("persistent shell: true", true, below=0.5, beside=("bare shell", floor))
    took, program = await side_by_side(lambda: shell.run(PROGRAM), lambda: bare.run(PROGRAM))
    say(f"persistent shell: {PROGRAM}", took, beside=("bare shell", program))
    say("... difference to the bare shell", took - program, below=0.5)
    if isinstance(bare, BareSocket):
        line = ["docker", "exec", box.container, "true"]  # type: ignore[attr-defined]
        quiet = partial(subprocess.run, line, check=True, stdout=subprocess.DEVNULL)
        exec_ms = say("docker exec: true", await asyncio.to_thread(median_blocking, quiet, 30))
        say("... ratio to the persistent shell", exec_ms / true, "x", above=50)
    say("new shell: true", await median(lambda: box.run("true")), beside=("bare ls", program))
    say("write 1 kB", await median(lambda: box.write_file("f", b"x" * 1000), 50))
    say("read 1 kB", await median(lambda: box.read_file("f"), 50))
    blocked = asyncio.create_task(other.run("sleep 60"))
    await box.run("true")
    late, _ = await side_by_side(lambda: shell.run("true"), lambda: bare.run("true"))
    say("delay of a shell while another one is blocked", late - true, below=1.0)
    blocked.cancel()
    await asyncio.wait({blocked})
    before = resident()
    speeds, readers = [], []
    for _ in range(min(5, report.repeats)):  # in turns, so that other load affects both
        begun = time.perf_counter()
        done = await shell.run("head -c 50000000 /dev/zero")
        assert len(done.stdout) + done.dropped_stdout == 50 * MB
        speeds.append(50 / (time.perf_counter() - begun))
        readers.append(await asyncio.to_thread(bare.read, 50 * MB))
    reader = statistics.median(readers)
    least = min(200.0, 0.9 * reader)
    speed = statistics.median(speeds)
    say("50 MB of output", speed, "MB/s", above=least, beside=("bare reader", reader))
    say("... growth of memory", max(resident() - before, 0.0), "MiB", below=16)
    bare.close()


CHANGE = "head -c 1000000 /dev/urandom > blob; for i in $(seq 20); do echo $i > f$i; done"
MANY = "mkdir -p many; cd many; for i in $(seq 5000); do echo $i > g$i; done"


async def forks(box: Sandbox, provider: SandboxProvider, goal: float) -> None:
    engine = (
        Engine(provider.engine.client(), IMAGE) if isinstance(provider, DockerProvider) else None
    )
    floors: list[float] = []

    await box.run(CHANGE)
    made: list[Sandbox] = []

    async def fork() -> None:
        await box.run("echo $$ >> turns")
        begun = time.perf_counter()
        made.append(await box.fork())
        times.append(1000 * (time.perf_counter() - begun))
        if engine is not None:
            floors.append(1000 * await asyncio.to_thread(engine.seconds))

    async def naive() -> None:
        snapshot = await box.snapshot()
        made.append(await provider.restore(snapshot, box.spec))
        snapshots.append(snapshot)

    times: list[float] = []
    snapshots: list[Any] = []
    for _ in range(8):
        await fork()
    beside = ("snapshot and restore", await median(naive, 5))
    plain = say(
        "fork, 21 files and 1 MB changed", statistics.median(times), below=goal, beside=beside
    )
    if floors:
        floor = statistics.median(floors)
        say("... longer than the engine's own start by", plain - floor, beside=("a start", floor))
    first = [await once(sandbox.run("true")) for sandbox in made[:8]]
    say("... and its first command", statistics.median(first))
    many = await once(_keep(box.forks(16), made))
    say("16 concurrent forks", many, beside=("16 x one", 16 * statistics.median(times)))
    await asyncio.gather(*(sandbox.close() for sandbox in made))
    shell = await box.shell()
    times, made = [], []
    for _ in range(4):
        await fork()
    say("fork with an open shell", statistics.median(times))
    await shell.close()
    await asyncio.gather(*(sandbox.close() for sandbox in made))
    times, made = [], []
    for _ in range(4):
        await fork()
    plain = statistics.median(times)
    await asyncio.gather(*(sandbox.close() for sandbox in made))
    await box.run(MANY)
    times, made, floors = [], [], []
    copies: list[float] = []
    layer = getattr(box, "layer", None)
    with ExitStack() as targets:  # removing files makes others slower to create on some hosts
        for _ in range(4):
            await fork()
            if layer is not None:
                copies.append(await asyncio.to_thread(copied, layer, targets))
        await asyncio.gather(*(sandbox.close() for sandbox in made))
    many = statistics.median(times)
    say("fork, 5,000 more files", many, below=goal if layer is None else 1.5 * plain)
    if layer is not None:
        least = statistics.median(copies) + statistics.median(floors)
        say("... compared with the least", many, beside=("engine's start and cp", least))
    for snapshot in snapshots:
        await provider.discard(snapshot)


def copied(layer: Path, targets: ExitStack) -> float:
    """Return the milliseconds in which cp copies a layer within its file system."""
    target = targets.enter_context(tempfile.TemporaryDirectory(dir=layer.parent))
    begun = time.perf_counter()
    subprocess.run(["cp", "-a", f"{layer}/.", target], check=True)
    return 1000 * (time.perf_counter() - begun)


async def _keep(work: Awaitable[list[Sandbox]], kept: list[Sandbox]) -> None:
    kept += await work


async def pool(make: Callable[[], SandboxProvider], spec: SandboxSpec) -> None:
    provider = make()
    engine = (
        Engine(provider.engine.client(), IMAGE) if isinstance(provider, DockerProvider) else None
    )
    async with WarmPool(provider, idle=8, shares=HostShares(count=64)) as warm:
        floors: tuple[list[float], list[float]] = ([], [])

        async def bounds() -> None:
            if engine is not None:
                started = await asyncio.to_thread(engine.rate, lambda _: engine.start())
                floors[0].append(started)
                floors[1].append(await asyncio.to_thread(engine.rate, engine.start_with_shell))

        await bounds()
        begun = time.perf_counter()
        await warm.warm(spec, 8)
        rate = 8 / (time.perf_counter() - begun)
        await bounds()
        if engine is None:
            say("rate at which a pool fills", rate, "/s")
        else:
            alone, shell = map(statistics.median, floors)
            say("rate at which a pool fills", rate, "/s", beside=("the engine alone", alone))
            goal = 0.9 * shell
            beside = ("the engine, with a shell in each", shell)
            say("... as it is ready with its shell", rate, "/s", above=goal, beside=beside)
        taken: list[Sandbox] = []

        async def take() -> None:
            taken.append(await warm.start(spec))

        say("warm acquire", await median(take, 8), below=5.0)
        say("... and its first command", await once(taken[0].run("true")))
        await taken[1].run(CHANGE)
        copies: list[Sandbox] = []
        times = []
        for _ in range(5):
            await warm.warm(spec, 8)
            times.append(await once(_keep(taken[1].forks(1), copies)))
        goal = 10.0 if engine is None else 100.0
        say("fork into a ready sandbox", statistics.median(times), below=goal)
        await asyncio.gather(*(sandbox.close() for sandbox in [*taken, *copies]))


async def idle(provider: SandboxProvider, spec: SandboxSpec, count: int) -> None:
    before = available()
    begun = time.perf_counter()
    boxes = await asyncio.gather(*(provider.start(spec, timeout=900) for _ in range(count)))
    say(f"{count} concurrent starts", count / (time.perf_counter() - begun), "/s")
    await asyncio.gather(*(box.run("true") for box in boxes))
    each = (before - available()) / count
    say(f"memory of the host per sandbox, {count} idle", each, "MiB", below=12)
    names = [getattr(box, "container", box.id) for box in boxes]
    say("... of its processes", await asyncio.to_thread(held_by, names) / count, "MiB", below=12)
    say("command in one of them", await median(lambda: boxes[0].run("true"), 50))
    await asyncio.gather(*(box.close() for box in boxes))


async def row(provider: SandboxProvider, spec: SandboxSpec, count: int) -> None:
    layers: list[Path] = []

    async def one() -> None:
        async with await provider.start(spec) as box:
            await box.run("echo x > f")
            if isinstance(provider, DockerProvider):
                name = box.container  # type: ignore[attr-defined]
                seen = await provider.engine.call(lambda api: api.inspect_container(name))
                layers.append(Path(seen["GraphDriver"]["Data"]["UpperDir"]))
            else:
                layers.append(provider.root / box.id)  # type: ignore[attr-defined]

    for _ in range(20):
        await one()
    before, open_before = resident(), descriptors()
    begun = time.perf_counter()
    for _ in range(count):
        await one()
    say(f"{count} sandboxes in sequence, each", 1000 * (time.perf_counter() - begun) / count)
    say("... growth of memory", max(resident() - before, 0.0), "MiB", below=8)
    say("... growth of descriptors", float(descriptors() - open_before), "", below=1)
    say("... layers or directories left", float(sum(p.exists() for p in layers)), "", below=1)
    say("... containers left", float(await _containers(provider)), "", below=1)


async def _containers(provider: SandboxProvider) -> int:
    if not isinstance(provider, DockerProvider):
        return len(provider._open)  # type: ignore[attr-defined]
    label = {"label": f"trajgym.provider={provider._id}"}
    return len(await provider.engine.call(lambda api: api.containers(all=True, filters=label)))


def swe_rex(python: str, ours: dict[str, float]) -> None:
    report.head("swe-rex")
    script = Path(__file__).parent / "peers" / "swe_rex.py"
    command = [python, str(script), "--build", "trajgym/bench:swerex"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=500)
    lines = [line for line in done.stdout.splitlines() if line.startswith("RESULT ")]
    if not lines:
        report.note(f"left out: {done.stderr.strip()[-200:]}")
        return
    for name, found in json.loads(lines[0][7:]).items():
        if isinstance(found, str):
            report.note(f"{name}: left out: {found}")
            continue
        for what, value in found.items():
            say(f"{name}: {what}", value)
        mine = ours.get("docker" if name == "docker" else "embedded")
        if mine:
            ratio = found["true"] / mine
            say(f"{name}: ratio to our persistent shell", ratio, "x", above=100)


def our_shells() -> dict[str, float]:
    """Return the milliseconds of a command in this run's persistent shells, by kind."""
    rows = [row for row in report.rows if row.get("what") == "persistent shell: true"]
    return {str(row["kind"]): float(str(row["value"])) for row in rows}


async def part(name: str, make: Callable[[], SandboxProvider], options: argparse.Namespace) -> None:
    spec = SandboxSpec(image=IMAGE, limits=Limits(memory=512 << 20))
    provider = make()
    report.head(name)
    async with provider:
        try:
            await provider.check()
        except SandboxUnavailable as error:
            report.note(f"left out: {error}")
            return
        if options.row:
            await row(provider, spec, options.row)
            return
        if options.idle:
            await idle(provider, spec, options.idle)
            return
        goal = 10.0
        begun = time.perf_counter()
        async with await provider.start(spec) as box:
            say("start", 1000 * (time.perf_counter() - begun))
            await commands(box)
            if options.repeats < COUNT:
                say("fork", await once(_keep(box.forks(1), copies := [])))
                await asyncio.gather(*(copy.close() for copy in copies))
                return
        if isinstance(provider, DockerProvider):
            goal = 150.0
            spec = dataclasses.replace(spec, image=await asyncio.to_thread(grown_image, IMAGE))
        async with await provider.start(spec) as box:
            await forks(box, provider, goal)
        await pool(make, spec)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--swe-rex", metavar="PYTHON", help="interpreter that has swe-rex")
    parser.add_argument("--row", type=int, default=0, help="only this many in sequence")
    parser.add_argument("--idle", type=int, default=0, help="only this many idle ones at once")
    parser.add_argument("--repeats", type=int, default=COUNT, help="only commands and a fork")
    parser.add_argument("--only", choices=["docker", "embedded"])
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the figures there")
    options = parser.parse_args()
    report.repeats = options.repeats
    kinds: dict[str, Callable[[], SandboxProvider]] = {
        "embedded": EmbeddedProvider,
        "docker": DockerProvider,
    }
    begun, loaded = time.time(), load()
    for name, make in kinds.items():
        if options.only in {None, name}:
            asyncio.run(part(name, make, options))
    if options.swe_rex:
        swe_rex(options.swe_rex, our_shells())
    print(f"\n{time.time() - begun:.0f} s, load {loaded:.1f} before and {load():.1f} after")
    if options.json:
        when = time.strftime("%Y-%m-%dT%H:%M:%S+00:00", time.gmtime(begun))
        kept = {"when": when, "load": [loaded, load()], "rows": report.rows}
        options.json.write_text(json.dumps(kept, indent=1) + "\n")


if __name__ == "__main__":
    main()
