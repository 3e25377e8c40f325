"""Settings with which AReaL 1.0 silently trains something else, or stops making progress."""

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
    "actor.reward_scaling": 1.0,
    "actor.reward_clip": 20.0,
    "actor.importance_sampling_level": "token",
    "actor.attn_impl": "flash_attention_2",
    "actor.prox_logp_method": "recompute",
    "actor.temperature": 1.0,
    "gconfig.n_samples": 1,
    "gconfig.temperature": 1.0,
    "gconfig.top_p": 1.0,
    "gconfig.top_k": 0,
    "gconfig.frequency_penalty": 0.0,
    "gconfig.min_new_tokens": 0,
    "rollout.consumer_batch_size": 1,
    "rollout.max_head_offpolicyness": 0,
    "rollout.agent.export_style": "individual",
    "trajgym.expected_hung": 1,
}
_PLAIN: dict[str, tuple[Any, ...]] = {
    "frequency_penalty": (0,),
    "greedy": (None, False),
    "ignore_eos": (None, False),
    "min_new_tokens": (0,),
    "stop": (None, []),
    "top_p": (1,),
    "use_beam_search": (None, False),
}
"""Values of ``gconfig`` with which a response is sampled from the whole distribution."""
_NO_CLIP = 20.0
"""AReaL's default bound of rewards."""
_LITELLM = (1, 84)
"""From this version on, a module that AReaL's proxy imports is missing."""


class _Config(Settings):
    """AReaL's configuration; interpolations such as ``${...}`` count as missing."""

    def get(self, key: str) -> Any:
        found = super().get(key)
        later = isinstance(found, str) and "${" in found
        return self.defaults.get(key) if later else found


def lint_areal(config: Mapping[str, Any], data: Sequence[Path]) -> list[LintFinding]:
    """See :class:`trajgym.adapters.Linter`. ``data`` is not used.

    Missing keys have AReaL's default. The override ``trajgym.expected_hung`` is the number of
    episodes that may hang: 0 for workflows with deadlines.
    """
    del data
    read = _Config(config, _DEFAULTS)
    checks = (_rewards, _values, _norms, _loss, _sampling, _hangs, _agent)
    return [finding for check in checks for finding in check(read)]


def _rewards(config: Settings) -> Iterator[LintFinding]:
    kl = config.get("actor.kl_ctl")
    if kl and config.get("ref") is None:
        yield LintFinding(
            "kl-without-ref",
            "actor.kl_ctl",
            f"is {kl} without a ref model: every token has a further reward of {kl} times -log p",
            "set actor.kl_ctl: 0.0, or configure a ref model",
        )
    elif kl:
        yield LintFinding(
            "kl-in-advantages",
            "actor.kl_ctl",
            f"is {kl} with a ref model: the KL penalties of all later tokens of a row are added to "
            "a token's derived advantage",
            "set actor.kl_ctl: 0.0",
        )
    for key in ("reward_bias", "mask_no_eos_with_zero", "overlong_reward_penalty"):
        if value := config.get(f"actor.{key}"):
            yield LintFinding(
                "bent-reward",
                f"actor.{key}",
                f"is {value!r}: it changes the derived rewards of whole rows",
                f"leave actor.{key} out; shape rewards with a deriver",
            )
    scaling, clip = config.get("actor.reward_scaling"), config.get("actor.reward_clip")
    if scaling != 1:
        yield LintFinding(
            "reward-reshaped",
            "actor.reward_scaling",
            f"is {scaling}: it multiplies the reward at a row's end, but not the rewards before "
            "it, which dense rows pass as values",
            "set actor.reward_scaling: 1.0; scale with a deriver's weight",
        )
    if clip < _NO_CLIP:
        yield LintFinding(
            "reward-reshaped",
            "actor.reward_clip",
            f"is {clip}: it clips the reward at a row's end, but not the values before it",
            f"leave it out ({_NO_CLIP:g}); bound rewards in the environment or the deriver",
        )
    if "batch" in _reward_norms(config):
        yield LintFinding(
            "reward-reshaped",
            "actor.reward_norm",
            "normalises the rewards of rows over the batch, but a session may have several rows, "
            "and dense rows pass most of their rewards as values",
            "set actor.reward_norm: null and use a deriver of advantages",
        )


def _values(config: Settings) -> Iterator[LintFinding]:
    for key in ("gae_lambda", "discount"):
        if (value := config.get(f"actor.{key}")) != 1:
            yield LintFinding(
                "values-need-one",
                f"actor.{key}",
                f"is {value}: advantages that are passed as `values` are changed",
                f"set actor.{key}: 1.0; discount in the deriver",
            )
    if config.get("critic") is not None:
        yield LintFinding(
            "values-overwritten",
            "critic",
            "a critic overwrites `values`, which hold the derived advantages",
            "remove critic, or pass scalar rewards (dense=False)",
        )


def _norms(config: Settings) -> Iterator[LintFinding]:
    if config.get("actor.adv_norm") is not None:
        yield LintFinding(
            "normalised-twice",
            "actor.adv_norm",
            "advantages that a deriver has normalised by group are normalised again",
            "set actor.adv_norm: null",
        )
    if "group" in _reward_norms(config):
        yield LintFinding(
            "group-of-rows",
            "actor.reward_norm",
            "takes each group_size consecutive rows as a group, but groups vary in rows; "
            "a group of one row is divided by 1e-5",
            "set actor.reward_norm: null and use a group-relative deriver",
        )


def _reward_norms(config: Settings) -> set[str | None]:
    """Return the levels at which rewards are normalised; AReaL's default of both is ``batch``."""
    norm = config.get("actor.reward_norm")
    if not isinstance(norm, dict):
        return set()
    return {norm.get("mean_level", "batch"), norm.get("std_level", "batch")}


def _loss(config: Settings) -> Iterator[LintFinding]:
    decoupled = config.get("actor.use_decoupled_loss")
    if decoupled and config.get("actor.rejection_sampling") is None:
        yield LintFinding(
            "no-behaviour-weight",
            "actor.rejection_sampling",
            "is null: the decoupled loss then lacks the importance weight of the behaviour policy",
            "set {level: token, action: mask, metric: ratio, upper: 5.0}",
        )
    if decoupled and config.get("actor.prox_logp_method") == "loglinear":
        yield LintFinding(
            "versions-unshifted",
            "actor.prox_logp_method",
            "is loglinear, which reads versions shifted by one token: a turn's first token has -1",
            "set actor.prox_logp_method: recompute",
        )
    if not decoupled and config.get("actor.recompute_logprob"):
        yield LintFinding(
            "behaviour-replaced",
            "actor.recompute_logprob",
            "is true without use_decoupled_loss: recorded log-probs are replaced by those of the "
            "current weights, so that the ratio of stale sessions is 1",
            "set actor.recompute_logprob: false, or use the decoupled loss",
        )
    if config.get("actor.importance_sampling_level") == "sequence":
        yield LintFinding(
            "ratio-of-rows",
            "actor.importance_sampling_level",
            "is sequence: one ratio for each row, but a session has several rows if its context "
            "was rewritten or it was forked",
            "set actor.importance_sampling_level: token",
        )
    if (kind := config.get("actor.attn_impl")) in {"sdpa", "eager"}:
        yield LintFinding(
            "packed-attention",
            "actor.attn_impl",
            f"is {kind}: sequences that AReaL packs into one micro-batch attend to each other",
            "use flash attention; without it, set actor.mb_spec.n_mbs to the number of rows of an "
            "update, so that each micro-batch holds one",
        )


def _sampling(config: Settings) -> Iterator[LintFinding]:
    if (samples := config.get("gconfig.n_samples")) != 1:
        yield LintFinding(
            "grouped-groups",
            "gconfig.n_samples",
            f"is {samples}: AReaL runs every episode that many times, but each is already a group",
            "set gconfig.n_samples: 1, and pass samples to the workflow",
        )
    trained, sampled = config.get("actor.temperature"), config.get("gconfig.temperature")
    if trained != sampled:
        yield LintFinding(
            "temperatures-differ",
            "actor.temperature",
            f"is {trained}, but gconfig.temperature is {sampled}: ratios are wrong",
            "set both alike; workflow_kwargs(config) passes gconfig to the workflow",
        )
    own = config.get("trajgym.gconfig.temperature")
    if own is not None and own != trained:
        yield LintFinding(
            "temperatures-differ",
            "trajgym.gconfig.temperature",
            f"is {own}, with which the workflow samples, but actor.temperature is {trained}",
            "make the workflow's arguments with workflow_kwargs(config), which uses config.gconfig",
        )
    if not sampled > 0:
        yield _bent("temperature", sampled)
    for key, allowed in _PLAIN.items():
        if (value := config.get(f"gconfig.{key}")) not in allowed:
            yield _bent(key, value)
    if 0 < (top := config.get("gconfig.top_k")) < 1_000_000:
        yield _bent("top_k", top)


def _bent(key: str, value: Any) -> LintFinding:
    return LintFinding(
        "bent-distribution",
        f"gconfig.{key}",
        f"is {value!r}: the loss assumes sampling from the whole distribution, up to a stop id",
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
            f"allows {room} episodes that hang, but {hung} are expected: AReaL has no deadline for "
            "episodes and would then wait endlessly",
            "raise it, or use a workflow with deadlines (TrajgymWorkflow, ExternalAgent) and set "
            "trajgym.expected_hung=0",
        )


def _agent(config: Settings) -> Iterator[LintFinding]:
    if config.get("rollout.agent") is None:
        return
    if config.get("rollout.agent.export_style") == "concat":
        yield LintFinding(
            "rewards-dropped",
            "rollout.agent.export_style",
            "is concat, which keeps only the last completion's reward",
            "set rollout.agent.export_style: individual",
        )
    try:
        found = version("litellm")
    except PackageNotFoundError:
        return
    if tuple(int(part) for part in found.split(".")[:2]) >= _LITELLM:
        yield LintFinding(
            "litellm",
            "rollout.agent",
            f"AReaL's proxy does not start with the installed litellm {found}",
            "run: pip install 'litellm[proxy]==1.83.7'",
        )
