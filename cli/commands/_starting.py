"""First steps: see trajgym work, begin a project, list what can be run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from trajgym.cli._kinds import SandboxKind
from trajgym.cli._options import AsJson, BaseUrl, Model, Samples

__all__ = ["agents", "demo", "envs", "init"]


def demo(
    out: Annotated[Path, typer.Option(help="Directory for the runs and exports.")] = Path(
        "runs/demo"
    ),
    samples: Samples = 4,
    sandbox: Annotated[SandboxKind, typer.Option(help="Where code runs.")] = SandboxKind.auto,
    base_url: BaseUrl = None,
    model: Model = None,
) -> None:
    """Run SWE tasks from collection to export with a scripted agent; no API key is needed."""
    from trajgym.cli._demo import run_demo

    run_demo(out, samples=samples, sandbox=sandbox.value, base_url=base_url, model=model)


def init(
    target: Annotated[
        Path,
        typer.Argument(metavar="DIR", help="Project directory; its name is the project's name."),
    ],
    sandbox: Annotated[
        bool, typer.Option("--sandbox", help="Write an environment with a sandbox.")
    ] = False,
    images: Annotated[
        bool, typer.Option("--images", help="Write an environment that shows images.")
    ] = False,
) -> None:
    """Create a project for an environment of your own, with tasks, a test and a README."""
    from trajgym.cli._init import init_project

    if sandbox and images:
        raise typer.BadParameter("choose one of --sandbox and --images")
    init_project(target, "sandbox" if sandbox else "images" if images else "plain")


def envs(as_json: AsJson = False) -> None:
    """List the registered environments and their settings."""
    from trajgym.cli._registered import show_registered

    show_registered("envs", as_json=as_json)


def agents(as_json: AsJson = False) -> None:
    """List the known agent programs and their settings; see --agent of `trajgym collect`."""
    from trajgym.cli._registered import show_registered

    show_registered("agents", as_json=as_json)
