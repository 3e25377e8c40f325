"""Requests to shells inside, as text that any POSIX shell reads, and their reports.

A shell reads lines from its stdin. After every command it writes the request's key to both
streams, so that the end is known without asking the engine; a report follows on stderr. The key
is sent in two halves: a shell that prints what it reads (``set -v``, ``set -x``) never prints
both together.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

__all__ = [
    "FEED",
    "MARK",
    "STDIN_LIMIT",
    "Report",
    "command_text",
    "is_name",
    "quote",
    "read_report",
    "ready_text",
    "script_text",
    "switch_text",
]

MARK = "TRAJGYM_COMMAND"
"""Variable that marks every process of one command; the container's own processes have `keep`."""

STDIN_LIMIT = 1 << 15
"""Maximum bytes of stdin in a request; commands with a longer stdin run in a separate shell."""

# Output goes to 7 and 8, so that a shell whose own stdout was closed can still report.
BOOTSTRAP = r"""
exec 7>&1 8>&2
_tg_events=/dev/null
for _tg_file in /sys/fs/cgroup/memory/memory.oom_control /sys/fs/cgroup/memory.events; do
    if [ -r "$_tg_file" ]; then _tg_events=$_tg_file; fi
done
_tg_begin() {
    _tg_kills=0
    while IFS=' ' read -r _tg_name _tg_value; do
        if [ "$_tg_name" = oom_kill ]; then _tg_kills=$_tg_value; fi
    done <"$_tg_events"
}
_tg_end() {
    _tg_kills0=$_tg_kills _tg_before=$_tg_orphans _tg_orphans='' _tg_own=''
    _tg_begin
    read -r _tg_orphans </proc/1/task/1/children || :
    read -r _tg_own </proc/$$/task/$$/children || :
    echo "$2$3" >&7
    echo "$2$3 $1;$((_tg_kills - _tg_kills0));$$;$_tg_before;$_tg_orphans;$_tg_own;$PWD" >&8
}
read -r _tg_orphans </proc/1/task/1/children || :
"""

FEED = (
    BOOTSTRAP
    + r"""
exec 2>/dev/null
_tg_begin
_tg_end 0 "$1" "$2"
read -r _tg_key1 _tg_key2 _tg_size || exit 125
_tg_begin
if cd -- "$3" 2>&8; then
    shift 3
    head -c "$_tg_size" | "$@" 2>&8 7>&- 8>&-
else
    (exit 126)
fi
_tg_end $? "$_tg_key1" "$_tg_key2"
"""
)
"""A shell for one command with much stdin.

Its arguments are a key for its first report, a directory and the command; its stdin is a line with
a key and a size, and then so many bytes.
"""


class Report(NamedTuple):
    """What a shell reports after a command."""

    status: int
    """Exit status of the command."""
    oom_kills: int
    """The number of processes killed by the memory limit during the command."""
    pid: int
    """Pid of the shell, as seen inside."""
    left: frozenset[int]
    """Processes that are new children of the sandbox's first process: orphans of the command."""
    children: frozenset[int]
    """The shell's own children: background jobs."""
    cwd: str

    @property
    def clean(self) -> bool:
        """Whether nothing that the command started can still write to the shell's streams."""
        return not self.left and not self.children


def read_report(line: bytes) -> Report | None:
    """Parse the line after a key; None if it is malformed (a command may have written it)."""
    parts = line.decode(errors="replace").strip(" ").split(";", 6)
    try:
        status, kills, pid = map(int, parts[:3])
        before, after, own = (frozenset(map(int, part.split())) for part in parts[3:6])
        return Report(status, kills, pid, after - before, own, parts[6])
    except (ValueError, IndexError):
        return None


def quote(text: str) -> str:
    """Quote text as one word for a shell; it must not contain NUL."""
    return "'" + text.replace("'", "'\\''") + "'"


def is_name(text: str) -> bool:
    """Return whether a shell can export a variable of this name."""
    return re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", text) is not None


def ready_text(key: tuple[str, str], *, silent: bool) -> bytes:
    """Prepare a new shell for requests; it reports as after a command, with all kills so far.

    Args:
        key: see the module.
        silent: whether the shell's own messages ("Killed") are dropped.
    """
    mute = "exec 2>/dev/null\n" if silent else ""
    return f"{BOOTSTRAP}\n{mute}_tg_kills=0\n_tg_end 0 {key[0]} {key[1]}\n".encode()


def command_text(
    words: Sequence[str], cwd: str, env: Mapping[str, str], stdin: bytes, key: tuple[str, str]
) -> bytes:
    """Run an argument vector in a child of the shell."""
    exports = " ".join(f"{name}={quote(value)}" for name, value in env.items())
    program = " ".join(map(quote, words))
    inner = f"cd -- {quote(cwd)} || exit 126; export {exports}; exec {program}"
    head, feed = ("</dev/null ", "") if not stdin else ("", f"printf {_spelled(stdin)} | ")
    return (
        f"_tg_begin\n{feed}( {inner} ) {head}2>&8 7>&- 8>&-\n_tg_end $? {key[0]} {key[1]}\n"
    ).encode()


def _spelled(data: bytes) -> str:
    """Return a format for printf that prints these bytes."""
    plain = {*range(32, 127), 10} - {*b"'\\%"}
    return "'" + "".join(chr(b) if b in plain else f"\\{b:03o}" for b in data) + "'"


def script_text(command: str, mark: str, stdin: str, key: tuple[str, str]) -> bytes:
    """Run a command line in the shell itself, so that its variables are kept.

    The shell's parser reads all of it as one line: options that the command sets (echoing,
    tracing) do not affect the lines added here.
    """
    word = f"EOF{key[0]}"
    source = f"<<'{word}'" if stdin else "</dev/null"
    begin = f"{{ _tg_begin; export {MARK}={mark}; }} 2>/dev/null"
    end = f"{{ _tg_end $? {key[0]} {key[1]}; }} 2>/dev/null"
    # An empty line first: bash needs one to recover from a syntax error.
    text = f"\n{begin}; command eval {quote(command)} {source} >&7 2>&8 7>&- 8>&-; {end}\n"
    return (text + (f"{stdin}{word}\n" if stdin else "")).encode()


def switch_text(stdout: str, stderr: str) -> bytes:
    """Redirect the shell's output to other files from now on."""
    return f"exec 7>{quote(stdout)} 8>{quote(stderr)}\n".encode()
