"""The `trajgym` command."""

from trajgym.cli._app import app, main

__all__ = ["app", "main"]
