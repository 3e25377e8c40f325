"""Checks of verl's configuration."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from trajgym.adapters._lint import LintFinding, Settings, read_yaml
from trajgym.adapters.verl._denominators import aggregation_of, scales
from trajgym.adapters.verl._settings import COLUMN, read_settings
from trajgym.rewards import compares_sessions
from trajgym.trajectory import InvalidInput

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

__all__ = ["Config", "own_loops", "rl_findings", "sft_findings"]

_ROLLOUT = "actor_rollout_ref.rollout"
_DEFAULTS: dict[str, Any] = {
    f"{_ROLLOUT}.n": 1,
    f"{_ROLLOUT}.top_p": 1,
    f"{_ROLLOUT}.top_k": -1,
    f"{_ROLLOUT}.temperature": 1,
    "actor_rollout_ref.actor.loss_agg_mode": "token-mean",
    "actor_rollout_ref.actor.policy_loss.loss_mode": "vanilla",
    f"{_ROLLOUT}.calculate_log_probs": True,
    f"{_ROLLOUT}.logprobs_mode": "processed_logprobs",
    f"{_ROLLOUT}.agent.default_agent_loop": "single_turn_agent",
    f"{_ROLLOUT}.agent.num_workers": 8,
    f"{_ROLLOUT}.multi_turn.max_tool_response_length": 256,
    f"{_ROLLOUT}.multi_turn.max_parallel_calls": 1,
    "actor_rollout_ref.actor.ppo_mini_batch_size": 256,
    "algorithm.adv_estimator": "gae",
    "algorithm.use_kl_in_reward": False,
    "data.train_batch_size": 1024,
    "data.truncation": "error",
    "data.pad_mode": "no_padding",
    "data.max_prompt_length": 512,
    "data.max_response_length": 512,
    "trainer.use_v1": True,
    "trainer.v1.trainer_mode": "sync",
    "trainer.v1.sampler.sync_refill_failed_groups": False,
}
_BY_POSITION = {"gae", "reinforce_plus_plus", "remax"}
"""Estimators for which the position of a reward in its row matters."""
_BY_SEQUENCE = {"geo_mean", "gspo"}
"""Policy losses with one ratio for each row."""
_BY_ATTEMPT = {"grpo", "grpo_roc", "rloo"}
"""Derivers that give 0 if the attempts of a group have equal outcomes."""
_BY_GROUP = {
    "gdpo",
    "gpg",
    "grpo",
    "grpo_passk",
    "grpo_vectorized",
    "opo",
    "reinforce_plus_plus_baseline",
    "rloo",
    "rloo_vectorized",
}
"""Estimators that compare the sums of rewards of the rollouts of a prompt."""


class Config(Settings):
    """verl's configuration."""

    def __init__(self, given: Mapping[str, Any]) -> None:
        super().__init__(given, _DEFAULTS)

    def number(self, key: str) -> float | None:
        """Return a number, or None for anything else, such as an interpolation."""
        found = self.get(key)
        is_number = isinstance(found, int | float) and not isinstance(found, bool)
        return found if is_number else None

    @property
    def section(self) -> dict[str, Any]:
        """The section ``trajgym``."""
        found = self.get(COLUMN)
        return found if isinstance(found, dict) else {}

    @property
    def mode(self) -> str:
        """The trainer's mode."""
        return str(self.get("trainer.v1.trainer_mode"))

    @property
    def lists(self) -> bool:
        """Whether a rollout may return several rows."""
        return bool(self.get("trainer.use_v1")) and self.get("async_training") is None


def rl_findings(config: Config, names: set[str], *, has_data: bool) -> Iterator[LintFinding]:
    """Yield the findings of a configuration for reinforcement learning.

    Args:
        config: the configuration.
        names: agent loops that the data uses.
        has_data: whether data files were read.
    """
    default = str(config.get(f"{_ROLLOUT}.agent.default_agent_loop"))
    if not has_data:
        names = {default}
    yield from _agent_loop(config, default, names)
    ours = COLUMN in names or bool(config.section)
    for check in _CHECKS:
        yield from check(config)
    if ours:
        yield from _section(config)
    else:
        yield from _lost_reward(config)
    if "tool_agent" in names:
        yield from _tool_agent(config)


def _agent_loop(config: Config, default: str, names: set[str]) -> Iterator[LintFinding]:
    key = f"{_ROLLOUT}.agent.default_agent_loop"
    if default == "single_turn_agent" and (default in names or not names):
        yield LintFinding(
            "single-turn",
            key,
            "rows without agent_name are run by verl's single-turn loop, which has no tools",
            f"set agent_name to {COLUMN!r} in the data (write_prompts does), or set {key}",
        )
    if COLUMN in own_loops(config):
        yield LintFinding(
            "registered-twice",
            f"{_ROLLOUT}.agent.agent_loop_config_path",
            f"the entry {COLUMN!r} has the name that the plug-in registers: from the second "
            "rollout on, this entry's settings are ignored",
            "give the entry another name, and use it as agent_name",
        )


def own_loops(config: Config) -> set[str]:
    """Return the names of the agent loops in the configuration's ``agent_loop_config_path``."""
    path = config.get(f"{_ROLLOUT}.agent.agent_loop_config_path")
    try:
        found = read_yaml(Path(str(path))) if path else []
    except InvalidInput:
        return set()
    entries = found if isinstance(found, list) else []
    return {str(entry.get("name")) for entry in entries if isinstance(entry, dict)}


def _logprobs(config: Config) -> Iterator[LintFinding]:
    if not config.get(f"{_ROLLOUT}.calculate_log_probs"):
        yield LintFinding(
            "no-logprobs",
            f"{_ROLLOUT}.calculate_log_probs",
            "the servers return no log-probs: the trainer can't correct for stale weights, and "
            "the loop 'trajgym' returns no rows",
            "set it to True",
        )
    name = config.get(f"{_ROLLOUT}.name") or "vllm"
    for key in (f"{_ROLLOUT}.logprobs_mode", f"{_ROLLOUT}.engine_kwargs.{name}.logprobs_mode"):
        mode = str(config.get(key) or "processed_logprobs")
        if mode != "processed_logprobs":
            what = "logits" if mode.endswith("logits") else "log-probs before temperature"
            yield LintFinding(
                "raw-logprobs",
                key,
                f"is {mode}, {what}: the ratio in the loss is wrong",
                "set it to processed_logprobs",
            )


def _distribution(config: Config) -> Iterator[LintFinding]:
    top_p, top_k = config.number(f"{_ROLLOUT}.top_p"), config.number(f"{_ROLLOUT}.top_k")
    if top_p not in {None, 1} or top_k not in {None, -1, 0}:
        yield LintFinding(
            "cut-distribution",
            f"{_ROLLOUT}.top_p",
            f"top_p={top_p}, top_k={top_k} cut the distribution, but the trainer computes "
            "log-probs over the whole vocabulary: the ratio in the loss is wrong",
            "train with top_p=1 and top_k=-1; val_kwargs may differ",
        )


def _temperature(config: Config) -> Iterator[LintFinding]:
    if config.number(f"{_ROLLOUT}.temperature") == 0:
        yield LintFinding(
            "no-temperature",
            f"{_ROLLOUT}.temperature",
            "is 0: all sessions of a group are the same, and log-probs are not those of sampling",
            "set it above 0; val_kwargs.temperature may be 0",
        )
    if config.number(f"{_ROLLOUT}.repetition_penalty") not in {None, 1}:
        yield LintFinding(
            "cut-distribution",
            f"{_ROLLOUT}.repetition_penalty",
            "is not 1: verl 0.9.1 samples without it, and if it were used, the ratio in the loss "
            "would be wrong",
            "leave it at 1",
        )
    if config.get(f"{_ROLLOUT}.ignore_eos"):
        yield LintFinding(
            "eos-ignored",
            f"{_ROLLOUT}.ignore_eos",
            "is True: SGLang ignores the stop ids as well, so that turns don't end",
            "leave it at False",
        )


def _aggregation(config: Config) -> Iterator[LintFinding]:
    loss = str(config.get("actor_rollout_ref.actor.policy_loss.loss_mode"))
    mode = aggregation_of(loss, str(config.get("actor_rollout_ref.actor.loss_agg_mode")))
    ours = config.mode.startswith(f"{COLUMN}_")
    if loss in _BY_SEQUENCE:
        yield LintFinding(
            "ratio-of-rows",
            "actor_rollout_ref.actor.policy_loss.loss_mode",
            f"is {loss}: one ratio for each row, but a session has several rows if its context "
            "was rewritten or it was forked",
            "set it to vanilla, or to another loss with a ratio for each token",
        )
    elif mode.startswith("seq-mean") and ours and not scales(loss):
        yield LintFinding(
            "rows-averaged",
            "actor_rollout_ref.actor.policy_loss.loss_mode",
            f"is {loss}, which can't be weighted by row: with {mode} a session with several rows "
            "counts several times",
            "set loss_agg_mode to token-mean",
        )
    if mode.startswith("seq-mean") and not ours:
        yield LintFinding(
            "rows-averaged",
            "actor_rollout_ref.actor.loss_agg_mode",
            f"{mode} is a mean over rows, including padding: a session with several rows counts "
            "several times",
            "use a trainer trajgym_*, which weights rows so that each session counts once, or "
            "token-mean; for a replay, pass loss_agg_mode to write_replay",
        )


def _group_of_one(config: Config) -> Iterator[LintFinding]:
    given = config.section.get("deriver")
    if config.get(f"{_ROLLOUT}.n") != 1 or not given or config.section.get("expansion"):
        return
    try:
        section = {k: v for k, v in config.section.items() if k != "trainer"}
        deriver = read_settings({**section, "trainer": config.mode}, {}).group_deriver()
    except InvalidInput:
        return  # reported by the check of the section
    if deriver is not None and compares_sessions(deriver):
        yield LintFinding(
            "singleton-groups",
            f"{_ROLLOUT}.n",
            f"is 1, but {deriver.name} compares the sessions of a group: all advantages are 0",
            "set n to 4 or more, or expand each session into a tree with trajgym.expansion",
        )


def _staleness(config: Config) -> Iterator[LintFinding]:
    key = "algorithm.rollout_correction"
    if not config.mode.endswith("_async"):
        return
    if not (config.get(f"{key}.rollout_is") or config.get(f"{key}.bypass_mode")):
        yield LintFinding(
            "stale-uncorrected",
            f"{key}.rollout_is",
            f"is not set, but {config.mode} trains on sessions of older weights: old log-probs are "
            "recomputed with the current weights",
            f"set {key}.rollout_is to token",
        )


def _groups(config: Config) -> Iterator[LintFinding]:
    estimator = str(config.get("algorithm.adv_estimator"))
    n = config.get(f"{_ROLLOUT}.n")
    if estimator not in _BY_GROUP:
        return
    if n == 1:
        yield LintFinding(
            "singleton-groups",
            f"{_ROLLOUT}.n",
            f"is 1, but {estimator} compares rollouts of a prompt: with grpo the advantage is then "
            "the raw reward, with others 0",
            "set n to 4 or more",
        )
    elif config.mode == "sync" and not config.get("trainer.v1.sampler.sync_refill_failed_groups"):
        yield LintFinding(
            "groups-shrink",
            "trainer.v1.sampler.sync_refill_failed_groups",
            f"groups with failed rollouts are used with fewer members; with one member, the "
            f"advantage of {estimator} is the raw reward or 0",
            "set trainer.v1.trainer_mode to trajgym_sync with a deriver, where a group of one "
            "has advantages of 0 and metrics count groups that shrank; refilling needs "
            "gen_batch_size=1",
        )


def _trainer(config: Config) -> Iterator[LintFinding]:
    estimator, mode = str(config.get("algorithm.adv_estimator")), config.mode
    ours = mode.startswith(f"{COLUMN}_")
    if config.section.get("deriver") and not ours:
        yield LintFinding(
            "deriver-unused",
            "trainer.v1.trainer_mode",
            f"is {mode!r}, which ignores trajgym.deriver",
            f"set trainer.v1.trainer_mode to {COLUMN}_{mode}",
        )
    if ours and not config.section.get("deriver"):
        yield LintFinding(
            "deriver-missing",
            "trajgym.deriver",
            f"is not set, but the trainer {mode!r} takes its advantages from a deriver",
            "add +trajgym.deriver.name, such as gigpo",
        )
    if ours and estimator != COLUMN:
        yield LintFinding(
            "estimator-unused",
            "algorithm.adv_estimator",
            f"is {estimator!r}, but the trainer {mode!r} uses the deriver's advantages",
            f"set it to {COLUMN}",
        )
    if estimator == COLUMN and config.get("algorithm.use_kl_in_reward"):
        yield LintFinding(
            "kl-in-advantages",
            "algorithm.use_kl_in_reward",
            "the KL penalty is subtracted from rm_scores, which are advantages here",
            "set it to False and use actor.use_kl_loss",
        )


def _replaced(config: Config) -> Iterator[LintFinding]:
    if config.get("reward.reward_model.enable"):
        yield LintFinding(
            "rewards-overwritten",
            "reward.reward_model.enable",
            "is True: a reward model's scores replace the rewards of turns in rm_scores, and a "
            "deriver does not read them",
            "set it to False; an annotator or the environment can call the model",
        )
    filtered = config.get("algorithm.filter_groups")
    deriver = config.section.get("deriver")
    names = {one.get("name") for one in ([deriver] if isinstance(deriver, dict) else deriver or ())}
    if isinstance(filtered, dict) and filtered.get("enable") and names - _BY_ATTEMPT:
        yield LintFinding(
            "groups-filtered",
            "algorithm.filter_groups",
            "leaves out groups whose sessions have equal totals, although the deriver gives their "
            "turns different advantages",
            "set algorithm.filter_groups.enable to False",
        )


def _correction(config: Config) -> Iterator[LintFinding]:
    key = "algorithm.rollout_correction"
    level, bypass = config.get(f"{key}.rollout_is"), config.get(f"{key}.bypass_mode")
    if level == "sequence":
        yield LintFinding(
            "sequence-weights",
            f"{key}.rollout_is",
            "the weight of a sequence is a product over its tokens: on long sessions it vanishes, "
            "and so does the gradient",
            "set it to token",
        )
    if config.get("skip.rollout_tq.enable") and not (level or bypass):
        yield LintFinding(
            "replay-uncorrected",
            f"{key}.bypass_mode",
            "replayed rows have the current step as their version, so none is dropped as stale, "
            "and old log-probs are recomputed with the current weights",
            f"set {key}.bypass_mode to True",
        )


def _rows(config: Config) -> Iterator[LintFinding]:
    outputs = config.section.get("outputs", "all")
    if config.section and outputs == "all" and not config.lists:
        yield LintFinding(
            "one-row",
            "trajgym.outputs",
            "is 'all', but this trainer takes one row of a session: every session would fail",
            "set trajgym.outputs to main, or use trainer.use_v1",
        )
    limit = config.number(f"{_ROLLOUT}.max_model_len")
    prompt = config.number("data.max_prompt_length")
    response = config.number("data.max_response_length")
    if limit and prompt and response and limit < prompt + response:
        yield LintFinding(
            "short-context",
            f"{_ROLLOUT}.max_model_len",
            f"the servers stop at {limit} ids, before max_prompt_length + max_response_length "
            f"({prompt + response}): sessions are truncated there",
            f"set it to {prompt + response} or more",
        )


def _batches(config: Config) -> Iterator[LintFinding]:
    batch = config.number("data.train_batch_size")
    workers = config.number(f"{_ROLLOUT}.agent.num_workers")
    mini = config.number("actor_rollout_ref.actor.ppo_mini_batch_size")
    if not config.get("trainer.use_v1"):
        if batch and workers and batch % workers:
            yield LintFinding(
                "v0-workers",
                f"{_ROLLOUT}.agent.num_workers",
                f"the V0 trainer can't split {batch} prompts over {workers} workers and fails",
                "choose a divisor of data.train_batch_size",
            )
    elif batch and mini and batch % mini:
        yield LintFinding(
            "padded-batch",
            "actor_rollout_ref.actor.ppo_mini_batch_size",
            f"a batch of {batch} prompts is padded with empty rows to a multiple of {mini}, and "
            "mini-batches are counted in rows: some are almost empty",
            "choose a divisor of data.train_batch_size",
        )


_CHECKS: tuple[Callable[[Config], Iterator[LintFinding]], ...] = (
    _logprobs,
    _distribution,
    _temperature,
    _groups,
    _group_of_one,
    _aggregation,
    _staleness,
    _trainer,
    _replaced,
    _correction,
    _rows,
    _batches,
)


def _section(config: Config) -> Iterator[LintFinding]:
    section = dict(config.section)
    estimator = str(config.get("algorithm.adv_estimator"))
    if config.mode.startswith(f"{COLUMN}_"):
        section["trainer"] = config.mode
    try:
        settings = read_settings(section, {})
        settings.reward_deriver()
        if settings.trainer:
            settings.group_deriver()
        settings.session_expansion()
    except InvalidInput as error:
        yield LintFinding("section", COLUMN, str(error), "see docs/verl.md for its keys")
        return
    if len(settings.rewards) > 1 and estimator in _BY_GROUP:
        yield LintFinding(
            "rewards-summed",
            "algorithm.adv_estimator",
            f"{estimator} sums all rewards of a row, whatever their positions",
            "use a trainer trajgym_* with a deriver, or an estimator that uses positions",
        )


def _lost_reward(config: Config) -> Iterator[LintFinding]:
    estimator = str(config.get("algorithm.adv_estimator"))
    if estimator in _BY_POSITION:
        yield LintFinding(
            "reward-on-observation",
            "algorithm.adv_estimator",
            f"verl puts a rollout's score on its last token; if that is an observation, "
            f"{estimator} ignores it and every advantage is 0",
            f"use the loop {COLUMN!r}, whose rows end on a sampled token",
        )


def _tool_agent(config: Config) -> Iterator[LintFinding]:
    if config.get(f"{_ROLLOUT}.multi_turn.max_tool_response_length") == 256:
        yield LintFinding(
            "tool-output-cut",
            f"{_ROLLOUT}.multi_turn.max_tool_response_length",
            "tool output is truncated to 256 characters (not tokens), in the middle",
            f"raise it, or use the loop {COLUMN!r}, where the environment's budgets apply",
        )
    if config.get(f"{_ROLLOUT}.multi_turn.max_parallel_calls") == 1:
        yield LintFinding(
            "calls-dropped",
            f"{_ROLLOUT}.multi_turn.max_parallel_calls",
            "only the first of several calls in a turn is executed, but the text of all is trained",
            f"raise it, or use the loop {COLUMN!r}, which answers every call",
        )


def sft_findings(config: Config) -> Iterator[LintFinding]:
    """Yield the findings of a configuration of the SFT trainer."""
    if config.get("data.truncation") == "right" and not config.get("data.custom_cls.path"):
        yield LintFinding(
            "cut-to-nothing",
            "data.truncation",
            "a conversation that is truncated before its first answer trains nothing",
            "set it to error and raise data.max_length, or use TokenDataset",
        )
    if config.get("data.ignore_input_ids_mismatch"):
        yield LintFinding(
            "rendered-apart",
            "data.ignore_input_ids_mismatch",
            "verl renders each message separately; where that differs from rendering the whole "
            "conversation, the model is trained on ids that it never sees in rollouts",
            "write ids with write_sft_tokens and use TokenDataset",
        )
