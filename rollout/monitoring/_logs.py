"""Log records as JSON lines, with the session that they belong to."""

from __future__ import annotations

import json
import logging
import os
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from trajgym.envs._current import current_session
from trajgym.trajectory import InvalidInput

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["JsonLines", "log_as_asked", "log_to"]

_VARIABLE = "TRAJGYM_LOG"
_ROOT = "trajgym"
_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


class JsonLines(logging.Formatter):
    """Formats a record as one line of JSON.

    The fields are ``time`` (ISO 8601, UTC), ``level``, ``logger``, ``process``, ``message``,
    ``session`` (the id, inside of a session), ``error`` (a traceback, if there is one), and what
    was given as ``extra``.
    """

    def format(self, record: logging.LogRecord) -> str:
        """Return the line, without its end."""
        fields: dict[str, object] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "process": record.process,
            "message": record.getMessage(),
        }
        if session := current_session.get():
            fields["session"] = session
        if record.exc_info:
            fields["error"] = self.formatException(record.exc_info)
        fields |= {name: value for name, value in vars(record).items() if name not in _STANDARD}
        return json.dumps(fields, default=str)


class _Appended(logging.FileHandler):
    """Writes each record at once, so that several processes can share the file."""

    def emit(self, record: logging.LogRecord) -> None:
        """Append the record's line."""
        try:
            line = (self.format(record) + self.terminator).encode("utf-8", "replace")
            os.write(self._number(), line)
        except Exception:  # noqa: BLE001 - boundary: logging must not raise
            self.handleError(record)

    def _number(self) -> int:
        if self.stream is None:
            self.stream = self._open()
        return self.stream.fileno()


def log_to(path: str | Path) -> logging.Handler:
    """Append the package's log to a file as JSON lines, from INFO upwards, until it is removed.

    Processes that this one starts, such as those of a fleet, append to the same file.

    Returns:
        The handler, which ``logging.getLogger("trajgym").removeHandler`` removes.

    Raises:
        InvalidInput: the file can't be opened.
    """
    try:
        handler = _Appended(path, mode="a", encoding="utf-8")
    except OSError as error:
        raise InvalidInput(f"the log can't be written to {path}: {error.strerror}") from error
    handler.setFormatter(JsonLines())
    handler.setLevel(logging.INFO)
    package = logging.getLogger(_ROOT)
    package.addHandler(handler)
    if package.getEffectiveLevel() > logging.INFO:
        package.setLevel(logging.INFO)
    os.environ[_VARIABLE] = os.path.abspath(path)  # noqa: PTH100 - links stay as they are
    return handler


def log_as_asked() -> None:
    """Do in a new process what :func:`log_to` did in the one that started it.

    Raises:
        InvalidInput: the file can't be opened.
    """
    if path := os.environ.get(_VARIABLE):
        log_to(path)
