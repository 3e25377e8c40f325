"""Helpers shared by trajgym's packages; not part of the public API."""

from trajgym.trajectory._closing import AsyncClosing, Closing
from trajgym.trajectory._codec import replace_surrogates
from trajgym.trajectory._concurrent import first_error
from trajgym.trajectory._database import has_writer
from trajgym.trajectory._deprecated import moved_names
from trajgym.trajectory._errors import MissingExtra, StoreNotBegun
from trajgym.trajectory._file import StoreFile, Write
from trajgym.trajectory._growing import append_ids, same_start
from trajgym.trajectory._html import group_html
from trajgym.trajectory._messages import digest
from trajgym.trajectory._plugins import entry_points, load_entry

__all__ = [
    "AsyncClosing",
    "Closing",
    "MissingExtra",
    "StoreFile",
    "StoreNotBegun",
    "Write",
    "append_ids",
    "digest",
    "entry_points",
    "first_error",
    "group_html",
    "has_writer",
    "load_entry",
    "moved_names",
    "replace_surrogates",
    "same_start",
]
