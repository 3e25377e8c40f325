"""What a killed process leaves behind is removed, and nothing else."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from tests.sandbox.conftest import docker
from trajgym.envs.sandbox._owner import is_dead, own_token

if TYPE_CHECKING:
    from pathlib import Path

    from trajgym.envs.sandbox import SandboxProvider, SandboxSpec

HOLDER = """
import asyncio, sys
from pathlib import Path
from trajgym.envs.sandbox import DockerProvider, EmbeddedProvider, SandboxSpec

async def main():
    kind, root, image, count = sys.argv[1:]
    provider = DockerProvider() if kind == "docker" else EmbeddedProvider(Path(root))
    spec = SandboxSpec(image=image, labels={"trajgym-test": root})
    boxes = await asyncio.gather(*(provider.start(spec) for _ in range(int(count))))
    forks = [await boxes[0].fork() for _ in range(2)]
    snapshot = await boxes[0].snapshot()
    shells = [await box.shell() for box in boxes[:2]]
    await shells[0].run("sleep 300 &")
    print(*(box.id for box in (*boxes, *forks)), snapshot.id, flush=True)
    await boxes[0].run("sleep 300", timeout=300)

asyncio.run(main())
"""


class Holder:
    """A process that holds sandboxes, two forks of the first, shells and a snapshot."""

    def __init__(
        self, provider: SandboxProvider, root: Path, spec: SandboxSpec, count: int
    ) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", HOLDER, provider.name, str(root), spec.image, str(count)],
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self.process.stdout is not None
        *self.sandboxes, self.snapshot = self.process.stdout.readline().split()
        assert len(self.sandboxes) == count + 2

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()
        if self.process.stdout is not None:
            self.process.stdout.close()


def _present(provider: SandboxProvider, root: Path) -> set[str]:
    """Names of all sandboxes and snapshots that are there."""
    if provider.name == "embedded":
        return {path.name for path in root.iterdir()}
    containers = docker("ps", "-a", "--format", "{{.Names}}").split()
    images = docker("images", "--format", "{{.Repository}}:{{.Tag}}").split()
    return {*containers, *images}


async def test_reap_after_sigkill(
    provider: SandboxProvider, spec: SandboxSpec, tmp_path: Path
) -> None:
    """Twenty sandboxes and a snapshot of a killed process are removed; those of others remain."""
    root = tmp_path / "sandboxes"
    own = await provider.start(spec)
    doomed, living = Holder(provider, root, spec, 18), Holder(provider, root, spec, 2)
    try:
        doomed.kill()
        assert {*doomed.sandboxes, doomed.snapshot} <= _present(provider, root)
        assert await provider.reap() >= 20
        present = _present(provider, root)
        assert not {*doomed.sandboxes, doomed.snapshot} & present
        assert {own.id, *living.sandboxes, living.snapshot} <= present
        assert (await own.run("echo usable")).ok
    finally:
        living.kill()
        doomed.kill()
        await provider.reap()


def test_owner_of_another_host_is_not_judged() -> None:
    """A token of another host, another pid namespace or no form at all never reads as dead."""
    host, boot, namespace, pid, start = own_token().split(".")
    assert not is_dead(own_token())
    assert is_dead(f"{host}.{boot}.{namespace}.{pid}.1")
    assert is_dead(f"{host}.earlierboot.{namespace}.{pid}.{start}")
    assert not is_dead(f"elsewhere.{boot}.{namespace}.{pid}.1")
    assert not is_dead(f"{host}.{boot}.1.{pid}.1")
    for nonsense in ("", "a.b", "....", f"{host}.{boot}.{namespace}.x.1"):
        assert not is_dead(nonsense)


@pytest.mark.parametrize("provider", ["bubblewrap"], indirect=True)
async def test_reap_leaves_strange_files(provider: SandboxProvider, tmp_path: Path) -> None:
    """Files that are not ours stay where they are."""
    stranger = tmp_path / "sandboxes" / "notes"
    stranger.mkdir()
    assert await provider.reap() == 0
    assert stranger.is_dir()
