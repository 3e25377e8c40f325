"""How a command of an embedded sandbox is started: with bubblewrap, or with util-linux alone."""

from __future__ import annotations

import json
import math
import os
import shlex
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from trajgym.envs.sandbox._base import Limits

__all__ = [
    "LATE", "LATE_INSIDE", "SHELL", "Layout", "Tool", "describe", "find_tools", "limit_script",
    "write_identity", "write_labels",
]  # fmt: skip

SANDBOX_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
ROOT_USER = (52000, 52000)
"""Uid of commands on the host when this process is root: outside the ranges that systems assign."""
PLAIN_USER = (1000, 1000)
SYSTEM = ("/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32")
CONFIGURATION = (
    "alternatives", "ca-certificates", "ld.so.cache", "ld.so.conf", "ld.so.conf.d", "localtime",
    "mime.types", "os-release", "pki/tls/certs", "python3", "python3.11", "ssl/certs",
    "ssl/openssl.cnf",
)  # fmt: skip
SHARED_MEMORY = "/dev/shm"  # noqa: S108  a path inside the sandbox
SHM = 64 << 20

# Enters the control groups whose files come before `--`, then executes what comes after it.
ENTER = """\
while [ "$1" != -- ]; do echo 0 >"$1" || exit 125; shift; done
shift
exec "$@"
"""

SHELL = """\
{limits}
exec "$@"
"""
LATE = "late"
LATE_INSIDE = "/run/trajgym"
"""Directory inside in which a shell finds new pipes for its output."""


@dataclass(frozen=True, slots=True)
class Layout:
    """The files and the network that a sandbox has.

    Args:
        folder: its directory on the host.
        writable: ``{path inside: directory on the host}``, kept between commands.
        readonly: ``{path inside: directory on the host}``.
        user: uid and gid inside.
        network: whether it shares the host's network.
        joined: whether it is started in a network namespace that was created before.
    """

    folder: Path
    writable: Mapping[str, Path]
    readonly: Mapping[str, Path]
    user: tuple[int, int]
    network: bool
    joined: bool = False

    def binds(self) -> list[tuple[str, str, bool]]:
        """Return every mount as (source, target, writable), parents before children."""
        found = [("/usr", "/usr", False)]
        found += [(path, path, False) for path in SYSTEM if _is_real_folder(path)]
        etc = self.folder / "etc"
        found += [(str(file), f"/etc/{file.name}", False) for file in sorted(etc.iterdir())]
        names = [*CONFIGURATION, *(["resolv.conf"] if self.network else [])]
        for name in names:
            source = Path("/etc", name)
            if source.exists():
                found.append((str(source.resolve()), f"/etc/{name}", False))
        found.append((str(self.folder / LATE), LATE_INSIDE, False))
        found += [(str(source), path, False) for path, source in self.readonly.items()]
        found += [(str(source), path, True) for path, source in self.writable.items()]
        return sorted(found, key=lambda bind: bind[1].count("/"))

    def parents(self) -> list[str]:
        """Return the parent directories of mounts that no mount contains, from the top down."""
        targets = {target for _, target, _ in self.binds()}
        found: set[str] = set()
        for target in targets:
            above = [str(path) for path in Path(target).parents if str(path) != "/"]
            if not targets.intersection(above):
                found.update(above)
        return sorted(found)

    def links(self) -> list[tuple[str, str]]:
        """Return the links in the host's root (``/bin`` to ``usr/bin``) as (target, path)."""
        return [(str(Path(path).readlink()), path) for path in SYSTEM if Path(path).is_symlink()]


def _is_real_folder(path: str) -> bool:
    return Path(path).is_dir() and not Path(path).is_symlink()


def write_identity(
    folder: Path, user: tuple[int, int], home: str, hosts: Mapping[str, str]
) -> None:
    """Write the files of ``/etc`` that must differ from the host's. Blocks."""
    uid, gid = user
    etc = folder / "etc"
    etc.mkdir(exist_ok=True)
    (etc / "passwd").write_text(
        f"root:x:0:0:root:/root:/bin/sh\nagent:x:{uid}:{gid}:agent:{home}:/bin/sh\n"
        "nobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin\n"
    )
    (etc / "group").write_text(f"root:x:0:\nagent:x:{gid}:\nnogroup:x:65534:\n")
    lines = ["127.0.0.1 localhost sandbox", "::1 localhost"]
    lines += [f"{address} {name}" for name, address in hosts.items()]
    (etc / "hosts").write_text("\n".join(lines) + "\n")
    (etc / "hostname").write_text("sandbox\n")
    (etc / "nsswitch.conf").write_text("passwd: files\ngroup: files\nhosts: files dns\n")


def write_labels(folder: Path, labels: Mapping[str, str]) -> None:
    """Record in a sandbox's directory which session it belongs to. Blocks."""
    (folder / "labels.json").write_text(json.dumps(dict(labels)))


def limit_script(limits: Limits, bounds: frozenset[str]) -> str:
    """Return shell lines that set limits; those enforced by control groups are left out."""
    lines = [f"ulimit -f {math.ceil(limits.disk / 512)}", "ulimit -c 0"]
    if "memory" not in bounds:
        lines.append(f"ulimit -v {limits.memory // 1024}")
    if "pids" not in bounds:
        lines.append(f"ulimit -u {limits.pids} 2>/dev/null || ulimit -p {limits.pids} 2>/dev/null")
    return "\n".join(lines)


def _drop(user: tuple[int, int], *, change: bool) -> list[str]:
    who = [f"--reuid={user[0]}", f"--regid={user[1]}", "--clear-groups"] if change else []
    return [
        "setpriv", *who, "--inh-caps=-all", "--ambient-caps=-all", "--bounding-set=-all",
        "--no-new-privs", "--",
    ]  # fmt: skip


@dataclass(frozen=True, slots=True)
class Tool:
    """A program that creates namespaces.

    Args:
        name: ``bubblewrap`` or ``unshare``.
        path: the program.
        root: whether this process is root; commands then run as another, unprivileged user.
    """

    name: str
    path: str
    root: bool

    @property
    def default_user(self) -> tuple[int, int]:
        """Uid and gid of commands unless the spec names others."""
        if self.root:
            return ROOT_USER
        return PLAIN_USER if self.name == "bubblewrap" else (0, 0)

    def argv(
        self,
        layout: Layout,
        words: Sequence[str],
        *,
        script: str,
        env: Mapping[str, str],
        entrances: Sequence[str] = (),
        prefix: Sequence[str] = (),
    ) -> list[str]:
        """Return the argument vector that runs a shell script in the sandbox.

        Args:
            layout: its files and network.
            words: the script's arguments.
            script: text for ``/bin/sh -c``.
            env: all of its environment.
            entrances: files of control groups.
            prefix: put before all of it.
        """
        inside = ["env", "-i", *(f"{key}={value}" for key, value in env.items())]
        inside += ["/bin/sh", "-c", script, "sh", *words]
        make = self._bubblewrap if self.name == "bubblewrap" else self._unshare
        enter = ["/bin/sh", "-c", ENTER, "sh", *entrances, "--"]
        return [*prefix, *enter, *make(layout, inside)]

    def _bubblewrap(self, layout: Layout, inside: Sequence[str]) -> list[str]:
        argv = [
            self.path, "--unshare-ipc", "--unshare-pid", "--unshare-uts", "--unshare-cgroup-try",
            "--die-with-parent", "--new-session", "--hostname", "sandbox",
        ]  # fmt: skip
        if not (layout.network or layout.joined):
            argv.append("--unshare-net")
        for path in layout.parents():
            argv += ["--perms", "0755", "--dir", path]
        for source, target, writable in layout.binds():
            argv += ["--bind" if writable else "--ro-bind", source, target]
        for source, target in layout.links():
            argv += ["--symlink", source, target]
        argv += ["--proc", "/proc", "--dev", "/dev", "--perms", "1777", "--size", str(SHM)]
        argv += ["--tmpfs", SHARED_MEMORY, "--remount-ro", "/dev", "--remount-ro", "/"]
        uid, gid = layout.user
        if self.root:
            argv += ["--cap-drop", "ALL"]
            for name in ("CAP_SETUID", "CAP_SETGID", "CAP_SETPCAP"):
                argv += ["--cap-add", name]
            return [*argv, "--", *_drop(layout.user, change=True), *inside]
        argv += ["--unshare-user", "--uid", str(uid), "--gid", str(gid)]
        return [*argv, "--", *inside]

    def _unshare(self, layout: Layout, inside: Sequence[str]) -> list[str]:
        argv = ["setpriv", "--pdeathsig=KILL", "--", self.path]
        if not self.root:
            argv += ["--user", "--map-root-user"]
        argv += ["--mount", "--propagation=private", "--pid", "--ipc", "--uts", "--cgroup"]
        if not (layout.network or layout.joined):
            argv.append("--net")
        argv += ["--fork", "--kill-child=KILL", "--"]
        command = [*_drop(layout.user, change=self.root), *inside]
        return [*argv, "/bin/sh", "-c", _mount_script(layout), "sh", *command]


def _mount_script(layout: Layout) -> str:
    """Return a script that builds the sandbox's root on a tmpfs, enters it and runs "$@"."""
    quote = shlex.quote
    lines = ["set -e", f"cd {quote(str(layout.folder))}", "mount -t tmpfs -o mode=0755 none root"]
    lines += ["cd root", "mkdir proc dev dev/shm etc .old"]
    for source, target, writable in layout.binds():
        inside = quote(target.lstrip("/"))
        lines.append(_mount_point(source, inside))
        lines.append(f"mount --bind {quote(source)} {inside}")
        if not writable:
            lines.append(f"mount -o remount,bind,ro {inside}")
    for link, path in layout.links():
        lines.append(f"ln -s {quote(link)} {quote(path.lstrip('/'))}")
    lines.append("mount -t proc proc proc")
    for name in ("null", "zero", "full", "random", "urandom", "tty"):
        lines.append(f": >dev/{name}; mount --bind /dev/{name} dev/{name}")
    lines += [f"ln -s /proc/self/fd/{number} dev/{name}" for number, name in enumerate(STREAMS)]
    lines += ["ln -s /proc/self/fd dev/fd", f"mount -t tmpfs -o mode=1777,size={SHM} none dev/shm"]
    # Without a control group for memory, writing to the root would circumvent the limit.
    lines += ["pivot_root . .old", "umount -l .old", "mount -o remount,bind,ro /", "cd /"]
    # This shell stays the namespace's first process: after a change of user the kernel no longer
    # kills it with its parent.
    lines += ["set +e", '"$@"', "exit $?"]
    return "\n".join(lines)


STREAMS = ("stdin", "stdout", "stderr")


def _mount_point(source: str, inside: str) -> str:
    if Path(source).is_dir():
        return f"mkdir -p {inside}"
    return f'mkdir -p "$(dirname {inside})"; : >{inside}'


def find_tools() -> list[Tool]:
    """Return the programs that are installed here, the better one first."""
    root = os.geteuid() == 0
    found = []
    for name, program in (("bubblewrap", "bwrap"), ("unshare", "unshare")):
        path = shutil.which(program)
        if path:
            found.append(Tool(name, path, root))
    return found


def describe(bounds: frozenset[str]) -> dict[str, str]:
    """Describe what is isolated and what is not.

    Args:
        bounds: what control groups limit here.
    """
    held = "limited by a control group"
    loose = {
        "memory": "NOT limited as a whole: each process gets the limit as address space",
        "pids": "NOT limited alone: the same user's other sandboxes count too",
        "cpu": "NOT limited",
    }
    who = f"uid {ROOT_USER[0]}" if os.geteuid() == 0 else "this process's user"
    named = "by `allow` the places it names, over TCP"
    if os.geteuid() != 0:
        named = "`allow` is refused: it needs root"
    return {
        "kernel": "shared with the host, and NO system call filter: a kernel bug allows an escape",
        "privileges": f"no capabilities, no new privileges; on the host commands are {who}",
        "processes": "commands that run at once have a pid namespace each; nothing outlives the "
        "command, or the shell, that started it",
        "files": "the host's /usr, parts of /etc and the spec's readonly trees can be read; only "
        "the sandbox's own directories can be written, and only they are kept",
        "disk": "measured twice a second while a command runs; no single file can exceed it",
        "network": f"none but an own loopback; {named}; by `network` all of the HOST's, its "
        "loopback included",
        **{name: held if name in bounds else text for name, text in loose.items()},
    }
