"""Environments served by another process: ``EnvSpec(id="http://host:port/envs/NAME")``.

The session, its budgets and its record are local; only the environment's methods are remote. A
remote environment can therefore be used wherever a local one can.
"""

from trajgym.envs.remote._env import RemoteEnv, remote_class

__all__ = ["RemoteEnv", "remote_class"]
