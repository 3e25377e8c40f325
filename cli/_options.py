"""Options that several commands share."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from trajgym.cli._config import read_config
from trajgym.cli._missing import MissingRule

__all__ = [
    "AgentCommand",
    "AgentName",
    "AgentSettings",
    "AllowChanges",
    "ApiKeyEnv",
    "ApiKeyFile",
    "AsJson",
    "BaseUrl",
    "Concurrency",
    "ConfigFile",
    "ContextTokens",
    "DecisionsFile",
    "Engine",
    "EnvConfig",
    "EnvId",
    "ExtraBody",
    "KeepFailed",
    "LogprobMode",
    "MaxCost",
    "MaxTokens",
    "MaxTries",
    "MissingSignals",
    "Model",
    "Outcomes",
    "Patience",
    "PolicyName",
    "PricesFile",
    "Processes",
    "RayAddress",
    "Redact",
    "RequestRate",
    "RequestTimeout",
    "Retries",
    "RunPath",
    "Samples",
    "Seed",
    "Stream",
    "Temperature",
    "TopK",
    "TopP",
    "Track",
    "TrackProject",
    "Turns",
    "parse_settings",
]

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
RunPath = Annotated[Path, typer.Argument(metavar="RUN", help="Run directory.")]
EnvConfig = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="KEY=VALUE",
        help="Setting of the environment, JSON or text; may be repeated.",
    ),
]
Outcomes = Annotated[
    str | None,
    typer.Option(metavar="NAME", help="Outcomes that rescore kept, not the recorded ones."),
]
MissingSignals = Annotated[
    MissingRule,
    typer.Option(help="If sessions lack signals that the deriver reads: stop, or count them as 0."),
]
Redact = Annotated[
    bool,
    typer.Option("--redact", help="Replace secrets and personal data; turns then lose their ids."),
]
DecisionsFile = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="Decisions of `trajgym dataset review`, for --redact."),
]
KeepFailed = Annotated[
    bool, typer.Option("--keep-failed", help="Don't retry samples that failed in an earlier run.")
]
MaxTries = Annotated[
    int, typer.Option(help="Most failed sessions per sample, over all calls on this run.")
]
AllowChanges = Annotated[
    str,
    typer.Option(
        metavar="PARTS",
        help="Settings that may differ from the earlier call: budgets,expansion,policy,seed,tasks.",
    ),
]
Patience = Annotated[
    float,
    typer.Option(
        rich_help_panel="Model",
        help="Seconds for which a call is retried after 429, 5xx and timeouts.",
    ),
]
RequestTimeout = Annotated[
    float, typer.Option(rich_help_panel="Model", help="Time limit of one request (s).")
]
RequestRate = Annotated[
    float | None,
    typer.Option(
        rich_help_panel="Model", help="Most requests per second; adapts to the endpoint by default."
    ),
]
ContextTokens = Annotated[
    int | None,
    typer.Option(rich_help_panel="Model", help="Size of the model's context window."),
]
EnvId = Annotated[str, typer.Option(help="Environment: a name or module:Class.")]
PolicyName = Annotated[
    str,
    typer.Option(
        help="scripted, fake (synthetic ids) or local (SmolLM2 on this CPU); a --model replaces it."
    ),
]
AgentName = Annotated[
    str | None,
    typer.Option(
        "--agent",
        metavar="NAME",
        rich_help_panel="Agent program",
        help="Run this agent in the task's sandbox, with --model; `trajgym agents` lists them.",
    ),
]
AgentCommand = Annotated[
    str | None,
    typer.Option(
        metavar="LINE",
        rich_help_panel="Agent program",
        help="Run this shell line as the agent; it finds the model in OPENAI_BASE_URL.",
    ),
]
AgentSettings = Annotated[
    list[str] | None,
    typer.Option(
        "--agent-set",
        metavar="KEY=VALUE",
        rich_help_panel="Agent program",
        help="Setting of the agent, JSON or text; may be repeated.",
    ),
]
Engine = Annotated[
    str | None,
    typer.Option(
        rich_help_panel="Agent program",
        help="Endpoint: vllm or sglang (token ids), or hosted; vllm if there is a --base-url.",
    ),
]
LogprobMode = Annotated[
    str,
    typer.Option(
        "--logprobs",
        rich_help_panel="Agent program",
        help="Log-probs of the engine: processed (after temperature), raw or unknown.",
    ),
]
Samples = Annotated[int, typer.Option(min=1, help="Sessions per task.")]
Concurrency = Annotated[int, typer.Option(min=1, help="Concurrent sessions.")]
Processes = Annotated[
    int | None,
    typer.Option(
        min=1,
        help="Processes that the concurrent sessions are divided among; 1 by default, on Ray one "
        "for each 16 sessions.",
    ),
]
RayAddress = Annotated[
    str | None,
    typer.Option(
        "--ray",
        metavar="ADDRESS",
        help="Run the processes on the nodes of a Ray cluster: HOST:PORT, or auto for the cluster "
        "that this machine belongs to.",
    ),
]
Turns = Annotated[int | None, typer.Option(min=1, help="Turn budget of a session.")]
Retries = Annotated[int, typer.Option(help="Retries of a failed session.")]
Seed = Annotated[int, typer.Option(help="Seed of environments and sampling.")]
BaseUrl = Annotated[
    str | None,
    typer.Option(
        rich_help_panel="Model", help="Base URL of the endpoint, such as http://localhost:8000/v1."
    ),
]
Model = Annotated[
    str | None,
    typer.Option(
        rich_help_panel="Model",
        help="Model: NAME (chat completions), responses:NAME or anthropic:NAME.",
    ),
]
ApiKeyEnv = Annotated[
    str | None,
    typer.Option(
        rich_help_panel="Model",
        help="Environment variable with the API key; by default the provider's.",
    ),
]
ApiKeyFile = Annotated[
    Path | None,
    typer.Option(metavar="FILE", rich_help_panel="Model", help="File with the API key."),
]
Temperature = Annotated[float, typer.Option(rich_help_panel="Model", help="Sampling temperature.")]
TopP = Annotated[float | None, typer.Option(rich_help_panel="Model", help="Nucleus sampling.")]
TopK = Annotated[int | None, typer.Option(rich_help_panel="Model", help="Top-k sampling.")]
MaxTokens = Annotated[
    int | None, typer.Option(min=1, rich_help_panel="Model", help="Most tokens of an answer.")
]
ExtraBody = Annotated[
    str | None,
    typer.Option(
        metavar="JSON",
        rich_help_panel="Model",
        help="Further fields of each request; recorded with the run.",
    ),
]
Stream = Annotated[
    bool | None,
    typer.Option(
        "--stream/--no-stream",
        rich_help_panel="Model",
        help="Stream answers (responses: and anthropic:).",
    ),
]
PricesFile = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE", rich_help_panel="Costs and tracking", help="Price table (TOML), for costs."
    ),
]
MaxCost = Annotated[
    float | None,
    typer.Option(
        rich_help_panel="Costs and tracking",
        help="Begin no session once the run has cost this; needs --prices. Status 3.",
    ),
]
Track = Annotated[
    str | None,
    typer.Option(
        metavar="TRACKER",
        rich_help_panel="Costs and tracking",
        help="Send metrics to mlflow, tensorboard, trackio or wandb.",
    ),
]
TrackProject = Annotated[
    str,
    typer.Option(rich_help_panel="Costs and tracking", help="Project or experiment of --track."),
]
ConfigFile = Annotated[
    Path | None,
    typer.Option(
        "--config",
        metavar="FILE",
        is_eager=True,
        callback=read_config,
        help="TOML file with options of this command; the command line has priority.",
    ),
]


def parse_settings(pairs: list[str] | None) -> dict[str, Any]:
    """Return ``KEY=VALUE`` options as a dict; values are parsed as JSON, else kept as text."""
    settings: dict[str, Any] = {}
    for pair in pairs or []:
        key, separator, text = pair.partition("=")
        if not separator or not key:
            raise typer.BadParameter(f"{pair!r} is not KEY=VALUE")
        try:
            settings[key] = json.loads(text)
        except ValueError:
            settings[key] = text
    return settings
