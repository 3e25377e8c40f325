"""What only containers do."""

from __future__ import annotations

import asyncio
import dataclasses
import os
import subprocess
from pathlib import Path

import pytest

from tests.sandbox.conftest import BASE, docker
from trajgym.envs.sandbox import (
    DockerProvider,
    ImageNotFound,
    SandboxDied,
    SandboxSpec,
    SandboxStartFailed,
    SandboxUnavailable,
    SnapshotFailed,
)
from trajgym.envs.sandbox.docker import _sandbox

HOLDS = f"trajgym/test-holds:{os.getpid()}"

pytestmark = [pytest.mark.docker, pytest.mark.usefixtures("engine")]


def _labelled(label: str) -> list[str]:
    return docker("ps", "-aq", "--filter", f"label={label}").split()


async def test_missing_image_fails_fast() -> None:
    """An image that does not exist is an error that says what to do; nothing is pulled."""
    async with DockerProvider() as provider:
        with pytest.raises(ImageNotFound, match="docker pull"):
            await provider.start(SandboxSpec(image="trajgym/no-such-image:1"))


async def test_container_is_locked_down() -> None:
    """Without network, capabilities, new privileges or mounts, and with every limit set."""
    async with DockerProvider() as provider:
        sandbox = await provider.start(SandboxSpec(image=BASE, labels={"run": "r1"}))
        seen = await provider.engine.call(lambda api: api.inspect_container(sandbox.container))
    host = seen["HostConfig"]
    assert host["NetworkMode"] == "none"
    assert host["CapDrop"] == ["ALL"]
    assert not host["CapAdd"]
    assert "no-new-privileges" in host["SecurityOpt"]
    assert host["Memory"] == host["MemorySwap"] == 1 << 30
    assert host["PidsLimit"] == 256
    assert host["NanoCpus"] == 10**9
    assert host["Init"]
    assert not host["Binds"]
    assert not seen["Mounts"]
    labels = seen["Config"]["Labels"]
    assert labels["trajgym"] == "1"
    assert labels["run"] == "r1"
    assert str(os.getpid()) in labels["trajgym.owner"]


def _build_holding_image() -> None:
    recipe = f"FROM {BASE}\nUSER root\nRUN mkdir /srv/repo && echo image > /srv/repo/file\n"
    recipe += "LABEL trajgym.holds=/srv/repo:/opt/x\n"
    command = ["docker", "build", "-q", "-t", HOLDS, "-"]
    subprocess.run(command, input=recipe.encode(), capture_output=True, check=True, timeout=240)


async def test_root_keeps_the_capabilities_that_were_granted_and_no_other() -> None:
    """With CHOWN it changes owners, in a fork too; it can't do what other capabilities permit."""
    spec = SandboxSpec(image=BASE, user="0:0", capabilities=["CHOWN"])
    line = "f=$(mktemp) && chown 1:1 $f && stat -c %u $f; chroot / true"
    async with DockerProvider() as provider, await provider.start(spec) as sandbox:
        done = await sandbox.run(line)
        assert done.stdout == b"1\n"
        assert b"chroot: cannot change root directory" in done.stderr
        async with await sandbox.fork() as fork:
            assert (await fork.run(line)).stdout == b"1\n"


async def test_image_that_holds_a_tree(tmp_path: Path) -> None:
    """A tree that the image's label says it holds is not copied over it."""
    (tmp_path / "file").write_text("from the host")
    await asyncio.to_thread(_build_holding_image)
    try:
        async with DockerProvider() as provider:
            spec = SandboxSpec(image=HOLDS, trees={"/srv/repo": tmp_path})
            async with await provider.start(spec) as sandbox:
                assert await sandbox.read_file("/srv/repo/file") == b"image\n"
    finally:
        docker("rmi", "-f", HOLDS)


async def test_cancelled_starts_leave_nothing() -> None:
    """Starts that are cancelled at any moment leave no container and take no capacity."""
    label = f"trajgym-test=cancel-{os.getpid()}"
    key, _, value = label.partition("=")
    spec = SandboxSpec(image=BASE, labels={key: value})
    async with DockerProvider() as provider:
        for delay in (0.0, 0.01, 0.03, 0.1, 0.2):
            starting = asyncio.create_task(provider.start(spec))
            await asyncio.wait({starting}, timeout=delay)
            starting.cancel()
            await asyncio.wait({starting})
        with pytest.raises(SandboxStartFailed, match="within"):
            await provider.start(spec, timeout=0.001)
        async with await provider.start(spec) as sandbox:
            assert (await sandbox.run("true")).ok
    assert not _labelled(label)


async def test_removed_container_is_a_dead_sandbox() -> None:
    """A container that is removed from outside ends running and later commands as SandboxDied."""
    async with DockerProvider() as provider:
        sandbox = await provider.start(SandboxSpec(image=BASE))
        running = asyncio.create_task(sandbox.run("touch begun; sleep 600", timeout=600))
        while not (await sandbox.run("test -e begun")).ok:
            pass
        docker("rm", "-f", sandbox.container)
        with pytest.raises(SandboxDied):
            await running
        with pytest.raises(SandboxDied):
            await sandbox.run("true")
        with pytest.raises(SandboxDied):
            await sandbox.snapshot()
        await sandbox.close()


async def test_background_processes_survive_their_command_only() -> None:
    """A server stays when its command ends; another command's timeout does not end it."""
    async with DockerProvider() as provider, await provider.start(SandboxSpec(image=BASE)) as box:
        await box.run("setsid sleep 4242 >/dev/null 2>&1 & echo $! > server")
        await box.run("sleep 60", timeout=0.5)
        assert (await box.run("kill -0 $(cat server)")).ok


async def test_restart_is_the_last_resort(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the helper can't end a command, a restart of the container does; files stay."""
    monkeypatch.setattr(_sandbox, "KILL", "exit 1")
    async with DockerProvider() as provider, await provider.start(SandboxSpec(image=BASE)) as box:
        shell = await box.shell()
        await shell.run("cd /usr; x=1")
        other = asyncio.create_task(box.run("echo > begun; sleep 600", timeout=600))
        while not (await box.run("test -e begun")).ok:
            pass
        await box.write_file("file", b"kept\n")
        result = await box.run("sleep 60", timeout=0.5)
        assert result.timed_out
        assert await box.read_file("file") == b"kept\n"
        assert b"restarted" in (await other).stderr
        saw = await shell.run("pwd; echo [$x]")
        assert saw.exit_code == 137 or saw.stdout == b"/usr\n[]\n"
        assert (await shell.run("pwd")).stdout == b"/usr\n"


async def test_killed_host_is_noticed() -> None:
    """A command that kills its parent is over long before its timeout, and is ended with it."""
    async with DockerProvider() as provider, await provider.start(SandboxSpec(image=BASE)) as box:
        result = await box.run("kill -9 $PPID; sleep 4243", timeout=300)
        assert result.exit_code == 137
        assert not result.timed_out
        assert result.seconds < 100
        left = await box.run("cat /proc/[0-9]*/cmdline | tr '\\0' ' ' | grep -c 'sleep [4]243'")
        assert left.stdout == b"0\n"


async def test_unknown_runtime() -> None:
    """A runtime that the engine does not have is an error before anything is started."""
    async with DockerProvider(runtime="no-such-runtime") as provider:
        with pytest.raises(SandboxUnavailable, match=r"no-such-runtime.*daemon\.json"):
            await provider.check()


async def test_readonly_root_says_what_it_can_not(tmp_path: Path) -> None:
    """A read-only root takes no trees and keeps no state, and the errors say what to do."""
    async with DockerProvider() as provider:
        spec = SandboxSpec(image=BASE, readonly_root=True)
        with pytest.raises(SandboxStartFailed, match=r"/srv.*upload"):
            await provider.start(dataclasses.replace(spec, trees={"/srv": tmp_path}))
        async with await provider.start(spec) as box:
            (tmp_path / "file").write_text("x")
            await box.upload(tmp_path, "tree")
            assert await box.read_file("tree/file") == b"x"
            with pytest.raises(SnapshotFailed, match="without readonly_root"):
                await box.fork()


async def test_no_engine() -> None:
    """Without an engine the error says where it was looked for and what to do."""
    async with DockerProvider("unix:///nonexistent/docker.sock") as provider:
        for call in (provider.check(), provider.start(SandboxSpec(image=BASE))):
            with pytest.raises(SandboxUnavailable, match=r"/nonexistent.*docker-engine\.sh"):
                await call


@pytest.mark.parametrize(
    ("more", "workdirs"),
    [("", ["/work", "/srv/a/b", "/outer/in", "/there"]), ("VOLUME /data\n", ["/data/in"])],
    ids=["plain", "volume"],
)
async def test_containers_of_an_image_begin_alike(more: str, workdirs: list[str]) -> None:
    """Directories that an image lacks, or has as a link, are the same in each of its containers."""
    make = "mkdir -m 755 /outer && ln -s /outer /there && chmod 711 /srv && mkdir /data"
    recipe = f"FROM {BASE}\nUSER root\nRUN {make}\n{more}"
    image = f"trajgym/test-alike:{os.getpid()}"
    build = ["docker", "build", "-q", "--network", "none", "-t", image, "-"]
    subprocess.run(build, input=recipe.encode(), capture_output=True, check=True, timeout=240)
    paths = "/home /srv /outer /there /there/ /work /data"
    look = f"find {paths} -printf '%p %y %m %U:%G\\n' | sort"
    try:
        for workdir in workdirs:
            async with DockerProvider() as provider:
                spec = SandboxSpec(image=image, workdir=workdir, user="1234:1235")
                seen = []
                for _ in range(3):
                    async with await provider.start(spec) as box:
                        made = await box.run("touch file && stat -c %u:%g . file")
                        assert made.stdout == b"1234:1235\n" * 2, made
                        seen.append((await box.run(look)).stdout)
                assert seen[1] == seen[0]
                assert seen[2] == seen[0]
                if more:
                    continue  # what lies in a volume is not copied
                async with await provider.start(spec) as box, await box.fork() as fork:
                    await fork.run("touch file")
                    assert (await fork.run(look)).stdout == seen[0]
    finally:
        docker("rmi", "-f", image)


async def test_the_content_of_volumes_is_not_lost_in_a_copy() -> None:
    """A copy without what lies in the image's volumes is refused; empty volumes are fine."""
    image = f"trajgym/test-volumes:{os.getpid()}"
    build = ["docker", "build", "-q", "--network", "none", "-t", image, "-"]
    recipe = f"FROM {BASE}\nUSER root\nRUN mkdir -m 777 /data\nVOLUME /data\n"
    subprocess.run(build, input=recipe.encode(), capture_output=True, check=True, timeout=240)
    try:
        spec = SandboxSpec(image=image)
        async with DockerProvider() as provider, await provider.start(spec) as box:
            async with await box.fork() as fork:
                assert (await fork.run("ls -A /data")).stdout == b""
            assert (await box.run("echo 1 > /data/rows")).ok
            for copy in (box.fork, box.snapshot):
                with pytest.raises(SnapshotFailed, match=r"volumes \(/data\)"):
                    await copy()
            assert (await box.run("cat /data/rows")).stdout == b"1\n"
    finally:
        docker("rmi", "-f", image)
