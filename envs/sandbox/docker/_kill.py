"""The helper that kills a command inside its container with its process tree and daemons."""

from __future__ import annotations

from trajgym.envs.sandbox._protocol import MARK

__all__ = ["KILL"]

# Pure sh, built-ins only: minimal images have no ps, and a fork bomb leaves no process free. Runs
# as the command's own user without any privilege, since the image's shell may be the agent's work.
#
# A process belongs to the command if it has the command's mark; if its ancestors have it; or if it
# has no mark at all and is an orphan (it cleared its environment and daemonised). The kernel
# first stops all of this user's processes at once, so that nothing forks during the scan;
# those of other commands continue afterwards. Two helpers must not run at once: they would stop
# each other. A second argument is the pid of a process that is spared. Exit status 0: nothing is
# left.
KILL = (
    r"""
exec 2>/dev/null
mark=$1 spared=$2
look() {  # state, parent and owner of process $1, and its mark: mine, other, none
    state= parent= owner= kind=none
    while read -r key value rest; do
        case $key in
        State:) state=$value ;;
        PPid:) parent=$value ;;
        Uid:) owner=$value; break ;;
        esac
    done <"/proc/$1/status"
    while IFS= read -r line || [ -n "$line" ]; do
        case $line in
        *"""
    + MARK
    + r"""="$mark"*) kind=mine; break ;;
        *"""
    + MARK
    + r"""=*) kind=other; break ;;
        esac
    done <"/proc/$1/environ"
}
belongs() {  # whether process $1 is the command's, by its nearest marked ancestor
    p=$1 depth=0
    while [ "$depth" -lt 300 ]; do
        eval "k=\${k_$p-gone} q=\${p_$p-}"
        case $k in
        mine) return 0 ;;
        other) return 1 ;;
        gone) return 1 ;;
        esac
        case $q in
        0) return 1 ;;
        1) return 0 ;;
        esac
        p=$q depth=$((depth + 1))
    done
    return 1
}
scan() {
    pids=
    for d in /proc/[0-9]*; do
        pid=${d#/proc/}
        case $pid in 1 | $$ | "$spared") continue ;; esac
        look "$pid"
        eval "k_$pid=$kind p_$pid=${parent:-0}"
        [ "$owner" = "$me" ] || continue
        case $state in Z | X | '') continue ;; esac
        pids="$pids $pid"
    done
}
look $$
me=$owner
kill -s STOP -- -1
round=0
while [ "$round" -lt 150 ]; do
    round=$((round + 1))
    [ "$round" -le 10 ] || sleep 0.05
    scan
    found=0
    for pid in $pids; do
        if belongs "$pid"; then
            kill -s KILL "$pid"
            found=1
        fi
    done
    if [ "$found" = 0 ]; then
        kill -s CONT -- -1
        exit 0
    fi
done
exit 1
"""
)
