"""The viewer: a read-only page that shows runs, groups and sessions in a browser."""

from trajgym.server.viewer._app import Viewer

__all__ = ["Viewer"]
