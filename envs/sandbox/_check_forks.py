"""Promises about forks, and about whole directories."""

from __future__ import annotations

import asyncio
import contextlib
import tempfile
from pathlib import Path

from trajgym.envs.sandbox._command import close_all
from trajgym.envs.sandbox._errors import SandboxFileError
from trajgym.envs.sandbox._trial import Trial, expect, promise

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
async def _fork(trial: Trial) -> None:
    shell = await trial.sandbox.shell("main")
    await trial.run(CHANGE)
    await shell.run("cd odd; export A='x \"y\"'")
    async with await trial.sandbox.fork() as fork:
        expect((await fork.run(LOOK)).stdout == (await trial.run(LOOK)).stdout, "other files")
        saw = await fork.shells["main"].run('pwd; echo "$A"')
        expect(saw.stdout == f'{trial.spec.workdir}/odd\nx "y"\n'.encode(), saw)
        expect(fork.lost, "nothing is said to be lost")
        await fork.run("echo fork > file; rm -r kept")
        expect((await trial.run("cat file kept/a")).stdout == b"d\na\n", "the original changed")
        await trial.run("echo original > file")
        expect((await fork.run("cat file")).stdout == b"fork\n", "the fork changed")
    expect((await shell.run("pwd")).stdout.endswith(b"/odd\n"), "the original's shell is lost")


@promise("forks of forks carry deletions and changes of kind")
async def _forks_of_forks(trial: Trial) -> None:
    await trial.run(CHANGE)
    async with await trial.sandbox.fork() as one:
        await one.run(AGAIN)
        async with await one.fork() as two:
            expect((await two.run(LOOK)).stdout == (await one.run(LOOK)).stdout, "other files")
            await two.run("rm -rf moved turns; echo last > turns")
            async with await two.fork() as three:
                saw = await three.run(f"cat turns; {LOOK}")
                expect(saw.stdout == (await two.run(f"cat turns; {LOOK}")).stdout, saw)
        expect((await one.run("cat turns/in")).stdout == b"in\n", "the middle one changed")


@promise("many forks at once, while a command runs, see one moment")
async def _many(trial: Trial) -> None:
    running = asyncio.create_task(
        trial.run("i=0; while [ ! -e stop ]; do i=$((i+1)); echo $i > f; done; echo stopped")
    )
    async with asyncio.timeout(20):
        while not (await trial.run("test -s f")).ok:
            pass
    forks = await trial.sandbox.forks(4)
    try:
        saws = [(await fork.run("cat f")).stdout for fork in forks]
        expect(len(set(saws)) == 1, saws)
        first = await forks[0].run("echo mine > f; cat f")
        expect(first.stdout == b"mine\n", first)
        expect((await forks[1].run("cat f")).stdout == saws[1], "forks share files")
    finally:
        await close_all(forks)
        await trial.run("touch stop")
    expect((await running).stdout == b"stopped\n", "the original did not go on")


@promise("directories come in and out whole, and no link leads out")
async def _trees(trial: Trial) -> None:
    with tempfile.TemporaryDirectory() as folder:
        base = Path(folder)
        await asyncio.to_thread(_plant, base)
        await trial.sandbox.upload(base / "in", "up")
        saw = await trial.run("cat up/sub/file up/link; test -x up/run && echo runs")
        expect(saw.stdout == b"datadataruns\n", saw)
        entries = await trial.sandbox.list_files("up")
        expect([(e.name, e.kind) for e in entries] == [
            ("link", "link"), ("run", "file"), ("sub", "directory"),
        ], entries)  # fmt: skip
        await trial.run(f"cd up; ln -s {base}/secret out; ln -s .. up; ln -s / root; mkfifo p")
        left_out = await trial.sandbox.download("up", base / "out")
        expect((base / "out" / "sub" / "file").read_bytes() == b"data", "other bytes")
        expect((base / "out" / "link").read_bytes() == b"data", "the link is lost")
        expect(len(left_out) == 4, left_out)
        expect(not (base / "out" / "out").is_symlink(), "a link leads out")
        # A link in the place of the target is followed inside, where it leads to nothing of ours.
        await trial.run(f"ln -s {base} aim")
        with contextlib.suppress(SandboxFileError):
            await trial.sandbox.upload(base / "in", "aim/stolen")
        expect(not (base / "stolen").exists(), "written on the host")
        for path, limit in (("up", 10), ("missing", 1000), ("up/run", 1000)):
            try:
                await trial.sandbox.download(path, base / "none", limit=limit)
            except SandboxFileError:
                continue
            expect(False, f"download({path!r}, limit={limit}) said nothing")  # noqa: FBT003


def _plant(base: Path) -> None:
    base.chmod(0o777)
    (base / "secret").write_text("of the host")
    (base / "in" / "sub").mkdir(parents=True)
    (base / "in" / "sub" / "file").write_bytes(b"data")
    (base / "in" / "link").symlink_to("sub/file")
    (base / "in" / "run").write_text("#!/bin/sh\n")
    (base / "in" / "run").chmod(0o755)
