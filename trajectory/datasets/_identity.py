"""What a run says about itself: its name as a dataset, its environments and its lineage."""

from __future__ import annotations

import json
import re
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from trajgym.trajectory._errors import InvalidInput, StoreCorrupt
from trajgym.trajectory._store import Store
from trajgym.trajectory.datasets._source import Source

if TYPE_CHECKING:
    import os
    from collections.abc import Mapping

    from trajgym.trajectory._run import Run

__all__ = [
    "DATASET",
    "LINEAGE",
    "DatasetId",
    "Lineage",
    "dataset_id",
    "lineage",
    "lineage_json",
    "name_dataset",
]

DATASET, LINEAGE = "dataset", "lineage"
"""Keys of the metadata."""

_NAME = re.compile(r"(?:[A-Za-z0-9][\w.-]*/)*[A-Za-z0-9][\w.-]*-v\d+")


@dataclass(frozen=True, slots=True, kw_only=True)
class DatasetId:
    """The identity of a dataset, which its metadata holds.

    Args:
        id: ``namespace/name-v0``; the namespace may have several parts, or none.
        environments: the environment specs of its sessions, with the number of ``sessions``.
        versions: versions of the packages that define the environments, as installed when the
            dataset was named.
    """

    id: str
    environments: list[dict[str, Any]] = field(default_factory=list)
    versions: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        _check_name(self.id)


@dataclass(frozen=True, slots=True, kw_only=True)
class Lineage:
    """How a run was made from others.

    Args:
        operation: ``merge``, ``split``, ``filter``, ``dedup``, ``sample``, ``stratify``,
            ``redact``, ``decontaminate``.
        arguments: its arguments.
        sources: for each run that it read: ``path``, ``dataset`` (its id, or None), ``sessions``,
            ``digest`` of its sessions' records and ends, and ``lineage`` (its own, or None).
        created_at: Unix time (s).
    """

    operation: str
    arguments: dict[str, Any]
    sources: list[dict[str, Any]]
    created_at: float

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON values."""
        return {
            "operation": self.operation,
            "arguments": self.arguments,
            "sources": self.sources,
            "created_at": self.created_at,
        }


def _check_name(name: str) -> str:
    """Return a dataset's name if it has the form ``namespace/name-v0``.

    Raises:
        InvalidInput: it does not.
    """
    if not _NAME.fullmatch(name):
        raise InvalidInput(
            f"dataset name {name!r}: it must have the form namespace/name-v0, of letters, digits, "
            "'.', '_' and '-'"
        )
    return name


def dataset_id(run: Run) -> DatasetId | None:
    """Return a run's identity as a dataset; None if it was not named.

    Raises:
        StoreCorrupt: the metadata is damaged.
    """
    found = _read(run, DATASET)
    return None if found is None else DatasetId(**found)


def lineage(run: Run) -> Lineage | None:
    """Return how a run was made from others; None if it was collected.

    Raises:
        StoreCorrupt: the metadata is damaged.
    """
    found = _read(run, LINEAGE)
    return None if found is None else Lineage(**found)


def name_dataset(
    path: str | os.PathLike[str], name: str, *, versions: Mapping[str, str] | None = None
) -> DatasetId:
    """Give a run an identity: its name, the environments of its sessions, and their versions.

    Args:
        path: of the run.
        name: ``namespace/name-v0``; publish changed contents under the next version.
        versions: of the packages that define the environments.

    Raises:
        InvalidInput: the name is malformed.
        StoreLocked: a process is writing the run.
    """
    _check_name(name)
    with Source(path) as source:
        found = DatasetId(
            id=name, environments=_environments(source), versions=dict(versions or {})
        )
        file = source.run.files[0]
    with Store(file) as store:
        store.set_meta(DATASET, _identity_json(found)).wait()
    return found


def _environments(source: Source) -> list[dict[str, Any]]:
    """Return the specs of a run's environments with counts, the most frequent first."""
    counts: dict[str, int] = {}
    for place in source.places():
        spec = json.dumps(place.record.env, sort_keys=True)
        counts[spec] = counts.get(spec, 0) + 1
    ordered = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    return [{**json.loads(spec), "sessions": n} for spec, n in ordered]


def _identity_json(found: DatasetId) -> str:
    """Return an identity as it is stored."""
    plain = {"id": found.id, "environments": found.environments, "versions": found.versions}
    return json.dumps(plain, sort_keys=True)


def _source_json(source: Source) -> dict[str, Any]:
    """Return what lineage records about a run that was read."""
    named, made = dataset_id(source.run), lineage(source.run)
    return {
        "path": str(source.path),
        "dataset": None if named is None else named.id,
        "sessions": sum(1 for _ in source.places()),
        "digest": source.digest(),
        "lineage": None if made is None else made.to_json(),
    }


def lineage_json(operation: str, arguments: Mapping[str, Any], sources: list[Source]) -> str:
    """Return the lineage of a new run, as it is stored."""
    made = Lineage(
        operation=operation,
        arguments=dict(arguments),
        sources=[_source_json(source) for source in sources],
        created_at=time.time(),
    )
    return json.dumps(made.to_json(), sort_keys=True)


def _read(run: Run, key: str) -> Any:
    body = run.meta().get(key)
    if body is None:
        return None
    try:
        return json.loads(body)
    except ValueError as error:
        raise StoreCorrupt(f"{run.path}: metadata {key!r} is damaged: {error}") from error
