"""The package as a whole: light to import, exports that match, documented names."""

from __future__ import annotations

import importlib
import inspect
import subprocess
import sys
import types
from importlib import metadata

import pytest

from trajgym import trajectory

PACKAGES = [
    "trajectory",
    "trajectory.catalog",
    "trajectory.datasets",
    "trajectory.redaction",
    "rewards",
    "rewards.filters",
    "rewards.tokens",
    "rewards.toolkit",
    "rewards.trees",
    "envs",
    "envs.code",
    "envs.dialogue",
    "envs.gui",
    "envs.mcp",
    "envs.openenv",
    "envs.remote",
    "envs.rubrics",
    "envs.sandbox",
    "envs.search",
    "envs.swe",
    "envs.swe.small",
    "envs.terminal",
    "envs.users",
    "envs.verifiers",
    "rollout",
    "rollout.annotators",
    "rollout.engines",
    "rollout.evaluation",
    "rollout.fleet",
    "rollout.fleet.ray",
    "rollout.hosted",
    "rollout.memory",
    "rollout.mixture",
    "rollout.monitoring",
    "rollout.plots",
    "rollout.rendering",
    "rollout.rules",
    "rollout.verification",
    "server",
    "server.programs",
    "server.viewer",
    "adapters",
    "adapters.exports.dataset",
    "adapters.interchange",
    "adapters.tracking",
]

HEAVY = {
    "accelerate",
    "aiohttp",
    "anthropic",
    "areal",
    "bm25s",
    "datasets",
    "docker",
    "gymnasium",
    "httpx",
    "matplotlib",
    "mcp",
    "numba",
    "openai",
    "pandas",
    "PIL",
    "playwright",
    "pyarrow",
    "ray",
    "renderers",
    "requests",
    "rich",
    "scipy",
    "starlette",
    "tokenizers",
    "torch",
    "transformers",
    "trl",
    "typer",
    "uvicorn",
    "verl",
}


def loaded_by(statement: str) -> set[str]:
    code = f"{statement}\nimport sys\nprint(*{{name.partition('.')[0] for name in sys.modules}})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return set(done.stdout.split())


def test_core_imports_nothing_heavy() -> None:
    """Environments, trajectories and rewards import without any heavy package."""
    loaded = loaded_by("import trajgym.envs, trajgym.trajectory, trajgym.rewards")
    assert loaded & HEAVY == set()


@pytest.mark.parametrize(
    "package",
    [
        "envs.code",
        "envs.dialogue",
        "envs.gui",
        "envs.mcp",
        "envs.rubrics",
        "envs.sandbox",
        "envs.search",
        "envs.swe",
        "envs.users",
        "envs.verifiers",
        "rollout",
        "server",
        "adapters",
        "adapters.areal",
        "adapters.tracking",
        "adapters.trl",
        "adapters.verl",
    ],
)
def test_other_packages_import_heavy_ones_only_where_they_use_them(package: str) -> None:
    """Nor do the other packages, until a class that needs one is used."""
    assert loaded_by(f"import trajgym.{package}") & HEAVY == set()


@pytest.mark.parametrize("package", PACKAGES)
def test_exports_match_all(package: str) -> None:
    """Every public name of a package is in its __all__, and every name there exists."""
    module = importlib.import_module(f"trajgym.{package}")
    public = {
        name
        for name, value in vars(module).items()
        if not name.startswith("_") and not isinstance(value, types.ModuleType)
    }
    assert public == set(module.__all__)


@pytest.mark.parametrize("package", PACKAGES)
def test_public_names_are_documented(package: str) -> None:
    """Every public class and function, and every public method of it, has a docstring."""
    module = importlib.import_module(f"trajgym.{package}")
    bare = []
    for name in module.__all__:
        value = getattr(module, name)
        if not (inspect.isclass(value) or inspect.isfunction(value)):
            continue
        if not value.__doc__:
            bare.append(name)
        for attribute, member in vars(value).items() if inspect.isclass(value) else ():
            own = inspect.isfunction(member) or isinstance(member, (classmethod, property))
            if (
                own
                and not attribute.startswith("_")
                and not inspect.getdoc(getattr(value, attribute))
            ):
                bare.append(f"{name}.{attribute}")
    assert bare == []


def test_the_version_is_looked_up_when_asked_for() -> None:
    """`trajgym.__version__` is the distribution's; `import trajgym` alone loads nothing else."""
    import trajgym

    assert trajgym.__version__ == metadata.version("trajgym")
    assert not loaded_by("import trajgym") & {"numpy", "pydantic", "msgspec"}
    with pytest.raises(AttributeError, match="no attribute 'nope'"):
        _ = trajgym.nope


def test_the_verl_adapter_imports_verl_only_where_it_uses_it() -> None:
    """Writing data for verl and checking its settings load neither verl nor torch."""
    assert loaded_by("import trajgym.adapters.verl, trajgym.adapters.verl._lint") & HEAVY == set()


def test_names_that_moved_warn_where_they_are_used() -> None:
    """Pieces of policies and judges are in submodules; the old imports work for a version."""
    from trajgym import rollout
    from trajgym.rollout import engines

    with pytest.warns(
        DeprecationWarning, match=r"import Generation from trajgym\.rollout\.engines"
    ) as seen:
        assert getattr(rollout, "Generation") is engines.Generation  # noqa: B009 - the old name
    assert seen[0].filename == __file__
    with pytest.raises(AttributeError, match="has no attribute 'Nothing'"):
        getattr(rollout, "Nothing")  # noqa: B009
    assert len(rollout.__all__) < 46


@pytest.mark.parametrize("name", ["SpreadFilter", "gae", "similarity", "tree_budget"])
def test_former_names_of_rewards_still_work(name: str) -> None:
    """A name that moved to a submodule is found at its old place, with a warning."""
    import trajgym.rewards

    with pytest.warns(DeprecationWarning, match=rf"{name} has moved: import {name} from trajgym\."):
        found = getattr(trajgym.rewards, name)
    assert found.__name__ == name
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        _ = trajgym.rewards.nonsense  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    "name", ["AsyncClosing", "MissingExtra", "digest", "replace_surrogates", "nothing"]
)
def test_internal_names_left_the_surface(name: str) -> None:
    """Names that were never meant for users still import, with a warning; others don't."""
    assert name not in trajectory.__all__
    if name == "nothing":
        with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
            getattr(trajectory, name)
    else:
        with pytest.warns(DeprecationWarning, match=f"trajgym.trajectory.{name} has moved"):
            assert callable(getattr(trajectory, name))
