"""Task records with SWE-bench's field names, and reading them."""

from __future__ import annotations

import json
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self, TypeAlias

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    field_validator,
    model_validator,
)

from trajgym.envs import TaskData
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
    "InlineSource",
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
    """A release with one hunk reverted to the release before.

    ``base_lines`` of the older file replace ``fixed_lines`` of the newer one; both are
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
    """The position of one procedural bug: see :mod:`trajgym.envs.swe._mutate`.

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
    """A folder: one of this package, or (``path``, absolute) one of the user."""

    kind: Literal["builtin", "directory"]
    path: str


class InlineSource(_Part):
    """The files themselves: text by path, relative to the repository."""

    kind: Literal["inline"]
    files: dict[str, str] = Field(min_length=1)

    @field_validator("files")
    @classmethod
    def _inside(cls, files: dict[str, str]) -> dict[str, str]:
        for path in files:
            parts = PurePosixPath(path).parts
            if not parts or path.startswith("/") or ".." in parts or ".git" in parts:
                raise ValueError(f"{path!r} is not a path inside the repository")
        return files


BuiltSource: TypeAlias = ReleaseSource | HunkSource | MutationSource | GitSource
"""Sources with both sides, from which the patches are made."""

Source: TypeAlias = Annotated[BuiltSource | FileSource | InlineSource, Field(discriminator="kind")]


class Install(BaseModel):
    """How the tests are run.

    Attributes:
        pythonpath: folders on the import path, absolute inside the sandbox, joined by colons.
        needs: pinned pure-Python packages besides pytest, by name.
        test_cmd: command that runs tests; test files and report options are appended.
        whole_command: ``test_cmd`` is complete: it names the tests itself.
        log_parser: name of a parser of the ``swebench`` package that reads the tests' output
            (pytest, jest, go test, cargo, Maven and others), or ``r2e`` for R2E-Gym's; for data
            sets whose test ids come from one. Otherwise pytest's own report is read.
        junit: patterns of the JUnit XML files that ``test_cmd`` writes in the repository, for
            runners other than pytest (jest-junit, gotestsum, cargo nextest, surefire). Test ids
            are then ``classname::name``. Instead of ``log_parser``.
        run_script: text of a shell script that runs the tests, with ``script_arguments``; in place
            of ``test_cmd``, together with ``parser_script``.
        parser_script: text of a Python program that is called with the files of the script's
            output and errors and writes ``{"tests": [{"name", "status"}]}`` to the third, as
            SWE-bench Pro has it.
        script_arguments: of ``run_script``.
        retries: how often tests that failed are run again in a fresh sandbox, for tasks whose
            tests are known to be flaky; passing once is enough.
    """

    model_config = ConfigDict(extra="allow", frozen=True)

    pythonpath: str = "/testbed"
    needs: list[str] = Field(default_factory=list)
    test_cmd: str = "python3 -m pytest"
    whole_command: bool = False
    log_parser: str | None = None
    junit: list[str] = Field(default_factory=list)
    run_script: str = ""
    parser_script: str = ""
    script_arguments: list[str] = Field(default_factory=list)
    retries: int = Field(default=0, ge=0, le=5)

    @model_validator(mode="after")
    def _one_way(self) -> Self:
        if bool(self.run_script) != bool(self.parser_script):
            raise ValueError("run_script and parser_script go together")
        if sum(map(bool, (self.log_parser, self.junit, self.run_script))) > 1:
            raise ValueError("give one of log_parser, junit and run_script")
        return self


class SweRecord(TaskData):
    """One SWE task. Unknown fields are kept.

    Attributes:
        patch: the gold patch, source files only; never shown to the agent.
        test_patch: the hidden tests, applied when grading; empty if they are in the base.
        FAIL_TO_PASS: test ids that fail on the base and pass once solved.
        PASS_TO_PASS: test ids that pass on both.
        source: how the base tree is made; this or ``image`` is needed to run the task.
        image: name of a container image that holds the repository, for published data sets.
        repo_dir: path of the repository in that image.
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
        """How tests are run, with defaults for what the record does not contain."""
        return self.install_config or Install()

    def to_task(self) -> Task:
        """Return the task: the complete record is its data, the agent sees only the prompt."""
        return Task(id=self.instance_id, data=self.model_dump(mode="json", exclude_none=True))

    @classmethod
    def of(cls, task: Task, where: str = "") -> SweRecord:
        """Read the record back from a task; published shapes are understood.

        Raises:
            InvalidTask: the task's data is not a SWE record.
        """
        return cls.parse(task.data, where or f"task {task.id!r}")

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
    """Return the JSON values of a ``.json`` or ``.jsonl`` file, each with its position.

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
