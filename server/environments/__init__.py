"""Environments that clients use over HTTP."""

from trajgym.server.environments._host import EnvHost, is_env_path

__all__ = ["EnvHost", "is_env_path"]
