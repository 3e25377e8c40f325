"""The conformance suite of sandboxes: what every provider promises, tried from inside."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import os
import secrets
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from trajgym.envs.sandbox._base import MIB
from trajgym.envs.sandbox._errors import (
    SandboxDied,
    SandboxError,
    SandboxFileError,
)
from trajgym.trajectory import ConformanceError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from trajgym.envs.sandbox._base import CommandResult, Sandbox, SandboxProvider, SandboxSpec

SECRET = b"of the host"
HOST_HOME = Path.home()

__all__ = ["PROMISES", "CheckReport", "check_sandbox"]


@dataclass(frozen=True, slots=True)
class CheckReport:
    """What :func:`check_sandbox` found.

    Args:
        kept: the promises that were tried and kept, with the seconds that each took.
        skipped: the promises that this provider says it can't make here, with its words.
    """

    kept: dict[str, float] = field(default_factory=dict)
    skipped: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _Trial:
    provider: SandboxProvider
    spec: SandboxSpec
    sandbox: Sandbox

    async def run(
        self, command: str, *, timeout: float = 30.0, stdin: bytes = b""
    ) -> CommandResult:
        return await self.sandbox.run(command, timeout=timeout, stdin=stdin)


class _NotPromised(Exception):
    """The provider itself says that it does not do this here."""


PROMISES: dict[str, Callable[[_Trial], Awaitable[None]]] = {}
"""Every promise by name, in the order in which they are tried."""


def _promise(name: str) -> Callable[[Callable[[_Trial], Awaitable[None]]], None]:
    def keep(check: Callable[[_Trial], Awaitable[None]]) -> None:
        PROMISES[name] = check

    return keep


def _expect(truth: object, saw: object) -> None:
    if not truth:
        raise AssertionError(f"saw {saw!r}"[:600])


async def check_sandbox(
    provider: SandboxProvider, spec: SandboxSpec, *, only: str | None = None
) -> CheckReport:
    """Try every promise of the sandbox interface; each gets a sandbox of its own.

    Takes about half a minute. Needs a POSIX shell and core utilities inside.

    Args:
        provider: ready to start sandboxes.
        spec: what to start; limits are lowered so that attacks on them stay small.
        only: the name of one promise, one of ``PROMISES``.

    Raises:
        ConformanceError: names the promises that were broken and what was seen.
        SandboxUnavailable, SandboxStartFailed, ImageNotFound: no sandbox could be started.
    """
    limits = dataclasses.replace(
        spec.limits,
        memory=min(spec.limits.memory, 256 * MIB),
        pids=min(spec.limits.pids, 100),
        output=min(spec.limits.output, 64 * 1024),
    )
    spec = dataclasses.replace(spec, limits=limits)
    report = CheckReport()
    broken = []
    for name, check in PROMISES.items():
        if only not in {None, name}:
            continue
        begun = time.monotonic()
        async with await provider.start(spec) as sandbox:
            try:
                await check(_Trial(provider, spec, sandbox))
            except _NotPromised as reason:
                report.skipped[name] = str(reason)
            except (AssertionError, SandboxError) as error:
                broken.append(f"{name}: {type(error).__name__}: {error}")
            else:
                report.kept[name] = time.monotonic() - begun
    if broken:
        raise ConformanceError(f"{provider.name} sandboxes break a promise: " + "; ".join(broken))
    return report


def _unless_admitted(trial: _Trial, aspect: str) -> None:
    said = trial.provider.isolation().get(aspect, "")
    if said.startswith("NOT"):
        raise _NotPromised(f"{aspect}: {said}")


async def _survivors(trial: _Trial, mark: str) -> list[str]:
    """Command lines that hold the mark, seen in the sandbox and (if local) on the host."""
    inside = await trial.run("cat /proc/[0-9]*/cmdline | tr '\\0' ' '")
    found = [text for text in [inside.stdout.decode(errors="replace")] if mark in text]
    return found + await asyncio.to_thread(_on_host, mark)


def _on_host(mark: str) -> list[str]:
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            line = path.read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
        if mark in line:
            found.append(line)
    return found


def _long_sleep() -> str:
    """Seconds of a sleep that no other program on the host sleeps."""
    return str(10**8 + secrets.randbelow(10**8))


@_promise("exit codes are those of the command")
async def _exit_codes(trial: _Trial) -> None:
    codes = [(await trial.run(f"exit {code}")).exit_code for code in (0, 1, 7, 255)]
    _expect(codes == [0, 1, 7, 255], codes)
    killed = await trial.run("kill -9 $$")
    _expect(killed.exit_code == 137 and not killed.timed_out, killed)
    missing = await trial.sandbox.run(["/no/such/program"])
    _expect(missing.exit_code in {126, 127}, missing)


@_promise("an argument vector reaches the program as it is")
async def _vector(trial: _Trial) -> None:
    words = ["a b", "$HOME", "'", '"', "*", "", "\\", "é"]
    result = await trial.sandbox.run(["printf", "%s\n", *words])
    _expect(result.stdout == "".join(f"{word}\n" for word in words).encode(), result)


@_promise("stdout and stderr are kept apart, byte for byte")
async def _streams(trial: _Trial) -> None:
    result = await trial.run(r"printf '\000\377\376out'; printf 'err\000\200' >&2; printf '\n\n'")
    _expect(result.stdout == b"\0\xff\xfeout\n\n" and result.stderr == b"err\0\x80", result)
    silent = await trial.run("true")
    _expect(silent.stdout == b"" and silent.stderr == b"", silent)


@_promise("a command reads its stdin and then the end of it")
async def _stdin(trial: _Trial) -> None:
    data = bytes(range(256)) * 4096
    result = await trial.run("cat | wc -c", stdin=data)
    _expect(result.stdout.split() == [str(len(data)).encode()], result)
    _expect((await trial.run("cat; echo end", timeout=10)).stdout == b"end\n", "no end of file")
    unread = await trial.run("true", stdin=data * 4)
    _expect(unread.ok, unread)


@_promise("working directory and environment are as asked")
async def _surroundings(trial: _Trial) -> None:
    here = await trial.run("pwd; touch here")
    _expect(here.ok and here.stdout.decode().strip() == trial.spec.workdir, here)
    moved = await trial.sandbox.run("pwd; echo $ANSWER", cwd="/tmp", env={"ANSWER": "4 2"})  # noqa: S108
    _expect(moved.stdout == b"/tmp\n4 2\n", moved)
    lost = await trial.sandbox.run("true", cwd="/no/such/place")
    _expect(lost.exit_code not in {0, -1} and lost.stderr, lost)


@_promise("files persist from command to command, shell variables don't")
async def _persistence(trial: _Trial) -> None:
    await trial.run("echo kept > file; mkdir -p sub; cd sub; export LEAK=1; leak=2")
    result = await trial.run('cat file; echo "[$LEAK$leak]"')
    _expect(result.stdout == b"kept\n[]\n", result)


@_promise("files are written and read whole, with their mode")
async def _files(trial: _Trial) -> None:
    data = bytes(range(256)) * 8192
    await trial.sandbox.write_file("deep/er/file", data, mode=0o755)
    _expect(await trial.sandbox.read_file("deep/er/file") == data, "other bytes")
    _expect((await trial.run("test -x deep/er/file")).ok, "mode lost")
    for path, limit in (("missing", 10), ("deep", 10), ("deep/er/file", 10)):
        try:
            saw = await trial.sandbox.read_file(path, limit=limit)
        except SandboxFileError:
            continue
        _expect(False, f"read_file({path!r}, limit={limit}) gave {len(saw)} bytes")  # noqa: FBT003


@_promise("a timeout kills the whole tree and leaves the sandbox usable")
async def _timeout(trial: _Trial) -> None:
    mark = _long_sleep()
    attack = (
        f"sleep {mark} & (setsid sleep {mark} &) ; (env -i setsid sleep {mark} &) ; "
        f"trap '' TERM INT HUP; echo begun; while :; do :; done"
    )
    begun = time.monotonic()
    result = await trial.run(attack, timeout=1.0)
    took = time.monotonic() - begun
    _expect(result.timed_out and result.exit_code == -1 and not result.ok, result)
    _expect(result.stdout == b"begun\n", result)
    _expect(took < 15, f"the kill took {took:.1f} s")
    left = await _survivors(trial, mark)
    _expect(not left, left)
    _expect((await trial.run("echo usable")).stdout == b"usable\n", "not usable")


@_promise("cancelling kills the whole tree and leaves the sandbox usable")
async def _cancel(trial: _Trial) -> None:
    mark = _long_sleep()
    running = asyncio.create_task(
        trial.run(f"(setsid sleep {mark} &) ; echo > begun; sleep {mark}", timeout=60)
    )
    async with asyncio.timeout(20):
        while not (await trial.run("test -e begun")).ok:
            pass
    running.cancel()
    await asyncio.wait({running}, timeout=20)
    _expect(running.cancelled(), "the cancelled command went on")
    left = await _survivors(trial, mark)
    _expect(not left, left)
    _expect((await trial.run("echo usable")).stdout == b"usable\n", "not usable")


@_promise("a timeout of one command spares the others")
async def _spares_others(trial: _Trial) -> None:
    slow = asyncio.create_task(trial.run("sleep 2; echo done"))
    await trial.run("sleep 60", timeout=0.5)
    result = await slow
    _expect(result.stdout == b"done\n", result)


@_promise("endless output is bounded, counted and keeps head and tail")
async def _flood(trial: _Trial) -> None:
    limit = trial.spec.limits.output
    result = await trial.run("echo first; head -c 20000000 /dev/zero; echo last")
    _expect(result.stdout[:6] == b"first\n" and result.stdout[-5:] == b"last\n", "ends lost")
    _expect(len(result.stdout) <= limit, len(result.stdout))
    _expect(len(result.stdout) + result.dropped_stdout == 20_000_011, result.dropped_stdout)
    endless = await trial.run("yes >&2", timeout=1.0)
    _expect(endless.timed_out and len(endless.stderr) <= limit, len(endless.stderr))


@_promise("a background process does not hold a command up")
async def _background(trial: _Trial) -> None:
    begun = time.monotonic()
    result = await trial.run("sleep 20 & echo started")
    _expect(result.stdout == b"started\n" and time.monotonic() - begun < 10, result)


@_promise("a fork bomb is bounded")
async def _fork_bomb(trial: _Trial) -> None:
    bomb = await trial.run("b() { b | b & }; b; sleep 60", timeout=2.0)
    _expect(bomb.timed_out or bomb.exit_code != 0, bomb)
    _expect((await trial.run("echo usable")).stdout == b"usable\n", "not usable")


@_promise("memory is bounded, and a kill for it is told")
async def _memory(trial: _Trial) -> None:
    _unless_admitted(trial, "memory")
    size = 4 * trial.spec.limits.memory
    result = await trial.run(f"head -c {size} /dev/zero | tail -n 1 | wc -c")
    _expect(result.oom_killed, result)
    calm = await trial.run("true")
    _expect(calm.ok and not calm.oom_killed, calm)


@_promise("a full disk is an error of the command")
async def _full_disk(trial: _Trial) -> None:
    result = await trial.run("head -c 500000000 /dev/zero > /dev/shm/full")
    _expect(result.exit_code not in {0, -1}, result)
    try:
        await trial.sandbox.write_file("/dev/shm/more", b"x" * (80 * MIB))  # noqa: S108
    except SandboxFileError:
        pass
    else:
        _expect(False, "write_file to a full disk said nothing")  # noqa: FBT003
    _expect((await trial.run("rm -f /dev/shm/*; echo usable")).stdout == b"usable\n", "not usable")


@_promise("the network is not reachable")
async def _network(trial: _Trial) -> None:
    if trial.spec.network:
        raise _NotPromised("the spec asks for a network")
    devices = await trial.run("cat /proc/net/dev")
    names = [line.split(":")[0].strip() for line in devices.stdout.decode().splitlines()[2:]]
    _expect(set(names) <= {"lo"}, names)
    routes = await trial.run("cat /proc/net/route")
    _expect(len(routes.stdout.splitlines()) <= 1, routes.stdout)


@_promise("the host's files can't be read or written, nor through links")
async def _host_files(trial: _Trial) -> None:
    with tempfile.TemporaryDirectory() as folder:
        secret = await asyncio.to_thread(_plant_secret, Path(folder))
        direct = await trial.run(f"cat {secret} /etc/shadow; ls {HOST_HOME}/.[a-z]* /root")
        _expect(SECRET not in direct.stdout and b"root:" not in direct.stdout, direct)
        await trial.run(f"ln -s {secret} link; ln -s {folder} folder")
        for path in ("link", "folder/secret", f"../../../../..{secret}"):
            with contextlib.suppress(SandboxFileError):
                _expect(SECRET not in await trial.sandbox.read_file(path), f"{path} was read")
        for path in ("link", "folder/secret", "folder/new", f"../../../../..{secret}"):
            with contextlib.suppress(SandboxFileError):
                await trial.sandbox.write_file(path, b"of the agent")
        _expect(await asyncio.to_thread(secret.read_bytes) == SECRET, "overwritten")
        _expect(await asyncio.to_thread(os.listdir, folder) == ["secret"], "a file was added")


def _plant_secret(folder: Path) -> Path:
    """Write a file that anybody on the host may read and write."""
    secret = folder / "secret"
    secret.write_bytes(SECRET)
    secret.chmod(0o666)
    folder.chmod(0o777)
    return secret


@_promise("commands have no privileges")
async def _privileges(trial: _Trial) -> None:
    result = await trial.run("cat /proc/self/status")
    status = dict(line.split(":\t", 1) for line in result.stdout.decode().splitlines())
    _expect(int(status["CapEff"], 16) == 0 and int(status["CapBnd"], 16) == 0, status)
    _expect(status["NoNewPrivs"] == "1", status)
    written = await trial.run("echo x > /proc/sys/kernel/core_pattern")
    _expect(not written.ok, written)


@_promise("a snapshot is the files of its moment, and lives on its own")
async def _snapshot(trial: _Trial) -> None:
    await trial.run("echo old > file; mkdir -p d; echo gone > d/gone; ln -s file link")
    snapshot = await trial.sandbox.snapshot()
    await trial.run("echo new > file; rm -r d; echo more > later")
    async with (
        await trial.provider.restore(snapshot, trial.spec) as first,
        await trial.provider.restore(snapshot, trial.spec) as second,
    ):
        saw = await first.run("cat file d/gone link; test ! -e later && echo alone")
        _expect(saw.stdout == b"old\ngone\nold\nalone\n", saw)
        await first.run("echo first > file")
        _expect(await second.read_file("file") == b"old\n", "forks share files")
    _expect(await trial.sandbox.read_file("file") == b"new\n", "the original changed")
    await trial.provider.discard(snapshot)
    await trial.provider.discard(snapshot)
    try:
        await trial.provider.restore(snapshot, trial.spec)
    except SandboxError:
        return
    _expect(False, "a discarded snapshot was restored")  # noqa: FBT003


@_promise("closing ends running commands, twice is once, and later calls say so")
async def _close(trial: _Trial) -> None:
    mark = _long_sleep()
    running = asyncio.create_task(trial.run(f"echo > begun; sleep {mark}", timeout=60))
    async with asyncio.timeout(20):
        while not (await trial.run("test -e begun")).ok:
            pass
    await trial.sandbox.close()
    await trial.sandbox.close()
    await asyncio.wait({running}, timeout=20)
    _expect(running.done() and isinstance(running.exception(), SandboxDied), running)
    for call in (trial.run("true"), trial.sandbox.read_file("f"), trial.sandbox.snapshot()):
        try:
            await call
        except SandboxDied:
            continue
        _expect(False, "a closed sandbox answered")  # noqa: FBT003
