"""Atropos: groups of scored token sequences, as its environments save and send them."""

from trajgym.adapters.interchange.formats.atropos._format import FORMAT
from trajgym.adapters.interchange.formats.atropos._write import export_atropos

__all__ = ["FORMAT", "export_atropos"]
