"""The few places that a sandbox may reach, tried from inside as an attacker would."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
from typing import TYPE_CHECKING

import pytest

from tests.sandbox.conftest import BASE
from trajgym.envs.sandbox import (
    DockerProvider,
    SandboxProvider,
    SandboxSpec,
    SandboxUnavailable,
    _relay,
    examine_sandboxes,
)
from trajgym.envs.sandbox._routes import Route, hosts_of, plan_routes
from trajgym.envs.sandbox.docker import _sandbox
from trajgym.trajectory import InvalidInput

if TYPE_CHECKING:
    from collections.abc import AsyncIterator


class Listener:
    """A service of this host that answers with its name and records requests."""

    def __init__(self, says: bytes) -> None:
        self.says = says
        self.heard: list[bytes] = []
        self.port = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(self.says)
        self.heard.append(await reader.read())
        writer.write(b"bye\n")
        writer.close()

    async def has_heard(self, *words: bytes) -> None:
        """Wait until these requests have come to their ends, and see that there was no other."""
        async with asyncio.timeout(60):
            while len(self.heard) < len(words):
                await asyncio.sleep(0.01)
        assert self.heard == list(words)


@contextlib.asynccontextmanager
async def listening(says: bytes) -> AsyncIterator[Listener]:
    listener = Listener(says)
    async with await asyncio.start_server(listener.serve, "127.0.0.1", 0) as server:
        listener.port = server.sockets[0].getsockname()[1]
        yield listener


def talk(host: str, port: int, word: str) -> list[str]:
    """A command that sends a word to a place and prints what comes back."""
    script = f"exec 3<>/dev/tcp/{host}/{port} || exit 9; head -n 1 <&3; echo {word} >&3; exec 3>&-"
    return ["timeout", "60", "bash", "-c", script]


async def test_only_what_is_allowed(provider: SandboxProvider, spec: SandboxSpec) -> None:
    """The places that a spec names are reached by name; other ports, hosts and names are not."""
    async with listening(b"allowed\n") as allowed, listening(b"forbidden\n") as forbidden:
        entry = f"api.test:80=127.0.0.1:{allowed.port}"
        spec = dataclasses.replace(spec, allow=(entry,))
        async with await provider.start(spec) as box:
            saw = await box.run(talk("api.test", 80, "hello"))
            assert saw.stdout == b"allowed\n", saw
            await allowed.has_heard(b"hello\n")
            attacks = [
                ("127.0.0.1", forbidden.port),
                ("127.0.0.1", allowed.port),
                ("api.test", forbidden.port),
                ("api.test", 443),
                ("10.0.0.1", 80),
                ("169.254.169.254", 80),
                ("172.17.0.1", forbidden.port),
                ("localhost", forbidden.port),
                ("example.org", 80),
            ]
            for host, port in attacks:
                saw = await box.run(talk(host, port, "attack"))
                assert saw.exit_code != 0, (host, port, saw)
            names = await box.run("getent hosts example.org; cat /proc/net/route | tail -n +2")
            assert names.stdout == b""
        assert allowed.heard == [b"hello\n"]
        assert forbidden.heard == []


async def test_addresses_can_be_allowed(provider: SandboxProvider, spec: SandboxSpec) -> None:
    """An entry may name an address; its neighbours stay unreachable."""
    async with listening(b"here\n") as service:
        allow = (f"10.77.0.1:5432=127.0.0.1:{service.port}",)
        async with await provider.start(dataclasses.replace(spec, allow=allow)) as box:
            saw = await box.run(talk("10.77.0.1", 5432, "x"))
            assert saw.stdout == b"here\n", saw
            for host, port in (("10.77.0.2", 5432), ("10.77.0.1", 80)):
                assert not (await box.run(talk(host, port, "x"))).ok


async def test_another_sandbox_has_no_part_in_it(
    provider: SandboxProvider, spec: SandboxSpec
) -> None:
    """What one sandbox may reach, another can't; a fork and a restored state can."""
    async with listening(b"here\n") as service:
        allow = (f"api.test:80=127.0.0.1:{service.port}",)
        open_spec = dataclasses.replace(spec, allow=allow)
        async with await provider.start(open_spec) as box, await provider.start(spec) as other:
            for host in ("api.test", "127.64.0.1"):
                assert not (await other.run(talk(host, 80, "x"))).ok
            async with await box.fork() as fork:
                assert (await fork.run(talk("api.test", 80, "fork"))).stdout == b"here\n"
            snapshot = await box.snapshot()
            async with await provider.restore(snapshot, open_spec) as restored:
                assert (await restored.run(talk("api.test", 80, "again"))).stdout == b"here\n"


async def test_large_transfers_and_closing(provider: SandboxProvider, spec: SandboxSpec) -> None:
    """Megabytes come through whole, and closing the sandbox cuts what still runs."""
    data = bytes(range(256)) * 20_000
    begun, cut = asyncio.Event(), asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        word = await reader.readline()
        if word == b"all\n":
            writer.write(data)
            await writer.drain()
        else:
            begun.set()
            with contextlib.suppress(OSError):
                await reader.read()
            cut.set()
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        allow = (f"api.test:80=127.0.0.1:{port}",)
        box = await provider.start(dataclasses.replace(spec, allow=allow))
        script = "exec 3<>/dev/tcp/api.test/80; echo {} >&3; cat <&3"
        saw = await box.run(["bash", "-c", f"{script.format('all')} | cksum; echo"], timeout=120)
        expected = await box.run("cksum", stdin=data)
        assert saw.stdout.strip() == expected.stdout.strip()
        hanging = asyncio.create_task(box.run(["bash", "-c", script.format("wait")]))
        async with asyncio.timeout(120):
            await begun.wait()
        assert not cut.is_set()
        await box.close()
        await asyncio.wait({hanging})
        hanging.exception()
        async with asyncio.timeout(120):
            await cut.wait()


async def test_names_may_not_lead_inward(provider: SandboxProvider, spec: SandboxSpec) -> None:
    """A name with an address of this host is refused, unless the spec itself names the host."""
    async with listening(b"inside\n") as service:
        allow = (f"localhost.test:80=localhost:{service.port}",)
        async with await provider.start(dataclasses.replace(spec, allow=allow)) as box:
            assert (await box.run(talk("localhost.test", 80, "x"))).stdout == b"inside\n"
            await service.has_heard(b"x\n")
        route = Route("localhost", service.port, "127.64.0.1", "localhost", service.port, False)
        with pytest.raises(OSError, match="not public"):
            await _relay._dial(route)
        assert len(service.heard) == 1


async def test_connections_are_bounded(
    provider: SandboxProvider, spec: SandboxSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    """More connections at once than the bound are cut; those that are there go on."""
    monkeypatch.setattr(_relay, "CONNECTIONS", 2)
    async with listening(b"here\n") as service:
        allow = (f"api.test:80=127.0.0.1:{service.port}",)
        async with await provider.start(dataclasses.replace(spec, allow=allow)) as box:
            line = "exec {}<>/dev/tcp/api.test/80; timeout 60 head -n 1 <&{}; "
            many = "".join(line.format(n, n) for n in (3, 4, 5))
            saw = await box.run(["bash", "-c", f"{many} true"])
            assert saw.stdout == b"here\n" * 2, saw


@pytest.mark.docker
@pytest.mark.parametrize("provider", ["docker"], indirect=True)
async def test_a_restart_keeps_the_way_open(
    provider: SandboxProvider, spec: SandboxSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A container that had to be restarted reaches the same places as before."""
    monkeypatch.setattr(_sandbox, "KILL", "exit 1")
    async with listening(b"here\n") as service:
        allow = (f"api.test:80=127.0.0.1:{service.port}",)
        async with await provider.start(dataclasses.replace(spec, allow=allow)) as box:
            assert (await box.run("sleep 60", timeout=0.3)).timed_out
            assert (await box.run(talk("api.test", 80, "x"))).stdout == b"here\n"


@pytest.mark.docker
@pytest.mark.usefixtures("engine")
async def test_what_can_not_be_promised_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without root or with a remote engine, an allow-list is refused; doctor reports this."""
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    spec = SandboxSpec(image=BASE, allow=("example.org:443",))
    async with DockerProvider() as provider:
        with pytest.raises(SandboxUnavailable, match=r"example\.org:443.*root"):
            await provider.start(spec)
    said = [f for f in await examine_sandboxes() if f.part == "docker" and "allow" in f.said]
    assert [finding.level for finding in said] == ["limited"]


async def test_doctor_knows_about_allow() -> None:
    """If allow-lists work, doctor reports this for both kinds."""
    said = [f for f in await examine_sandboxes() if "allow" in f.said and f.level == "good"]
    assert {finding.part for finding in said} >= {"embedded"}


def test_entries_are_read() -> None:
    """Entries name a host and a port; each name gets one address, whatever its ports."""
    routes = plan_routes(["A.org:443", "a.org:80", "db.test:5432=localhost:1", "10.0.0.9:1"])
    assert [route.address for route in routes] == [
        "127.64.0.1", "127.64.0.1", "127.64.0.2", "10.0.0.9",
    ]  # fmt: skip
    assert hosts_of(routes) == {"a.org": "127.64.0.1", "db.test": "127.64.0.2"}
    assert plan_routes(["a.b:1", "a.b:1"]) == plan_routes(["a.b:1"])


@pytest.mark.parametrize(
    "entry",
    ["a.org", "*.a.org:443", "a.org:0", "a.org:99999", "[::1]:80", "a b:80", ":80",
     "127.0.0.1:80", "0.0.0.0:80", "localhost:80", "1.2.3:80", "a.b:80=", "a\nb:80"],
)  # fmt: skip
def test_unclear_entries_are_refused(entry: str) -> None:
    """Patterns, missing ports and the sandbox's own loopback are refused with what to write."""
    with pytest.raises(InvalidInput, match="allow entry"):
        plan_routes([entry])


async def test_contradictions_are_refused(provider: SandboxProvider, spec: SandboxSpec) -> None:
    """One name can't lead to two places, and everything is not a few places."""
    for fields in (
        {"allow": ("a.b:1=c.d:1", "a.b:1=e.f:1")},
        {"allow": ("a.b:1",), "network": True},
    ):
        with pytest.raises(InvalidInput):
            await provider.start(dataclasses.replace(spec, **fields))  # type: ignore[arg-type]
