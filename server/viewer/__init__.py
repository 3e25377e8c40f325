"""The viewer: a read-only page that shows runs, groups and sessions in a browser."""

from trajgym.server.viewer._app import Viewer
from trajgym.server.viewer._export import export_session

__all__ = ["Viewer", "export_session"]
