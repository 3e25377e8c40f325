"""Promises about shells that keep their state."""

from __future__ import annotations

import asyncio

from trajgym.envs.sandbox.conformance._case import (
    SLOW_SECONDS,
    Case,
    cut,
    expect,
    long_sleep,
    promise,
    survivors,
    unless_admitted,
)


@promise("a shell keeps directory, variables and functions; another shell has its own")
async def _state(case: Case) -> None:
    one, two = await case.sandbox.shell("one"), await case.sandbox.shell("two")
    await one.run("cd /usr; export A='x y'; B=1; f() { echo called; }")
    saw = await one.run('pwd; echo "$A$B"; f')
    expect(saw.stdout == b"/usr\nx y1\ncalled\n", saw)
    expect(one.cwd == "/usr", one.cwd)
    other = await two.run('pwd; echo "[$A$B]"')
    expect(other.stdout == f"{case.spec.workdir}\n[]\n".encode(), other)


@promise("a shell survives programs that read stdin and lines that are not whole")
async def _greedy(case: Case) -> None:
    shell = await case.sandbox.shell()
    await shell.run("x=kept")
    for line in (
        "cat",
        "read line",
        "sh",
        "echo 'open",
        'echo "open',
        "if true; then",
        "cat <<E\nhi",
    ):
        saw = await shell.run(line, timeout=SLOW_SECONDS)
        expect(not saw.timed_out, (line, saw))
    answered = await shell.run("read a; read b; echo $a-$b", stdin="1\n2\n")
    expect(answered.stdout == b"1-2\n", answered)
    saw = await shell.run(r"echo $x; printf '\000\377' >&2; printf end")
    expect(saw.stdout == b"kept\nend" and saw.stderr == b"\0\xff", saw)


@promise("background output never lands in a later command")
async def _late(case: Case) -> None:
    shell = await case.sandbox.shell()
    late = "(until [ -e go ]; do sleep 0.05; done; echo LATE; echo LATE >&2; : > gone) &"
    wait = "rm -f gone; : > go; until [ -e gone ]; do sleep 0.05; done; echo clean"
    await shell.run(late)
    saw = await shell.run(wait)
    expect(saw.stdout == b"clean\n" and saw.stderr == b"", saw)
    # Some sandboxes end a command's background processes with it.
    wait = wait.replace("[ -e gone ]", "[ -e gone ] || [ $((n += 1)) -gt 10 ]")
    await case.run(f"rm -f go; {late}")
    saw = await case.run(wait)
    expect(saw.stdout == b"clean\n" and saw.stderr == b"", saw)


@promise("background processes of a shell go on, are listed, and end with it")
async def _jobs(case: Case) -> None:
    mark = long_sleep()
    shell = await case.sandbox.shell()
    await shell.run(f"sleep {mark} & (setsid sleep {mark} &)")
    async with asyncio.timeout(SLOW_SECONDS):
        while [process.name for process in await shell.processes()] != ["sleep", "sleep"]:
            pass
    await shell.run("sleep 60", timeout=0.3)
    expect(len(await shell.processes()) == 2, "a timeout of a later command ended them")
    await shell.close()
    left = await survivors(case, mark)
    expect(not left, left)


@promise("a timeout in a shell kills what ran and keeps the shell")
async def _timeout(case: Case) -> None:
    mark = long_sleep()
    shell = await case.sandbox.shell()
    await shell.run("cd /usr; x=kept")
    attacks = [
        f"trap '' TERM INT; sleep {mark} & (setsid sleep {mark} &); sh -c 'sleep {mark}; :'",
        f"echo {mark} >/dev/null; (while :; do :; done)",
    ]
    for attack in attacks:
        saw = await cut(shell.run, f"echo begun; {attack}")
        expect(saw.stdout == b"begun\n", saw)
    after = await shell.run("pwd; echo $x")
    expect(after.stdout == b"/usr\nkept\n", after)
    left = await survivors(case, mark)
    expect(not left, left)


@promise("a shell that is itself busy, or ends, is followed by a new one in its directory")
async def _ends(case: Case) -> None:
    shell = await case.sandbox.shell()
    await shell.run("cd /usr")
    endings = [("exit 3", 3), ("exec true", 0), ("set -e; false", 1), ("kill -9 $$", 137)]
    for line, code in endings:
        saw = await shell.run(line)
        expect(saw.exit_code == code and b"new one in /usr" in saw.stderr, (line, saw))
        expect((await shell.run("pwd")).stdout == b"/usr\n", line)
    saw = await shell.run("while :; do :; done", timeout=0.3)
    expect(saw.timed_out and b"new one in /usr" in saw.stderr, saw)
    expect((await shell.run("pwd")).stdout == b"/usr\n", "not usable")


@promise("closed and redirected outputs of a shell block no command")
async def _closed_outputs(case: Case) -> None:
    shell = await case.sandbox.shell()
    for line in ("exec >/dev/null; echo x", "exec >&- 2>&-", "exec 7>&- 8>&-", "set -x; set -v"):
        saw = await shell.run(line, timeout=SLOW_SECONDS)
        expect(not saw.timed_out, (line, saw))
    expect((await shell.run("echo usable")).stdout == b"usable\n", "not usable")


@promise("shells and commands run side by side")
async def _side_by_side(case: Case) -> None:
    shells = [await case.sandbox.shell() for _ in range(3)]
    wait = "until [ -e go ]; do sleep 0.05; done; echo slow"
    blocked = asyncio.create_task(shells[0].run(wait, timeout=300))
    saws = await asyncio.gather(*(shell.run("echo $$") for shell in shells[1:]), case.run("true"))
    expect(all(saw.ok for saw in saws) and not blocked.done(), saws)
    await case.run("touch go")
    expect((await blocked).stdout == b"slow\n", "lost")


@promise("a shell reports out-of-memory kills, of a program and of itself")
async def _memory(case: Case) -> None:
    unless_admitted(case, "memory")
    shell = await case.sandbox.shell()
    size = 4 * case.spec.limits.memory
    saw = await shell.run(f"head -c {size} /dev/zero | tail -n 1 | wc -c")
    expect(saw.oom_killed, saw)
    calm = await shell.run("true")
    expect(calm.ok and not calm.oom_killed, calm)
    saw = await shell.run("x=0123456789abcdef; while :; do x=$x$x; done")
    expect(saw.oom_killed and saw.exit_code == 137, saw)
    calm = await shell.run("echo usable")
    expect(calm.stdout == b"usable\n" and not calm.oom_killed, calm)


@promise("cancelling a shell's command keeps the shell")
async def _cancel(case: Case) -> None:
    mark = long_sleep()
    shell = await case.sandbox.shell()
    await shell.run("x=kept")
    running = asyncio.create_task(shell.run(f": > begun; sleep {mark}", timeout=2 * SLOW_SECONDS))
    async with asyncio.timeout(SLOW_SECONDS):
        while not (await case.run("test -e begun")).ok:
            pass
    running.cancel()
    await asyncio.wait({running}, timeout=SLOW_SECONDS)
    expect(running.cancelled(), "the cancelled command went on")
    expect((await shell.run("echo $x")).stdout == b"kept\n", "the shell is lost")
    left = await survivors(case, mark)
    expect(not left, left)
