"""The arguments of a run, recorded so that a later call with other arguments is refused."""

from __future__ import annotations

import hashlib
import json
import time
from typing import TYPE_CHECKING, Any

from trajgym.rollout._slots import SLOTS, Slots
from trajgym.trajectory import InvalidInput
from trajgym.trajectory._codec import to_jsonable

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator

    from trajgym.rollout._places import Place, Places
    from trajgym.rollout._policy import Policy
    from trajgym.rollout._settings import RunSettings
    from trajgym.trajectory import Store, Task

__all__ = ["CHANGES", "KnownTasks", "claim_run"]

_ENV, _META = "env", "fingerprint"
CHANGES = ("budgets", "expansion", "policy", "seed", "tasks")
"""What ``allow_changes`` can name."""


async def claim_run(
    store: Store,
    places: Places,
    policy: Policy,
    settings: RunSettings,
    allowed: Collection[str],
) -> None:
    """Record the arguments of a run, or refuse arguments that differ from an earlier call.

    Raises:
        InvalidInput: the environment differs, or something else that is not allowed to.
    """
    for name in allowed:
        if name not in CHANGES:
            raise InvalidInput(f"allow_changes: unknown name {name!r}; the names are {CHANGES}")
    env = json.dumps(places.identity, sort_keys=True)
    asked = _fingerprint(places, policy, settings)
    with store.read_run() as run, store.read() as own:
        meta = {**run.meta(), **own.meta()}
    where = store.path.parent
    if (found := meta.get(_ENV, env)) != env:
        raise InvalidInput(
            f"{where}: this run was collected with environment {found}, not {env}; "
            "use another directory",
        )
    earlier = json.loads(meta.get(_META, "null"))
    if earlier is not None:
        changed = _differences(earlier, asked)
        _refuse(where, [found for found in changed if found[0] not in allowed])
    await store.set_meta(_ENV, env)
    await store.set_meta(_META, json.dumps(asked, sort_keys=True))
    await store.set_meta(SLOTS, Slots(settings.concurrency, time.time()).to_text())


class KnownTasks:
    """The tasks that a run holds from earlier calls. Blocks while it reads.

    Args:
        store: of the run.
        allowed: what may differ.
    """

    def __init__(self, store: Store, allowed: Collection[str]) -> None:
        self._store = store
        self._allowed = allowed
        with store.read_run() as run:
            self._digests = {task.id: _digest(task) for task in run.tasks()}

    def check(self, task: Task) -> None:
        """Compare a task with the one of its id that the run holds.

        Raises:
            InvalidInput: its content has changed, and ``tasks`` is not allowed to.
        """
        known = self._digests.get(task.id)
        if known is None or known == _digest(task):
            return
        if "tasks" not in self._allowed:
            _refuse_task(self._store, task)
        self._store.put_task(task, replace=True)
        self._digests[task.id] = _digest(task)


def _budgets(place: Place) -> dict[str, Any]:
    return (place.settings.budgets or place.env_class.budgets).to_json()


def _fingerprint(places: Places, policy: Policy, settings: RunSettings) -> dict[str, Any]:
    if places.mixture is None:
        budgets = _budgets(places.all[""])
    else:
        budgets = {name: _budgets(place) for name, place in places.all.items()}
    return {
        "budgets": budgets,
        "expansion": None if settings.expansion is None else repr(settings.expansion),
        "policy": policy.identity,
        "seed": settings.seed,
    }


def _digest(task: Task) -> bytes:
    return hashlib.sha256(json.dumps(to_jsonable(task), sort_keys=True).encode()).digest()


def _differences(
    before: Any, now: Any, part: str = "", name: str = ""
) -> Iterator[tuple[str, str]]:
    """Yield the name and a description of each difference."""
    if isinstance(before, dict) and isinstance(now, dict):
        for key in sorted({*before, *now}):
            inner = f"{name}{' ' if name.endswith(':') else '.'}{key}" if name else key
            yield from _differences(before.get(key), now.get(key), part or key, inner)
    elif before != now:
        yield part, f"{name} {_short(before)}, not {_short(now)}"


def _refuse(where: object, differences: Iterable[tuple[str, str]]) -> None:
    found = list(differences)
    if found:
        raise InvalidInput(
            f"{where}: this run was collected with {'; '.join(text for _, text in found[:5])}: "
            "sessions of both would be mixed in its groups; use the earlier settings or another "
            "directory, or allow it with allow_changes (--allow-changes "
            f"{','.join(sorted({part for part, _ in found}))})",
        )


def _refuse_task(store: Store, task: Task) -> None:
    with store.read_run() as run:
        before = next(one for one in run.tasks() if one.id == task.id)
    name = f"task {task.id!r}:"
    _refuse(store.path.parent, _differences(to_jsonable(before), to_jsonable(task), "tasks", name))


def _short(value: object) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 60 else text[:57] + "..."
