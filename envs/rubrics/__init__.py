"""Rubrics: named rewards, checks and judgments of a recorded attempt; and parsers of answers."""

from trajgym.envs.rubrics._case import Call, Case, Judgment, judgment_signal
from trajgym.envs.rubrics._parsers import (
    boxed,
    choice,
    code_block,
    json_value,
    last_number,
    tagged,
)
from trajgym.envs.rubrics._rubric import MissingJudgment, Part, Rubric, RubricError

__all__ = [
    "Call",
    "Case",
    "Judgment",
    "MissingJudgment",
    "Part",
    "Rubric",
    "RubricError",
    "boxed",
    "choice",
    "code_block",
    "json_value",
    "judgment_signal",
    "last_number",
    "tagged",
]
