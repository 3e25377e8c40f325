"""Task records in SWE-bench's field names, and where they are read from."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeAlias

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from trajgym.envs.swe._errors import InvalidTask
from trajgym.trajectory import Task

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["FileSource", "HunkSource", "Install", "ReleaseSource", "SweRecord", "read_records"]


def _test_list(value: object) -> object:
    """Accept a JSON list in a string, as SWE-bench publishes it."""
    if isinstance(value, str):
        try:
            return json.loads(value)
        except json.JSONDecodeError as error:
            raise ValueError(f"not a JSON list: {error}") from error
    return value


_TestList: TypeAlias = Annotated[list[str], BeforeValidator(_test_list)]


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


class FileSource(_Part):
    """A folder: one that this package ships, or (``path``, absolute) one of the user."""

    kind: Literal["builtin", "directory"]
    path: str


Source: TypeAlias = Annotated[ReleaseSource | HunkSource | FileSource, Field(discriminator="kind")]


class Install(BaseModel):
    """How the tests are run.

    Attributes:
        pythonpath: folders on the import path, absolute inside the sandbox, joined by colons.
        needs: pinned pure-Python packages besides pytest, by name.
        test_cmd: command that runs tests; test files and report options are appended.
    """

    model_config = ConfigDict(extra="allow", frozen=True)

    pythonpath: str = "/testbed"
    needs: list[str] = Field(default_factory=list)
    test_cmd: str = "python3 -m pytest"


class SweRecord(BaseModel):
    """One SWE task. Unknown fields are kept.

    Attributes:
        patch: the gold patch, source files only; never shown to the agent.
        test_patch: the hidden tests, applied when grading; empty if they stand in the base.
        FAIL_TO_PASS: test ids that fail on the base and pass once solved.
        PASS_TO_PASS: test ids that pass on both.
        source: how the base tree is made; needed to run the task.
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


def read_records(path: Path) -> list[SweRecord]:
    """Read records from a ``.json`` file (one or a list), a ``.jsonl`` file, or a folder of them.

    Raises:
        InvalidTask: no such file, not JSON, a field is missing, or an id occurs twice.
    """
    records: dict[str, SweRecord] = {}
    for file in _files(path):
        for where, data in _documents(file):
            record = SweRecord.parse(data, where)
            if record.instance_id in records:
                raise InvalidTask(f"{where}: instance_id {record.instance_id!r} occurs twice")
            records[record.instance_id] = record
    return list(records.values())


def _files(path: Path) -> list[Path]:
    if path.is_dir():
        found = sorted(p for p in path.iterdir() if p.suffix in {".json", ".jsonl"})
        if not found:
            raise InvalidTask(f"{path}: no .json or .jsonl file in this folder")
        return found
    if not path.is_file():
        raise InvalidTask(f"{path}: no such task file; give a .json or .jsonl file or a folder")
    return [path]


def _documents(file: Path) -> list[tuple[str, Any]]:
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
