"""The entry point that verl loads in each of its processes (group ``verl.plugins``).

verl ignores exceptions raised here, so they are logged first.
"""

from __future__ import annotations

import logging

__all__: list[str] = []

_log = logging.getLogger(__name__)


def _register() -> None:
    from trajgym.adapters.verl._errors import need_verl

    need_verl()
    from trajgym.adapters.verl import (
        _loop,  # noqa: F401 - registers the agent loop
        _trainer,  # noqa: F401 - registers estimator and trainers
    )


try:
    _register()
except Exception:  # boundary: imports verl, which may raise anything; re-raised
    _log.exception("trajgym's plug-in for verl can't be loaded: agent_name 'trajgym' is unknown")
    raise
