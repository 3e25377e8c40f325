"""Sandboxes started ahead."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from tests.clock import Forward
from tests.sandbox.conftest import docker
from trajgym.envs.sandbox import (
    EmbeddedProvider,
    HostShares,
    Sandbox,
    SandboxProvider,
    SandboxSpec,
    SandboxStartFailed,
    SandboxUnavailable,
    WarmPool,
    _pool,
    check_sandbox,
    close_shared_providers,
    shared_provider,
)
from trajgym.trajectory import InvalidInput

if TYPE_CHECKING:
    from pathlib import Path

EMBEDDED = pytest.mark.parametrize("provider", ["bubblewrap"], indirect=True)


async def _until_ready(pool: WarmPool, spec: SandboxSpec, count: int) -> None:
    async with asyncio.timeout(60):
        while pool.ready(spec) < count:
            await asyncio.sleep(0.01)


async def test_ready_sandboxes_are_handed_out_once(
    provider: SandboxProvider, spec: SandboxSpec
) -> None:
    """An idle sandbox is acquired without a start, replaced in the background, and never reused."""
    async with WarmPool(provider, idle=2) as pool:
        await pool.warm(spec, 2)
        assert pool.ready(spec) == 2
        labelled = dataclasses.replace(spec, labels={"session": "s1"})
        taken = [pool.take(labelled), pool.take(labelled)]
        assert taken[0] is not None
        assert taken[1] is not None
        assert taken[0].spec.labels == {"session": "s1"}
        await taken[0].run("echo dirt > file")
        used = {box.id for box in taken if box is not None}
        await taken[0].close()
        await _until_ready(pool, spec, 2)
        for _ in range(3):
            async with await pool.start(spec) as fresh:
                assert fresh.id not in used
                used.add(fresh.id)
                assert not (await fresh.run("test -e file")).ok


@EMBEDDED
async def test_sandboxes_are_prepared_before_they_are_ready(
    provider: EmbeddedProvider, spec: SandboxSpec
) -> None:
    """What `prepare` names has run in a ready sandbox; one in which it fails is closed."""
    failed: list[Sandbox] = []

    async def write(sandbox: Sandbox) -> None:
        await sandbox.run("echo prepared > file")

    async def fail(sandbox: Sandbox) -> None:
        failed.append(sandbox)
        raise SandboxStartFailed("no")

    async with WarmPool(provider, idle=2) as pool:
        pool.prepare(spec, write)
        await pool.warm(spec)
        found = pool.take(spec)
        assert found is not None
        async with found:
            assert (await found.run("cat file")).text.strip() == "prepared"
        pool.prepare(spec, fail)
        with pytest.raises(SandboxStartFailed, match="no"):
            await pool.warm(spec, 2)
        assert failed
        assert not any(one.alive for one in failed)


@EMBEDDED
async def test_what_prepares_a_sandbox_may_raise_anything(
    provider: EmbeddedProvider,
    spec: SandboxSpec,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Its failure is logged, and the pool does not try again at once."""
    monkeypatch.setattr(_pool, "RETRY_SECONDS", 300.0)

    async def fail(sandbox: Sandbox) -> None:
        raise SystemExit("no browser here")

    async with WarmPool(provider) as pool:
        pool.prepare(spec, fail)
        async with await pool.start(spec) as box:
            assert (await box.run("true")).ok
        kind = pool._kind(spec)
        async with asyncio.timeout(60):
            while not kind.not_before or pool._tasks:
                await asyncio.sleep(0.01)
        assert "no browser here" in caplog.text
        pool._refill(kind)
        assert not pool._tasks


@EMBEDDED
async def test_a_pool_is_a_provider(provider: EmbeddedProvider, spec: SandboxSpec) -> None:
    """Its sandboxes pass the conformance suite."""
    async with WarmPool(provider, idle=2) as pool:
        for promise in ("a snapshot is the files of its moment, and lives on its own",
                        "the network is not reachable"):  # fmt: skip
            report = await check_sandbox(pool, spec, only=promise)
            assert list(report.kept) == [promise]


@EMBEDDED
async def test_only_equal_specs_share(provider: EmbeddedProvider, tmp_path: Path) -> None:
    """Another limit, tree or variable is another kind of sandbox; labels make no difference."""
    async with WarmPool(provider, idle=2) as pool:
        plain = SandboxSpec()
        await pool.warm(plain)
        assert pool.ready(SandboxSpec(labels={"run": "r"})) == 1
        assert pool.ready(SandboxSpec(env={"A": "1"})) == 0
        assert pool.ready(SandboxSpec(trees={"/srv": tmp_path})) == 0


@EMBEDDED
async def test_budgets(provider: EmbeddedProvider, monkeypatch: pytest.MonkeyPatch) -> None:
    """No more wait than the totals allow, and none where the host's memory is short."""
    async with WarmPool(provider, idle=4, total=1) as pool:
        one, two = SandboxSpec(), SandboxSpec(env={"A": "1"})
        await pool.warm(one)
        assert pool.take(two) is None
        pool._refill(pool._kind(two))
        assert not pool._kind(two).starting
        assert pool.ready(two) == 0
    with pytest.raises(InvalidInput):
        WarmPool(provider, idle=0)


@EMBEDDED
async def test_no_sandbox_ahead_without_memory(
    provider: EmbeddedProvider, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A host that is short of memory starts only what was asked for."""
    monkeypatch.setattr(_pool, "_free_memory", lambda: 1 << 20)
    async with WarmPool(provider) as pool:
        async with await pool.start(SandboxSpec()) as box:
            assert (await box.run("true")).ok
        kind = pool._kind(SandboxSpec())
        pool._refill(kind)
        assert not pool._tasks
        monkeypatch.setattr(_pool, "_free_memory", lambda: 1 << 40)
        pool._refill(kind)
        assert pool._tasks


async def test_the_session_is_seen_from_outside(
    provider: SandboxProvider, spec: SandboxSpec
) -> None:
    """A sandbox that was started in advance has the labels of the session that acquires it."""
    async with WarmPool(provider, idle=1) as pool:
        await pool.warm(spec)
        labelled = dataclasses.replace(spec, labels={"session": "s/7"})
        async with await pool.start(labelled) as box:
            async with asyncio.timeout(60):
                while box._tasks:  # type: ignore[attr-defined]
                    await asyncio.sleep(0.01)
            if isinstance(provider, EmbeddedProvider):
                text = (provider.root / box.id / "labels.json").read_text()
                assert json.loads(text) == {"session": "s/7"}
            else:
                name = f"{box.id}.s-7"
                assert docker("ps", "--format", "{{.Names}}", "--filter", f"name={name}").strip()
            assert (await box.run("true")).ok
    if not isinstance(provider, EmbeddedProvider):
        assert not docker("ps", "-aq", "--filter", f"name={box.id}")


@EMBEDDED
async def test_pools_share_the_host(provider: EmbeddedProvider, tmp_path: Path) -> None:
    """Together, the pools of a host keep as many idle sandboxes as it allows, and share them."""
    shares = [HostShares(tmp_path / "shares", count=2) for _ in range(2)]
    spec = SandboxSpec()
    async with WarmPool(provider, shares=shares[0]) as one:
        await one.warm(spec, 2)
        two = WarmPool(EmbeddedProvider(tmp_path / "other"), shares=shares[1])
        async with two:
            with pytest.raises(SandboxUnavailable, match=r"2 of 2 sandboxes.*shares"):
                await two.warm(spec)
            async with await two.start(spec) as box:  # what is asked for is started all the same
                assert (await box.run("true")).ok
            assert two.ready(spec) == 0
            await one.close()
            await two.warm(spec, 2)
    assert shares[0].held() == {}


CLAIM = """
import sys
from pathlib import Path
from trajgym.envs.sandbox import HostShares
shares = HostShares(Path(sys.argv[1]), count=50)
print(sum(not shares.claim(1) for _ in range(20)), flush=True)
sys.stdin.read()
"""


def test_shares_across_processes(tmp_path: Path) -> None:
    """Concurrent claims of processes never exceed the total; a killed process's claim is freed."""
    file = tmp_path / "shares"
    command = [sys.executable, "-c", CLAIM, str(file)]
    pipe = subprocess.PIPE
    processes = [subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True) for _ in range(4)]
    try:
        granted = [int(process.stdout.readline()) for process in processes if process.stdout]
        assert sum(granted) == 50
        own = HostShares(file, count=50)
        assert "50 of 50" in own.claim(1)
        processes[0].kill()
        processes[0].wait()
        assert sum(not own.claim(1) for _ in range(60)) == granted[0]
        own.close()
        assert sum(share["count"] for share in own.held().values()) == 50 - granted[0]
    finally:
        for process in processes:
            process.kill()
            process.communicate()


def test_shares_count_memory(tmp_path: Path) -> None:
    """The memory that acquired sandboxes may use is limited, too."""
    shares = HostShares(tmp_path / "shares", memory=100)
    assert not shares.claim(60)
    assert "MiB" in shares.claim(60)
    shares.release(60)
    assert not shares.claim(60)
    (tmp_path / "shares").write_text('{"half')
    assert not shares.claim(60)
    with pytest.raises(InvalidInput):
        HostShares(tmp_path / "shares", count=0)


@EMBEDDED
async def test_unused_kinds_are_let_go(provider: EmbeddedProvider, forward: Forward) -> None:
    """Idle sandboxes of a spec that is no longer requested are closed after a while."""
    async with WarmPool(provider, seconds=300.0) as pool:
        first = await pool.start(SandboxSpec())
        await _until_ready(pool, SandboxSpec(), 1)
        forward(300)
        async with asyncio.timeout(60):
            while pool.ready(SandboxSpec()) or len(provider._open) > 1:
                await asyncio.sleep(0.02)
        assert (await first.run("true")).ok


@pytest.mark.docker
@pytest.mark.parametrize("provider", ["docker"], indirect=True)
async def test_a_dead_one_is_not_handed_out(provider: SandboxProvider, spec: SandboxSpec) -> None:
    """An idle container that was removed from outside is skipped."""
    async with WarmPool(provider, idle=1) as pool:
        await pool.warm(spec)
        doomed = pool._kind(spec).idle[0]
        docker("rm", "-f", doomed.id)
        async with asyncio.timeout(60):
            while doomed.alive:
                await asyncio.sleep(0.01)
        async with await pool.start(spec) as box:
            assert (await box.run("true")).ok


@EMBEDDED
async def test_failed_starts_reach_who_asks(
    provider: EmbeddedProvider, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A spec that can't start fails for the caller, and the pool does not try without end."""
    monkeypatch.setattr(_pool, "RETRY_SECONDS", 300.0)
    bad = SandboxSpec(trees={"/srv": tmp_path / "nowhere"})
    async with WarmPool(provider) as pool:
        for _ in range(2):
            with pytest.raises(SandboxStartFailed, match="nowhere"):
                await pool.start(bad)
        kind = pool._kind(bad)
        async with asyncio.timeout(60):
            while not kind.not_before or pool._tasks:
                await asyncio.sleep(0.01)
        with pytest.raises(SandboxStartFailed):
            await pool.start(bad)
        pool._refill(kind)
        assert not pool._tasks


@EMBEDDED
async def test_closing_takes_everything(provider: EmbeddedProvider, tmp_path: Path) -> None:
    """A closed pool leaves nothing, not even what it was just starting."""
    pool = WarmPool(provider, idle=3)
    boxes: list[Sandbox] = [await pool.start(SandboxSpec()) for _ in range(3)]
    await pool.close()
    await pool.close()
    assert list((tmp_path / "sandboxes").iterdir()) == []
    assert not boxes[0].alive
    with pytest.raises(SandboxUnavailable):
        await pool.start(SandboxSpec())


async def test_shared_pool() -> None:
    """A process has one shared pool of a kind, beside the plain provider."""
    pool = await shared_provider("embedded", warm=2)
    try:
        assert isinstance(pool, WarmPool)
        assert await shared_provider("embedded", warm=2) is pool
        assert not isinstance(await shared_provider("embedded"), WarmPool)
    finally:
        await close_shared_providers()
