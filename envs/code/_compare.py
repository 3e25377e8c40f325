"""Comparing mathematics in processes that end when a comparison takes too long.

An answer such as ``9^{9^{9^9}}`` keeps a computer algebra system busy for ever, where no Python
signal handler runs: the process itself has to end.
"""

from __future__ import annotations

import atexit
import json
import signal
import subprocess
import sys
import threading
from contextlib import suppress
from importlib import util

from trajgym.envs import EnvironmentFault
from trajgym.trajectory._internal import MissingExtra

__all__ = ["equivalent"]

_SECONDS = 5.0
"""CPU seconds of a comparison."""
_WALL_SECONDS = 120.0
"""Seconds after which a process that does not answer is killed."""
_MEMORY = 4 << 30
"""Bytes of address space of a process."""
_MOST_IDLE = 4
_INSIDE = """
import json, resource, signal, sys
from math_verify import parse, verify

seconds, memory = float(sys.argv[1]), int(sys.argv[2])
resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
for line in sys.stdin:
    signal.setitimer(signal.ITIMER_PROF, seconds)  # its signal ends the process
    try:
        gold, given = (parse(f"${text}$", parsing_timeout=None) for text in json.loads(line))
        equal = verify(gold, given, timeout_seconds=None)
    except Exception:  # whatever an answer causes; it is not equivalent then
        equal = False
    signal.setitimer(signal.ITIMER_PROF, 0)
    print(json.dumps(bool(equal)), flush=True)
"""
_BY_ANSWER = {-signal.SIGPROF, -signal.SIGABRT, -signal.SIGSEGV, -signal.SIGBUS}
"""Statuses with which a comparison ends that exceeds its time, memory or stack."""
_idle: list[subprocess.Popen[str]] = []


def equivalent(answer: str, expected: str) -> bool:
    """Return whether ``math-verify`` takes two expressions for the same. May wait for seconds.

    An answer that can't be compared within five seconds of CPU time and 4 GiB is not equivalent.
    Safe between threads.

    Raises:
        EnvironmentFault: the process that compares could not start, or was ended from outside.
        MissingExtra: ``math-verify`` is not installed.
    """
    if util.find_spec("math_verify") is None:
        raise MissingExtra("math-verify", "math")
    worker = _taken()
    texts = [text.strip().strip("$") for text in (expected, answer)]
    try:
        reply = _reply(worker, json.dumps(texts) + "\n")
        status = None if reply else worker.wait(_WALL_SECONDS)
    except BaseException:
        _end(worker)
        raise
    if reply:
        if len(_idle) < _MOST_IDLE:
            _idle.append(worker)
        else:
            _end(worker)
        return bool(json.loads(reply))
    _end(worker)
    if status in _BY_ANSWER:
        return False
    raise EnvironmentFault(
        "verify", f"the process that compares mathematics exited with status {status}"
    )


def _taken() -> subprocess.Popen[str]:
    """Return an idle process that still runs, or a new one."""
    while True:
        try:
            worker = _idle.pop()
        except IndexError:
            return _start()
        if worker.poll() is None:
            return worker
        _end(worker)


def _reply(worker: subprocess.Popen[str], line: str) -> str:
    """Send a line, and return the answer; empty if the process exited instead."""
    assert worker.stdin is not None
    assert worker.stdout is not None
    limit = threading.Timer(_WALL_SECONDS, worker.kill)
    limit.start()
    try:
        worker.stdin.write(line)
        worker.stdin.flush()
        return worker.stdout.readline()
    except OSError:
        return ""
    finally:
        limit.cancel()


def _start() -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", _INSIDE, str(_SECONDS), str(_MEMORY)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        encoding="utf-8",
    )


def _end(worker: subprocess.Popen[str]) -> None:
    worker.kill()
    with suppress(OSError), worker:  # closes its pipes and waits; a line may be left unsent
        pass


@atexit.register
def _end_idle() -> None:
    while _idle:
        _end(_idle.pop())
