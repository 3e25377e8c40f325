"""Making recipes of new tasks from released packages and from git history.

A recipe holds facts alone: archives with hashes, the place of a change, test lists, where it is
from and under which licence. What can't be told apart by tests is not a task and gives none.
"""

from __future__ import annotations

import difflib
import hashlib
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any, NamedTuple

from trajgym.envs.swe._corpus import statement_of
from trajgym.envs.swe._errors import InvalidTask
from trajgym.envs.swe._git import fixes_in
from trajgym.envs.swe._mutate import edits_of, is_python
from trajgym.envs.swe._paths import is_test_path
from trajgym.envs.swe._record import (
    Archive,
    BuiltSource,
    GitSource,
    HunkSource,
    Install,
    Mutation,
    MutationSource,
    ReleaseSource,
)
from trajgym.envs.swe._releases import Layout, find_release, is_permissive, layout_of, licence_of
from trajgym.envs.swe._sources import patches_of, source_trees
from trajgym.envs.swe._suite import Suite, passed_in

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterable, Sequence
    from pathlib import Path

    from trajgym.envs.sandbox import SandboxProvider

__all__ = ["Builder", "Hunk", "Recipe", "hunks_between"]

Recipe = dict[str, Any]
_MOST_BROKEN = 0.2  # a bug that breaks more of the suite is a crash, not a task
_CONTEXT = 2


class Hunk(NamedTuple):
    """Lines ``base`` of the older file stand where lines ``fixed`` of the newer are; from 0."""

    base: tuple[int, int]
    fixed: tuple[int, int]

    @property
    def line(self) -> int:
        """Line number of the hunk in the newer file, as a diff without context gives it."""
        return self.fixed[0] + (self.fixed[1] > self.fixed[0])


def hunks_between(base: bytes, fixed: bytes) -> list[Hunk]:
    """Return the hunks between two files; changes at most four lines apart are one."""
    old, new = base.splitlines(keepends=True), fixed.splitlines(keepends=True)
    matcher = difflib.SequenceMatcher(None, old, new, autojunk=False)
    hunks = []
    for group in matcher.get_grouped_opcodes(_CONTEXT):
        changes = [change for change in group if change[0] != "equal"]
        if changes:
            first, last = changes[0], changes[-1]
            hunks.append(Hunk((first[1], last[2]), (first[3], last[4])))
    return hunks


class _Release(NamedTuple):
    package: str
    version: str
    archive: Archive
    licence: str


class Builder:
    """Makes recipes; every candidate is told by ``on_candidate(name, why not)``.

    Args:
        provider: where tests run.
        needs: pinned packages that the tests need besides pytest.
        seconds: limit of one run of a suite; a change that makes tests endless is no task.
        runs: how often tests must pass on the fixed side to be listed.
        cache_dir: instead of the user's cache.
        on_candidate: called with each candidate's name and the reason why it is none, empty if it
            became a recipe.
    """

    def __init__(
        self,
        provider: SandboxProvider,
        *,
        needs: Sequence[str] = (),
        seconds: float = 120.0,
        runs: int = 3,
        cache_dir: Path | None = None,
        on_candidate: Callable[[str, str], None] = lambda _name, _why: None,
    ) -> None:
        self.provider = provider
        self.needs = list(needs)
        self.seconds = seconds
        self.runs = runs
        self.cache_dir = cache_dir
        self.on_candidate = on_candidate

    async def release(self, package: str, old: str, new: str, statement: str = "") -> Recipe:
        """Return a recipe from two releases whose source archives ship tests.

        Tests that fail on the base only because their module can't be imported there are left out:
        what the base's own tests show to work is no part of the problem.

        Raises:
            InvalidTask: no changed tests, or none that fails before and passes after.
            SourceUnavailable: the releases can't be had.
        """
        base, fixed = self._release(package, old), self._release(package, new)
        empty = ReleaseSource(
            kind="pypi-releases", package=package, base=base.archive, fixed=fixed.archive,
            source_paths=[], test_paths=[],
        )  # fmt: skip
        source, layout = self._with_paths(empty)
        name = f"{_slug(package)}-{old}-to-{new}"
        return await self._two_sides(name, package, source, layout, fixed, statement)

    async def commits(self, repo: str, commits: str, licence: str = "") -> AsyncIterator[Recipe]:
        """Yield recipes of the commits of a range that change sources and tests.

        Args:
            repo: path or URL of a git repository.
            commits: a range as `git log` takes it.
            licence: of the repository, for the record.
        """
        for commit in fixes_in(repo, commits, self.cache_dir):
            name = f"git-{_slug(PurePosixPath(repo).stem)}-{commit.id[:12]}"
            python = [path for path in commit.paths if path.endswith(".py")]
            if len({is_test_path(path) for path in python}) < 2:
                self.on_candidate(name, "does not change both sources and tests")
                continue
            empty = GitSource(
                kind="git", repo=repo, base=commit.parent, fixed=commit.id,
                source_paths=[], test_paths=[],
            )  # fmt: skip
            about = _Release(PurePosixPath(repo).stem, commit.id[:12], _NO_ARCHIVE, licence)
            try:
                source, layout = self._with_paths(empty)
                recipe = await self._two_sides(name, repo, source, layout, about, commit.subject)
            except InvalidTask as error:
                self.on_candidate(name, str(error))
            else:
                self.on_candidate(name, "")
                yield recipe

    async def hunks(
        self, package: str, old: str, new: str, only: Iterable[str] = ()
    ) -> AsyncIterator[Recipe]:
        """Yield recipes of the newer release with one hunk put back, if tests tell.

        Args:
            package: name on the index.
            old: version that the hunks come from.
            new: version whose tests run.
            only: names of the candidates to try; all by default.
        """
        base, fixed = self._release(package, old), self._release(package, new)
        chosen = set(only)
        with source_trees(self._same(fixed), self._same(base), self.cache_dir) as (newer, older):
            layout = layout_of(newer)
            install = Install(pythonpath=layout.pythonpath, needs=self.needs)
            suite = await self._suite(self._same(fixed), install, layout.tests)
            good = await self._good(suite, f"{package} {new}")
            for file in _python_files(newer, layout):
                if not (older / file).is_file():
                    continue
                before, after = (older / file).read_bytes(), (newer / file).read_bytes()
                for hunk in hunks_between(before, after):
                    slug = file.removesuffix(".py").replace("/", "_")
                    name = f"hunk-{_slug(package)}-{new}-{slug}-L{hunk.line}"
                    if chosen and name not in chosen:
                        continue
                    source = HunkSource(
                        kind="pypi-hunk", package=package, base=base.archive, fixed=fixed.archive,
                        file=file, base_lines=hunk.base, fixed_lines=hunk.fixed,
                    )  # fmt: skip
                    content = _put_back(before, after, hunk)
                    failing = await self._tell(suite, good, name, file, content)
                    if failing:
                        yield _recipe(name, package, source, install, fixed, failing, good)

    async def mutations(
        self, package: str, version: str, *, count: int, seed: int = 0, tries: int | None = None
    ) -> AsyncIterator[Recipe]:
        """Yield recipes of procedural bugs in a release, at most one per function and failing set.

        Args:
            package: name on the index.
            version: whose source archive ships tests.
            count: how many recipes to stop at.
            seed: decides which places are tried, and in which order.
            tries: how many places to try at most; eight for each recipe by default.
        """
        fixed = self._release(package, version)
        with source_trees(self._same(fixed), None, self.cache_dir) as (tree, _):
            layout = layout_of(tree)
            install = Install(pythonpath=layout.pythonpath, needs=self.needs)
            suite = await self._suite(self._same(fixed), install, layout.tests)
            good = await self._good(suite, f"{package} {version}")
            seen: set[tuple[str, str, frozenset[str]]] = set()
            places = _places(tree, layout, seed)[: tries if tries is not None else 8 * count]
            for file, edit in places:
                if len(seen) >= count:
                    return
                before = (tree / file).read_bytes()
                changed = edit.apply(before)
                slug = PurePosixPath(file).stem
                name = (
                    f"bug-{_slug(package)}-{version}-{slug}-L{edit.line}C{edit.column}-{edit.rule}"
                )
                name += f"-{edit.variant}" if edit.variant else ""
                if not is_python(changed):
                    self.on_candidate(name, "is no Python")
                    continue
                failing = await self._tell(suite, good, name, file, changed, seen, edit.scope)
                if not failing:
                    continue
                mutation = Mutation(
                    rule=edit.rule, line=edit.line, column=edit.column, variant=edit.variant,
                    sha256=hashlib.sha256(changed).hexdigest(),
                )  # fmt: skip
                source = MutationSource(
                    kind="pypi-mutation", package=package, fixed=fixed.archive, file=file,
                    mutation=mutation,
                )  # fmt: skip
                yield _recipe(name, package, source, install, fixed, failing, good)

    async def _good(self, suite: Suite, name: str) -> set[str]:
        good = await suite.stable(times=self.runs)
        if not good:
            raise InvalidTask(
                f"{name}: none of its tests passes in a sandbox; they may need packages (needs), "
                "an installation of their own, or more time"
            )
        return good

    async def _tell(
        self,
        suite: Suite,
        good: set[str],
        name: str,
        file: str,
        content: bytes,
        seen: set[tuple[str, str, frozenset[str]]] | None = None,
        scope: str = "",
    ) -> set[str]:
        """Return the tests that tell a changed file, empty if it makes no task."""
        results = await suite.run(files={file: content})
        failing = good - passed_in(results)
        why = ""
        if results is None:
            why = "the tests do not end or do not start"
        elif not failing:
            why = "no test tells"
        elif len(failing) > max(1, _MOST_BROKEN * len(good)):
            why = f"breaks {len(failing)} of {len(good)} tests"
        elif seen is not None and (file, scope, frozenset(failing)) in seen:
            why = "tests tell it like another bug in this function"
        self.on_candidate(name, why)
        if why:
            return set()
        if seen is not None:
            seen.add((file, scope, frozenset(failing)))
        return failing

    async def _two_sides(
        self,
        name: str,
        repo: str,
        source: ReleaseSource | GitSource,
        layout: Layout,
        about: _Release,
        statement: str,
    ) -> Recipe:
        _, gold, tests = patches_of(source, self.cache_dir)
        if not gold.strip() or not tests.strip():
            raise InvalidTask(f"{name}: {'tests' if gold.strip() else 'sources'} did not change")
        install = Install(pythonpath=layout.pythonpath, needs=self.needs)
        suite = await self._suite(source, install, layout.tests)
        good = await suite.stable(tests, gold, times=self.runs)
        before = passed_in(await suite.run(tests))
        old = passed_in(await suite.run())
        failing = (good - before) - old
        if not failing:
            raise InvalidTask(f"{name}: no test fails before the change and passes after it")
        inflated = (good - before) & old
        recipe = _recipe(name, repo, source, install, about, failing, good - inflated, statement)
        recipe["provenance"]["left_out"] = len(inflated)
        return recipe

    async def _suite(self, source: BuiltSource, install: Install, tests: Sequence[str]) -> Suite:
        return await Suite.of_base(
            source, install, tests, self.provider, seconds=self.seconds, cache_dir=self.cache_dir
        )

    def _release(self, package: str, version: str) -> _Release:
        archive, file = find_release(package, version, self.cache_dir)
        return _Release(package, version, archive, licence_of(file))

    @staticmethod
    def _same(release: _Release) -> ReleaseSource:
        """Return a source whose base is the release itself."""
        return ReleaseSource(
            kind="pypi-releases", package=release.package, base=release.archive,
            fixed=release.archive, source_paths=[], test_paths=[],
        )  # fmt: skip

    def _with_paths(
        self, source: ReleaseSource | GitSource
    ) -> tuple[ReleaseSource | GitSource, Layout]:
        """Return the source with its folders, or single files where tests lie among sources."""
        with source_trees(source, source, self.cache_dir) as (base, fixed):
            layout = layout_of(fixed)
            paths = layout.sources
            if any(test.startswith(f"{path}/") for path in paths for test in layout.tests):
                files = {*_python_files(base, layout), *_python_files(fixed, layout)}
                paths = sorted(file for file in files if _differ(base / file, fixed / file))
        changes = {"source_paths": paths, "test_paths": layout.tests}
        return source.model_copy(update=changes), layout


_NO_ARCHIVE = Archive(filename="", sha256="0" * 64)


def _recipe(
    name: str,
    repo: str,
    source: BuiltSource,
    install: Install,
    about: _Release,
    failing: set[str],
    good: set[str],
    statement: str = "",
) -> Recipe:
    recipe: Recipe = {
        "instance_id": name,
        "repo": repo,
        "version": about.version,
        "source": source.model_dump(mode="json"),
        "install_config": install.model_dump(mode="json", exclude_defaults=True),
        "provenance": {
            "made_from": source.kind,
            "package": about.package,
            "version": about.version,
            "licence": about.licence,
            "permissive": is_permissive(about.licence),
        },
        "FAIL_TO_PASS": sorted(failing),
        "PASS_TO_PASS": sorted(good - failing),
    }
    recipe["problem_statement"] = statement or statement_of(recipe)
    return recipe


def _slug(name: str) -> str:
    return name.lower().replace("/", "-")


def _python_files(tree: Path, layout: Layout) -> list[str]:
    """Return the source files of a tree, tests left out."""
    found = []
    for source in layout.sources:
        path = tree / source
        files = path.rglob("*.py") if path.is_dir() else [path]
        found += [str(file.relative_to(tree)) for file in files if file.is_file()]
    tests = tuple(f"{test}/" for test in layout.tests)
    return sorted(file for file in found if not file.startswith(tests))


def _differ(one: Path, other: Path) -> bool:
    contents = [path.read_bytes() if path.is_file() else None for path in (one, other)]
    return contents[0] != contents[1]


def _put_back(before: bytes, after: bytes, hunk: Hunk) -> bytes:
    old, new = before.splitlines(keepends=True), after.splitlines(keepends=True)
    kept = [*new[: hunk.fixed[0]], *old[slice(*hunk.base)], *new[hunk.fixed[1] :]]
    return b"".join(kept)


def _places(tree: Path, layout: Layout, seed: int) -> list[tuple[str, Any]]:
    """Return every place for a bug in an order that the seed decides, and nothing else."""
    places = []
    for file in _python_files(tree, layout):
        if is_test_path(file):
            continue  # a change of such a path would not be taken into grading
        for edit in edits_of((tree / file).read_bytes()):
            key = hashlib.sha256(f"{seed} {file} {edit[:4]}".encode()).hexdigest()
            places.append((key, file, edit))
    return [(file, edit) for _, file, edit in sorted(places, key=lambda place: place[0])]
