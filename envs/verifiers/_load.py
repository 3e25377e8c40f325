"""Loading environments of `verifiers`, and the tasks of their data sets."""

from __future__ import annotations

import json
import signal
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from trajgym.trajectory import InvalidInput, Task
from trajgym.trajectory._internal import MissingExtra

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

__all__ = ["load", "tasks_of_split"]

_loaded: dict[str, Any] = {}
_lock = threading.Lock()
_SIGNALS = (signal.SIGINT, signal.SIGTERM)


def load(name: str, args: Mapping[str, Any]) -> Any:
    """Return the environment that ``verifiers.load_environment(name, **args)`` returns.

    It is loaded once per process; as in verifiers, all rollouts share it.

    Raises:
        InvalidInput: it can't be loaded, or its rubric compares the rollouts of a group.
        MissingExtra: verifiers is not installed.
    """
    try:
        import verifiers
    except ImportError as error:
        raise MissingExtra("verifiers", "verifiers") from error
    key = json.dumps([name, dict(args)], sort_keys=True)
    with _lock:
        if key in _loaded:
            return _loaded[key]
        load_environment = getattr(verifiers, "load_environment", None)
        if load_environment is None:
            raise InvalidInput(
                f"verifiers {verifiers.__version__} has no verifiers.load_environment, which "
                "environments of its first API need: install 'verifiers>=0.2,<0.4'"
            )
        try:
            with _signals_kept():
                made = load_environment(name, **args)
        except Exception as error:  # boundary: the environment's module
            raise InvalidInput(f"verifiers environment {name!r}: {error}") from error
        if not hasattr(made, "rollout"):
            raise InvalidInput(
                f"verifiers environment {name!r} is {type(made).__name__}, which has no single "
                "rollout; name one of the environments that it is made of"
            )
        if getattr(made, "requires_group_rollouts", False):
            raise InvalidInput(
                f"verifiers environment {name!r}: its rubric compares the rollouts of a group, and "
                "a session is scored by itself"
            )
        _loaded[key] = made
        return made


@contextmanager
def _signals_kept() -> Iterator[None]:
    """Undo the handlers of signals that each environment of verifiers installs.

    They end the process, so that runs would not be closed.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {one: signal.getsignal(one) for one in _SIGNALS}
    try:
        yield
    finally:
        for one, handler in before.items():
            signal.signal(one, handler)


def tasks_of_split(made: Any, name: str, split: str) -> list[Task]:
    """Return the rows of a data set as tasks.

    Args:
        made: the environment.
        name: its name, the first part of the tasks' ids.
        split: ``train`` or ``eval``.
    """
    rows = made.get_dataset() if split == "train" else made.get_eval_dataset()
    kind = "" if split == "train" else "eval-"
    tasks = []
    for row in rows:
        data = json.loads(json.dumps(dict(row), default=str))
        tasks.append(
            Task(id=f"{name}-{kind}{data['example_id']}", prompt=_question(data), data=data)
        )
    return tasks


def _question(row: dict[str, Any]) -> str | None:
    """Return the last user message of a row's prompt, for people who read tasks."""
    prompt = row.get("prompt")
    if isinstance(prompt, str):
        return prompt
    texts = [
        one.get("content")
        for one in prompt or ()
        if isinstance(one, dict) and one["role"] == "user"
    ]
    return texts[-1] if texts and isinstance(texts[-1], str) else None
