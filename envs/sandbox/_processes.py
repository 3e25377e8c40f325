"""Lists the processes inside with shell built-ins: minimal images have no ps."""

from __future__ import annotations

from typing import NamedTuple

from trajgym.envs.sandbox._protocol import MARK

__all__ = ["LIST", "Process", "read_processes"]

# First the shell's own pid, then one line a process: pid, parent, state, whose it is (keep: the
# container's own, shell: a shell of ours or its copy, job: anything else), name. A variable has it.
LIST = (
    r"""
echo $$
for _tg_d in /proc/[0-9]*; do
    _tg_state= _tg_parent= _tg_name= _tg_kind=job
    while IFS=' 	' read -r _tg_key _tg_value _tg_rest; do
        case $_tg_key in
        Name:) _tg_name=$_tg_value${_tg_rest:+ $_tg_rest} ;;
        State:) _tg_state=$_tg_value ;;
        PPid:) _tg_parent=$_tg_value; break ;;
        esac
    done <"$_tg_d/status"
    [ -r "$_tg_d/environ" ] || _tg_kind=keep
    while IFS= read -r _tg_line || [ -n "$_tg_line" ]; do
        case $_tg_line in
        *"""
    + MARK
    + r"""=keep*) _tg_kind=keep; break ;;
        *"""
    + MARK
    + r"""=shell-*) _tg_kind=shell; break ;;
        esac
    done <"$_tg_d/environ"
    [ -z "$_tg_state" ] || echo "${_tg_d#/proc/} $_tg_parent $_tg_state $_tg_kind $_tg_name"
done 2>/dev/null
"""
)


class Process(NamedTuple):
    """A process inside a sandbox."""

    pid: int
    parent: int
    name: str


def read_processes(listing: bytes) -> list[Process]:
    """Parse a listing, without zombies, our own helpers and the first process."""
    own, *lines = listing.decode(errors="replace").splitlines() or [""]
    found = []
    for line in lines:
        words = line.split(" ", 4)
        if len(words) != 5 or not (words[0].isdigit() and words[1].isdigit()):
            continue
        pid, parent, state, kind, name = words
        # A shell of ours has no parent inside; its copies (subshells) have one.
        ours = kind == "keep" or (kind == "shell" and parent == "0")
        if state not in {"Z", "X"} and not ours and pid not in {"1", own}:
            found.append(Process(int(pid), int(parent), name))
    return found
