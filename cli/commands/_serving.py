"""Serve environments and record agents that connect."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from trajgym.cli._options import EnvConfig, EnvId, parse_settings

__all__ = ["mcp", "serve"]


def serve(
    run: Annotated[
        Path | None,
        typer.Argument(help="Run directory to record agents into."),
    ] = None,
    upstream: Annotated[
        str | None,
        typer.Option(help="OpenAI-compatible engine of the recorded agents."),
    ] = None,
    env: Annotated[
        list[str] | None,
        typer.Option(metavar="ID", help="Environment to serve; may be repeated."),
    ] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Configuration of the environment."),
    ] = None,
    tasks: Annotated[
        str | None,
        typer.Option(help="Tasks from which OpenEnv's clients choose, as in collect."),
    ] = None,
    kind: Annotated[str, typer.Option(help="vllm, sglang, or hosted (text turns).")] = "vllm",
    model: Annotated[
        str | None,
        typer.Option(help="Model to ask for, instead of the one that agents name."),
    ] = None,
    renderer: Annotated[
        str | None,
        typer.Option(help="Tokenizer that parses ids into spans and messages."),
    ] = None,
    tokens: Annotated[
        bool,
        typer.Option("--tokens", help="Render chats with --renderer and send ids to the engine."),
    ] = False,
    logprobs: Annotated[
        str, typer.Option(help="Log-prob mode of the engine: processed, raw or unknown.")
    ] = "unknown",
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port to listen on.")] = 8100,
    url: Annotated[
        str | None,
        typer.Option(help="Public URL of this server, if it differs from host and port."),
    ] = None,
    check: Annotated[
        bool, typer.Option("--check", help="Only check that the engine returns token ids.")
    ] = False,
    power_safe: Annotated[
        bool, typer.Option("--power-safe", help="Make records durable against power loss too.")
    ] = False,
    hold: Annotated[
        float, typer.Option(help="Most seconds for which a pause delays a call.")
    ] = 240.0,
    redact: Annotated[
        list[str] | None,
        typer.Option(metavar="REGEX", help="Don't store text that matches; may be repeated."),
    ] = None,
    judge: Annotated[
        list[str] | None,
        typer.Option(metavar="KIND", help="Judge turns as they arrive: votes, hints; repeatable."),
    ] = None,
    judge_url: Annotated[str | None, typer.Option(help="Endpoint of the judge.")] = None,
    judge_model: Annotated[str | None, typer.Option(help="Model of the judge.")] = None,
    judge_votes: Annotated[int, typer.Option(help="How often each turn is judged.")] = 3,
    judge_concurrency: Annotated[
        int, typer.Option(help="Most turns that are judged at the same time.")
    ] = 8,
    judge_seconds: Annotated[float, typer.Option(help="Deadline for judging a turn.")] = 120.0,
    judge_api_key_env: Annotated[
        str, typer.Option(help="Environment variable with the judge's API key.")
    ] = "TRAJGYM_JUDGE_API_KEY",
    api_key_env: Annotated[
        str, typer.Option(help="Environment variable with the engine's API key.")
    ] = "OPENAI_API_KEY",
    secret_env: Annotated[
        str, typer.Option(help="Environment variable with the admin token.")
    ] = "TRAJGYM_SERVER_SECRET",  # noqa: S107 - the name of a variable
) -> None:
    """Record agents that use Chat Completions, Responses or Messages, or serve environments."""
    from trajgym.cli._judges import JudgeOptions
    from trajgym.cli._serve import ServeOptions, run_serve

    if kind not in {"vllm", "sglang", "hosted"}:
        raise typer.BadParameter(f"{kind!r}: expected vllm, sglang or hosted")
    if logprobs not in {"processed", "raw", "unknown"}:
        raise typer.BadParameter(f"{logprobs!r}: expected processed, raw or unknown")
    run_serve(
        ServeOptions(
            run=run,
            upstream=upstream,
            kind=kind,  # type: ignore[arg-type]
            model=model,
            renderer=renderer,
            tokens=tokens,
            logprobs=logprobs,
            api_key_env=api_key_env,
            secret_env=secret_env,
            host=host,
            port=port,
            url=url,
            check=check,
            power_safe=power_safe,
            hold_seconds=hold,
            judges=JudgeOptions(
                kinds=judge or [],
                url=judge_url,
                model=judge_model,
                api_key_env=judge_api_key_env,
                votes=judge_votes,
                concurrency=judge_concurrency,
                seconds=judge_seconds,
            ),
            redact=redact or [],
            env=env or [],
            env_config=parse_settings(settings),
            tasks=tasks,
        ),
    )


def mcp(
    env: EnvId,
    tasks: Annotated[str, typer.Option(help="File, directory, or a name the environment knows.")],
    out: Annotated[
        Path | None,
        typer.Option(help="Run directory in which every attempt is recorded."),
    ] = None,
    http: Annotated[
        int | None,
        typer.Option(metavar="PORT", help="Serve streamable HTTP at /mcp instead of stdio."),
    ] = None,
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    config: EnvConfig = None,
) -> None:
    """Serve an environment as an MCP server, for one agent at a time."""
    from trajgym.cli._mcp import run_mcp

    run_mcp(env, tasks, parse_settings(config), out=out, host=host, port=http)
