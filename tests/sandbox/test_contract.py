"""What holds in every kind of sandbox."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from trajgym.envs.sandbox import (
    PROMISES,
    CommandResult,
    SandboxDied,
    SandboxFileError,
    SandboxProvider,
    SandboxSpec,
    SandboxStartFailed,
    SandboxUnavailable,
    Snapshot,
    SnapshotFailed,
    check_sandbox,
)
from trajgym.envs.sandbox.embedded import EmbeddedSandbox
from trajgym.trajectory import ConformanceError, InvalidInput

if TYPE_CHECKING:
    from pathlib import Path

NAMESPACES = [
    "a timeout kills the whole tree and leaves the sandbox usable",
    "a fork bomb is bounded",
    "memory is bounded, and a kill for it is reported",
    "the network is not reachable",
    "the host's files can't be read or written, nor through links",
    "commands have no privileges",
    "mounted directories of the host are seen as they are, and can't be written",
]


@pytest.mark.parametrize("promise", PROMISES)
async def test_promise(promise: str, provider: SandboxProvider, spec: SandboxSpec) -> None:
    """Every promise of the conformance suite is kept, and none is skipped here."""
    report = await check_sandbox(provider, spec, only=promise)
    assert list(report.kept) == [promise]


@pytest.mark.parametrize("provider", ["unshare"], indirect=True)
@pytest.mark.parametrize("promise", NAMESPACES)
async def test_promise_without_bubblewrap(
    promise: str, provider: SandboxProvider, spec: SandboxSpec
) -> None:
    """util-linux alone isolates as well as bubblewrap does."""
    report = await check_sandbox(provider, spec, only=promise)
    assert list(report.kept) == [promise]


@pytest.mark.parametrize("provider", ["bubblewrap"], indirect=True)
async def test_broken_promise_is_named(
    provider: SandboxProvider, spec: SandboxSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The conformance suite fails, by name, on a sandbox that loses exit codes."""
    honest = EmbeddedSandbox._execute

    async def lying(self: EmbeddedSandbox, *args: object, **kw: object) -> CommandResult:
        return (await honest(self, *args, **kw))._replace(exit_code=0)  # type: ignore[arg-type]

    monkeypatch.setattr(EmbeddedSandbox, "_execute", lying)
    with pytest.raises(ConformanceError, match="exit codes are those of the command"):
        await check_sandbox(provider, spec, only="exit codes are those of the command")


async def test_trees_are_copies(
    provider: SandboxProvider, spec: SandboxSpec, tmp_path: Path
) -> None:
    """The agent owns and may change its copy of a tree; the host's stays as it was."""
    tree = tmp_path / "tree"
    (tree / "sub").mkdir(parents=True)
    (tree / "sub" / "file").write_text("host")
    (tree / "run.sh").write_text("#!/bin/sh\necho ran\n")
    (tree / "run.sh").chmod(0o755)
    (tree / "link").symlink_to("sub/file")
    spec = SandboxSpec(image=spec.image, trees={"/srv/repo": tree}, workdir="/srv/repo")
    async with await provider.start(spec) as sandbox:
        result = await sandbox.run("./run.sh; cat link; echo agent > link; touch new; rm run.sh")
        assert result.stdout == b"ran\nhost"
        assert result.ok
        assert await sandbox.read_file("sub/file") == b"agent\n"
    assert (tree / "sub" / "file").read_text() == "host"
    assert sorted(path.name for path in tree.iterdir()) == ["link", "run.sh", "sub"]


async def test_readonly_trees(provider: SandboxProvider, spec: SandboxSpec, tmp_path: Path) -> None:
    """Read-only trees can be read and not be changed."""
    wheels = tmp_path / "wheels"
    wheels.mkdir()
    (wheels / "a.whl").write_text("wheel")
    spec = SandboxSpec(image=spec.image, readonly={"/opt/wheels": wheels})
    async with await provider.start(spec) as sandbox:
        assert await sandbox.read_file("/opt/wheels/a.whl") == b"wheel"
        result = await sandbox.run("echo x > /opt/wheels/a.whl; echo x > /opt/wheels/new; true")
        assert result.stderr.count(b"\n") == 2
        with pytest.raises(SandboxFileError, match=r"a\.whl"):
            await sandbox.write_file("/opt/wheels/a.whl", b"x")
    assert (wheels / "a.whl").read_text() == "wheel"
    assert len(list(wheels.iterdir())) == 1


async def test_missing_tree(provider: SandboxProvider, spec: SandboxSpec, tmp_path: Path) -> None:
    """A tree that is not on the host is an error that names it."""
    spec = SandboxSpec(image=spec.image, trees={"/srv": tmp_path / "nowhere"})
    with pytest.raises(SandboxStartFailed, match="nowhere"):
        await provider.start(spec)


@pytest.mark.parametrize(
    "fields",
    [{"workdir": "relative"}, {"workdir": "/a/../b"}, {"workdir": "/"}, {"user": "agent"}],
)
async def test_bad_spec(provider: SandboxProvider, fields: dict[str, str]) -> None:
    """A spec that could never start is refused before anything is made."""
    with pytest.raises(InvalidInput):
        await provider.start(SandboxSpec(image="trajgym/base:bookworm", **fields))  # type: ignore[arg-type, unused-ignore]


async def test_bad_commands(provider: SandboxProvider, spec: SandboxSpec) -> None:
    """Commands that no kernel could run get an answer, as from a shell; nonsense is refused."""
    async with await provider.start(spec) as sandbox:
        long = await sandbox.run("echo " + "x" * 200_000)
        assert long.exit_code == 126
        assert b"too long" in long.stderr
        nul = await sandbox.run("echo a\0b")
        assert nul.exit_code == 126
        assert b"NUL" in nul.stderr
        assert (await sandbox.run("printf '%s' '\ud800'")).ok
        assert (await sandbox.run("")).ok
        for command, timeout in (("true", 0.0), ("true", -1.0), ([], 1.0)):
            with pytest.raises(InvalidInput):
                await sandbox.run(command, timeout=timeout)
        with pytest.raises(SandboxFileError):
            await sandbox.read_file("a\0b")


async def test_killing_everything(provider: SandboxProvider, spec: SandboxSpec) -> None:
    """After an agent kills all processes that it can, its call returns; the sandbox is usable."""
    async with await provider.start(spec) as sandbox:
        for attack in ("kill -9 -1", "kill -9 $PPID; sleep 30"):
            result = await sandbox.run(attack, timeout=120)
            assert result.exit_code not in {0, -1}
            assert (await sandbox.run("echo usable")).stdout == b"usable\n"


async def test_many_commands_at_once(provider: SandboxProvider, spec: SandboxSpec) -> None:
    """Commands of one sandbox run side by side and don't mix their output."""
    async with await provider.start(spec) as sandbox:
        results = await asyncio.gather(
            *(sandbox.run(f"echo out{i}; echo err{i} >&2; exit {i}") for i in range(12))
        )
    expected = [(i, f"out{i}\n".encode(), f"err{i}\n".encode()) for i in range(12)]
    assert [result[:3] for result in results] == expected


async def test_closing_the_provider_closes_everything(
    provider: SandboxProvider, spec: SandboxSpec
) -> None:
    """After the provider is closed its sandboxes and snapshots are gone, and it starts none."""
    sandbox = await provider.start(spec)
    snapshot = await sandbox.snapshot()
    await provider.close()
    await provider.close()
    with pytest.raises(SandboxDied):
        await sandbox.run("true")
    with pytest.raises(SandboxUnavailable):
        await provider.start(spec)
    with pytest.raises((SnapshotFailed, SandboxUnavailable)):
        await provider.restore(snapshot, spec)


async def test_unknown_snapshot(provider: SandboxProvider, spec: SandboxSpec) -> None:
    """A snapshot that was never taken can't be restored."""
    with pytest.raises(SnapshotFailed):
        await provider.restore(Snapshot(provider.name, "no-snapshot-here"), spec)


async def test_only_snapshots_are_deleted(provider: SandboxProvider, spec: SandboxSpec) -> None:
    """Asked to delete something else, such as the image of a sandbox, a provider refuses."""
    with pytest.raises(SnapshotFailed, match="is not a snapshot"):
        await provider.discard(Snapshot(provider.name, spec.image))
    async with await provider.start(spec) as box:
        assert (await box.run("true")).ok


async def test_isolation_is_told(provider: SandboxProvider) -> None:
    """A provider describes what it does not isolate."""
    told = provider.isolation()
    assert "shared" in told["kernel"]
    assert all(told.values())
