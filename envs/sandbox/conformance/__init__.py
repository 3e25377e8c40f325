"""What a sandbox promises, as checks that any implementation can run."""

from trajgym.envs.sandbox.conformance._case import Case, long_sleep, survivors
from trajgym.envs.sandbox.conformance._check import PROMISES, CheckReport, check_sandbox

__all__ = ["PROMISES", "Case", "CheckReport", "check_sandbox", "long_sleep", "survivors"]
