"""Sandboxes started ahead."""

from __future__ import annotations

import asyncio
import dataclasses
from typing import TYPE_CHECKING

import pytest

from trajgym.envs.sandbox import (
    EmbeddedProvider,
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
    async with asyncio.timeout(30):
        while pool.ready(spec) < count:
            await asyncio.sleep(0.01)


async def test_ready_sandboxes_are_handed_out_once(
    provider: SandboxProvider, spec: SandboxSpec
) -> None:
    """What waits is handed out without a start, replaced behind the back, and never comes back."""
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
async def test_a_pool_is_a_provider(provider: EmbeddedProvider, spec: SandboxSpec) -> None:
    """What it hands out keeps the promises of the interface."""
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
        async with asyncio.timeout(30):
            await asyncio.gather(*pool._tasks)
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
        assert not pool._tasks
        assert pool.ready(SandboxSpec()) == 0


@EMBEDDED
async def test_unused_kinds_are_let_go(provider: EmbeddedProvider) -> None:
    """What nobody asks for any more is closed after a while."""
    async with WarmPool(provider, seconds=0.2) as pool:
        first = await pool.start(SandboxSpec())
        await _until_ready(pool, SandboxSpec(), 1)
        async with asyncio.timeout(20):
            while pool.ready(SandboxSpec()) or len(provider._open) > 1:
                await asyncio.sleep(0.02)
        assert (await first.run("true")).ok


@pytest.mark.docker
@pytest.mark.parametrize("provider", ["docker"], indirect=True)
async def test_a_dead_one_is_not_handed_out(provider: SandboxProvider, spec: SandboxSpec) -> None:
    """A container that was removed while it waited is passed over."""
    from tests.sandbox.conftest import docker

    async with WarmPool(provider, idle=1) as pool:
        await pool.warm(spec)
        doomed = pool._kind(spec).idle[0]
        docker("rm", "-f", doomed.id)
        async with asyncio.timeout(20):
            while doomed.alive:
                await asyncio.sleep(0.01)
        async with await pool.start(spec) as box:
            assert (await box.run("true")).ok


@EMBEDDED
async def test_failed_starts_reach_who_asks(provider: EmbeddedProvider, tmp_path: Path) -> None:
    """A spec that can't start fails for the caller, and the pool does not try without end."""
    bad = SandboxSpec(trees={"/srv": tmp_path / "nowhere"})
    async with WarmPool(provider) as pool:
        for _ in range(2):
            with pytest.raises(SandboxStartFailed, match="nowhere"):
                await pool.start(bad)
        async with asyncio.timeout(20):
            while pool._tasks:
                await asyncio.sleep(0.01)
        with pytest.raises(SandboxStartFailed):
            await pool.start(bad)
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
