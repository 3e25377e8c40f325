"""What Inspect's logs hold."""

from __future__ import annotations

from trajgym.adapters.interchange._features import FEATURES
from trajgym.adapters.interchange._format import Format
from trajgym.adapters.interchange.formats.inspect._read import read_inspect

__all__ = ["FORMAT"]

FORMAT = Format(
    name="inspect",
    about="Inspect's logs (.eval and .json)",
    files=("*.eval",),
    read=read_inspect,
    holds=frozenset(FEATURES)
    - {
        "token ids", "log-probs", "policy versions", "token spans", "native parts", "forks",
        "rewrites", "sub-agents", "group",
    },
    drops={
        "log": "plan, results and configuration of the evaluation",
        "events": "events other than calls of the model (tools, sandboxes, spans)",
        "store": "the sample's store",
        "retries": "errors of earlier tries",
        "scores": "scores that are not a number, a truth value or a letter C, I, P, N",
        "log-probs": "log-probs of tokens that are given as text: no ids, so no exact turns",
        "tool errors": "the type of a tool's error; its message is the result",
        "metadata": "metadata of messages",
        "other media": "audio, video, documents and data become a mark in the text",
    },
    note=(
        "The first score that is a number is the outcome; all are in its details. What a log has "
        "no field for is in `metadata.trajgym`. Logs compressed with Zstandard need the extra "
        "`inspect`; an export uses Deflate."
    ),
)  # fmt: skip
