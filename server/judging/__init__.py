"""Judges that a server asks about turns while sessions run."""

from trajgym.server.judging._judges import Judges
from trajgym.server.judging._metrics import judge_metrics
from trajgym.server.judging._work import JudgeWork

__all__ = ["JudgeWork", "Judges", "judge_metrics"]
