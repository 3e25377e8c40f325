"""Makes recipes of new tasks from released packages and from git history.

A recipe contains facts only: archives with hashes, the position of a change, test lists, origin
and licence. A change that no test detects gives no recipe.
"""

from __future__ import annotations

import hashlib
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any, NamedTuple

from trajgym.envs.swe._candidates import (
    differ,
    hunks_between,
    places,
    put_back,
    python_files,
)
from trajgym.envs.swe._corpus import statement_of
from trajgym.envs.swe._errors import InvalidTask
from trajgym.envs.swe._git import fixes_in
from trajgym.envs.swe._mutate import is_python
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

__all__ = ["Builder", "Recipe"]

Recipe = dict[str, Any]
_MOST_BROKEN = 0.2  # a bug that breaks more of the suite is a crash, not a task


class _Release(NamedTuple):
    package: str
    version: str
    archive: Archive
    licence: str


class Builder:
    """Makes recipes, and reports every candidate by ``on_candidate(name, reason)``.

    Args:
        provider: where tests run.
        needs: pinned packages that the tests need besides pytest.
        seconds: limit of one run of a suite; a change after which the tests hang gives no task.
        runs: how often tests must pass on the fixed side to be listed.
        cache_dir: instead of the user's cache.
        on_candidate: called with each candidate's name and the reason for its rejection, empty if
            it became a recipe.
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

        Tests that fail on the base only because their module can't be imported there are left out
        if the base's own tests cover them: what works already is not part of the problem.

        Raises:
            InvalidTask: no changed tests, or none that fails before and passes after.
            SourceUnavailable: the releases can't be downloaded.
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
            licence: licence of the repository, for the record.
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
        """Yield recipes of the newer release with one hunk reverted, where tests detect it.

        Args:
            package: name on the index.
            old: version that the hunks are reverted to.
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
            for file in python_files(newer, layout):
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
                    content = put_back(before, after, hunk)
                    failing = await self._failing(suite, good, name, file, content)
                    if failing:
                        yield _recipe(name, package, source, install, fixed, failing, good)

    async def mutations(
        self, package: str, version: str, *, count: int, seed: int = 0, tries: int | None = None
    ) -> AsyncIterator[Recipe]:
        """Yield recipes of procedural bugs in a release, at most one per function and failing set.

        Args:
            package: name on the index.
            version: whose source archive ships tests.
            count: number of recipes after which it stops.
            seed: determines which places are tried, and in which order.
            tries: maximum number of places that are tried; eight for each recipe by default.
        """
        fixed = self._release(package, version)
        with source_trees(self._same(fixed), None, self.cache_dir) as (tree, _):
            layout = layout_of(tree)
            install = Install(pythonpath=layout.pythonpath, needs=self.needs)
            suite = await self._suite(self._same(fixed), install, layout.tests)
            good = await self._good(suite, f"{package} {version}")
            seen: set[tuple[str, str, frozenset[str]]] = set()
            limit = tries if tries is not None else 8 * count
            for file, edit in places(tree, layout, seed)[:limit]:
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
                    self.on_candidate(name, "is not Python")
                    continue
                failing = await self._failing(suite, good, name, file, changed, seen, edit.scope)
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

    async def _failing(
        self,
        suite: Suite,
        good: set[str],
        name: str,
        file: str,
        content: bytes,
        seen: set[tuple[str, str, frozenset[str]]] | None = None,
        scope: str = "",
    ) -> set[str]:
        """Return the tests that fail with a changed file; empty if it gives no task."""
        results = await suite.run(files={file: content})
        failing = good - passed_in(results)
        why = ""
        if results is None:
            why = "the tests hang or do not start"
        elif not failing:
            why = "no test detects it"
        elif len(failing) > max(1, _MOST_BROKEN * len(good)):
            why = f"breaks {len(failing)} of {len(good)} tests"
        elif seen is not None and (file, scope, frozenset(failing)) in seen:
            why = "the same tests fail as for another bug in this function"
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
        """Return the source with its folders, or single files where tests are beside sources."""
        with source_trees(source, source, self.cache_dir) as (base, fixed):
            layout = layout_of(fixed)
            paths = layout.sources
            if any(test.startswith(f"{path}/") for path in paths for test in layout.tests):
                files = {*python_files(base, layout), *python_files(fixed, layout)}
                paths = sorted(file for file in files if differ(base / file, fixed / file))
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
