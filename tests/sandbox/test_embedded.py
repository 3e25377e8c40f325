"""What only the embedded sandbox does."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from trajgym.envs.sandbox import (
    EmbeddedProvider,
    Limits,
    SandboxError,
    SandboxProvider,
    SandboxSpec,
    SandboxStartFailed,
    SandboxUnavailable,
)
from trajgym.envs.sandbox._folders import disk_use
from trajgym.envs.sandbox.conformance import Case, long_sleep, survivors
from trajgym.envs.sandbox.embedded._cgroups import ControlGroups

EMBEDDED = pytest.mark.parametrize("provider", ["bubblewrap"], indirect=True)


@EMBEDDED
async def test_disk_limit(provider: SandboxProvider) -> None:
    """A command that exceeds the disk limit is killed with a message; files can be deleted."""
    spec = SandboxSpec(limits=Limits(disk=8 << 20))
    async with await provider.start(spec) as sandbox:
        one = await sandbox.run("head -c 20000000 /dev/zero > big")
        assert not one.ok
        assert not one.timed_out
        many = await sandbox.run("while :; do head -c 4000000 /dev/zero > f$((n += 1)); done")
        assert many.exit_code == 137
        assert b"disk limit" in many.stderr
        assert (await sandbox.run("rm big f*; echo > small")).ok


@EMBEDDED
async def test_a_measurement_that_fails_ends_no_limit(
    provider: SandboxProvider, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The disk limit applies to a command although its files could not be measured once."""
    spec = SandboxSpec(limits=Limits(disk=8 << 20))
    async with await provider.start(spec) as sandbox:
        measure, failed = sandbox._disk_use, list[str]()  # type: ignore[attr-defined]

        async def use() -> int:
            if not failed:
                failed.append("once")
                raise SandboxError("the engine is busy")
            return int(await measure())

        monkeypatch.setattr(sandbox, "_disk_use", use)
        fill = "n=0; while [ $n -lt 9 ]; do head -c 4000000 /dev/zero > f$((n += 1)); done"
        done = await sandbox.run(f"{fill}; sleep 1000", timeout=120)
        assert done.exit_code == 137
        assert b"disk limit" in done.stderr
    assert "the engine is busy" in caplog.text


@EMBEDDED
async def test_background_ends_with_its_command(provider: SandboxProvider) -> None:
    """Processes that a command leaves running are ended with it; else its shell is used again."""
    sleep = long_sleep()
    async with await provider.start(SandboxSpec()) as box:
        first, second = await box.run("echo $PPID"), await box.run("echo $PPID")
        assert first.stdout == second.stdout
        for start in ("sleep {} &", "(setsid sleep {} &)", "(env -i setsid sleep {} &) &"):
            assert (await box.run(start.format(sleep))).ok
            left = await survivors(Case(provider, box.spec, box), sleep)
            assert not left


@EMBEDDED
async def test_host_python(provider: SandboxProvider) -> None:
    """The interpreter that runs this test works inside, bound read-only where it is outside."""
    spec = SandboxSpec(readonly={sys.base_prefix: Path(sys.base_prefix)})
    async with await provider.start(spec) as sandbox:
        program = f"{sys.base_prefix}/bin/python3"
        result = await sandbox.run([program, "-c", "import json, sys; print(sys.version)"])
        assert result.stdout.decode().strip() == sys.version


@EMBEDDED
async def test_readonly_in_writable_is_refused(provider: SandboxProvider, tmp_path: Path) -> None:
    """A read-only bind inside a directory that the agent may rename could be walked around."""
    with pytest.raises(SandboxStartFailed, match="read-only /work/py"):
        await provider.start(SandboxSpec(readonly={"/work/py": tmp_path}))


@EMBEDDED
async def test_capabilities_are_refused(provider: SandboxProvider) -> None:
    """A spec that asks for what can't be granted is an error, not another sandbox."""
    with pytest.raises(SandboxStartFailed, match="has no capabilities: use Docker"):
        await provider.start(SandboxSpec(capabilities=["CHOWN"]))


@EMBEDDED
@pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
async def test_root_is_refused(provider: SandboxProvider) -> None:
    """User 0 would be the host's root without a user namespace, so it is not offered."""
    with pytest.raises(SandboxStartFailed, match="user 0"):
        await provider.start(SandboxSpec(user="0:0"))


async def test_no_namespaces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the kernel forbids namespaces the error carries the reason and the ways out."""
    for name in ("bwrap", "unshare"):
        program = tmp_path / name
        program.write_text("#!/bin/sh\necho 'Operation not permitted' >&2; exit 1\n")
        program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    async with EmbeddedProvider(tmp_path / "sandboxes") as provider:
        with pytest.raises(SandboxUnavailable, match=r"not permitted.*use Docker"):
            await provider.check()
    assert list((tmp_path / "sandboxes").iterdir()) == []


async def test_somebody_elses_directory(tmp_path: Path) -> None:
    """A symbolic link in place of the sandboxes' directory is not followed."""
    (tmp_path / "real").mkdir()
    (tmp_path / "root").symlink_to("real")
    async with EmbeddedProvider(tmp_path / "root") as provider:
        with pytest.raises(SandboxUnavailable, match="TRAJGYM_SANDBOX_DIR"):
            await provider.check()


@EMBEDDED
async def test_nothing_is_left(provider: SandboxProvider, tmp_path: Path) -> None:
    """Closing removes the directory and the control groups, whatever modes the agent set."""
    sandbox = await provider.start(SandboxSpec())
    groups = [
        mount / "trajgym" / sandbox.id
        for mount in ControlGroups().mounts.values()
        if (mount / "trajgym" / sandbox.id).exists()
    ]
    await sandbox.run("mkdir -p a/b/c; echo x > a/b/c/f; chmod 0 a/b/c a/b a; mkfifo p")
    await sandbox.close()
    assert not (tmp_path / "sandboxes" / sandbox.id).exists()
    assert not [group for group in groups if group.exists()]


def descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


@EMBEDDED
async def test_a_failed_start_leaves_nothing_open(
    provider: SandboxProvider, tmp_path: Path
) -> None:
    """A sandbox that can't run its first command gives back what it had opened."""
    async with await provider.start(SandboxSpec()) as box:
        assert (await box.run("true")).ok
    before = descriptors()
    for _ in range(4):
        with pytest.raises(SandboxStartFailed, match="can't cd"):
            await provider.start(SandboxSpec(workdir="/proc/none/here"))
    assert descriptors() < before + 4
    assert list((tmp_path / "sandboxes").glob("*-sandbox-*")) == []


def test_without_control_groups(tmp_path: Path) -> None:
    """Where no control group can be made, nothing is claimed to be bounded."""
    group = ControlGroups(mounts={}).create("x", Limits())
    assert group.bounds == frozenset()
    assert group.entrances == []
    assert group.oom_kills() == 0


def test_version_2_control_groups(tmp_path: Path) -> None:
    """On cgroup v2 limits and the out-of-memory count are files of one group."""
    folder = tmp_path / "trajgym" / "x"
    groups = ControlGroups(mounts={"": tmp_path})
    group = groups.create("x", Limits(memory=1 << 20, pids=7, cpus=0.5))
    assert (folder / "memory.max").read_text() == str(1 << 20)
    assert (folder / "pids.max").read_text() == "7"
    assert (folder / "cpu.max").read_text() == "50000 100000"
    assert group.bounds == {"memory", "pids", "cpu"}
    assert group.entrances == [str(folder / "cgroup.procs")]
    (folder / "memory.events").write_text("oom 3\noom_kill 2\n")
    assert group.oom_kills() == 2


def test_disk_use_counts_blocks_once_and_follows_no_links(tmp_path: Path) -> None:
    """Sparse files count what they take, and links to the outside count nothing."""
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "full").write_bytes(b"x" * 100_000)
    with (tmp_path / "in" / "sparse").open("wb") as file:
        file.truncate(1 << 30)
    (tmp_path / "out").write_bytes(b"x" * 1_000_000)
    (tmp_path / "in" / "link").symlink_to(tmp_path / "out")
    (tmp_path / "in" / "loop").symlink_to(tmp_path / "in")
    assert 100_000 <= disk_use(tmp_path / "in") < 200_000
