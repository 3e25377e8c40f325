"""`trajgym serve`: the session server and recording proxy."""

from __future__ import annotations

import asyncio
import os
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

import typer
from rich.console import Console

from trajgym.cli._judges import server_judges
from trajgym.envs import EnvSpec
from trajgym.server import (
    App,
    EngineKind,
    EnvApp,
    Limits,
    ServerConfig,
    Upstream,
    check_upstream,
    serve,
)
from trajgym.server._serve import run
from trajgym.trajectory import InvalidInput, Store

if TYPE_CHECKING:
    from pathlib import Path

    from trajgym.cli._judges import JudgeOptions
    from trajgym.rollout.rendering import Renderer
    from trajgym.trajectory import Task

__all__ = ["ServeOptions", "run_serve"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ServeOptions:
    """Options of ``trajgym serve``."""

    run: Path | None
    upstream: str | None
    kind: EngineKind
    model: str | None
    renderer: str | None
    tokens: bool
    logprobs: str
    api_key_env: str
    secret_env: str
    host: str
    port: int
    url: str | None
    check: bool
    power_safe: bool
    hold_seconds: float
    judges: JudgeOptions
    redact: list[str] = field(default_factory=list)
    env: list[str] = field(default_factory=list)
    env_config: dict[str, Any] = field(default_factory=dict)
    tasks: str | None = None


def run_serve(options: ServeOptions) -> None:
    """Check the engine, or serve until Ctrl-C."""
    environments = {
        name.rpartition(":")[2]: EnvSpec(id=name, config=options.env_config) for name in options.env
    }
    tasks = _tasks(options.tasks, environments)
    if options.upstream is None:
        _serve_environments(options, environments, tasks)
        return
    upstream = Upstream(
        base_url=options.upstream,
        kind=options.kind,
        api_key=os.environ.get(options.api_key_env),
        model=options.model,
        renderer=_renderer(options.renderer),
        tokens=options.tokens,
        logprob_mode=options.logprobs,  # type: ignore[arg-type]
    )
    console = Console(stderr=True)
    if options.check:
        problems = asyncio.run(_check(upstream))
        for problem in problems:
            console.print(f"[bold red]missing:[/] {problem}", highlight=False)
        if problems:
            raise typer.Exit(1)
        console.print("The engine returns all that exact turns need.")
        return
    config = ServerConfig(
        secret=os.environ.get(options.secret_env),
        judge_token=os.environ.get("TRAJGYM_JUDGE_TOKEN"),
        trainer_token=os.environ.get("TRAJGYM_TRAINER_TOKEN"),
        url=options.url,
        limits=Limits(hold_seconds=options.hold_seconds),
        redact=options.redact,
    )
    if options.run is None:
        raise InvalidInput("serve: name the run directory to record into")
    judges = server_judges(options.judges)
    with Store(options.run, durability=_durability(options)) as store:
        app = App(store, upstream, config, environments, judges, tasks)

        def ready(url: str) -> None:
            console.print(
                f"Recording into {options.run}. Base URL for agents: {url}/sessions/ID/v1, where "
                f"POST {url}/api/sessions returns an ID. Press Ctrl-C to stop.",
                highlight=False,
                soft_wrap=True,
            )

        run(serve(app, host=options.host, port=options.port, ready=ready))


def _tasks(source: str | None, environments: dict[str, EnvSpec]) -> dict[str, list[Task]]:
    if source is None:
        return {}
    if len(environments) != 1:
        raise InvalidInput("serve: --tasks are those of one environment; give --env once")
    return {name: spec.resolve().load_tasks(source) for name, spec in environments.items()}


def _serve_environments(
    options: ServeOptions, environments: dict[str, EnvSpec], tasks: dict[str, list[Task]]
) -> None:
    if not environments:
        raise InvalidInput(
            "serve: give RUN and --upstream to record agents, or --env to serve environments"
        )
    config = ServerConfig(secret=os.environ.get(options.secret_env))

    def ready(url: str) -> None:
        shown = ", ".join(f"{url}/envs/{name}" for name in environments)
        console = Console(stderr=True)
        console.print(f"Serving {shown}. Press Ctrl-C to stop.", highlight=False, soft_wrap=True)

    with ExitStack() as stack:
        store = None
        if options.run is not None:
            store = stack.enter_context(Store(options.run, durability=_durability(options)))
        app = EnvApp(environments, config, store, tasks)
        run(serve(app, host=options.host, port=options.port, ready=ready))


def _durability(options: ServeOptions) -> Literal["power", "process"]:
    return "power" if options.power_safe else "process"


def _renderer(name: str | None) -> Renderer | None:
    if name is None:
        return None
    if name == "bytes":
        from trajgym.rollout.rendering import ByteRenderer

        return ByteRenderer()
    try:
        from transformers import AutoTokenizer
    except ImportError as error:
        raise InvalidInput("--renderer needs trajgym[local]") from error
    from trajgym.rollout.rendering import renderer_for

    return renderer_for(AutoTokenizer.from_pretrained(name))


async def _check(upstream: Upstream) -> list[str]:
    try:
        return await check_upstream(upstream)
    finally:
        await upstream.close()
