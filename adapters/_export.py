"""Exports by name."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trajgym.adapters._areal import export_areal
from trajgym.adapters._errors import UnknownExport
from trajgym.adapters._preference import export_preference
from trajgym.adapters._rows import export_rows
from trajgym.adapters._sft import export_sft
from trajgym.adapters._stream import Export, ExportReport, Membership
from trajgym.adapters._trl import export_trl_grpo
from trajgym.adapters._verl import export_verl
from trajgym.adapters._verl_tokens import export_verl_sft
from trajgym.rewards import Advantages, Rewards
from trajgym.trajectory import InvalidInput

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from trajgym.trajectory import Group, SessionTree

__all__ = ["export", "list_exports"]

_EXPORTS: dict[str, Callable[..., None]] = {
    "areal": export_areal,
    "preference": export_preference,
    "rows": export_rows,
    "sft": export_sft,
    "trl-grpo": export_trl_grpo,
    "verl": export_verl,
    "verl-sft": export_verl_sft,
}


def list_exports() -> list[str]:
    """Return the names that `export` takes, sorted."""
    return sorted(_EXPORTS)


def export(
    name: str,
    sessions: Iterable[SessionTree],
    groups: Iterable[Group],
    out: Path,
    *,
    values: Rewards | Advantages | Sequence[Rewards | Advantages] = (),
    **options: Any,
) -> ExportReport:
    """Write sessions in a trainer's form, one at a time; files appear when they are whole.

    Args:
        name: one of `list_exports`.
        sessions: read once, as a stream; memory does not grow with their number.
        groups: their groups; sessions that left theirs, or whose group is open, stay out of
            everything that compares or trains by group.
        out: folder, made if missing; a file of the same name is replaced.
        values: rewards and advantages for the rows, at most one of each.
        **options: settings of the export: ``include`` of sft and verl-sft, ``margin`` of
            preference, ``dense`` of areal.

    Raises:
        UnknownExport: no export of that name.
        InvalidInput: an option that it does not have, or values that it can't use or lacks.
        MissingExtra: it writes parquet and pyarrow is not installed.
    """
    write = _EXPORTS.get(name)
    if write is None:
        raise UnknownExport(f"no export {name!r}; there are {', '.join(list_exports())}")
    known = list(inspect.signature(write).parameters)[1:]
    if unknown := sorted(set(options) - set(known)):
        raise InvalidInput(f"export {name} has no option {unknown[0]!r}; it has {known or 'none'}")
    given = (values,) if isinstance(values, Rewards | Advantages) else tuple(values)
    if len({type(one) for one in given}) != len(given):
        raise InvalidInput(f"export {name}: rows carry one Rewards and one Advantages; add them up")
    out = Path(out)
    out.mkdir(parents=True, exist_ok=True)
    report = ExportReport(name)
    run = Export(
        sessions=sessions, membership=Membership(groups), out=out, values=given, report=report
    )
    write(run, **options)
    return report
