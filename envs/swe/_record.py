"""Task records in SWE-bench's field names, and where they are read from."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeAlias

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from trajgym.envs.swe._errors import InvalidTask
from trajgym.envs.swe._lists import strings_of
from trajgym.envs.swe._shapes import normalised
from trajgym.trajectory import Task

if TYPE_CHECKING:
    from pathlib import Path

__all__ = [
    "BuiltSource",
    "FileSource",
    "GitSource",
    "HunkSource",
    "Install",
    "Mutation",
    "MutationSource",
    "ReleaseSource",
    "SweRecord",
    "documents",
]


_TestList: TypeAlias = Annotated[list[str], BeforeValidator(strings_of)]


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Archive(_Part):
    """A source archive on the package index."""

    filename: str
    sha256: str = Field(pattern=r"^[0-9a-f]{64}$")


class ReleaseSource(_Part):
    """Two releases of a package: the older is the base, the newer is fixed."""

    kind: Literal["pypi-releases"]
    package: str
    base: Archive
    fixed: Archive
    source_paths: list[str]
    test_paths: list[str]


class HunkSource(_Part):
    """A release with one hunk put back to what the release before had.

    ``base_lines`` of the older file stand in for ``fixed_lines`` of the newer one; both are
    half-open ranges of lines, from 0.
    """

    kind: Literal["pypi-hunk"]
    package: str
    base: Archive
    fixed: Archive
    file: str
    base_lines: tuple[int, int]
    fixed_lines: tuple[int, int]


class Mutation(_Part):
    """The place of one procedural bug: see :mod:`trajgym.envs.swe._mutate`.

    Attributes:
        rule: which kind of edit.
        line: from 1, of the syntax-tree node that is edited.
        column: bytes from the start of the line, from 0.
        variant: which edit of that kind at that place.
        sha256: of the whole file after the edit.
    """

    rule: str
    line: int
    column: int
    variant: int = 0
    sha256: str = Field(pattern=r"^[0-9a-f]{64}$")


class MutationSource(_Part):
    """A release with a procedural bug put into one file; the release itself is fixed."""

    kind: Literal["pypi-mutation"]
    package: str
    fixed: Archive
    file: str
    mutation: Mutation


class GitSource(_Part):
    """A commit of a git repository, and its parent as the base.

    ``repo`` is a path or a URL that `git clone` takes.
    """

    kind: Literal["git"]
    repo: str
    base: str = Field(pattern=r"^[0-9a-f]{40,64}$")
    fixed: str = Field(pattern=r"^[0-9a-f]{40,64}$")
    source_paths: list[str]
    test_paths: list[str]


class FileSource(_Part):
    """A folder: one that this package ships, or (``path``, absolute) one of the user."""

    kind: Literal["builtin", "directory"]
    path: str


BuiltSource: TypeAlias = ReleaseSource | HunkSource | MutationSource | GitSource
"""Sources that hold both sides, so that the patches can be made from them."""

Source: TypeAlias = Annotated[BuiltSource | FileSource, Field(discriminator="kind")]


class Install(BaseModel):
    """How the tests are run.

    Attributes:
        pythonpath: folders on the import path, absolute inside the sandbox, joined by colons.
        needs: pinned pure-Python packages besides pytest, by name.
        test_cmd: command that runs tests; test files and report options are appended.
        whole_command: ``test_cmd`` is complete: it names the tests itself.
        log_parser: name of a parser of the ``swebench`` package that reads the tests' output,
            for data sets whose test ids come from one; otherwise pytest's own report is read.
        retries: how often tests that failed are run again in a fresh sandbox, for tasks whose
            tests are known to be flaky; passing once is enough.
    """

    model_config = ConfigDict(extra="allow", frozen=True)

    pythonpath: str = "/testbed"
    needs: list[str] = Field(default_factory=list)
    test_cmd: str = "python3 -m pytest"
    whole_command: bool = False
    log_parser: str | None = None
    retries: int = Field(default=0, ge=0, le=5)


class SweRecord(BaseModel):
    """One SWE task. Unknown fields are kept.

    Attributes:
        patch: the gold patch, source files only; never shown to the agent.
        test_patch: the hidden tests, applied when grading; empty if they stand in the base.
        FAIL_TO_PASS: test ids that fail on the base and pass once solved.
        PASS_TO_PASS: test ids that pass on both.
        source: how the base tree is made; this or ``image`` is needed to run the task.
        image: name of a container image that holds the repository, for published data sets.
        repo_dir: where the repository lies in that image.
        shape: the published shape that the record was read from.
    """

    model_config = ConfigDict(extra="allow", frozen=True)

    instance_id: str = Field(min_length=1)
    repo: str
    base_commit: str
    problem_statement: str
    patch: str
    test_patch: str
    FAIL_TO_PASS: _TestList = Field(min_length=1)
    PASS_TO_PASS: _TestList
    version: str | None = None
    hints_text: str | None = None
    created_at: str | None = None
    environment_setup_commit: str | None = None
    install_config: Install | None = None
    source: Source | None = None
    image: str = ""
    repo_dir: str = "/testbed"
    shape: str | None = None

    @property
    def install(self) -> Install:
        """How tests are run, with the defaults where the record is silent."""
        return self.install_config or Install()

    def to_task(self) -> Task:
        """Return the task: the whole record is its data, the agent sees only the prompt."""
        return Task(id=self.instance_id, data=self.model_dump(mode="json", exclude_none=True))

    @classmethod
    def of(cls, task: Task) -> SweRecord:
        """Read the record back from a task.

        Raises:
            InvalidTask: the task's data is not a SWE record.
        """
        return cls.parse(task.data, f"task {task.id!r}")

    @classmethod
    def parse(cls, data: Any, where: str) -> SweRecord:
        """Validate one record.

        Raises:
            InvalidTask: names the record and every field that is missing or malformed.
        """
        if not isinstance(data, dict):
            raise InvalidTask(f"{where}: expected an object, got {type(data).__name__}")
        data = normalised(data, where=where)
        try:
            return cls.model_validate(data)
        except ValidationError as error:
            name = data.get("instance_id")
            problems = "; ".join(
                f"field {'.'.join(map(str, e['loc']))}: {_problem(e['type'], e['msg'])}"
                for e in error.errors(include_url=False, include_input=False)
            )
            raise InvalidTask(f"{where}, record {name!r}: {problems}") from error


def _problem(kind: str, message: str) -> str:
    return "is missing" if kind == "missing" else message[:200]


def documents(file: Path) -> list[tuple[str, Any]]:
    """Return the JSON values of a ``.json`` or ``.jsonl`` file, each with where it stands.

    Raises:
        InvalidTask: the file can't be read or is not JSON.
    """
    try:
        text = file.read_text("utf-8")
        if file.suffix == ".jsonl":
            lines = text.split("\n")
            return [
                (f"{file}:{number}", json.loads(line))
                for number, line in enumerate(lines, 1)
                if line.strip()
            ]
        data = json.loads(text)
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidTask(f"{file}: can't be read: {error}") from error
    except json.JSONDecodeError as error:
        raise InvalidTask(f"{file}: not JSON: {error}") from error
    items = data if isinstance(data, list) else [data]
    return [(f"{file}[{i}]", item) for i, item in enumerate(items)]
