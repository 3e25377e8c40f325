"""The entry point that verl loads in each of its processes (group ``verl.plugins``).

verl swallows what goes wrong here, so it is logged first.
"""

from __future__ import annotations

import logging

__all__: list[str] = []

_log = logging.getLogger(__name__)


def _register() -> None:
    from trajgym.adapters._verl_errors import need_verl

    need_verl()
    from trajgym.adapters import (
        _verl_loop,  # noqa: F401 - registers the agent loop
        _verl_trainer,  # noqa: F401 - registers estimator and trainers
    )


try:
    _register()
except Exception:
    _log.exception("trajgym's plug-in for verl does not work here: agent_name 'trajgym' is unknown")
    raise
