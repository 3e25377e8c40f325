"""Promises about forks, and about whole directories."""

from __future__ import annotations

import asyncio
import contextlib
import tempfile
from pathlib import Path

from trajgym.envs.sandbox._command import close_all
from trajgym.envs.sandbox._errors import SandboxFileError
from trajgym.envs.sandbox.conformance._case import Case, expect, promise

CHANGE = """
mkdir -p kept gone swap odd; echo a > kept/a; echo b > gone/b; echo c > swap/c; echo d > file
ln -s kept/a link; ln file hard; ln -s nowhere dangling; chmod 750 kept; chmod 640 file
printf x > 'odd/ a\nb'; mkfifo pipe; : > turns; mkdir turned
"""
AGAIN = """
rm -r gone; rm -r swap; mkdir swap; echo new > swap/new; rm turns; mkdir turns; echo in > turns/in
rm -r turned; ln -s file turned; mv kept moved; echo more >> file; rm pipe
"""
LOOK = (
    "find . ! -name '*.seen' -printf '%p %y %m %s %l\\n' | sort; "
    "find . -type f ! -name '*.seen' -exec cksum {} + | sort"
)


@promise("a fork is the same files, shells in their place, and independent")
async def _fork(case: Case) -> None:
    shell = await case.sandbox.shell("main")
    await case.run(CHANGE)
    await shell.run("cd odd; export A='x \"y\"'")
    async with await case.sandbox.fork() as fork:
        expect((await fork.run(LOOK)).stdout == (await case.run(LOOK)).stdout, "other files")
        saw = await fork.shells["main"].run('pwd; echo "$A"')
        expect(saw.stdout == f'{case.spec.workdir}/odd\nx "y"\n'.encode(), saw)
        expect(fork.lost, "nothing is reported as lost")
        await fork.run("echo fork > file; rm -r kept")
        expect((await case.run("cat file kept/a")).stdout == b"d\na\n", "the original changed")
        await case.run("echo original > file")
        expect((await fork.run("cat file")).stdout == b"fork\n", "the fork changed")
    expect((await shell.run("pwd")).stdout.endswith(b"/odd\n"), "the original's shell is lost")


@promise("forks of forks have their parents' deletions and changes of kind")
async def _forks_of_forks(case: Case) -> None:
    await case.run(CHANGE)
    async with await case.sandbox.fork() as one:
        await one.run(AGAIN)
        async with await one.fork() as two:
            expect((await two.run(LOOK)).stdout == (await one.run(LOOK)).stdout, "other files")
            await two.run("rm -rf moved turns; echo last > turns")
            async with await two.fork() as three:
                saw = await three.run(f"cat turns; {LOOK}")
                expect(saw.stdout == (await two.run(f"cat turns; {LOOK}")).stdout, saw)
        expect((await one.run("cat turns/in")).stdout == b"in\n", "the middle one changed")


@promise("many forks at once, while a command runs, see one moment")
async def _many(case: Case) -> None:
    running = asyncio.create_task(
        case.run("i=0; while [ ! -e stop ]; do i=$((i+1)); echo $i > f; done; echo stopped")
    )
    async with asyncio.timeout(20):
        while not (await case.run("test -s f")).ok:
            pass
    forks = await case.sandbox.forks(4)
    try:
        saws = [(await fork.run("cat f")).stdout for fork in forks]
        expect(len(set(saws)) == 1, saws)
        first = await forks[0].run("echo mine > f; cat f")
        expect(first.stdout == b"mine\n", first)
        expect((await forks[1].run("cat f")).stdout == saws[1], "forks share files")
    finally:
        await close_all(forks)
        await case.run("touch stop")
    expect((await running).stdout == b"stopped\n", "the original did not go on")


@promise("directories come in and out whole, and no link leads out")
async def _trees(case: Case) -> None:
    with tempfile.TemporaryDirectory() as folder:
        base = Path(folder)
        await asyncio.to_thread(_plant, base)
        await case.sandbox.upload(base / "in", "up")
        saw = await case.run("cat up/sub/file up/link; test -x up/run && echo runs")
        expect(saw.stdout == b"datadataruns\n", saw)
        entries = await case.sandbox.list_files("up")
        expect([(e.name, e.kind) for e in entries] == [
            ("link", "link"), ("run", "file"), ("sub", "directory"),
        ], entries)  # fmt: skip
        await case.run(f"cd up; ln -s {base}/secret out; ln -s .. up; ln -s / root; mkfifo p")
        left_out = await case.sandbox.download("up", base / "out")
        expect((base / "out" / "sub" / "file").read_bytes() == b"data", "other bytes")
        expect((base / "out" / "link").read_bytes() == b"data", "the link is lost")
        expect(len(left_out) == 4, left_out)
        expect(not (base / "out" / "out").is_symlink(), "a link leads out")
        # A link in place of the target is followed inside, where it can't reach files of the host.
        await case.run(f"ln -s {base} aim")
        with contextlib.suppress(SandboxFileError):
            await case.sandbox.upload(base / "in", "aim/stolen")
        expect(not (base / "stolen").exists(), "written on the host")
        for path, limit in (("up", 10), ("missing", 1000), ("up/run", 1000)):
            try:
                await case.sandbox.download(path, base / "none", limit=limit)
            except SandboxFileError:
                continue
            expect(False, f"download({path!r}, limit={limit}) raised nothing")  # noqa: FBT003


def _plant(base: Path) -> None:
    base.chmod(0o777)
    (base / "secret").write_text("of the host")
    (base / "in" / "sub").mkdir(parents=True)
    (base / "in" / "sub" / "file").write_bytes(b"data")
    (base / "in" / "link").symlink_to("sub/file")
    (base / "in" / "run").write_text("#!/bin/sh\n")
    (base / "in" / "run").chmod(0o755)
