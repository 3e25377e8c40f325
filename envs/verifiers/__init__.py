"""Environments of the `verifiers` package: ``EnvSpec(id="verifiers", config={"environment": …})``.

Needs the extra ``trajgym[verifiers]``.
"""

from trajgym.envs.verifiers._env import VerifiersEnv

__all__ = ["VerifiersEnv"]
