"""Runs as datasets: identity, lineage, and operations that make new runs."""

from trajgym.trajectory.datasets._expression import Expression
from trajgym.trajectory.datasets._identity import (
    DatasetId,
    Lineage,
    dataset_id,
    lineage,
    name_dataset,
)
from trajgym.trajectory.datasets._operations import (
    Derived,
    dedup_run,
    filter_run,
    merge_runs,
    sample_run,
    split_run,
    stratify_run,
)
from trajgym.trajectory.datasets._redact import redact_run, review_run
from trajgym.trajectory.datasets._source import FIELDS

__all__ = [
    "FIELDS",
    "DatasetId",
    "Derived",
    "Expression",
    "Lineage",
    "dataset_id",
    "dedup_run",
    "filter_run",
    "lineage",
    "merge_runs",
    "name_dataset",
    "redact_run",
    "review_run",
    "sample_run",
    "split_run",
    "stratify_run",
]
