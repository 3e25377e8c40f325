"""The card of a data set: its README.md."""

from __future__ import annotations

import json
from importlib import metadata
from typing import TYPE_CHECKING, Any

from trajgym.adapters.exports.dataset._tables import TABLES

if TYPE_CHECKING:
    from collections import Counter

    from trajgym.adapters.exports.dataset._write import DatasetReport
    from trajgym.trajectory.datasets import DatasetId, Lineage

__all__ = ["card"]

_ABOUT = {
    "sessions": "attempts at tasks: environment, seed, budgets, how each attempt ended, its score",
    "turns": "policy calls: messages, tool calls, rewards, token ids with log-probs and versions",
    "tasks": "the tasks",
    "groups": "groups of sessions of one task, for group-relative advantages",
    "annotations": "signals that judges added to turns",
    "values": "stored rewards and advantages",
    "outcomes": "outcomes of later scorings",
    "images": "images by hash, which messages refer to as `blob:HASH`",
    "blobs": "other stored data by hash",
    "meta": "metadata of the run",
}
_SIZES = ((1_000, "n<1K"), (10_000, "1K<n<10K"), (100_000, "10K<n<100K"), (1_000_000, "100K<n<1M"))
_LISTED = 10


def card(
    report: DatasetReport,
    identity: DatasetId | None,
    made: Lineage | None,
    *,
    licence: str | None,
) -> str:
    """Return the text of README.md, with the metadata that ``datasets`` reads."""
    name = "Agent trajectories" if identity is None else identity.id
    version = metadata.version("trajgym")
    parts = [
        _front_matter(report, licence),
        f"# {name}\n\nTrajectories of LLM agents, recorded with trajgym {version}.",
        _tables(report),
        _environments(report, identity),
        _statistics(report),
        _licences(report),
    ]
    if made is not None:
        parts.append(_lineage(made))
    parts.append(_usage(name, report))
    return "\n\n".join(parts) + "\n"


def _front_matter(report: DatasetReport, licence: str | None) -> str:
    turns = report.rows["turns"]
    size = next((text for bound, text in _SIZES if turns < bound), "1M<n<10M")
    lines = ["---"]
    if licence is not None:
        lines.append(f"license: {json.dumps(licence.lower())}")
    lines += ["tags:", "- trajgym", "- agent-trajectories", "size_categories:", f"- {size}"]
    lines.append("configs:")
    for name in _filled(report):
        lines += [f"- config_name: {name}", f"  data_files: data/{name}/*.parquet"]
        lines += ["  default: true"] * (name == "sessions")
    return "\n".join([*lines, "---"])


def _filled(report: DatasetReport) -> list[str]:
    return [name for name in _ABOUT if name in TABLES and report.rows[name]]


def _tables(report: DatasetReport) -> str:
    rows = [[f"`{name}`", f"{report.rows[name]:,}", _ABOUT[name]] for name in _filled(report)]
    return "## Tables\n\n" + _table(["table", "rows", "content"], rows)


def _environments(report: DatasetReport, identity: DatasetId | None) -> str:
    rows = []
    for spec, sessions in report.environments.most_common(_LISTED):
        env = json.loads(spec)
        config = json.dumps(env.get("config", {}), sort_keys=True)
        rows.append([f"`{env.get('id')}`", f"`{_short(config)}`", f"{sessions:,}"])
    text = "## Environments\n\n" + _table(["environment", "configuration", "sessions"], rows)
    if identity is not None and identity.versions:
        versions = ", ".join(f"{key} {value}" for key, value in identity.versions.items())
        text += f"\n\nVersions: {versions}."
    return text


def _statistics(report: DatasetReport) -> str:
    sessions, turns = report.rows["sessions"], report.rows["turns"]
    rows = [
        ["tasks", f"{report.rows['tasks']:,}"],
        ["sessions", f"{sessions:,}"],
        ["attempts", _counts(report.statuses)],
        ["turns", f"{turns:,} ({turns / max(1, sessions):.1f} per session)"],
        ["turns with token ids", f"{report.exact:,} ({report.tokens:,} response ids)"],
        ["policies (turns)", _counts(report.policies)],
        ["tool calls", _counts(report.tools)],
    ]
    if report.scored:
        rates = [passed / scored for scored, passed in report.solved.values() if scored]
        rows[3:3] = [
            ["passed", f"{report.passed:,} of {report.scored:,} scored attempts"],
            ["mean score", f"{report.scores / report.scored:.4g}"],
            [
                "tasks solved at least once",
                f"{sum(rate > 0 for rate in rates):,} of {len(rates):,}",
            ],
            ["mean solve rate of tasks", f"{sum(rates) / len(rates):.4g}"],
        ]
    if report.synthetic:
        rows.append(["synthetic turns (fake engine, not for training)", f"{report.synthetic:,}"])
    return "## Statistics\n\n" + _table(["quantity", "value"], rows)


def _licences(report: DatasetReport) -> str:
    counts = _counts(report.licences)
    return f"## Licences of the tasks\n\n{counts or 'there are no tasks'}"


def _lineage(made: Lineage) -> str:
    lines = ["## How it was made", ""]
    step: dict[str, Any] | None = made.to_json()
    while step is not None:
        arguments = json.dumps(step["arguments"], sort_keys=True)
        sources = ", ".join(
            f"{source['dataset'] or 'an unnamed run'} ({source['sessions']:,} sessions, digest "
            f"`{source['digest'][:16]}`)"
            for source in step["sources"]
        )
        lines.append(f"1. `{step['operation']}` `{_short(arguments)}` of {sources}")
        sources_made = [source["lineage"] for source in step["sources"] if source["lineage"]]
        step = sources_made[0] if len(sources_made) == 1 else None
    return "\n".join(lines)


def _usage(name: str, report: DatasetReport) -> str:
    table = "turns" if report.rows["turns"] else "sessions"
    return (
        "## Use\n\n```py\nfrom datasets import load_dataset\n\n"
        f'turns = load_dataset("{name}", "{table}", split="train", streaming=True)\n```\n\n'
        "Columns with values of any shape (messages, data, details) are JSON text. "
        "`trajgym dataset import DIRECTORY --out RUN` makes a run of a local copy."
    )


def _table(header: list[str], rows: list[list[str]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(map(_cell, line)) + " |" for line in lines)


def _cell(text: str) -> str:
    return " ".join(text.replace("|", "\\|").split())


def _counts(counter: Counter[str]) -> str:
    shown = [f"{n:,} {name}" for name, n in counter.most_common(_LISTED)]
    if others := len(counter) - len(shown):
        shown.append(f"{others} others")
    return ", ".join(shown)


def _short(text: str) -> str:
    return text if len(text) <= 200 else text[:197] + "..."
