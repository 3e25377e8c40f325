"""Comparing mathematics in processes that end when a comparison takes too long.

An answer such as ``9^{9^{9^9}}`` keeps a computer algebra system busy for ever, where no Python
signal handler runs: the process itself has to end.
"""

from __future__ import annotations

import atexit
import json
import subprocess
import sys
from importlib import util

from trajgym.trajectory._internal import MissingExtra

__all__ = ["equivalent"]

_SECONDS = 5.0
"""CPU seconds of a comparison."""
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
    gold, said = (parse(f"${text}$", parsing_timeout=None) for text in json.loads(line))
    equal = verify(gold, said, timeout_seconds=None)
    signal.setitimer(signal.ITIMER_PROF, 0)
    print(json.dumps(bool(equal)), flush=True)
"""
_idle: list[subprocess.Popen[str]] = []


def equivalent(answer: str, expected: str) -> bool:
    """Return whether ``math-verify`` takes two expressions for the same. May wait for seconds.

    An answer that can't be compared within five seconds of CPU time and 4 GiB is not equivalent.
    Safe between threads.

    Raises:
        MissingExtra: ``math-verify`` is not installed.
    """
    if util.find_spec("math_verify") is None:
        raise MissingExtra("math-verify", "math")
    try:
        worker = _idle.pop()
    except IndexError:
        worker = _start()
    try:
        assert worker.stdin is not None
        assert worker.stdout is not None
        texts = [text.strip().strip("$") for text in (expected, answer)]
        worker.stdin.write(json.dumps(texts) + "\n")
        worker.stdin.flush()
        said = worker.stdout.readline()
    except OSError:  # it has exited
        said = ""
    except BaseException:
        _end(worker)
        raise
    if said and len(_idle) < _MOST_IDLE:
        _idle.append(worker)
    else:
        _end(worker)
    return bool(said) and bool(json.loads(said))


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
    with worker:  # closes its pipes and waits
        pass


@atexit.register
def _end_idle() -> None:
    while _idle:
        _end(_idle.pop())
