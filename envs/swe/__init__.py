"""SWE tasks: an agent repairs a repository in a sandbox, hidden tests decide."""

from trajgym.envs.swe._demo import demo_agent
from trajgym.envs.swe._env import BashSweEnv, SweEnv, SweEnvBase
from trajgym.envs.swe._errors import InvalidTask, SourceUnavailable
from trajgym.envs.swe._extract import Extracted, extract_change
from trajgym.envs.swe._grade import grade
from trajgym.envs.swe._images import prepare
from trajgym.envs.swe._import import Imported, import_tasks
from trajgym.envs.swe._junit import BadReport, parse_junit
from trajgym.envs.swe._recipes import build_task, builtin_names, load_tasks, recipe_names
from trajgym.envs.swe._record import SweRecord
from trajgym.envs.swe._reverse import reverse_patch

__all__ = [
    "BadReport",
    "BashSweEnv",
    "Extracted",
    "Imported",
    "InvalidTask",
    "SourceUnavailable",
    "SweEnv",
    "SweEnvBase",
    "SweRecord",
    "build_task",
    "builtin_names",
    "demo_agent",
    "extract_change",
    "grade",
    "import_tasks",
    "load_tasks",
    "parse_junit",
    "prepare",
    "recipe_names",
    "reverse_patch",
]
