"""Sandboxes whose engine is killed, and another runtime, on separate engines."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import subprocess
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.sandbox.conftest import tiny_root
from trajgym.envs.sandbox import (
    DockerProvider,
    SandboxDied,
    SandboxSpec,
    SandboxUnavailable,
    WarmPool,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

# The SDK leaves a socket to the collector when an engine dies just as it connects.
pytestmark = [
    pytest.mark.docker,
    pytest.mark.usefixtures("engine"),
    pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning"),
]

# Old versions take every network namespace of a new kernel for the host's, and refuse.
RUNSC = '#!/bin/sh\nexec runsc --network=none "$@"\n'
NAMESPACES = ("--net", "--mount", "--pid", "--fork", "--mount-proc", "--kill-child")
START_SECONDS = 240


class PrivateEngine:
    """An engine in namespaces of its own, which may be killed and started again."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.host = f"unix://{folder}/docker.sock"
        self.group = f"trajgym-test-{os.getpid()}"
        (folder / "runsc").write_text(RUNSC)
        (folder / "runsc").chmod(0o755)

    def start(self) -> None:
        # In a new pid namespace the pids in a dead engine's files are other processes.
        (self.folder / "pid").unlink(missing_ok=True)
        shutil.rmtree(self.folder / "exec", ignore_errors=True)
        options = {
            "data-root": f"{self.folder}/data",
            "exec-root": f"{self.folder}/exec",
            "pidfile": f"{self.folder}/pid",
            "host": self.host,
            "bridge": "none",
            "iptables": "false",
            "cgroup-parent": self.group,
            "add-runtime": f"runsc={self.folder}/runsc",
        }
        command = ["unshare", *NAMESPACES, "dockerd", *(f"--{k}={v}" for k, v in options.items())]
        with (self.folder / "log").open("ab") as log:
            self.process = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)
        deadline = time.monotonic() + START_SECONDS
        while self.docker("info").returncode != 0:
            if time.monotonic() > deadline or self.process.poll() is not None:
                pytest.fail(f"no private engine: {(self.folder / 'log').read_text()[-2000:]}")
            time.sleep(0.1)

    def docker(self, *words: str, stdin: bytes = b"") -> subprocess.CompletedProcess[bytes]:
        command = ["docker", "-H", self.host, *words]
        return subprocess.run(command, input=stdin, capture_output=True)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def remove_groups(self) -> None:
        """Remove the control groups of a killed engine, once their processes are gone."""
        deadline = time.monotonic() + 10
        root = Path("/sys/fs/cgroup")
        for folder in [*root.glob(self.group), *root.glob(f"*/{self.group}")]:
            for found, _, _ in os.walk(folder, topdown=False):
                while Path(found).exists():
                    with contextlib.suppress(OSError):
                        Path(found).rmdir()
                    if time.monotonic() > deadline:
                        return


@pytest.fixture
def private_engine() -> Iterator[PrivateEngine]:
    """An engine with an image of a few programs."""
    if os.geteuid() != 0:
        pytest.fail("this test starts an engine of its own, which needs root")
    # The path of a socket has at most 107 bytes; in pytest's folders, some would have more.
    folder = Path(tempfile.mkdtemp(prefix="trajgym-engine-"))
    engine = PrivateEngine(folder)
    try:
        engine.start()
        assert engine.docker("import", "-", "tiny", stdin=tiny_root()).returncode == 0
        yield engine
    finally:
        engine.kill()
        engine.remove_groups()
        shutil.rmtree(folder, ignore_errors=True)


async def test_engine_dies_mid_session(
    private_engine: PrivateEngine, caplog: pytest.LogCaptureFixture
) -> None:
    """When the engine is killed, running commands raise SandboxDied, and closing is quick.

    What may be left is named in the log.
    """
    async with DockerProvider(private_engine.host) as provider:
        sandbox = await provider.start(SandboxSpec(image="tiny"))
        running = asyncio.create_task(sandbox.run("touch begun; sleep 600", timeout=600))
        while not (await sandbox.run("test -e begun")).ok:
            pass
        private_engine.process.kill()
        begun = time.monotonic()
        with pytest.raises(SandboxDied):
            await running
        with pytest.raises(SandboxDied):
            await sandbox.run("true")
        with pytest.raises(SandboxUnavailable):
            await provider.start(SandboxSpec(image="tiny"))
        await sandbox.close()
    assert time.monotonic() - begun < 40
    assert f"container {sandbox.id} may still be there" in caplog.text


async def test_engine_comes_back(private_engine: PrivateEngine) -> None:
    """After an engine was killed and started again the same pool starts sandboxes and ends them."""
    spec = SandboxSpec(image="tiny")
    async with WarmPool(DockerProvider(private_engine.host), idle=1) as pool:
        await pool.warm(spec)
        sandbox = await pool.start(spec)
        await asyncio.to_thread(private_engine.kill)
        with pytest.raises(SandboxDied):
            await sandbox.run("true")
        await asyncio.to_thread(private_engine.start)
        async with await pool.start(spec) as box:
            assert (await box.run("echo back")).stdout == b"back\n"
        await sandbox.close()
    assert private_engine.docker("ps", "-aq").stdout == b""


@pytest.fixture
def gvisor() -> None:
    """Its runtime; a missing one fails the test, it never skips unless it is asked to."""
    if os.environ.get("TRAJGYM_TEST_GVISOR") == "0":
        pytest.skip("TRAJGYM_TEST_GVISOR=0")
    if shutil.which("runsc") is None:
        pytest.fail("no runsc: install it (Debian has it), or set TRAJGYM_TEST_GVISOR=0")


@pytest.mark.usefixtures("gvisor")
async def test_gvisor(private_engine: PrivateEngine) -> None:
    """Under gVisor commands see its kernel, not the host's; kills, kept shells and forks work."""
    async with DockerProvider(private_engine.host, runtime="runsc") as provider:
        await provider.check()
        async with await provider.start(SandboxSpec(image="tiny")) as box:
            saw = await box.run("cat /proc/version; echo $HOME > file")
            assert b"Linux version" in saw.stdout
            assert os.uname().release.encode() not in saw.stdout
            assert (await box.run("(sleep 300 &) ; sleep 300", timeout=1.0)).timed_out
            shell = await box.shell()
            await shell.run("cd /tmp; x=1")
            assert (await shell.run("pwd; echo $x")).stdout == b"/tmp\n1\n"
            async with await box.fork() as fork:
                assert (await fork.run("cat file")).stdout == b"/home/agent\n"
                assert (await fork.shells[shell.name].run("pwd")).stdout == b"/tmp\n"
        with pytest.raises(SandboxUnavailable, match="runsc has a network of its own"):
            await provider.start(SandboxSpec(image="tiny", allow=("example.org:443",)))
