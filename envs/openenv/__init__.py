"""An OpenEnv server as an environment: ``EnvSpec(id="openenv", config={"url": ...})``.

The other direction, a trajgym environment for OpenEnv's clients, is part of ``trajgym serve``.
"""

from trajgym.envs.openenv._env import OpenEnvEnv

__all__ = ["OpenEnvEnv"]
