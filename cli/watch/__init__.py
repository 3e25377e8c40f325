"""`trajgym watch`: a local page that shows the sessions of a run while they are recorded."""

from trajgym.cli.watch._app import WatchApp
from trajgym.cli.watch._serve import watch_run

__all__ = ["WatchApp", "watch_run"]
