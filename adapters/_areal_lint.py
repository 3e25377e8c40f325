"""Settings with which AReaL 1.0 trains on the wrong thing, or stands still, in silence."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any

from trajgym.adapters._lint import LintFinding, Settings

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

__all__ = ["lint_areal"]

_DEFAULTS: dict[str, Any] = {
    "actor.kl_ctl": 0.1,
    "actor.discount": 1.0,
    "actor.gae_lambda": 1.0,
    "actor.reward_bias": 0.0,
    "actor.attn_impl": "flash_attention_2",
    "actor.prox_logp_method": "recompute",
    "actor.temperature": 1.0,
    "gconfig.n_samples": 1,
    "gconfig.temperature": 1.0,
    "gconfig.top_p": 1.0,
    "gconfig.top_k": 0,
    "gconfig.frequency_penalty": 0.0,
    "rollout.consumer_batch_size": 1,
    "rollout.max_head_offpolicyness": 0,
    "rollout.agent.export_style": "individual",
    "trajgym.expected_hung": 1,
}
_LITELLM = (1, 84)
"""From here on it lacks a module that AReaL's proxy imports."""


def lint_areal(config: Mapping[str, Any], data: Sequence[Path]) -> list[LintFinding]:
    """See :class:`trajgym.adapters.Linter`. AReaL reads no file of ours: ``data`` is not looked at.

    What the file leaves out counts with AReaL's default. ``trajgym.expected_hung``, laid over the
    file, says how many episodes may hang for ever: 0 for workflows with deadlines.
    """
    del data
    read = Settings(config, _DEFAULTS)
    checks = (_rewards, _values, _norms, _loss, _sampling, _hangs, _agent)
    return [finding for check in checks for finding in check(read)]


def _rewards(config: Settings) -> Iterator[LintFinding]:
    kl = config.get("actor.kl_ctl")
    if kl and config.get("ref") is None:
        yield LintFinding(
            "kl-without-ref",
            "actor.kl_ctl",
            f"is {kl} and there is no ref: every token earns {kl} times its -log p",
            "write actor.kl_ctl: 0.0, or give a ref model",
        )
    for key in ("reward_bias", "mask_no_eos_with_zero", "overlong_reward_penalty"):
        if value := config.get(f"actor.{key}"):
            yield LintFinding(
                "bent-reward",
                f"actor.{key}",
                f"is {value!r}: it changes the reward of whole rows, on top of what was derived",
                f"leave actor.{key} out; shape rewards with a deriver",
            )


def _values(config: Settings) -> Iterator[LintFinding]:
    for key in ("gae_lambda", "discount"):
        if (value := config.get(f"actor.{key}")) != 1:
            yield LintFinding(
                "values-need-one",
                f"actor.{key}",
                f"is {value}: advantages handed over through `values` come out as others",
                f"write actor.{key}: 1.0; discount in the deriver",
            )
    if config.get("critic") is not None:
        yield LintFinding(
            "values-overwritten",
            "critic",
            "a critic writes `values`, where the derived advantages are",
            "leave critic out, or hand over scalar rewards (dense=False)",
        )


def _norms(config: Settings) -> Iterator[LintFinding]:
    if config.get("actor.adv_norm") is not None:
        yield LintFinding(
            "normalised-twice",
            "actor.adv_norm",
            "advantages that a deriver has made relative to their group are normalised again",
            "write actor.adv_norm: null",
        )
    norm = config.get("actor.reward_norm") or {}
    if "group" in (norm.get("mean_level"), norm.get("std_level")):
        yield LintFinding(
            "group-of-rows",
            "actor.reward_norm",
            "takes every group_size rows as a group; ours differ in rows, and the rest of the "
            "batch is divided by 1e-5",
            "write actor.reward_norm: null and use a group-relative deriver",
        )


def _loss(config: Settings) -> Iterator[LintFinding]:
    decoupled = config.get("actor.use_decoupled_loss")
    if decoupled and config.get("actor.rejection_sampling") is None:
        yield LintFinding(
            "no-behaviour-weight",
            "actor.rejection_sampling",
            "is null: the decoupled loss then leaves out the weight of the behaviour policy",
            "write {level: token, action: mask, metric: ratio, upper: 5.0}",
        )
    if decoupled and config.get("actor.prox_logp_method") == "loglinear":
        yield LintFinding(
            "versions-unshifted",
            "actor.prox_logp_method",
            "loglinear reads versions one token off: a turn's first token counts as version -1",
            "write actor.prox_logp_method: recompute",
        )
    if (kind := config.get("actor.attn_impl")) in {"sdpa", "eager"}:
        yield LintFinding(
            "packed-attention",
            "actor.attn_impl",
            f"with {kind}, the sequences that AReaL packs into a micro-batch see each other",
            "use flash attention; without it, actor.mb_spec.max_tokens_per_mb below two sequences",
        )


def _sampling(config: Settings) -> Iterator[LintFinding]:
    if (samples := config.get("gconfig.n_samples")) != 1:
        yield LintFinding(
            "grouped-groups",
            "gconfig.n_samples",
            f"is {samples}: AReaL runs every episode that often, and each is a group already",
            "write gconfig.n_samples: 1, and samples in the workflow's arguments",
        )
    trained, sampled = config.get("actor.temperature"), config.get("gconfig.temperature")
    if trained != sampled:
        yield LintFinding(
            "temperatures-differ",
            "actor.temperature",
            f"is {trained} and gconfig.temperature {sampled}: ratios are of two distributions",
            "write the same, here and in the workflow's gconfig",
        )
    plain = {"greedy": (None, False), "stop": (None, []), "top_p": (1,), "frequency_penalty": (0,)}
    for key, allowed in plain.items():
        if (value := config.get(f"gconfig.{key}")) not in allowed:
            yield _bent(key, value)
    if 0 < (top := config.get("gconfig.top_k")) < 1_000_000:
        yield _bent("top_k", top)


def _bent(key: str, value: Any) -> LintFinding:
    return LintFinding(
        "bent-distribution",
        f"gconfig.{key}",
        f"is {value!r}: the loss assumes samples of the whole distribution, up to a stop id",
        f"leave gconfig.{key} out",
    )


def _hangs(config: Settings) -> Iterator[LintFinding]:
    ahead = config.get("rollout.max_head_offpolicyness")
    room = ahead * config.get("rollout.consumer_batch_size")
    hung = config.get("trajgym.expected_hung")
    if hung > room:
        yield LintFinding(
            "hung-episodes",
            "rollout.max_head_offpolicyness",
            f"leaves room for {room} episodes that never end, and {hung} are expected: AReaL has "
            "no deadline for them, and then waits for ever",
            "raise it, or use a workflow with deadlines (TrajgymWorkflow, ExternalAgent) and say "
            "trajgym.expected_hung=0",
        )


def _agent(config: Settings) -> Iterator[LintFinding]:
    if config.get("rollout.agent") is None:
        return
    if config.get("rollout.agent.export_style") == "concat":
        yield LintFinding(
            "rewards-dropped",
            "rollout.agent.export_style",
            "concat keeps the last completion's reward only",
            "write rollout.agent.export_style: individual",
        )
    try:
        found = version("litellm")
    except PackageNotFoundError:
        return
    if tuple(int(part) for part in found.split(".")[:2]) >= _LITELLM:
        yield LintFinding(
            "litellm",
            "rollout.agent",
            f"litellm {found} is installed, with which AReaL's proxy does not start",
            "run: pip install 'litellm[proxy]==1.83.7'",
        )
