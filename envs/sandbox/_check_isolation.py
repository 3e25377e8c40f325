"""Promises about what code inside can reach, tried as an attacker would."""

from __future__ import annotations

import asyncio
import dataclasses

from trajgym.envs.sandbox._trial import NotPromised, Trial, expect, long_sleep, promise

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
async def _kernel(trial: Trial) -> None:
    saw = await trial.run(WRITES)
    expect(saw.stdout == b"", saw)


@promise("known ways out are shut")
async def _escapes(trial: Trial) -> None:
    saw = await trial.run(ESCAPES)
    expect(saw.stdout.replace(b"init killed\n", b"") == b"", saw)
    expect((await trial.run("echo usable")).stdout == b"usable\n", "not usable")


@promise("the host's loopback can't be reached")
async def _loopback(trial: Trial) -> None:
    if trial.spec.network:
        raise NotPromised("the spec asks for a network")
    seen: list[object] = []

    def connected(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        seen.append(writer.get_extra_info("peername"))
        writer.close()

    async with await asyncio.start_server(connected, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        attack = f"exec 3<>/dev/tcp/127.0.0.1/{port} && echo connected"
        saw = await trial.sandbox.run(["bash", "-c", attack])
        expect(saw.stdout == b"" and not seen, (saw, seen))


@promise("another sandbox can't be seen")
async def _neighbours(trial: Trial) -> None:
    mark = long_sleep()
    async with await trial.provider.start(trial.spec) as other:
        victim = await other.shell()
        await victim.run(f"echo secret > /tmp/n{mark}; echo secret > n{mark}; sleep {mark} &")
        saw = await trial.run(
            f"cat /proc/[0-9]*/cmdline | tr '\\0' ' ' | grep -c '[s]leep {mark}'; "
            f"find /tmp /var /home /work -name 'n{mark}' 2>/dev/null; kill -9 -1; true"
        )
        expect(saw.stdout.strip() in {b"0", b""}, saw)
        expect([process.name for process in await victim.processes()] == ["sleep"], "killed")


@promise("the disk is bounded, and a kill for it is told")
async def _disk(trial: Trial) -> None:
    limits = dataclasses.replace(trial.spec.limits, disk=8 << 20)
    spec = dataclasses.replace(trial.spec, limits=limits)
    fill = "while :; do head -c 4000000 /dev/zero > f$((n += 1)); done"
    async with await trial.provider.start(spec) as small:
        one = await small.run("head -c 20000000 /dev/zero > big")
        expect(not one.ok and not one.timed_out, one)
        saw = await small.run(fill, timeout=30)
        expect(not saw.timed_out and b"disk limit" in saw.stderr, saw)
        expect((await small.run("rm -f f* big; echo > small")).ok, "no room can be made")
        shell = await small.shell()
        saw = await shell.run(f"( {fill} )", timeout=30)
        expect(b"disk limit" in saw.stderr, saw)


@promise("with a read-only root only the work, home and scratch directories can be written")
async def _readonly(trial: Trial) -> None:
    spec = dataclasses.replace(trial.spec, readonly_root=True)
    async with await trial.provider.start(spec) as fixed:
        saw = await fixed.run("touch ~/f /tmp/f /var/tmp/f f && echo 'echo ran' > x && sh ./x")
        expect(saw.stdout == b"ran\n", saw)
        saw = await fixed.run("grep ' / ' /proc/mounts | tail -n 1; chmod +x x; ./x")
        expect(b" ro," in saw.stdout and saw.stdout.endswith(b"ran\n"), saw)
