"""Whole runs as data sets of Parquet files that Hugging Face's ``datasets`` loads, and back."""

from trajgym.adapters.exports.dataset._read import read_dataset
from trajgym.adapters.exports.dataset._write import DatasetReport, write_dataset

__all__ = ["DatasetReport", "read_dataset", "write_dataset"]
