"""Task records in the format of OSWorld, as far as they can run on this desktop.

OSWorld's own tasks need a virtual machine with GNOME, Chrome and LibreOffice. Records that need
what is missing here are refused by name when they are loaded, so that no session fails later.
"""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Any, NamedTuple

from pydantic import ValidationError

from trajgym.envs.gui.desktop._tasks import (
    ActivateStep,
    Check,
    CloseStep,
    DesktopRecord,
    LaunchStep,
    RunStep,
    SleepStep,
)
from trajgym.trajectory import InvalidInput

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from trajgym.envs.gui.desktop._tasks import Step
    from trajgym.trajectory import Task

__all__ = ["OSWorldTasks", "Refusal", "is_osworld", "osworld_task", "osworld_tasks"]

APPLICATIONS = frozenset({"galculator", "mousepad", "pcmanfm", "xterm"})
"""Programs of the image; a record that launches another one is refused."""
_OUTSIDE = ("pyautogui", "{CLIENT_PASSWORD}", "{SCREEN_", "sudo ", "gsettings", "socat")


class Refusal(NamedTuple):
    """A record that can't run here, and the reason."""

    id: str
    reason: str


class OSWorldTasks(NamedTuple):
    """The tasks of a set of records, and the records that were refused."""

    tasks: list[Task]
    refused: list[Refusal]


def is_osworld(item: object) -> bool:
    """Return whether a record looks like one of OSWorld."""
    return isinstance(item, dict) and "evaluator" in item and "instruction" in item


def osworld_tasks(records: Iterable[Mapping[str, Any]]) -> OSWorldTasks:
    """Return the tasks of the records that can run here, and the others with their reasons."""
    found = OSWorldTasks([], [])
    for record in records:
        try:
            found.tasks.append(osworld_task(record))
        except InvalidInput as error:
            found.refused.append(Refusal(str(record.get("id", "")), str(error)))
    return found


def osworld_task(record: Mapping[str, Any]) -> Task:
    """Return a record of OSWorld as a task.

    Set-up of the types ``launch``, ``execute``, ``command``, ``sleep``, ``open``,
    ``activate_window`` and ``close_window``; results from ``vm_command_line``, expected ones from
    ``rule``; the metrics ``exact_match``, ``match_in_list``, ``is_in_list``,
    ``check_include_exclude`` and ``infeasible``.

    Raises:
        InvalidInput: the record is malformed, or needs something that is missing here; the message
            names it.
    """
    identity = str(record.get("id") or "")
    where = f"OSWorld record {identity!r}"
    if not identity or not record.get("instruction") or not isinstance(record["evaluator"], dict):
        raise InvalidInput(f"{where}: needs an id, an instruction and an evaluator")
    evaluator = record["evaluator"]
    try:
        infeasible = evaluator.get("func") == "infeasible"
        made = DesktopRecord(
            instruction=str(record["instruction"]),
            setup=_steps(record.get("config") or (), where),
            checks=[] if infeasible else _checks(evaluator, where),
            any_of=evaluator.get("conj", "and") == "or",
            before_checks=_steps(evaluator.get("postconfig") or (), where),
            infeasible=infeasible,
            source="osworld",
        )
    except (ValidationError, KeyError, TypeError, AttributeError) as error:
        raise InvalidInput(f"{where}: malformed: {type(error).__name__}: {error}") from error
    return made.task(f"osworld-{identity}")


# Set-up -------------------------------------------------------------------------------------


def _steps(items: Iterable[Mapping[str, Any]], where: str) -> list[Step]:
    steps: list[Step] = []
    for item in items:
        kind = str(item["type"])
        make = _SETUP.get(kind)
        if make is None:
            raise InvalidInput(f"{where}: set-up of type {kind!r} can't be done here")
        steps.append(make(item.get("parameters") or {}, where))
    return steps


def _launch(parameters: Mapping[str, Any], where: str) -> Step:
    words = _words(parameters["command"], where)
    if words[0] not in APPLICATIONS:
        raise InvalidInput(f"{where}: the application {words[0]!r} is not on this desktop")
    return LaunchStep(command=words)


def _execute(parameters: Mapping[str, Any], where: str) -> Step:
    command = parameters["command"]
    _words(command, where)
    return RunStep(command=command)


def _open(parameters: Mapping[str, Any], where: str) -> Step:
    path = str(parameters["path"])
    if not path.endswith((".txt", ".md", ".csv", ".log", ".py", ".json")):
        raise InvalidInput(f"{where}: nothing on this desktop opens {path!r}")
    return LaunchStep(command=["mousepad", path])


_SETUP: dict[str, Callable[[Mapping[str, Any], str], Step]] = {
    "launch": _launch,
    "execute": _execute,
    "command": _execute,
    "open": _open,
    "sleep": lambda p, _: SleepStep(seconds=float(p["seconds"])),
    "activate_window": lambda p, _: ActivateStep(title=str(p["window_name"])),
    "close_window": lambda p, _: CloseStep(title=str(p["window_name"])),
}


def _words(command: object, where: str) -> list[str]:
    words = command if isinstance(command, list) else shlex.split(str(command))
    text = " ".join(map(str, words))
    if outside := [name for name in _OUTSIDE if name in text]:
        raise InvalidInput(f"{where}: the command {text[:80]!r} needs {outside[0].strip('{ ')!r}")
    if not words:
        raise InvalidInput(f"{where}: an empty command")
    return [str(word) for word in words]


# Evaluation ---------------------------------------------------------------------------------


def _checks(evaluator: Mapping[str, Any], where: str) -> list[Check]:
    names, results = evaluator["func"], evaluator.get("result")
    expected, options = evaluator.get("expected"), evaluator.get("options")
    if not isinstance(names, list):
        names, results, expected, options = [names], [results], [expected], [options]
    results, expected = results or [None], expected or [None] * len(names)
    if any(options or ()):
        raise InvalidInput(f"{where}: options of metrics are not known here")
    return [_check(*parts, where) for parts in zip(names, results, expected, strict=True)]


def _check(name: str, result: Any, expected: Any, where: str) -> Check:
    if (expected or {}).get("type") != "rule":
        kind = (expected or {}).get("type")
        raise InvalidInput(f"{where}: what is expected comes from {kind!r}, which is not here")
    rules = expected["rules"]
    tests: dict[str, Any]
    match name:
        case "exact_match":
            tests = {"equals": rules["expected"]}
        case "match_in_list":
            tests = {"one_of": rules["expected"]}
        case "is_in_list":
            tests = {"contains": [rules["expected"]]}
        case "check_include_exclude":
            tests = {"contains": rules.get("include", []), "lacks": rules.get("exclude", [])}
        case _:
            raise InvalidInput(f"{where}: the metric {name!r} is not known here")
    match (result or {}).get("type"):
        case "vm_command_line":
            _words(result["command"], where)
            return Check(of="command", name=result["command"], **tests)
        case kind:
            raise InvalidInput(f"{where}: results of type {kind!r} can't be had here")
