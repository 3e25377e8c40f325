"""What files of verifiers hold."""

from __future__ import annotations

from trajgym.adapters.interchange._features import FEATURES
from trajgym.adapters.interchange._format import Format
from trajgym.adapters.interchange.formats.verifiers._read import read_verifiers

__all__ = ["FORMAT"]

FORMAT = Format(
    name="verifiers",
    about="verifiers' evaluations: traces.jsonl (0.4) and results.jsonl (to 0.3)",
    files=("traces.jsonl", "results.jsonl"),
    read=read_verifiers,
    holds=frozenset(FEATURES) - {"forks", "native parts", "group"},
    drops={
        "agent": "configuration and runtime of the agent",
        "bounds": "seconds spent in setup, finalization and scoring",
        "empty episodes": "episodes without a sampled message",
        "episode": "fields of an episode besides traces, group, environment and policy versions",
        "interceptions": "names of handlers that rewrote requests and responses",
        "metadata": "custom metadata of a trace or a rollout",
        "other calls": "calls of the model that made no message, and usage of judges",
        "other fields": "fields of a rollout that the environment added",
        "policy versions": "version 0 is recorded for ids of episodes that state none",
        "provider state": "a provider's own items, namespaces of tools and custom tools",
        "semantic links": "links between turns besides calls and returns of sub-agents",
        "token streams": "advantages, log-probs of other models, weights and content marks of ids",
    },
    note=(
        "An export writes episodes of one trace, with their ids on the sampled messages; what a "
        "trace has no field for is in `info.trajgym`. Branches are read as rewrites of the "
        "context, or as sub-agents if a link says so. verifiers rounds log-probs to four "
        "decimals in its files; an export does not. The weighted sum of the rewards is the score. "
        "Rollouts of earlier versions have no ids; metadata.json beside them gives environment "
        "and model."
    ),
)
