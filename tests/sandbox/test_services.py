"""Services that a spec declares."""

from __future__ import annotations

import asyncio
import dataclasses

import pytest

from trajgym.envs.sandbox import (
    SandboxProvider,
    SandboxSpec,
    SandboxStartFailed,
    SandboxUnavailable,
    Service,
    WarmPool,
)
from trajgym.envs.sandbox.docker import _sandbox
from trajgym.trajectory import InvalidInput

# Needs nothing but a shell: answers a word that is written to one pipe on another.
ECHO = """
[ -p ask ] || mkfifo ask answer
echo started >> starts
while read word <ask; do echo "$word back" >answer; done
"""
ASK = "echo {} >ask; cat answer"
SERVICE = Service(name="echo", command=f"while :; do {ECHO}done", ready="[ -p answer ]")


async def _ask(box: object, word: str) -> bytes:
    done = await box.run(ASK.format(word), timeout=120)  # type: ignore[attr-defined]
    return bytes(done.stdout)


async def test_service_serves_commands_shells_and_forks(
    provider: SandboxProvider, spec: SandboxSpec
) -> None:
    """A service is ready when the sandbox is, outlives commands, and is there again in a fork."""
    spec = dataclasses.replace(spec, services=(SERVICE,))
    async with await provider.start(spec) as box:
        assert await _ask(box, "one") == b"one back\n"
        assert (await box.run("sleep 60", timeout=0.3)).timed_out
        assert await _ask(box, "two") == b"two back\n"
        shell = await box.shell()
        assert (await shell.run(ASK.format("three"), timeout=120)).stdout == b"three back\n"
        async with await box.fork() as fork:
            assert set(fork.services) == {"echo"}
            assert "echo" not in fork.shells
            assert await _ask(fork, "four") == b"four back\n"
            assert (await fork.run("sort -u starts")).stdout == b"started\n"
        assert await _ask(box, "five") == b"five back\n"


async def test_service_over_loopback(provider: SandboxProvider, spec: SandboxSpec) -> None:
    """A server on the sandbox's loopback can be reached by every command, but not from outside."""
    listen = (
        "import http.server; "
        "http.server.HTTPServer(('127.0.0.1', 8099), http.server.BaseHTTPRequestHandler)"
        ".serve_forever()"
    )
    probe = (
        "exec 3<>/dev/tcp/127.0.0.1/8099; printf 'GET / HTTP/1.0\\r\\n\\r\\n' >&3; head -n 1 <&3"
    )
    service = Service(
        name="web", command=f'exec /usr/bin/python3 -c "{listen}"', ready=f'bash -c "{probe}"'
    )
    if provider.name == "docker":  # the base image has no Python where the host has it
        service = dataclasses.replace(service, command=service.command.replace("/usr/bin/", ""))
    async with await provider.start(dataclasses.replace(spec, services=(service,))) as box:
        saw = await box.run(["bash", "-c", probe], timeout=120)
        assert b"501" in saw.stdout, saw
    async with await provider.start(spec) as other:
        assert not (await other.run(["bash", "-c", probe], timeout=120)).ok


async def test_services_that_fail(provider: SandboxProvider, spec: SandboxSpec) -> None:
    """A service that exits or is never ready fails the start by name, and nothing is left."""
    ends = Service(name="ends", command="echo no licence >&2; exit 3", ready="false")
    with pytest.raises(SandboxStartFailed, match=r"'ends' ended: no licence"):
        await provider.start(dataclasses.replace(spec, services=(ends,)))
    late = Service(name="late", command="sleep 600", ready="false", seconds=0.5)
    with pytest.raises(SandboxStartFailed, match=r"'late' was not ready in 0\.5 s"):
        await provider.start(dataclasses.replace(spec, services=(late,)))
    assert not provider._open  # type: ignore[attr-defined]


async def test_what_a_service_says(provider: SandboxProvider, spec: SandboxSpec) -> None:
    """A service's output is not in a command's output; its last part can be read."""
    chatty = Service(name="chatty", command="while :; do echo noise; done", ready="true")
    async with await provider.start(dataclasses.replace(spec, services=(chatty,))) as box:
        assert (await box.run("echo mine")).stdout == b"mine\n"
        async with asyncio.timeout(120):
            while len(box.services["chatty"].late_output) < 1000:
                await box.run("true")
        assert len(box.services["chatty"].late_output) <= 1 << 17


async def test_nonsense_is_refused(provider: SandboxProvider, spec: SandboxSpec) -> None:
    """A service needs a name of its own, a command and a deadline."""
    for services in (
        (Service(name="", command="x"),),
        (Service(name="a", command=""),),
        (Service(name="a", command="x", seconds=0),),
        (Service(name="a", command="x"), Service(name="a", command="y")),
    ):
        with pytest.raises(InvalidInput):
            await provider.start(dataclasses.replace(spec, services=services))


async def test_ready_sandboxes_have_their_services(
    provider: SandboxProvider, spec: SandboxSpec
) -> None:
    """A sandbox that waited in a pool serves at once; a fork of it has a service of its own."""
    spec = dataclasses.replace(spec, services=(SERVICE,))
    async with WarmPool(provider, idle=1) as pool:
        await pool.warm(spec)
        async with await pool.start(spec) as box, await box.fork() as fork:
            assert await _ask(box, "one") == b"one back\n"
            assert await _ask(fork, "two") == b"two back\n"


@pytest.mark.docker
@pytest.mark.parametrize("provider", ["docker"], indirect=True)
async def test_a_restart_brings_services_back(
    provider: SandboxProvider, spec: SandboxSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A container that had to be restarted has its services again before the next command."""
    async with await provider.start(dataclasses.replace(spec, services=(SERVICE,))) as box:
        monkeypatch.setattr(_sandbox, "KILL", "exit 1")
        assert (await box.run("sleep 60", timeout=0.3)).timed_out
        monkeypatch.undo()
        assert await _ask(box, "again") == b"again back\n"


@pytest.mark.parametrize("provider", ["bubblewrap"], indirect=True)
async def test_services_need_a_shared_network(
    provider: SandboxProvider, spec: SandboxSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where commands can't share a network, services and allow-lists are refused by name."""
    tool = provider._tool  # type: ignore[attr-defined]
    monkeypatch.setattr(provider, "_tool", dataclasses.replace(tool, root=False))
    for fields in ({"services": (SERVICE,)}, {"allow": ("example.org:443",)}):
        with pytest.raises(SandboxUnavailable, match=r"(take|need).* root"):
            await provider.start(dataclasses.replace(spec, **fields))  # type: ignore[arg-type]
