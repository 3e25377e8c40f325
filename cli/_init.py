"""`trajgym init`: create a project for an environment."""

from __future__ import annotations

import keyword
import re
from importlib import resources
from string import Template
from typing import TYPE_CHECKING, Literal, TypeAlias

from rich.console import Console

from trajgym.trajectory import InvalidInput

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["Variant", "init_project"]

Variant: TypeAlias = Literal["plain", "sandbox", "images"]

_EXTRAS = {"plain": "", "sandbox": "", "images": "[gui]"}
_NAME = re.compile(r"[a-z][a-z0-9]*([_-][a-z0-9]+)*")


def init_project(target: Path, variant: Variant) -> None:
    """Write an installable project with an environment, tasks and a test; print the next commands.

    Args:
        target: project directory, created if missing; its last part names project and module.
        variant: ``plain`` has a tool, ``sandbox`` runs commands in a sandbox, ``images`` shows
            images.

    Raises:
        InvalidInput: the name is not a valid module name, or the directory is not empty or can't
            be written.
    """
    name = target.resolve().name
    module = name.replace("-", "_")
    if not _NAME.fullmatch(name) or keyword.iskeyword(module):
        raise InvalidInput(
            f"{name!r} is not a valid project name: use lower-case letters, digits and "
            "underscores, such as my_env",
        )
    words = {
        "project": name.replace("_", "-"),
        "module": module,
        "cls": "".join(part.capitalize() for part in module.split("_")),
        "extras": _EXTRAS[variant],
    }
    files = {
        "pyproject.toml": "common/pyproject.toml.in",
        "README.md": "common/README.md.in",
        f"tests/test_{module}.py": "common/tests.py.in",
        f"{module}/__init__.py": f"{variant}/env.py.in",
        f"{module}/tasks.jsonl": f"{variant}/tasks.jsonl",
    }
    templates = resources.files("trajgym.cli") / "templates"
    try:
        if target.exists() and any(target.iterdir()):
            raise InvalidInput(f"{target} is not empty; choose another directory")
        for path, source in files.items():
            text = templates.joinpath(source).read_text("utf-8")
            file = target / path
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(Template(text).substitute(words) if source.endswith(".in") else text)
    except OSError as error:
        raise InvalidInput(f"{target} can't be written: {error}") from error
    console = Console(soft_wrap=True, highlight=False, markup=False)
    console.print(
        f"Created {target}: an environment ({module}/__init__.py), its tasks and a test. Next:"
    )
    for line in (
        f"cd {target}",
        "pip install -e '.[test]'",
        "pytest",
        f"trajgym collect --env {words['project']} --tasks {module}/tasks.jsonl --out runs/first",
        "trajgym show runs/first",
    ):
        console.print(f"  {line}")
