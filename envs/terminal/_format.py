"""Task folders in Harbor's and Terminal-Bench's formats.

Harbor (``task.toml``, ``instruction.md``, ``environment/Dockerfile``, ``tests/test.sh``,
``solution/solve.sh``): https://harborframework.com/docs/task-format. Terminal-Bench 1, its
predecessor: ``task.yaml``, ``Dockerfile``, ``run-tests.sh``, ``tests/``, ``solution.sh``.
"""

from __future__ import annotations

import hashlib
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from pydantic import ConfigDict, Field, ValidationError

from trajgym.envs import TaskData
from trajgym.trajectory import InvalidInput, Task
from trajgym.trajectory._internal import MissingExtra

if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Self

__all__ = ["TerminalRecord", "load_tasks", "read_task"]

_CONFIG = ("task.toml", "task.yaml")
_COMPOSE = ("docker-compose.yaml", "docker-compose.yml", "compose.yaml", "compose.yml")


class TerminalRecord(TaskData):
    """A task folder as read.

    Attributes:
        format: one of the two formats.
        folder: the task's folder on this machine.
        content: digest of every file in it; a changed task counts as another task.
        instruction: what the agent is asked.
        context: folder of the Dockerfile, relative to ``folder``; empty if there is none.
        image: a ready image instead of a Dockerfile.
        workdir: directory of commands; the image's own if empty.
        agent_seconds: the task's own limit for the agent; None if it has none.
        verifier_seconds: limit of the test script.
        build_seconds: limit of building the image.
        cpus, memory_mb, storage_mb: what the task's container may use; None leaves the default.
        internet: whether the task asks for the network.
        env: variables of the container.
        verifier_env: additional environment variables of the test script.
        agent_user: user of the agent's commands; the image's own (root) if empty.
        parser: how results are read: ``reward`` from Harbor's reward file, ``pytest`` from the
            summary that Terminal-Bench's scripts print.
        solution: script that solves the task, relative to ``folder``; empty if there is none.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    format: Literal["harbor", "terminal-bench"]
    folder: str
    content: str
    instruction: str = Field(min_length=1)
    context: str = ""
    image: str = ""
    workdir: str = ""
    agent_seconds: float | None = Field(default=None, gt=0)
    verifier_seconds: float = Field(default=600.0, gt=0)
    build_seconds: float = Field(default=600.0, gt=0)
    cpus: float | None = Field(default=None, gt=0)
    memory_mb: int | None = Field(default=None, gt=0)
    storage_mb: int | None = Field(default=None, gt=0)
    internet: bool = True
    env: dict[str, str] = Field(default_factory=dict)
    verifier_env: dict[str, str] = Field(default_factory=dict)
    agent_user: str = ""
    parser: Literal["reward", "pytest"] = "reward"
    solution: str = ""
    metadata: dict[str, Any] = Field(default_factory=dict)

    @classmethod
    def of(cls, task: Task, where: str = "") -> Self:
        """Return the record of a task; see :meth:`TaskData.of`.

        Raises:
            InvalidInput: the task's data is not a record, or its folder is missing or has changed.
        """
        record = super().of(task, where)
        if not Path(record.folder).is_dir():
            raise InvalidInput(f"task {task.id!r}: its folder {record.folder} is not there")
        return record


def load_tasks(source: str) -> list[Task]:
    """Return the tasks of a folder: one task's own folder, or one that holds such folders.

    Raises:
        InvalidInput: there is no such folder, no task in it, or a task that can't be used; the
            message names folder and field.
    """
    root = Path(source).resolve()
    if not root.is_dir():
        raise InvalidInput(f"tasks {source!r}: no such folder")
    folders = [root] if _is_task(root) else sorted(p for p in root.iterdir() if _is_task(p))
    if not folders:
        raise InvalidInput(f"tasks {source!r}: neither the folder nor a folder in it has {_CONFIG}")
    tasks = [read_task(folder) for folder in folders]
    names = [task.id for task in tasks]
    if twice := {name for name in names if names.count(name) > 1}:
        raise InvalidInput(f"tasks {source!r}: used twice as a task's name: {sorted(twice)}")
    return tasks


def read_task(folder: Path) -> Task:
    """Read and check one task folder.

    Raises:
        InvalidInput: a field is missing or malformed, or requires something that is not supported.
    """
    folder = folder.resolve()
    try:
        if (folder / "task.toml").is_file():
            name, fields = _harbor(folder)
        elif (folder / "task.yaml").is_file():
            name, fields = _terminal_bench(folder)
        else:
            raise InvalidInput(f"no {' or '.join(_CONFIG)}")
        record = TerminalRecord.model_validate(
            {**fields, "folder": str(folder), "content": _digest(folder)}
        )
    except ValidationError as error:
        raise InvalidInput(f"{folder}: {_problems(error)}") from error
    except (InvalidInput, OSError, ValueError, TypeError, AttributeError) as error:
        if isinstance(error, MissingExtra):
            raise
        raise InvalidInput(f"{folder}: {error}") from error
    return Task(id=name, data=record.model_dump(mode="json", exclude_none=True))


def _harbor(folder: Path) -> tuple[str, dict[str, Any]]:
    config = tomllib.loads((folder / "task.toml").read_text("utf-8"))
    environment, verifier = _table(config, "environment"), _table(config, "verifier")
    agent, about = _table(config, "agent"), _table(config, "task")
    if config.get("steps"):
        raise InvalidInput("steps: tasks of several steps are not supported")
    if verifier.get("environment_mode") == "separate" or verifier.get("environment"):
        raise InvalidInput("verifier: an environment of its own is not supported")
    if str(verifier.get("user") or "") != str(agent.get("user") or ""):
        raise InvalidInput("verifier.user: another user than the agent's is not supported")
    if str(environment.get("os", "linux")).lower() != "linux":
        raise InvalidInput(f"environment.os: {environment['os']!r} containers are not supported")
    for field in ("gpus", "tpu", "mcp_servers"):
        if environment.get(field):
            raise InvalidInput(f"environment.{field}: not supported")
    context = folder / "environment"
    _refuse_compose(context)
    image = str(environment.get("docker_image") or "")
    has_dockerfile = (context / "Dockerfile").is_file()
    if not (image or has_dockerfile):
        raise InvalidInput("environment/Dockerfile is missing, and there is no docker_image")
    if not (folder / "tests/test.sh").is_file():
        raise InvalidInput("tests/test.sh is missing: the task could not be graded")
    fields = {
        "format": "harbor",
        "instruction": (folder / "instruction.md").read_text("utf-8").strip(),
        "context": "environment" if has_dockerfile and not image else "",
        "image": image,
        "workdir": environment.get("workdir") or "",
        "agent_seconds": agent.get("timeout_sec"),
        "verifier_seconds": verifier.get("timeout_sec", 600.0),
        "build_seconds": environment.get("build_timeout_sec", 600.0),
        "cpus": environment.get("cpus"),
        "memory_mb": _megabytes(environment, "memory"),
        "storage_mb": _megabytes(environment, "storage"),
        "internet": _internet(environment),
        "env": _literal(environment, "environment"),
        "verifier_env": _literal(verifier, "verifier"),
        "agent_user": str(agent.get("user") or ""),
        "solution": _there(folder, "solution/solve.sh"),
        "metadata": _table(config, "metadata"),
    }
    return str(about.get("name") or folder.name), fields


def _terminal_bench(folder: Path) -> tuple[str, dict[str, Any]]:
    try:
        import yaml
    except ImportError:
        raise MissingExtra("pyyaml", "terminal") from None
    try:
        config = yaml.safe_load((folder / "task.yaml").read_text("utf-8"))
    except yaml.YAMLError as error:
        raise InvalidInput(f"task.yaml: {error}") from error
    if not isinstance(config, dict):
        raise InvalidInput("task.yaml: expected a mapping")
    for file in _COMPOSE:
        if (folder / file).is_file():
            services = (yaml.safe_load((folder / file).read_text("utf-8")) or {}).get("services")
            if len(services or {}) > 1:
                raise InvalidInput(f"{file}: tasks of several containers are not supported")
    if not (folder / "Dockerfile").is_file():
        raise InvalidInput("Dockerfile is missing")
    if not (folder / "run-tests.sh").is_file():
        raise InvalidInput("run-tests.sh is missing: the task could not be graded")
    parser = config.get("parser_name", "pytest")
    if parser != "pytest":
        raise InvalidInput(f"parser_name: {parser!r} is not supported, only pytest")
    fields = {
        "format": "terminal-bench",
        "instruction": str(config.get("instruction", "")).strip(),
        "context": ".",
        "agent_seconds": config.get("max_agent_timeout_sec"),
        "verifier_seconds": config.get("max_test_timeout_sec", 600.0),
        "parser": "pytest",
        "solution": _there(folder, "solution.sh"),
        "metadata": {
            key: config[key] for key in ("difficulty", "category", "tags") if key in config
        },
    }
    return folder.name, fields


def _is_task(folder: Path) -> bool:
    return folder.is_dir() and any((folder / name).is_file() for name in _CONFIG)


def _table(config: dict[str, Any], name: str) -> dict[str, Any]:
    found = config.get(name, {})
    if not isinstance(found, dict):
        raise InvalidInput(f"{name}: expected a table, not {type(found).__name__}")
    return found


def _refuse_compose(folder: Path) -> None:
    for name in _COMPOSE:
        if (folder / name).is_file():
            raise InvalidInput(f"{folder.name}/{name}: compose files are not supported")


def _megabytes(environment: dict[str, Any], name: str) -> int | None:
    """Return a size, also from the older fields ``memory = "2G"``."""
    if f"{name}_mb" in environment:
        return int(environment[f"{name}_mb"])
    if name not in environment:
        return None
    text = str(environment[name]).strip().upper().removesuffix("B").removesuffix("I")
    factor = {"G": 1024.0, "M": 1.0, "K": 1 / 1024}.get(text[-1:])
    if factor is None:
        raise InvalidInput(f"environment.{name}: {environment[name]!r} is not a size such as '2G'")
    return int(float(text[:-1]) * factor)


def _internet(environment: dict[str, Any]) -> bool:
    mode = environment.get("network_mode")
    if mode is None:
        return bool(environment.get("allow_internet", True))
    if mode not in {"public", "no-network", "allowlist"}:
        raise InvalidInput(f"environment.network_mode: {mode!r} is not known")
    return bool(mode == "public")


def _literal(table: dict[str, Any], where: str) -> dict[str, str]:
    """Return variables; a value from the host's environment is refused, not passed into a task."""
    found = {str(key): str(value) for key, value in table.get("env", {}).items()}
    for key, value in found.items():
        if "${" in value:
            raise InvalidInput(f"{where}.env.{key}: variables of the host are not passed to tasks")
    return found


def _there(folder: Path, name: str) -> str:
    return name if (folder / name).is_file() else ""


def _digest(folder: Path) -> str:
    made = hashlib.sha256()
    for path in sorted(p for p in folder.rglob("*") if p.is_file()):
        content = hashlib.sha256(path.read_bytes()).hexdigest()
        made.update(f"{path.relative_to(folder)}\0{content}\n".encode())
    return made.hexdigest()[:16]


def _problems(error: ValidationError) -> str:
    found: Iterable[Any] = error.errors(include_url=False, include_input=False)
    return "; ".join(f"{'.'.join(map(str, e['loc']))}: {e['msg']}" for e in found)
