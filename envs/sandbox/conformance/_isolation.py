"""Promises about what code inside can reach, tested with attacks."""

from __future__ import annotations

import asyncio
import dataclasses
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from trajgym.envs.sandbox._base import Service
from trajgym.envs.sandbox._errors import SandboxStartFailed, SandboxUnavailable
from trajgym.envs.sandbox.conformance._case import (
    SLOW_SECONDS,
    Case,
    NotPromised,
    expect,
    long_sleep,
    promise,
)

if TYPE_CHECKING:
    from trajgym.envs.sandbox._base import Sandbox, SandboxSpec

WRITES = """
for f in /proc/sys/kernel/hostname /proc/sys/kernel/core_pattern /proc/sysrq-trigger \
    /proc/sys/vm/drop_caches /sys/kernel/mm/transparent_hugepage/enabled /sys/power/state \
    /sys/fs/cgroup/memory/memory.limit_in_bytes /sys/fs/cgroup/pids/pids.max \
    /sys/fs/cgroup/cgroup.procs /sys/fs/cgroup/memory.max /proc/1/oom_score_adj /proc/1/mem
do
    if (echo 1 >"$f") 2>/dev/null; then echo "wrote $f"; fi
done
"""
ESCAPES = """
mount -t tmpfs none /tmp && echo "mounted"
mount -t proc none /tmp && echo "mounted proc"
umount /proc && echo "unmounted"
chroot / true && echo "chroot"
mknod /tmp/disk b 8 0 && echo "device"
unshare --user --map-root-user --mount sh -c 'mount -t tmpfs none /mnt' && echo "unshare"
chown 0:0 /tmp && echo "chown"
cp /bin/sh /tmp/su && chmod 4755 /tmp/su && [ "$(/tmp/su -p -c 'id -u')" = 0 ] && echo "setuid"
kill -9 1 && sleep 0.1 && echo "init killed" && ! kill -0 1 2>/dev/null && echo "init is dead"
ls /proc/1/root/etc/shadow /proc/1/cwd/etc/shadow && cat /proc/1/root/etc/shadow && echo "root"
for d in /dev/mem /dev/kmem /dev/sda /dev/vda /dev/nvme0n1 /dev/kvm; do
    if (: <"$d") 2>/dev/null; then echo "opened $d"; fi
done
for s in /var/run/docker.sock /run/docker.sock /run/containerd/containerd.sock; do
    [ -e "$s" ] && echo "socket $s"
done
true
"""


@promise("kernel settings and limits can't be written")
async def _kernel(case: Case) -> None:
    saw = await case.run(WRITES)
    expect(saw.stdout == b"", saw)


@promise("known escapes fail")
async def _escapes(case: Case) -> None:
    saw = await case.run(ESCAPES)
    expect(saw.stdout.replace(b"init killed\n", b"") == b"", saw)
    expect((await case.run("echo usable")).stdout == b"usable\n", "not usable")


@promise("the host's loopback can't be reached")
async def _loopback(case: Case) -> None:
    if case.spec.network:
        raise NotPromised("the spec asks for a network")
    seen: list[object] = []

    def connected(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        seen.append(writer.get_extra_info("peername"))
        writer.close()

    async with await asyncio.start_server(connected, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        attack = f"exec 3<>/dev/tcp/127.0.0.1/{port} && echo connected"
        saw = await case.sandbox.run(["bash", "-c", attack])
        expect(saw.stdout == b"" and not seen, (saw, seen))


@promise("of the network only the places that a spec allows are reached")
async def _allow(case: Case) -> None:
    said = b"welcome\n"

    def serve(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(said)
        writer.close()

    servers = [await asyncio.start_server(serve, "127.0.0.1", 0) for _ in range(2)]
    allowed, forbidden = (server.sockets[0].getsockname()[1] for server in servers)
    allow = (f"place.test:80=127.0.0.1:{allowed}",)
    spec = dataclasses.replace(case.spec, network=False, allow=allow)
    async with servers[0], servers[1], await _start(case, spec) as box:
        for host, port, reached in (
            ("place.test", 80, True),
            ("place.test", forbidden, False),
            ("127.0.0.1", allowed, False),
            ("127.0.0.1", forbidden, False),
            ("other.test", 80, False),
            ("192.0.2.1", 80, False),
        ):
            attack = f"exec 3<>/dev/tcp/{host}/{port} && head -n 1 <&3"
            saw = await box.run(["timeout", "10", "bash", "-c", attack])
            expect((saw.stdout == said) is reached, (host, port, saw))


async def _start(case: Case, spec: SandboxSpec) -> Sandbox:
    try:
        return await case.provider.start(spec)
    except SandboxUnavailable as reason:
        raise NotPromised(str(reason)) from None


@promise("declared services serve every command, and again in a fork")
async def _services(case: Case) -> None:
    answer = "mkfifo ask answer; while :; do read word <ask; echo $word back >answer; done"
    service = Service(name="bell", command=f"rm -f ask answer; {answer}", ready="test -p answer")
    ask = "echo {} >ask; cat answer"
    async with await _start(case, dataclasses.replace(case.spec, services=(service,))) as box:
        await box.run("sleep 60", timeout=0.5)
        for word in ("one", "two"):
            saw = await box.run(ask.format(word), timeout=SLOW_SECONDS)
            expect(saw.stdout == f"{word} back\n".encode(), saw)
        async with await box.fork() as fork:
            saw = await fork.run(ask.format("three"), timeout=SLOW_SECONDS)
            expect(saw.stdout == b"three back\n", saw)
    failing = Service(name="bell", command="echo broken; exit 1", ready="false")
    try:
        await case.provider.start(dataclasses.replace(case.spec, services=(failing,)))
    except SandboxStartFailed as error:
        expect("broken" in str(error), error)
    else:
        expect(False, "a service that ended was no failure")  # noqa: FBT003


@promise("another sandbox can't be seen")
async def _neighbours(case: Case) -> None:
    mark = long_sleep()
    async with await case.provider.start(case.spec) as other:
        victim = await other.shell()
        await victim.run(f"echo secret > /tmp/n{mark}; echo secret > n{mark}; sleep {mark} &")
        saw = await case.run(
            f"cat /proc/[0-9]*/cmdline | tr '\\0' ' ' | grep -c '[s]leep {mark}'; "
            f"find /tmp /var /home /work -name 'n{mark}' 2>/dev/null; kill -9 -1; true"
        )
        expect(saw.stdout.strip() in {b"0", b""}, saw)
        expect([process.name for process in await victim.processes()] == ["sleep"], "killed")


@promise("the disk is bounded, and a kill for it is reported")
async def _disk(case: Case) -> None:
    limits = dataclasses.replace(case.spec.limits, disk=8 << 20)
    spec = dataclasses.replace(case.spec, limits=limits)
    fill = "while :; do head -c 4000000 /dev/zero > f$((n += 1)); done"
    async with await case.provider.start(spec) as small:
        one = await small.run("head -c 20000000 /dev/zero > big")
        expect(not one.ok and not one.timed_out, one)
        saw = await small.run(fill, timeout=SLOW_SECONDS)
        expect(not saw.timed_out and b"disk limit" in saw.stderr, saw)
        expect((await small.run("rm -f f* big; echo > small")).ok, "no room can be made")
        shell = await small.shell()
        saw = await shell.run(f"( {fill} )", timeout=SLOW_SECONDS)
        expect(b"disk limit" in saw.stderr, saw)


@promise("with a read-only root only the work, home and scratch directories can be written")
async def _readonly(case: Case) -> None:
    spec = dataclasses.replace(case.spec, readonly_root=True)
    async with await case.provider.start(spec) as fixed:
        saw = await fixed.run("touch ~/f /tmp/f /var/tmp/f f && echo 'echo ran' > x && sh ./x")
        expect(saw.stdout == b"ran\n", saw)
        saw = await fixed.run("grep ' / ' /proc/mounts | tail -n 1; chmod +x x; ./x")
        expect(b" ro," in saw.stdout and saw.stdout.endswith(b"ran\n"), saw)


@promise("mounted directories of the host are seen as they are, and can't be written")
async def _mounts(case: Case) -> None:
    with tempfile.TemporaryDirectory(prefix="trajgym-mount-") as name:
        folder = Path(name)
        _write(folder, "first", "before\n")
        spec = dataclasses.replace(case.spec, mounts={"/opt/tg-mount": folder})
        async with await case.provider.start(spec) as box:
            _write(folder, "second", "after\n")
            saw = await box.run("cat /opt/tg-mount/first /opt/tg-mount/second")
            expect(saw.stdout == b"before\nafter\n", saw)
            saw = await box.run("echo x > /opt/tg-mount/third || echo x >> /opt/tg-mount/first")
            expect(not saw.ok, saw)
        kept = _texts(folder)
        expect(kept == {"first": "before\n", "second": "after\n"}, kept)


def _write(folder: Path, name: str, text: str) -> None:
    folder.chmod(0o755)
    (folder / name).write_text(text)
    (folder / name).chmod(0o644)


def _texts(folder: Path) -> dict[str, str]:
    return {path.name: path.read_text() for path in folder.iterdir()}
