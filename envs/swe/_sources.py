"""Builds a record's base tree from its source: a repository with one commit, in the cache."""

from __future__ import annotations

import hashlib
import shutil
import tempfile
from contextlib import contextmanager
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from trajgym.envs.swe._archives import unpack_sdist
from trajgym.envs.swe._cache import build_once, cache_root, content_key
from trajgym.envs.swe._errors import InvalidTask
from trajgym.envs.swe._git import commit_tree, diff_trees, export_commit
from trajgym.envs.swe._index import IndexFile, fetch
from trajgym.envs.swe._mutate import find_edit
from trajgym.envs.swe._record import (
    FileSource,
    GitSource,
    HunkSource,
    InlineSource,
    MutationSource,
    ReleaseSource,
    SweRecord,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from trajgym.envs.swe._record import Archive, BuiltSource

__all__ = ["TREE_FORMAT", "BaseTree", "base_tree", "patches_of", "source_trees"]

TREE_FORMAT = 2  # increase it when the layout of trees changes, so that old caches are not used


class BaseTree(NamedTuple):
    """A base tree on the host.

    ``repo`` is the working tree with its ``.git``; ``git`` is a second copy of that ``.git``, to
    which no agent has access.
    """

    repo: Path
    git: Path
    commit: str


def base_tree(record: SweRecord, cache_dir: Path | None = None) -> BaseTree:
    """Return the tree that the agent starts from, built at first use.

    Raises:
        InvalidTask: the record has no source that can be built.
        SourceUnavailable: the archives can't be fetched, or git failed.
    """
    source = record.source
    if source is None:
        raise InvalidTask(
            f"record {record.instance_id!r}: field source is missing, and there is no image; one "
            "of them says where the repository comes from (see trajgym.envs.swe.SweRecord)",
        )
    content = _digest(Path(source.path)) if source.kind == "directory" else ""
    key = content_key(TREE_FORMAT, source.model_dump(mode="json"), record.base_commit, content)
    target = cache_root(cache_dir) / "swe" / f"{record.instance_id.replace('/', '_')}-{key}"

    def build(work: Path) -> None:
        repo = work / "repo"
        repo.mkdir()
        _fill(source, repo, fixed=False, cache_dir=cache_dir)
        commit = commit_tree(repo)
        if record.base_commit and source.kind != "directory" and commit != record.base_commit:
            raise InvalidTask(
                f"record {record.instance_id!r}: its source gives commit {commit}, not base_commit "
                f"{record.base_commit}; the record was made from other files",
            )
        shutil.copytree(repo / ".git", work / "git", symlinks=True)
        (work / "commit").write_text(commit)

    built = build_once(target, build)
    return BaseTree(built / "repo", built / "git", (built / "commit").read_text())


def patches_of(source: BuiltSource, cache_dir: Path | None = None) -> tuple[str, str, str]:
    """Return base commit, gold patch and test patch of a source that has both sides."""
    with _scratch() as work:
        for name in ("base", "fixed", "gold", "tests"):
            (work / name).mkdir()
        _fill(source, work / "base", fixed=False, cache_dir=cache_dir)
        _fill(source, work / "fixed", fixed=True, cache_dir=cache_dir)
        if isinstance(source, HunkSource | MutationSource):
            gold_paths, test_paths = [source.file], list[str]()
        else:
            gold_paths, test_paths = source.source_paths, source.test_paths
        gold = diff_trees(work / "base", work / "fixed", gold_paths, work / "gold")
        tests = diff_trees(work / "base", work / "fixed", test_paths, work / "tests")
        return commit_tree(work / "base"), gold, tests if test_paths else ""


@contextmanager
def source_trees(
    first: BuiltSource, second: BuiltSource | None, cache_dir: Path | None = None
) -> Iterator[tuple[Path, Path]]:
    """Unpack the base of one source and the fixed side of another temporarily."""
    with _scratch() as work:
        for name in ("first", "second"):
            (work / name).mkdir()
        _fill(first, work / "first", fixed=False, cache_dir=cache_dir)
        if second is not None:
            _fill(second, work / "second", fixed=True, cache_dir=cache_dir)
        yield work / "first", work / "second"


@contextmanager
def _scratch() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="trajgym-") as folder:
        yield Path(folder)


def _fill(
    source: BuiltSource | FileSource | InlineSource,
    repo: Path,
    *,
    fixed: bool,
    cache_dir: Path | None,
) -> None:
    match source:
        case FileSource():
            _copy_folder(source, repo)
        case InlineSource():
            for path, text in source.files.items():
                target = repo / path
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_text(text, "utf-8")
        case GitSource():
            export_commit(source.repo, source.fixed if fixed else source.base, repo, cache_dir)
        case ReleaseSource():
            _unpack(source.package, source.fixed if fixed else source.base, repo, cache_dir)
        case HunkSource():
            _unpack(source.package, source.fixed, repo, cache_dir)
            if not fixed:
                _put_back_hunk(source, repo, cache_dir)
        case MutationSource():
            _unpack(source.package, source.fixed, repo, cache_dir)
            if not fixed:
                _put_in_bug(source, repo)


def _unpack(package: str, archive: Archive, repo: Path, cache_dir: Path | None) -> None:
    unpack_sdist(fetch(IndexFile(package, archive.filename, archive.sha256), cache_dir), repo)


def _put_back_hunk(source: HunkSource, repo: Path, cache_dir: Path | None) -> None:
    with _scratch() as older:
        _unpack(source.package, source.base, older, cache_dir)
        before = (older / source.file).read_bytes().splitlines(keepends=True)
    target = repo / source.file
    after = target.read_bytes().splitlines(keepends=True)
    (start, end), (first, last) = source.fixed_lines, source.base_lines
    target.write_bytes(b"".join(after[:start] + before[first:last] + after[end:]))


def _put_in_bug(source: MutationSource, repo: Path) -> None:
    file, place = repo / source.file, source.mutation
    text = file.read_bytes()
    changed = find_edit(text, place.rule, place.line, place.column, place.variant).apply(text)
    if hashlib.sha256(changed).hexdigest() != place.sha256:
        raise InvalidTask(
            f"{source.package}, {source.file}: the edit gives another file than the recipe's; it "
            "was made by another version of the rules"
        )
    file.write_bytes(changed)


def _digest(folder: Path) -> str:
    """Return a digest of the files of a folder that may change between runs."""
    digest = hashlib.sha256()
    for path in sorted(folder.rglob("*")):
        if path.is_file() and ".git" not in path.relative_to(folder).parts:
            digest.update(f"{path.relative_to(folder)}\0{path.stat().st_size}\0".encode())
            digest.update(path.read_bytes())
    return digest.hexdigest()


def _copy_folder(source: FileSource, repo: Path) -> None:
    ignore = shutil.ignore_patterns("__pycache__", "*.pyc", ".git")
    if source.kind == "builtin":
        root = resources.files("trajgym.envs.swe").joinpath("data", "builtin", source.path, "base")
        with resources.as_file(root) as folder:
            shutil.copytree(folder, repo, dirs_exist_ok=True, ignore=ignore)
        return
    folder = Path(source.path)
    if not folder.is_absolute() or not folder.is_dir():
        raise InvalidTask(f"source.path {source.path!r} is not an absolute path of a folder")
    shutil.copytree(folder, repo, dirs_exist_ok=True, ignore=ignore, symlinks=True)
