"""Small packages as SWE tasks: the records, their hidden cases and the grading scripts."""

from __future__ import annotations

import difflib
import json
from typing import TYPE_CHECKING

from trajgym.envs.swe._record import InlineSource, Install, SweRecord
from trajgym.envs.swe.small._package import make_package
from trajgym.trajectory import InvalidInput

if TYPE_CHECKING:
    from trajgym.envs.swe.small._package import Package
    from trajgym.trajectory import Task

__all__ = ["CHECK", "package_of", "small_tasks"]

CHECK = "python3 check.py"

_RUN = """\
python3 -S - <<'END'
import importlib, json
for number, (module, call) in enumerate(json.loads({cases!r})):
    try:
        value = repr(eval(call, vars(importlib.import_module(module))))
    except BaseException as error:
        value = type(error).__name__
    print(json.dumps([number, value]), flush=True)
END
"""

_PARSE = """\
import json, sys
names, values = json.loads({names!r}), json.loads({values!r})
found = {{}}
for line in open(sys.argv[1], encoding="utf-8", errors="replace"):
    try:
        number, value = json.loads(line)
        found[number] = value
    except (ValueError, TypeError):
        continue
good = ["PASSED" if found.get(i) == value else "FAILED" for i, value in enumerate(values)]
with open(sys.argv[3], "w") as out:
    json.dump({{"tests": [dict(name=n, status=s) for n, s in zip(names, good)]}}, out)
"""


def small_tasks(n: int, *, bugs: int = 2, seed: int = 0, held_out: bool = False) -> list[Task]:
    """Return tasks for small models: packages of six short functions, some of which are wrong.

    Each function's docstring states its correct behaviour, and ``check.py`` reports the wrong
    functions. Grading calls the functions in one sandbox with other arguments, and compares the
    values outside of that sandbox.

    Args:
        n: number of tasks.
        bugs: number of wrong functions per task, 1 to 6; sessions become longer with more bugs.
        seed: selects the tasks; different seeds give different tasks.
        held_out: use package names that no task without ``held_out`` has.

    Raises:
        InvalidInput: ``n`` or ``bugs`` is out of range.
    """
    if not 0 <= n <= _APART:
        raise InvalidInput(f"n is {n}; it must be 0 to {_APART}")
    first = seed * _APART
    return [_task(first + i, bugs, held_out) for i in range(n)]


_APART = 100_000


def package_of(task: Task) -> Package:
    """Return the package of a small task.

    Raises:
        InvalidInput: the task is not one of :func:`small_tasks`.
    """
    made = task.data.get("small")
    if not isinstance(made, dict):
        raise InvalidInput(f"task {task.id!r} is not one of small_tasks")
    return make_package(made["seed"], made["bugs"], held_out=made["held_out"])


def _task(seed: int, bugs: int, held_out: bool) -> Task:
    package = make_package(seed, bugs, held_out=held_out)
    names = [f"{one.module}.{one.function}-{i}" for i, one in enumerate(package.hidden)]
    calls = [(f"{package.name}.{one.module}", one.call) for one in package.hidden]
    values = [one.value for one in package.hidden]
    install = Install(
        test_cmd=CHECK,
        run_script=_RUN.format(cases=json.dumps(calls)),
        parser_script=_PARSE.format(names=json.dumps(names), values=json.dumps(values)),
    )
    failing = set(package.failing)
    record = SweRecord(
        instance_id=f"small-{'test' if held_out else 'train'}-{bugs}-{seed}",
        repo=package.name,
        base_commit="",
        problem_statement=(
            f"{bugs} of the functions of {package.name} do not do what their docstrings say. "
            f"`{CHECK}` names them."
        ),
        patch="".join(_diff(path, package) for path in package.files),
        test_patch="",
        FAIL_TO_PASS=[name for i, name in enumerate(names) if i in failing],
        PASS_TO_PASS=[name for i, name in enumerate(names) if i not in failing],
        install_config=install,
        source=InlineSource(kind="inline", files=package.files),
        small={"seed": seed, "bugs": bugs, "held_out": held_out},
    )  # type: ignore[call-arg]
    return record.to_task()


def _diff(path: str, package: Package) -> str:
    wrong, right = (side[path].splitlines(keepends=True) for side in (package.files, package.fixed))
    lines = list(difflib.unified_diff(wrong, right, f"a/{path}", f"b/{path}"))
    return f"diff --git a/{path} b/{path}\n{''.join(lines)}" if lines else ""
