"""Forks and kept states beyond what every kind promises."""

from __future__ import annotations

import asyncio
import os
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.sandbox.conftest import BASE, docker, tiny_root
from trajgym.envs.sandbox import (
    DockerProvider,
    EmbeddedProvider,
    SandboxProvider,
    SandboxSpec,
    Snapshot,
    SnapshotFailed,
)
from trajgym.envs.sandbox.docker import _fork, _images
from trajgym.envs.sandbox.embedded import _layers, _remount
from trajgym.trajectory import InvalidInput

if TYPE_CHECKING:
    from trajgym.envs.sandbox import Sandbox

TINY = f"trajgym/test-tiny:{os.getpid()}"
EMBEDDED = pytest.mark.parametrize("provider", ["bubblewrap"], indirect=True)


async def _close(*sandboxes: Sandbox) -> None:
    await asyncio.gather(*(sandbox.close() for sandbox in sandboxes))


@pytest.mark.docker
@pytest.mark.usefixtures("engine")
async def test_docker_fork_makes_no_image() -> None:
    """A fork carries changes over to a container of the same image; no image is left or made."""
    async with DockerProvider() as provider, await provider.start(SandboxSpec(image=BASE)) as box:
        await box.run("echo a > file; rm -f /work/none")
        fork = await box.fork()
        seen = await provider.engine.call(lambda api: api.inspect_container(fork.container))
        assert seen["Config"]["Image"] == BASE
        assert await fork.read_file("file") == b"a\n"


@pytest.mark.docker
@pytest.mark.usefixtures("engine")
async def test_docker_fork_by_commit(monkeypatch: pytest.MonkeyPatch) -> None:
    """If the engine's files can't be read, forks are commits, and their images are removed."""
    monkeypatch.setattr(_fork, "MAX_ENTRIES", 0)
    async with DockerProvider() as provider, await provider.start(SandboxSpec(image=BASE)) as box:
        await box.run("echo a > file")
        forks = await box.forks(2)
        image = forks[0].image
        assert image.startswith("trajgym/snapshot:")
        assert await forks[1].read_file("file") == b"a\n"
        with pytest.raises(SnapshotFailed, match="discarded"):
            await provider.restore(Snapshot("docker", image), box.spec)
        await forks[0].close()
        assert docker("images", "-q", image)
        await forks[1].close()
        assert not docker("images", "-q", image)


@pytest.mark.docker
@pytest.mark.usefixtures("engine")
async def test_docker_image_is_rebased(monkeypatch: pytest.MonkeyPatch) -> None:
    """An image near the driver's layer limit is made of one layer again, with all that it had."""
    monkeypatch.setattr(_images, "MAX_LAYERS", 2)
    await asyncio.to_thread(_import_tiny)
    spec = SandboxSpec(image=TINY, env={"ODD": 'a "b" $c'})
    try:
        async with DockerProvider() as provider:
            box = await provider.start(spec)
            counts = []
            for number in range(3):
                await box.run(f"echo {number} >> file; chmod 700 file")
                snapshot = await box.snapshot()
                counts.append(
                    await provider.engine.call(
                        lambda api, image=snapshot.id: _images.layer_count(api, image)
                    )
                )
                await box.close()
                box = await provider.restore(snapshot, spec)
            assert counts == [2, 1, 2]
            saw = await box.run('cat file; stat -c %u:%a file; echo "$ODD"')
            assert saw.stdout == b'0\n1\n2\n1000:700\na "b" $c\n', saw
    finally:
        docker("rmi", "-f", TINY)


def _import_tiny() -> None:
    command = ["docker", "import", "-", TINY]
    subprocess.run(command, input=tiny_root(), capture_output=True, check=True, timeout=240)


@EMBEDDED
async def test_embedded_fork_shares_what_is_there(
    provider: EmbeddedProvider, tmp_path: Path
) -> None:
    """Sixteen forks of a large change take its space once, and free it with the last of them."""
    size = 20 << 20
    box = await provider.start(SandboxSpec())
    await box.run(f"head -c {size} /dev/urandom > big")
    forks = await box.forks(16)
    sums = await asyncio.gather(*(fork.run("cksum < big") for fork in forks))
    assert len({done.stdout for done in sums}) == 1
    assert _layers.disk_use(tmp_path / "sandboxes") < 2 * size
    await _close(box, *forks)
    assert _layers.disk_use(tmp_path / "sandboxes") < 1 << 20


async def _grow(root: Sandbox, count: int) -> list[Sandbox]:
    """A tree of one session: each branch forks from the one in the middle of those before it."""
    branches = [root]
    while len(branches) < count:
        parent = branches[len(branches) // 2]
        number = len(branches)
        twins = await parent.forks(min(4, count - number))
        for twin in twins:
            await twin.run(f"echo {number} >> line; head -c 100000 /dev/zero > own; rm -f stale")
        branches += twins
    return branches


def _disk(provider: SandboxProvider, boxes: list[Sandbox]) -> int:
    """Bytes on the host of all that these sandboxes hold."""
    if isinstance(provider, EmbeddedProvider):
        return _layers.disk_use(provider.root)
    ids = [box.container for box in boxes]  # type: ignore[attr-defined]
    form = "{{.GraphDriver.Data.UpperDir}}"
    uppers = docker("inspect", "--format", form, *ids).split()
    return sum(_layers.disk_use(Path(upper)) for upper in uppers)


async def _check_branches(provider: SandboxProvider, spec: SandboxSpec, count: int) -> None:
    root = await provider.start(spec)
    await root.run("head -c 4000000 /dev/urandom > blob; echo x > stale; echo 0 > line")
    branches = await _grow(root, count)
    try:
        assert len({branch.id for branch in branches}) == count
        sums = [await branch.run("cksum < blob; test -e stale; echo $?") for branch in branches]
        assert {done.stdout for done in sums[1:]} == {sums[0].stdout.replace(b"\n0\n", b"\n1\n")}
        lines = [(await branch.run("cat line")).stdout for branch in branches]
        assert lines[0] == b"0\n"
        assert max(line.count(b"\n") for line in lines) >= 3
        used = _disk(provider, branches)
        copies = 1 if isinstance(provider, EmbeddedProvider) else count
        assert used < copies * 4_500_000 + count * 400_000
    finally:
        await _close(*branches)
    if isinstance(provider, EmbeddedProvider):
        assert _layers.disk_use(provider.root) < 1 << 20
        assert not any(provider.layers.folder.iterdir())
    else:
        label = f"label=trajgym.provider={provider._id}"  # type: ignore[attr-defined]
        assert not docker("ps", "-aq", "--filter", label)
        assert not docker("images", "-q", "--filter", label)


@EMBEDDED
async def test_embedded_fork_keeps_waiting_shells(provider: EmbeddedProvider) -> None:
    """An idle shell continues on the frozen files, and writes only to the new layer."""
    box = await provider.start(SandboxSpec())
    shell = await box.shell("main")
    await shell.run("x=kept; f() { echo called; }; cd /usr; cd /work; mkdir d; cd d")
    await shell.run("echo one > file; exec 5<file")
    forks = []
    for number in range(5):
        forks += await box.forks(1)
        saw = await shell.run(f"echo $x; f; pwd; cat file; echo {number} > file; echo {number} > n")
        before = b"one" if number == 0 else str(number - 1).encode()
        assert saw.stdout == b"kept\ncalled\n/work/d\n" + before + b"\n", saw
        assert saw.stderr == b""
    assert box._files.names  # type: ignore[attr-defined]
    assert (await shell.run("cat <&5; cd - >/dev/null; pwd")).stdout == b"one\n/work\n"
    for number, fork in enumerate(forks):
        saw = await fork.shells["main"].run("pwd; cat file n")
        files = "one\n" if number == 0 else f"{number - 1}\n{number - 1}\n"
        assert saw.stdout == f"/work/d\n{files}".encode(), saw
    assert (await box.run("cat d/file")).stdout == b"4\n"
    await _close(box, *forks)
    assert not any(provider.layers.folder.iterdir())


@EMBEDDED
async def test_embedded_fork_on_an_old_kernel(
    provider: EmbeddedProvider, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without the calls of newer kernels forks are layers all the same, copies with open shells."""
    monkeypatch.setattr(_remount, "MOUNT_SETATTR", 100_000)
    async with await provider.start(SandboxSpec()) as box:
        await box.run("echo one > file")
        async with await box.fork() as fork:
            assert box._files.names
            assert await fork.read_file("file") == b"one\n"
        frozen = box._files.names
        shell = await box.shell()
        await shell.run("echo two > file")
        async with await box.fork() as fork:
            assert box._files.names == frozen
            assert await fork.read_file("file") == b"two\n"


@EMBEDDED
async def test_embedded_fork_of_what_may_still_write(provider: EmbeddedProvider) -> None:
    """If a shell has a file open for writing, a fork is a copy, and the file stays writable."""
    async with await provider.start(SandboxSpec()) as box:
        shell, other = await box.shell("main"), await box.shell("other")
        await shell.run("exec 5>file; echo one >&5")
        async with await box.fork() as fork:
            assert not box._files.names
            await shell.run("echo two >&5")
            await other.run("echo fine > other")
            assert await box.read_file("file") == b"one\ntwo\n"
            assert await fork.read_file("file") == b"one\n"
        await shell.run("exec 5>&-")
        async with await box.fork() as fork:
            assert box._files.names
            assert await fork.read_file("other") == b"fine\n"


@EMBEDDED
async def test_embedded_tree_of_64_branches(provider: EmbeddedProvider) -> None:
    """Forks of forks, 64 of one session, share what they have in common and free all of it."""
    await _check_branches(provider, SandboxSpec(), 64)


@pytest.mark.docker
@pytest.mark.parametrize(
    ("provider", "count"),
    [("docker", 9), pytest.param("docker", 64, marks=pytest.mark.slow)],
    indirect=["provider"],
)
@pytest.mark.timeout(900)
async def test_docker_tree_of_branches(provider: SandboxProvider, count: int) -> None:
    """Forks of forks of one container are what they should be, and none leaves anything."""
    await _check_branches(provider, SandboxSpec(image=BASE), count)


@EMBEDDED
async def test_embedded_fork_counts_what_it_shares(provider: EmbeddedProvider) -> None:
    """The disk limit of a fork counts the files that it was forked with."""
    limits = SandboxSpec().limits
    spec = SandboxSpec(limits=type(limits)(disk=8 << 20))
    async with await provider.start(spec) as box:
        await box.run("head -c 6000000 /dev/zero > a")
        async with await box.fork() as fork:
            done = await fork.run("head -c 6000000 /dev/zero > b; sleep 300", timeout=250)
            assert done.exit_code == 137
            assert b"disk limit" in done.stderr


@EMBEDDED
async def test_layers_are_rebased(
    provider: EmbeddedProvider, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A chain of forks can be longer than the depth at which layers are copied into one."""
    monkeypatch.setattr(_layers, "DEPTH", 3)
    box = await provider.start(SandboxSpec())
    await box.run("mkdir d; touch d/0")
    for number in range(1, 9):
        fork = await box.fork()
        await box.close()
        box = fork
        await box.run(f"touch d/{number}; rm d/{number - 1}; echo {number} >> log")
    assert (await box.run("ls d; cat log")).stdout == b"8\n1\n2\n3\n4\n5\n6\n7\n8\n"
    await box.close()


@EMBEDDED
async def test_embedded_fork_without_overlays(
    provider: EmbeddedProvider, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the kernel stacks no layers, forks are copies."""
    monkeypatch.setattr(provider.layers, "_works", False)
    async with await provider.start(SandboxSpec()) as box:
        await box.run("echo a > file")
        async with await box.fork() as fork:
            await fork.run("echo b > file")
            assert await box.read_file("file") == b"a\n"
            assert await fork.read_file("file") == b"b\n"


async def test_busy_shell_is_said_to_be_lost(provider: SandboxProvider, spec: SandboxSpec) -> None:
    """A fork names the shells whose processes or environment it did not take along."""
    async with await provider.start(spec) as box:
        shell = await box.shell("main")
        await shell.run("cd /usr; sleep 60 &")
        async with await box.fork() as fork:
            assert "processes of shell 'main'" in fork.lost
            assert (await fork.shells["main"].run("pwd")).stdout == b"/usr\n"
        with pytest.raises(InvalidInput, match="main"):
            await box.shell("main")
        await shell.close()
        async with await box.fork() as fork:
            assert fork.shells == {}
        assert (await (await box.shell("main")).run("pwd")).stdout == b"/work\n"
        with pytest.raises(InvalidInput, match="at least 1"):
            await box.forks(0)
