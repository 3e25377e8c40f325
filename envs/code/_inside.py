"""The interpreter inside a sandbox: runs cells in one namespace, one JSON line for each.

Started as a program of its own; imports nothing of this package. A request is ``{"id", "code",
"seconds", "limit"}``, the answer ``{"id", "output", "failed", "timed_out", "dropped"}``. A cell
that exceeds its time limit is interrupted as if by Ctrl-C.
"""

from __future__ import annotations

import ast
import contextlib
import json
import linecache
import os
import signal
import sys
import tempfile
import traceback
import types
from typing import Any, TextIO

READY = "trajgym interpreter"


class Interpreter:
    """A namespace, and a file that takes what cells write to their file descriptors."""

    def __init__(self) -> None:
        self.module = types.ModuleType("__main__")
        sys.modules["__main__"] = self.module
        self.cells = 0
        self.timed_out = False
        self.requests = os.fdopen(os.dup(0), "r", encoding="utf-8")
        self.answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
        nothing = os.open(os.devnull, os.O_RDONLY)
        os.dup2(nothing, 0)
        self.capture = tempfile.TemporaryFile()  # noqa: SIM115
        for descriptor in (1, 2):
            os.dup2(self.capture.fileno(), descriptor)
        sys.stdout = _lines(1)
        sys.stderr = _lines(2)

    def serve(self) -> None:
        """Answer requests until standard input ends."""
        self.say({"ready": READY})
        for line in self.requests:
            request = json.loads(line)
            failed = self.run(request["code"], request["seconds"])
            output, dropped = self.taken(request["limit"])
            self.say(
                {
                    "id": request["id"],
                    "output": output,
                    "failed": failed,
                    "timed_out": self.timed_out,
                    "dropped": dropped,
                }
            )

    def say(self, answer: dict[str, Any]) -> None:
        self.answers.write(json.dumps(answer) + "\n")
        self.answers.flush()

    def interrupt(self, *_: object) -> None:
        self.timed_out = True
        raise KeyboardInterrupt

    def run(self, code: str, seconds: float) -> bool:
        """Run one cell; return True if it failed. The value of a last expression is printed."""
        self.cells += 1
        self.timed_out = False
        name = f"<cell {self.cells}>"
        linecache.cache[name] = (len(code), None, code.splitlines(keepends=True), name)
        try:
            signal.signal(signal.SIGALRM, self.interrupt)
            signal.setitimer(signal.ITIMER_REAL, seconds)
            tree = ast.parse(code, name)
            last = tree.body[-1] if tree.body else None
            if isinstance(last, ast.Expr):
                tree.body.pop()
            exec(compile(tree, name, "exec"), self.module.__dict__)  # noqa: S102
            if isinstance(last, ast.Expr):
                value = eval(  # noqa: S307
                    compile(ast.Expression(last.value), name, "eval"), self.module.__dict__
                )
                if value is not None:
                    print(repr(value))
        except BaseException as error:  # noqa: BLE001 - whatever a cell raises is its output
            signal.signal(signal.SIGALRM, signal.SIG_IGN)
            shown = error.with_traceback(_own(error.__traceback__))
            traceback.print_exception(shown)
            return True
        finally:
            signal.signal(signal.SIGALRM, signal.SIG_IGN)
            signal.setitimer(signal.ITIMER_REAL, 0)
            for stream in (sys.stdout, sys.stderr):
                with contextlib.suppress(OSError, ValueError, AttributeError):
                    stream.flush()
        return False

    def taken(self, limit: int) -> tuple[str, int]:
        """Return the output since the last call without its middle, and the bytes left out."""
        size = os.fstat(self.capture.fileno()).st_size
        head = os.pread(self.capture.fileno(), min(size, limit // 2), 0)
        rest = max(len(head), size - (limit - len(head)))
        tail = os.pread(self.capture.fileno(), size - rest, rest)
        os.ftruncate(self.capture.fileno(), 0)
        os.lseek(1, 0, os.SEEK_SET)
        dropped = rest - len(head)
        mark = f"\n[... {dropped} bytes left out ...]\n" if dropped else ""
        return head.decode("utf-8", "replace") + mark + tail.decode("utf-8", "replace"), dropped


def _lines(descriptor: int) -> TextIO:
    """Return a file object that writes line by line, so that both streams keep their order."""
    return open(
        descriptor, "w", buffering=1, encoding="utf-8", errors="backslashreplace", closefd=False
    )


def _own(trace: types.TracebackType | None) -> types.TracebackType | None:
    """Return a traceback without the frames of this file."""
    while trace is not None and not trace.tb_frame.f_code.co_filename.startswith("<cell"):
        trace = trace.tb_next
    return trace


if __name__ == "__main__":
    Interpreter().serve()
