"""Runs as datasets: identity, lineage, and operations that make new runs."""

from trajgym.trajectory.datasets._contamination import (
    Contamination,
    Overlap,
    decontaminate_run,
    find_contamination,
)
from trajgym.trajectory.datasets._expression import Expression
from trajgym.trajectory.datasets._identity import (
    DatasetId,
    Lineage,
    dataset_id,
    lineage,
    name_dataset,
)
from trajgym.trajectory.datasets._licences import task_licence
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
    "Contamination",
    "DatasetId",
    "Derived",
    "Expression",
    "Lineage",
    "Overlap",
    "dataset_id",
    "decontaminate_run",
    "dedup_run",
    "filter_run",
    "find_contamination",
    "lineage",
    "merge_runs",
    "name_dataset",
    "redact_run",
    "review_run",
    "sample_run",
    "split_run",
    "stratify_run",
    "task_licence",
]
