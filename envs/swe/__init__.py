"""SWE tasks: an agent repairs a repository in a sandbox and is graded by hidden tests."""

from trajgym.envs.swe._build import Builder
from trajgym.envs.swe._corpus import corpus_recipes, write_corpus
from trajgym.envs.swe._demo import demo_agent
from trajgym.envs.swe._editor_env import SweEnv
from trajgym.envs.swe._env import BashSweEnv, SweEnvBase
from trajgym.envs.swe._errors import InvalidTask, SourceUnavailable
from trajgym.envs.swe._extract import Extracted, extract_change
from trajgym.envs.swe._grade import grade
from trajgym.envs.swe._images import prepare
from trajgym.envs.swe._import import Imported, import_tasks
from trajgym.envs.swe._junit import BadReport, parse_junit
from trajgym.envs.swe._logs import parse_log, parser_names
from trajgym.envs.swe._mini import MiniSweEnvironment
from trajgym.envs.swe._predictions import (
    GradedPrediction,
    Prediction,
    grade_predictions,
    read_predictions,
)
from trajgym.envs.swe._recipes import (
    build_task,
    builtin_names,
    corpus_names,
    load_tasks,
    recipe_names,
)
from trajgym.envs.swe._record import SweRecord
from trajgym.envs.swe._reverse import reverse_patch
from trajgym.envs.swe._signals import expert_actions, localisation
from trajgym.envs.swe._validate import Validation, validate_task

__all__ = [
    "BadReport",
    "BashSweEnv",
    "Builder",
    "Extracted",
    "GradedPrediction",
    "Imported",
    "InvalidTask",
    "MiniSweEnvironment",
    "Prediction",
    "SourceUnavailable",
    "SweEnv",
    "SweEnvBase",
    "SweRecord",
    "Validation",
    "build_task",
    "builtin_names",
    "corpus_names",
    "corpus_recipes",
    "demo_agent",
    "expert_actions",
    "extract_change",
    "grade",
    "grade_predictions",
    "import_tasks",
    "load_tasks",
    "localisation",
    "parse_junit",
    "parse_log",
    "parser_names",
    "prepare",
    "read_predictions",
    "recipe_names",
    "reverse_patch",
    "validate_task",
    "write_corpus",
]
