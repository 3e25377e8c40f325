"""Verification: recorded actions, executed again in fresh environments and compared."""

from trajgym.rollout.verification._repeat import Difference, DifferenceCause, Repeated
from trajgym.rollout.verification._run import VerifyReport, verify_run

__all__ = ["Difference", "DifferenceCause", "Repeated", "VerifyReport", "verify_run"]
