"""Logs of Inspect, the UK AI Security Institute's evaluation framework."""

from trajgym.adapters.interchange.formats.inspect._format import FORMAT
from trajgym.adapters.interchange.formats.inspect._write import export_inspect

__all__ = ["FORMAT", "export_inspect"]
