"""Grades patches from other tools, in SWE-bench's predictions format."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import time
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias

from trajgym.envs import EnvironmentFault
from trajgym.envs.sandbox import SandboxError
from trajgym.envs.swe._errors import InvalidTask, SourceUnavailable
from trajgym.envs.swe._grade import grade
from trajgym.envs.swe._record import documents
from trajgym.trajectory import InvalidInput
from trajgym.trajectory._internal import first_error

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from pathlib import Path

    from trajgym.envs.sandbox import SandboxProvider
    from trajgym.trajectory import Task

__all__ = ["GradedPrediction", "Prediction", "grade_predictions", "read_predictions"]

GradeStatus: TypeAlias = Literal["resolved", "unresolved", "tampered", "failed"]

_PREPARE_SECONDS = 1200.0


class Prediction(NamedTuple):
    """One patch: ``model_patch`` is empty if the model gave none."""

    instance_id: str
    model_patch: str
    model: str = ""

    @property
    def key(self) -> str:
        """Hash of this patch, which distinguishes its results from other patches'."""
        return hashlib.sha256(f"{self.instance_id}\0{self.model_patch}".encode()).hexdigest()[:16]


@dataclass(frozen=True, slots=True, kw_only=True)
class GradedPrediction:
    """One result line.

    Attributes:
        status: ``resolved``; ``unresolved``; ``tampered`` (the patch rewrote outcomes: not
            resolved, whatever the tests say); ``failed`` (infrastructure: not graded).
        f2p: share of FAIL_TO_PASS that passes; None if it failed.
        p2p: share of PASS_TO_PASS that passes; None if it failed.
        tampering: evidence that outcomes were rewritten.
        tried: attempts that had no effect.
        problem: why there are no results, or why it failed.
        key: hash of the patch that was graded.
    """

    instance_id: str
    model: str
    status: GradeStatus
    resolved: bool
    f2p: float | None
    p2p: float | None
    tampering: list[str] = field(default_factory=list)
    tried: list[str] = field(default_factory=list)
    problem: str = ""
    seconds: float = 0.0
    key: str = ""


def read_predictions(path: Path) -> list[Prediction]:
    """Read predictions: a JSON list, a JSON object by instance id, or JSON lines.

    Raises:
        InvalidInput: not readable, a field is missing or malformed, an instance occurs twice; the
            message names file and entry.
    """
    entries: list[tuple[str, Any]] = documents(path)
    if len(entries) == 1 and isinstance(entries[0][1], dict) and path.suffix == ".json":
        only = entries[0][1]
        if "instance_id" not in only:
            entries = [
                (f"{path}[{name!r}]", {"instance_id": name, **value} if isinstance(value, dict)
                 else {"instance_id": name, "model_patch": value})
                for name, value in only.items()
            ]  # fmt: skip
    found: dict[str, Prediction] = {}
    for where, entry in entries:
        prediction = _prediction(where, entry)
        if prediction.instance_id in found:
            raise InvalidInput(f"{where}: instance_id {prediction.instance_id!r} occurs twice")
        found[prediction.instance_id] = prediction
    return list(found.values())


def _prediction(where: str, entry: Any) -> Prediction:
    if not isinstance(entry, dict):
        raise InvalidInput(f"{where}: expected an object, got {type(entry).__name__}")
    if not isinstance(entry.get("instance_id"), str):
        raise InvalidInput(f"{where}: field instance_id is missing or not text")
    if "model_patch" not in entry:
        raise InvalidInput(f"{where}, {entry['instance_id']!r}: field model_patch is missing")
    patch = entry["model_patch"] if entry["model_patch"] is not None else ""
    if not isinstance(patch, str):
        raise InvalidInput(f"{where}, {entry['instance_id']!r}: model_patch is not text")
    return Prediction(entry["instance_id"], patch, str(entry.get("model_name_or_path") or ""))


async def grade_predictions(
    tasks: Iterable[Task],
    predictions: Iterable[Prediction],
    provider: SandboxProvider,
    out: Path,
    *,
    concurrency: int = 4,
    test_seconds: float = 300.0,
    on_result: Callable[[GradedPrediction], None] = lambda _: None,
) -> list[GradedPrediction]:
    """Grade patches concurrently, with every check of :func:`trajgym.envs.swe.grade`.

    Args:
        tasks: SWE tasks; those without a prediction are skipped.
        predictions: patches; one for an unknown task is a ``failed`` result.
        provider: where to run.
        out: JSON lines, one per instance, written as results arrive. If it exists, results of the
            same patches are kept and only the others are graded; ``failed`` ones are graded again.
        concurrency: maximum number of concurrent gradings.
        test_seconds: limit of one test run.
        on_result: called with each new result.

    Raises:
        InvalidInput: ``concurrency`` is not positive, or ``out`` is not a file of results.
    """
    if concurrency < 1:
        raise InvalidInput(f"concurrency must be at least 1, not {concurrency}")
    by_id = {task.id: task for task in tasks}
    wanted = list(predictions)
    done = _kept(out, {prediction.key for prediction in wanted})
    slots = asyncio.Semaphore(concurrency)
    _rewrite(out, list(done.values()))

    async def one(prediction: Prediction) -> None:
        async with slots:
            result = await _grade_one(by_id, prediction, provider, test_seconds)
        await asyncio.to_thread(_append, out, [result])
        done[prediction.key] = result
        on_result(result)

    with first_error():
        async with asyncio.TaskGroup() as group:
            for prediction in wanted:
                if prediction.key not in done:
                    group.create_task(one(prediction))
    return [done[prediction.key] for prediction in wanted]


async def _grade_one(
    tasks: dict[str, Task], prediction: Prediction, provider: SandboxProvider, test_seconds: float
) -> GradedPrediction:
    begun = time.monotonic()
    try:
        if prediction.instance_id not in tasks:
            raise InvalidTask("no task of this instance_id among --tasks")
        async with asyncio.timeout(_PREPARE_SECONDS + 8 * test_seconds):
            outcome = await grade(
                tasks[prediction.instance_id],
                prediction.model_patch.encode("utf-8", "surrogateescape"),
                provider,
                test_seconds=test_seconds,
            )
    except (SandboxError, EnvironmentFault, SourceUnavailable, InvalidTask, TimeoutError) as error:
        return GradedPrediction(
            instance_id=prediction.instance_id,
            model=prediction.model,
            status="failed",
            resolved=False,
            f2p=None,
            p2p=None,
            problem=str(error) or type(error).__name__,
            seconds=round(time.monotonic() - begun, 2),
            key=prediction.key,
        )
    details = outcome.details
    unresolved: GradeStatus = "tampered" if details["tampering"] else "unresolved"
    return GradedPrediction(
        instance_id=prediction.instance_id,
        model=prediction.model,
        status="resolved" if outcome.passed else unresolved,
        resolved=outcome.passed,
        f2p=details["f2p"],
        p2p=details["p2p"],
        tampering=details["tampering"],
        tried=details["tried"],
        problem=details["problem"],
        seconds=round(time.monotonic() - begun, 2),
        key=prediction.key,
    )


def _kept(out: Path, keys: set[str]) -> dict[str, GradedPrediction]:
    """Return the results that are kept; an incomplete line of a killed run is dropped."""
    if not out.exists():
        return {}
    kept: dict[str, GradedPrediction] = {}
    lines = out.read_text("utf-8", "replace").split("\n")
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            result = GradedPrediction(**json.loads(line))
        except (ValueError, TypeError) as error:
            if number == len(lines):
                continue
            raise InvalidInput(f"{out}:{number} is not a result of grading: {error}") from error
        if result.status != "failed" and result.key in keys:
            kept[result.key] = result
    return kept


def _rewrite(out: Path, results: Sequence[GradedPrediction]) -> None:
    """Write the results that are kept, one line per instance."""
    out.parent.mkdir(parents=True, exist_ok=True)
    fresh = out.with_name(f".{out.name}.new")
    fresh.unlink(missing_ok=True)
    fresh.touch()
    _append(fresh, results)
    fresh.replace(out)


def _append(out: Path, results: Sequence[GradedPrediction]) -> None:
    with out.open("a", encoding="utf-8") as file:
        file.writelines(json.dumps(asdict(result)) + "\n" for result in results)
        file.flush()
        os.fsync(file.fileno())
