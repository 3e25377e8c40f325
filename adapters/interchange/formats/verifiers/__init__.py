"""verifiers: episodes of traces (0.4 and later) and, to read, the rollouts of earlier versions."""

from trajgym.adapters.interchange.formats.verifiers._format import FORMAT
from trajgym.adapters.interchange.formats.verifiers._write import export_verifiers

__all__ = ["FORMAT", "export_verifiers"]
