"""Settings with which TRL 1.16 silently trains something other than the rows and advantages."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from trajgym.adapters._lint import LintFinding, Settings

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

__all__ = ["lint_trl"]

_DEFAULTS: dict[str, Any] = {
    "gradient_accumulation_steps": 1,
    "importance_sampling_level": "token",
    "num_generations": 8,
    "repetition_penalty": 1.0,
    "temperature": 1.0,
    "top_entropy_quantile": 1.0,
    "top_k": 0,
    "top_p": 1.0,
    "vllm_importance_sampling_correction": True,
    "vllm_importance_sampling_mode": "sequence_mask",
}
_ASYNC = {"max_staleness", "token_budget", "max_inflight_tasks", "queue_maxsize"}
"""Settings that only ``AsyncGRPOConfig`` has."""
_PLAIN: dict[str, tuple[Any, ...]] = {
    "top_p": (1,),
    "top_k": (0, -1, None),
    "min_p": (None, 0),
    "repetition_penalty": (1,),
    "vllm_structured_outputs_regex": (None,),
}
_NOT_SAMPLING = {
    "cache_config",
    "cache_implementation",
    "compile_config",
    "detokenize",
    "disable_compile",
    "max_new_tokens",
    "max_time",
    "max_tokens",
    "pad_token_id",
    "seed",
    "skip_special_tokens",
    "use_cache",
}
"""Keys of ``generation_kwargs`` that leave the distribution as it is."""


def lint_trl(config: Mapping[str, Any], data: Sequence[Path]) -> list[LintFinding]:
    """See :class:`trajgym.adapters.Linter`. ``data`` is not used.

    The configuration has the arguments of ``GRPOConfig``, or of ``AsyncGRPOConfig`` if it contains
    an argument that only ``AsyncGRPOConfig`` has.
    """
    del data
    read = Settings(config, _DEFAULTS)
    checks = [_sampling, _groups]
    checks += [_micro_batches] if _ASYNC & set(config) else [_generation, _masks, _ratios]
    return [finding for check in checks for finding in check(read)]


def _sampling(config: Settings) -> Iterator[LintFinding]:
    if config.get("temperature") == 0:
        yield LintFinding(
            "no-temperature",
            "temperature",
            "is 0: a policy that is trained must sample, and the trainer divides by it",
            "set the temperature that the sessions are sampled with, such as 1.0",
        )
    for key, allowed in _PLAIN.items():
        if (value := config.get(key)) not in allowed:
            yield LintFinding(
                "cut-distribution",
                key,
                f"is {value}: the trainer computes log-probs over the whole distribution, and "
                "trajgym's sessions sample from all of it",
                f"leave {key} out",
            )


def _generation(config: Settings) -> Iterator[LintFinding]:
    given = config.get("generation_kwargs") or {}
    if isinstance(given, str):  # TRL takes JSON too
        try:
            given = json.loads(given)
        except ValueError:
            return  # TRL refuses it
    for key in sorted(set(given) - _NOT_SAMPLING):
        if given[key] not in _PLAIN.get(key, ()):
            yield LintFinding(
                "cut-distribution",
                "generation_kwargs",
                f"sets {key}, with which TRL samples in environment_factory, but the trainer "
                "computes log-probs over the whole distribution at args.temperature",
                f"leave {key} out",
            )


def _groups(config: Settings) -> Iterator[LintFinding]:
    if config.get("num_generations") == 1:
        yield LintFinding(
            "singleton-groups",
            "num_generations",
            "is 1: derivers that compare the sessions of a group give 0 everywhere",
            "set 4 or more, or use a deriver such as outcome_return",
        )


def _masks(config: Settings) -> Iterator[LintFinding]:
    if config.get("mask_truncated_completions"):
        yield LintFinding(
            "endings-masked",
            "mask_truncated_completions",
            "masks every row whose last id is not the tokenizer's EOS, for example after a tool "
            "call that ends with its own stop token: such sessions are not trained",
            "leave it out; truncated sessions are scored by the environment",
        )
    if (share := config.get("top_entropy_quantile")) != 1:
        yield LintFinding(
            "tokens-masked",
            "top_entropy_quantile",
            f"is {share}: all other tokens are masked, whatever their advantages",
            "leave it out",
        )


def _ratios(config: Settings) -> Iterator[LintFinding]:
    if config.get("importance_sampling_level") == "sequence":
        yield LintFinding(
            "ratio-of-rows",
            "importance_sampling_level",
            "is sequence: with one ratio for each row, all of its tokens are trained with the mean "
            "of its advantages, and StepGRPOTrainer refuses rows with several",
            "leave it at token, or use a deriver with one advantage for each attempt",
        )
    if not config.get("use_vllm"):
        return
    mode = str(config.get("vllm_importance_sampling_mode"))
    if not config.get("vllm_importance_sampling_correction"):
        yield LintFinding(
            "behaviour-unused",
            "vllm_importance_sampling_correction",
            "is False with use_vllm: the recorded log-probs are not used, and every ratio is 1",
            "leave it at True",
        )
    elif mode.startswith("sequence"):
        yield LintFinding(
            "sequence-weights",
            "vllm_importance_sampling_mode",
            f"is {mode} (TRL's default is sequence_mask) with use_vllm: the weight of a session is "
            "a product over its tokens, which leaves the bounds in long sessions, so that they are "
            "masked or weighted by the bound",
            "set it to token_truncate",
        )


def _micro_batches(config: Settings) -> Iterator[LintFinding]:
    budget = config.get("token_budget")
    steps = config.get("gradient_accumulation_steps")
    if budget is not None and budget <= 0 and steps > 1:
        yield LintFinding(
            "micro-batches-averaged",
            "token_budget",
            f"is {budget}: each of {steps} micro-batches is a mean over its own tokens, so a token "
            "weighs more in a micro-batch with few tokens",
            "leave token_budget out: batches are then cut by tokens",
        )
