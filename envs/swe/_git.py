"""Git on the host, for trees made here: commits with fixed dates, and diffs."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from trajgym.envs.swe._cache import build_once, cache_root, content_key
from trajgym.envs.swe._errors import SourceUnavailable

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["ATTRIBUTES", "SAFE_ENV", "commit_tree", "diff_trees", "export_commit", "fixes_in"]

SAFE_ENV = {
    "GIT_CONFIG_GLOBAL": "/dev/null",
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_LITERAL_PATHSPECS": "1",
    "GIT_OPTIONAL_LOCKS": "0",
    "GIT_TERMINAL_PROMPT": "0",
}
"""Fixed settings only: no user or system configuration, hooks, pagers or prompts."""

ATTRIBUTES = "* -text -eol -ident -filter -working-tree-encoding\n"
"""For ``info/attributes``, which overrides files in the tree: content is not converted."""

_AUTHOR = {
    f"GIT_{who}_{what}": value
    for who in ("AUTHOR", "COMMITTER")
    for what, value in (
        ("NAME", "trajgym"),
        ("EMAIL", "trajgym@localhost"),
        ("DATE", "2020-01-01T00:00:00Z"),
    )
}
_SECONDS = 120


def commit_tree(folder: Path) -> str:
    """Make ``folder`` a repository with a single commit; return the commit id.

    The id depends on the files only: names, content and executable bits.
    """
    _git(folder, "init", "-q", "-b", "main", "--template=")
    _git(folder, "config", "core.logAllRefUpdates", "false")
    info = folder / ".git" / "info"
    info.mkdir(exist_ok=True)
    (info / "attributes").write_text(ATTRIBUTES)
    _git(folder, "add", "-A", "-f")
    _git(folder, "commit", "-q", "--no-verify", "-m", "base")
    _git(folder, "repack", "-adq")
    return _git(folder, "rev-parse", "HEAD").decode().strip()


def diff_trees(old: Path, new: Path, paths: Iterable[str], scratch: Path) -> str:
    """Return the change from one tree to another as a patch that `git apply` takes.

    Args:
        old: folder without ``.git``.
        new: folder without ``.git``.
        paths: files or folders to compare, relative; the rest is ignored.
        scratch: empty folder for the repository.

    Files that are not UTF-8 become binary hunks, so the patch is always text; line ends are kept.
    """
    base = ["--git-dir", str(scratch / "git")]
    _git(scratch, *base, "init", "-q", "--template=")
    (scratch / "git" / "info").mkdir(exist_ok=True)
    attributes = scratch / "git" / "info" / "attributes"
    attributes.write_text(ATTRIBUTES)
    trees = []
    for folder in (old, new):
        _git(folder, *base, "--work-tree", str(folder), "add", "-A", "-f")
        trees.append(_git(folder, *base, "write-tree").decode().strip())
    chosen = sorted(paths)
    names = _git(
        scratch,
        *base,
        "diff-tree",
        "-r",
        "--no-renames",
        "--name-only",
        "-z",
        *trees,
        "--",
        *chosen,
    )
    binary = [name for name in names.split(b"\0") if name and not _is_utf8(name, old, new)]
    with attributes.open("ab") as file:
        for name in binary:
            file.write(b'"' + name.replace(b"\\", b"\\\\").replace(b'"', b'\\"') + b'" -diff\n')
    patch = _git(
        scratch, *base, "diff-tree", "-p", "--binary", "--no-renames", "--full-index", *trees,
        "--", *chosen,
    )  # fmt: skip
    return patch.decode("utf-8")


def export_commit(repo: str, commit: str, into: Path, cache_dir: Path | None = None) -> None:
    """Fill a folder with the files of a commit; links and submodules are left out."""
    source = _clone(repo, cache_dir)
    listing = _git(into, "--git-dir", str(source), "ls-tree", "-r", "-z", commit)
    files: list[tuple[str, str, Path]] = []
    for entry in filter(None, listing.split(b"\0")):
        about, _, name = entry.partition(b"\t")
        mode, kind, blob = about.decode().split(" ")
        if kind == "blob" and mode != "120000":
            files.append((mode, blob, into / os.fsdecode(name)))
    wanted = "".join(f"{blob}\n" for _, blob, _ in files).encode()
    output = _git(into, "--git-dir", str(source), "cat-file", "--batch", data=wanted)
    at = 0
    for mode, _, target in files:
        head, _, _ = output[at : at + 200].partition(b"\n")
        size = int(head.split(b" ")[2])
        at += len(head) + 1
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(output[at : at + size])
        target.chmod(0o755 if mode == "100755" else 0o644)
        at += size + 1


def fixes_in(repo: str, commits: str, cache_dir: Path | None = None) -> list[Commit]:
    """Return the commits of a range that have one parent, oldest first.

    Args:
        repo: a path or URL.
        commits: a range as `git log` takes it, such as ``v1.0..v1.1``.
        cache_dir: instead of the user's cache.
    """
    source = _clone(repo, cache_dir)
    base = ["--git-dir", str(source)]
    form = "--format=%H %P%x00%s"
    log = _git(source, *base, "log", "--reverse", "--no-merges", form, commits, "--")
    found = []
    for line in log.decode("utf-8", "replace").splitlines():
        hashes, _, subject = line.partition("\0")
        commit, *parents = hashes.split(" ")
        if len(parents) == 1:
            changed = _git(
                source, *base, "diff-tree", "-r", "--no-renames", "--name-only", "-z",
                parents[0], commit,
            )  # fmt: skip
            paths = tuple(os.fsdecode(name) for name in changed.split(b"\0") if name)
            found.append(Commit(commit, parents[0], subject, paths))
    return found


class Commit(NamedTuple):
    """One commit with its parent and the paths that it changes."""

    id: str
    parent: str
    subject: str
    paths: tuple[str, ...]


def _clone(repo: str, cache_dir: Path | None) -> Path:
    """Return a git folder: of a repository on this host, or of a clone in the cache."""
    local = Path(repo)
    if local.is_dir():
        return local / ".git" if (local / ".git").is_dir() else local
    target = cache_root(cache_dir) / "git" / content_key(repo)

    def build(work: Path) -> None:
        _git(work, "clone", "-q", "--bare", "--", repo, str(work / "git"))

    return build_once(target, build) / "git"


def _is_utf8(name: bytes, *trees: Path) -> bool:
    for tree in trees:
        path = tree / os.fsdecode(name)
        try:
            if path.is_file():
                path.read_bytes().decode("utf-8")
        except UnicodeDecodeError:
            return False
    return True


def _git(folder: Path, *arguments: str, data: bytes = b"") -> bytes:
    try:
        done = subprocess.run(
            ["git", "-c", "core.autocrlf=false", "-c", "core.quotePath=true", *arguments],
            cwd=folder,
            env={"PATH": os.environ.get("PATH", os.defpath), **SAFE_ENV, **_AUTHOR},
            input=data,
            capture_output=True,
            timeout=_SECONDS,
            check=True,
        )
    except FileNotFoundError as error:
        raise SourceUnavailable("git is not installed; install it to build SWE tasks") from error
    except subprocess.CalledProcessError as error:
        text = error.stderr.decode("utf-8", "replace").strip()
        raise SourceUnavailable(f"git {' '.join(arguments)} in {folder}: {text}") from error
    except subprocess.TimeoutExpired as error:
        raise SourceUnavailable(
            f"git {arguments[0]} in {folder}: timed out after {_SECONDS} s"
        ) from error
    return done.stdout
