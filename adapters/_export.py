"""Exports by name."""

from __future__ import annotations

import inspect
from importlib import import_module
from typing import TYPE_CHECKING, Any

from trajgym.adapters._errors import UnknownExport
from trajgym.adapters.exports._stream import run_export
from trajgym.trajectory import InvalidInput

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Sequence
    from pathlib import Path

    from trajgym.adapters._group_rows import Values
    from trajgym.adapters.exports._images import BlobReader
    from trajgym.adapters.exports._stream import ExportReport
    from trajgym.trajectory import Group, SessionTree, Task

__all__ = ["describe_export", "export", "list_exports"]

_EXPORTS = {
    "areal": "trajgym.adapters.areal._export:export_areal",
    "atif": "trajgym.adapters.interchange.formats.atif:export_atif",
    "atropos": "trajgym.adapters.interchange.formats.atropos:export_atropos",
    "in-context": "trajgym.adapters.exports._in_context:export_in_context",
    "inspect": "trajgym.adapters.interchange.formats.inspect:export_inspect",
    "mini-swe-agent": "trajgym.adapters.interchange.formats._mini:export_mini",
    "openai-chat": "trajgym.adapters.interchange.formats._openai_chat:export_openai_chat",
    "openenv": "trajgym.adapters.interchange.formats._openenv:export_openenv",
    "preference": "trajgym.adapters.exports._preference:export_preference",
    "rows": "trajgym.adapters.exports._rows:export_rows",
    "sharegpt": "trajgym.adapters.interchange.formats._sharegpt:export_sharegpt",
    "swe-agent": "trajgym.adapters.interchange.formats._swe_agent:export_swe_agent",
    "sft": "trajgym.adapters.exports._sft:export_sft",
    "trl-grpo": "trajgym.adapters.trl._export:export_trl_grpo",
    "verifiers": "trajgym.adapters.interchange.formats.verifiers:export_verifiers",
    "verl": "trajgym.adapters.verl._export:export_verl",
    "verl-sft": "trajgym.adapters.verl._tokens:export_verl_sft",
}
"""``module:function`` by name; imported on first use."""


def list_exports() -> list[str]:
    """Return the names that `export` takes, sorted."""
    return sorted(_EXPORTS)


def describe_export(name: str) -> tuple[str, dict[str, Any]]:
    """Return a one-line description of an export, and its options with their defaults.

    Raises:
        UnknownExport: there is no export of that name.
    """
    write = _writer(name)
    parameters = list(inspect.signature(write).parameters.values())[1:]
    about = (inspect.getdoc(write) or "").partition("\n")[0]
    return about, {one.name: one.default for one in parameters}


def _writer(name: str) -> Callable[..., None]:
    if name not in _EXPORTS:
        raise UnknownExport(f"no export {name!r}; there are {', '.join(list_exports())}")
    module, _, function = _EXPORTS[name].partition(":")
    found: Callable[..., None] = getattr(import_module(module), function)
    return found


def export(
    name: str,
    sessions: Iterable[SessionTree],
    groups: Iterable[Group],
    out: Path,
    *,
    values: Values | Sequence[Values] = (),
    blobs: BlobReader | None = None,
    allow: Collection[str] = (),
    task: Callable[[str], Task | None] = lambda _: None,
    **options: Any,
) -> ExportReport:
    """Write sessions in a trainer's format; a file appears only once it is complete.

    Args:
        name: one of `list_exports`.
        sessions: read once, as a stream; memory use does not grow with their number.
        groups: the sessions' groups. Sessions that left their group, or whose group is still open,
            are not exported where groups matter.
        out: directory, created if missing; an existing file of the same name is replaced.
        values: rewards and advantages for the rows, at most one of each; of a large run, from
            :func:`trajgym.rewards.derive_run`.
        blobs: the ``blob`` method of the run, for sessions with images; without it, such sessions
            are left out where pixels are needed.
        allow: exceptions that the `Gate` makes, in exports for a trainer's loss; the report lists
            refused sessions.
        task: the ``task`` method of the run; formats that hold tasks write them.
        **options: settings of the export: ``include`` and ``images`` of sft, ``include`` of
            verl-sft and of foreign formats, ``margin`` of preference, ``dense`` of areal,
            ``burstiness``, ``length``, ``tokens`` and others of in-context.

    Raises:
        UnknownExport: no export of that name.
        InvalidInput: the export has no such option, can't use the values, or needs values.
        MissingExtra: the export writes parquet and pyarrow is not installed.
    """
    _, known = describe_export(name)
    if unknown := sorted(set(options) - set(known)):
        have = ", ".join(known) or "none"
        raise InvalidInput(f"export {name} has no option {unknown[0]!r}; its options: {have}")
    write = _writer(name)
    return run_export(
        name,
        write,
        sessions,
        groups,
        out,
        values=values,
        blobs=blobs,
        allow=allow,
        task=task,
        **options,
    )
