"""The options that `collect` and `eval` share."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING

from trajgym.cli._options import (
    AgentCommand,
    AgentName,
    AgentSettings,
    AllowChanges,
    ApiKeyEnv,
    ApiKeyFile,
    BaseUrl,
    Concurrency,
    ConfigFile,
    ContextTokens,
    Engine,
    EnvConfig,
    EnvId,
    ExtraBody,
    KeepFailed,
    LogprobMode,
    MaxCost,
    MaxTokens,
    MaxTries,
    Model,
    Patience,
    PolicyName,
    PricesFile,
    Processes,
    RayAddress,
    RequestRate,
    RequestTimeout,
    Retries,
    Samples,
    Seed,
    Stream,
    Temperature,
    TopK,
    TopP,
    Track,
    TrackProject,
    Turns,
    parse_settings,
)

if TYPE_CHECKING:
    from pathlib import Path

    from trajgym.cli._collect import CollectOptions

__all__ = ["SharedOptions"]


@dataclass(frozen=True, kw_only=True)
class SharedOptions:
    """The options of `collect` and `eval` for environments, models and budgets.

    The order of the fields is that of the options in ``--help``.
    """

    env: EnvId = "swe"
    policy: PolicyName = "scripted"
    agent: AgentName = None
    agent_command: AgentCommand = None
    agent_set: AgentSettings = None
    engine: Engine = None
    logprobs: LogprobMode = "unknown"
    samples: Samples = 8
    concurrency: Concurrency = 16
    processes: Processes = None
    ray: RayAddress = None
    turns: Turns = None
    retries: Retries = 0
    seed: Seed = 0
    base_url: BaseUrl = None
    model: Model = None
    api_key_env: ApiKeyEnv = None
    api_key_file: ApiKeyFile = None
    temperature: Temperature = 1.0
    top_p: TopP = None
    top_k: TopK = None
    max_tokens: MaxTokens = None
    extra_body: ExtraBody = None
    stream: Stream = None
    keep_failed: KeepFailed = False
    max_tries: MaxTries = 10
    allow_changes: AllowChanges = ""
    patience: Patience = 900.0
    request_timeout: RequestTimeout = 600.0
    request_rate: RequestRate = None
    context_tokens: ContextTokens = None
    config: EnvConfig = None
    prices: PricesFile = None
    max_cost: MaxCost = None
    track: Track = None
    track_project: TrackProject = "trajgym"
    config_file: ConfigFile = None

    def collection(
        self, out: Path, *, tasks: str | None, mix: Path | None = None
    ) -> CollectOptions:
        """Return the options of a collection into the directory ``out``.

        Raises:
            typer.BadParameter: a setting is not KEY=VALUE.
        """
        from trajgym.cli._agents import AgentOptions
        from trajgym.cli._collect import CollectOptions
        from trajgym.cli._endpoint import EndpointOptions

        given = vars(self)
        same = {
            field.name: given[field.name] for field in fields(CollectOptions) if field.name in given
        }
        return CollectOptions(
            **same
            | {
                "out": out,
                "tasks": tasks or "",
                "mix": mix,
                "config": parse_settings(self.config),
                "endpoint": EndpointOptions.of(given),
                "program": AgentOptions.of(given, parse_settings(self.agent_set)),
                "allow_changes": tuple(filter(None, self.allow_changes.split(","))),
            }
        )
