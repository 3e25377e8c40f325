"""Promises about commands, files and isolation."""

from __future__ import annotations

import asyncio
import contextlib
import os
import tempfile
import time
from pathlib import Path

from trajgym.envs.sandbox._base import MIB
from trajgym.envs.sandbox._errors import SandboxDied, SandboxError, SandboxFileError
from trajgym.envs.sandbox.conformance._case import (
    SLOW_SECONDS,
    Case,
    NotPromised,
    cut,
    expect,
    long_sleep,
    promise,
    survivors,
    unless_admitted,
)

SECRET = b"of the host"
HOST_HOME = Path.home()


@promise("exit codes are those of the command")
async def _exit_codes(case: Case) -> None:
    codes = [(await case.run(f"exit {code}")).exit_code for code in (0, 1, 7, 255)]
    expect(codes == [0, 1, 7, 255], codes)
    killed = await case.run("kill -9 $$")
    expect(killed.exit_code == 137 and not killed.timed_out, killed)
    missing = await case.sandbox.run(["/no/such/program"])
    expect(missing.exit_code in {126, 127}, missing)


@promise("an argument vector reaches the program as it is")
async def _vector(case: Case) -> None:
    words = ["a b", "$HOME", "'", '"', "*", "", "\\", "é"]
    result = await case.sandbox.run(["printf", "%s\n", *words])
    expect(result.stdout == "".join(f"{word}\n" for word in words).encode(), result)


@promise("stdout and stderr are kept apart, byte for byte")
async def _streams(case: Case) -> None:
    result = await case.run(r"printf '\000\377\376out'; printf 'err\000\200' >&2; printf '\n\n'")
    expect(result.stdout == b"\0\xff\xfeout\n\n" and result.stderr == b"err\0\x80", result)
    silent = await case.run("true")
    expect(silent.stdout == b"" and silent.stderr == b"", silent)


@promise("a command reads its stdin and then the end of it")
async def _stdin(case: Case) -> None:
    data = bytes(range(256)) * 4096
    result = await case.run("cat | wc -c", stdin=data)
    expect(result.stdout.split() == [str(len(data)).encode()], result)
    expect((await case.run("cat; echo end")).stdout == b"end\n", "no end of file")
    unread = await case.run("true", stdin=data * 4)
    expect(unread.ok, unread)


@promise("working directory and environment are as asked")
async def _surroundings(case: Case) -> None:
    here = await case.run("pwd; touch here")
    expect(here.ok and here.stdout.decode().strip() == case.spec.workdir, here)
    moved = await case.sandbox.run("pwd; echo $ANSWER", cwd="/tmp", env={"ANSWER": "4 2"})  # noqa: S108
    expect(moved.stdout == b"/tmp\n4 2\n", moved)
    lost = await case.sandbox.run("true", cwd="/no/such/place")
    expect(lost.exit_code not in {0, -1} and lost.stderr, lost)


@promise("files persist from command to command, shell variables don't")
async def _persistence(case: Case) -> None:
    await case.run("echo kept > file; mkdir -p sub; cd sub; export LEAK=1; leak=2")
    result = await case.run('cat file; echo "[$LEAK$leak]"')
    expect(result.stdout == b"kept\n[]\n", result)


@promise("files are written and read whole, with their mode")
async def _files(case: Case) -> None:
    data = bytes(range(256)) * 8192
    await case.sandbox.write_file("deep/er/file", data, mode=0o755)
    expect(await case.sandbox.read_file("deep/er/file") == data, "other bytes")
    expect((await case.run("test -x deep/er/file")).ok, "mode lost")
    for path, limit in (("missing", 10), ("deep", 10), ("deep/er/file", 10)):
        try:
            saw = await case.sandbox.read_file(path, limit=limit)
        except SandboxFileError:
            continue
        expect(False, f"read_file({path!r}, limit={limit}) gave {len(saw)} bytes")  # noqa: FBT003


@promise("a timeout kills the whole tree and leaves the sandbox usable")
async def _timeout(case: Case) -> None:
    mark = long_sleep()
    attack = (
        f"sleep {mark} & (setsid sleep {mark} &) ; (env -i setsid sleep {mark} &) ; "
        f"trap '' TERM INT HUP; echo begun; while :; do :; done"
    )
    result = await cut(case.run, attack)
    expect(result.stdout == b"begun\n", result)
    left = await survivors(case, mark)
    expect(not left, left)
    expect((await case.run("echo usable")).stdout == b"usable\n", "not usable")


@promise("cancelling kills the whole tree and leaves the sandbox usable")
async def _cancel(case: Case) -> None:
    mark = long_sleep()
    running = asyncio.create_task(
        case.run(f"(setsid sleep {mark} &) ; echo > begun; sleep {mark}", timeout=2 * SLOW_SECONDS)
    )
    async with asyncio.timeout(SLOW_SECONDS):
        while not (await case.run("test -e begun")).ok:
            pass
    running.cancel()
    await asyncio.wait({running}, timeout=SLOW_SECONDS)
    expect(running.cancelled(), "the cancelled command went on")
    left = await survivors(case, mark)
    expect(not left, left)
    expect((await case.run("echo usable")).stdout == b"usable\n", "not usable")


@promise("a timeout of one command spares the others")
async def _spares_others(case: Case) -> None:
    slow = asyncio.create_task(case.run("sleep 2; echo done"))
    await case.run("sleep 60", timeout=0.5)
    result = await slow
    expect(result.stdout == b"done\n", result)


@promise("endless output is bounded, counted and keeps head and tail")
async def _flood(case: Case) -> None:
    limit = case.spec.limits.output
    result = await case.run("echo first; head -c 20000000 /dev/zero; echo last")
    expect(result.stdout[:6] == b"first\n" and result.stdout[-5:] == b"last\n", "ends lost")
    expect(len(result.stdout) <= limit, len(result.stdout))
    expect(len(result.stdout) + result.dropped_stdout == 20_000_011, result.dropped_stdout)
    endless = await case.run("yes >&2", timeout=1.0)
    expect(endless.timed_out and len(endless.stderr) <= limit, len(endless.stderr))


@promise("a background process does not hold a command up")
async def _background(case: Case) -> None:
    begun = time.monotonic()
    result = await case.run("sleep 300 & echo started", timeout=200)
    expect(result.stdout == b"started\n" and time.monotonic() - begun < 100, result)


@promise("a fork bomb is bounded")
async def _fork_bomb(case: Case) -> None:
    bomb = await case.run("b() { b | b & }; b; sleep 60", timeout=2.0)
    expect(bomb.timed_out or bomb.exit_code != 0, bomb)
    expect((await case.run("echo usable")).stdout == b"usable\n", "not usable")


@promise("memory is bounded, and a kill for it is reported")
async def _memory(case: Case) -> None:
    unless_admitted(case, "memory")
    size = 4 * case.spec.limits.memory
    result = await case.run(f"head -c {size} /dev/zero | tail -n 1 | wc -c")
    expect(result.oom_killed, result)
    calm = await case.run("true")
    expect(calm.ok and not calm.oom_killed, calm)


@promise("a full disk is an error of the command")
async def _full_disk(case: Case) -> None:
    result = await case.run("head -c 500000000 /dev/zero > /dev/shm/full")
    expect(result.exit_code not in {0, -1}, result)
    try:
        await case.sandbox.write_file("/dev/shm/more", b"x" * (80 * MIB))  # noqa: S108
    except SandboxFileError:
        pass
    else:
        expect(False, "write_file to a full disk raised nothing")  # noqa: FBT003
    expect((await case.run("rm -f /dev/shm/*; echo usable")).stdout == b"usable\n", "not usable")


@promise("the network is not reachable")
async def _network(case: Case) -> None:
    if case.spec.network:
        raise NotPromised("the spec asks for a network")
    devices = await case.run("cat /proc/net/dev")
    names = [line.split(":")[0].strip() for line in devices.stdout.decode().splitlines()[2:]]
    expect(set(names) <= {"lo"}, names)
    routes = await case.run("cat /proc/net/route")
    expect(len(routes.stdout.splitlines()) <= 1, routes.stdout)


@promise("the host's files can't be read or written, nor through links")
async def _host_files(case: Case) -> None:
    with tempfile.TemporaryDirectory() as folder:
        secret = await asyncio.to_thread(_plant_secret, Path(folder))
        direct = await case.run(f"cat {secret} /etc/shadow; ls {HOST_HOME}/.[a-z]* /root")
        expect(SECRET not in direct.stdout and b"root:" not in direct.stdout, direct)
        await case.run(f"ln -s {secret} link; ln -s {folder} folder")
        for path in ("link", "folder/secret", f"../../../../..{secret}"):
            with contextlib.suppress(SandboxFileError):
                expect(SECRET not in await case.sandbox.read_file(path), f"{path} was read")
        for path in ("link", "folder/secret", "folder/new", f"../../../../..{secret}"):
            with contextlib.suppress(SandboxFileError):
                await case.sandbox.write_file(path, b"of the agent")
        expect(await asyncio.to_thread(secret.read_bytes) == SECRET, "overwritten")
        expect(await asyncio.to_thread(os.listdir, folder) == ["secret"], "a file was added")


def _plant_secret(folder: Path) -> Path:
    """Write a file that every user of the host may read and write."""
    secret = folder / "secret"
    secret.write_bytes(SECRET)
    secret.chmod(0o666)
    folder.chmod(0o777)
    return secret


@promise("commands have no privileges")
async def _privileges(case: Case) -> None:
    result = await case.run("cat /proc/self/status")
    status = dict(line.split(":\t", 1) for line in result.stdout.decode().splitlines())
    expect(int(status["CapEff"], 16) == 0 and int(status["CapBnd"], 16) == 0, status)
    expect(status["NoNewPrivs"] == "1", status)
    written = await case.run("echo x > /proc/sys/kernel/core_pattern")
    expect(not written.ok, written)


@promise("a snapshot is the files of its moment, and lives on its own")
async def _snapshot(case: Case) -> None:
    await case.run("echo old > file; mkdir -p d; echo gone > d/gone; ln -s file link")
    snapshot = await case.sandbox.snapshot()
    await case.run("echo new > file; rm -r d; echo more > later")
    async with (
        await case.provider.restore(snapshot, case.spec) as first,
        await case.provider.restore(snapshot, case.spec) as second,
    ):
        saw = await first.run("cat file d/gone link; test ! -e later && echo alone")
        expect(saw.stdout == b"old\ngone\nold\nalone\n", saw)
        await first.run("echo first > file")
        expect(await second.read_file("file") == b"old\n", "forks share files")
    expect(await case.sandbox.read_file("file") == b"new\n", "the original changed")
    await case.provider.discard(snapshot)
    await case.provider.discard(snapshot)
    try:
        await case.provider.restore(snapshot, case.spec)
    except SandboxError:
        return
    expect(False, "a discarded snapshot was restored")  # noqa: FBT003


@promise("closing ends running commands, can be repeated, and later calls raise")
async def _close(case: Case) -> None:
    mark = long_sleep()
    running = asyncio.create_task(case.run(f"echo > begun; sleep {mark}", timeout=2 * SLOW_SECONDS))
    async with asyncio.timeout(SLOW_SECONDS):
        while not (await case.run("test -e begun")).ok:
            pass
    await case.sandbox.close()
    await case.sandbox.close()
    await asyncio.wait({running}, timeout=SLOW_SECONDS)
    expect(running.done() and isinstance(running.exception(), SandboxDied), running)
    for call in (case.run("true"), case.sandbox.read_file("f"), case.sandbox.snapshot()):
        try:
            await call
        except SandboxDied:
            continue
        expect(False, "a closed sandbox answered")  # noqa: FBT003
