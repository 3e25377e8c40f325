"""ATIF: Harbor's Agent Trajectory Interchange Format, read up to v1.8 and written as v1.8."""

from trajgym.adapters.interchange.formats.atif._format import FORMAT
from trajgym.adapters.interchange.formats.atif._write import export_atif

__all__ = ["FORMAT", "export_atif"]
