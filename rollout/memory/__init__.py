"""Memory: what agents learn from recorded sessions outside a model's weights."""

from trajgym.rollout.memory._bank import Match, MemoryBank
from trajgym.rollout.memory._build import build_memory, cases_of, learn, subtasks_of, tool_notes
from trajgym.rollout.memory._curator import (
    Curator,
    Decided,
    Decision,
    DecisionReward,
    Operation,
    StructuralCurator,
    curate,
    decision_rewards,
    task_streams,
)
from trajgym.rollout.memory._effect import MemoryEffect, MemoryUse, measure_effect, memory_use
from trajgym.rollout.memory._env import MemoryEnv, MemorySettings, with_memory
from trajgym.rollout.memory._lessons import LessonWriter
from trajgym.rollout.memory._records import (
    Case,
    Demonstration,
    Effect,
    Evidence,
    FailedCall,
    Failure,
    Kind,
    Lesson,
    MemoryRecord,
    Repeat,
    Step,
    Subtask,
    ToolNote,
)

__all__ = [
    "Case",
    "Curator",
    "Decided",
    "Decision",
    "DecisionReward",
    "Demonstration",
    "Effect",
    "Evidence",
    "FailedCall",
    "Failure",
    "Kind",
    "Lesson",
    "LessonWriter",
    "Match",
    "MemoryBank",
    "MemoryEffect",
    "MemoryEnv",
    "MemoryRecord",
    "MemorySettings",
    "MemoryUse",
    "Operation",
    "Repeat",
    "Step",
    "StructuralCurator",
    "Subtask",
    "ToolNote",
    "build_memory",
    "cases_of",
    "curate",
    "decision_rewards",
    "learn",
    "measure_effect",
    "memory_use",
    "subtasks_of",
    "task_streams",
    "tool_notes",
    "with_memory",
]
