"""Trajectories in and out of foreign formats, with a list of what each of them loses."""

from trajgym.adapters.interchange._errors import UnknownFormat
from trajgym.adapters.interchange._features import FEATURES, features_of
from trajgym.adapters.interchange._format import Format
from trajgym.adapters.interchange._import import ImportReport, import_run
from trajgym.adapters.interchange._incoming import Draft, ImportedMessage, Source
from trajgym.adapters.interchange._registry import get_format, list_formats

__all__ = [
    "FEATURES",
    "Draft",
    "Format",
    "ImportReport",
    "ImportedMessage",
    "Source",
    "UnknownFormat",
    "features_of",
    "get_format",
    "import_run",
    "list_formats",
]
