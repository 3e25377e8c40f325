"""Checks of verl's configuration."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from trajgym.adapters._lint import LintFinding, Settings, read_yaml
from trajgym.adapters._verl_settings import COLUMN, read_settings
from trajgym.trajectory import InvalidInput

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

__all__ = ["Config", "rl_findings", "sft_findings"]

_ROLLOUT = "actor_rollout_ref.rollout"
_DEFAULTS: dict[str, Any] = {
    f"{_ROLLOUT}.n": 1,
    f"{_ROLLOUT}.top_p": 1,
    f"{_ROLLOUT}.top_k": -1,
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
"""Estimators that read where in a row a reward stands."""
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
"""Estimators that compare the rollouts of a prompt, by their rewards' sums."""


class Config(Settings):
    """verl's configuration."""

    def __init__(self, given: Mapping[str, Any]) -> None:
        super().__init__(given, _DEFAULTS)

    def number(self, key: str) -> float | None:
        """Return a number, None for anything else: an interpolation, or nothing."""
        found = self.get(key)
        is_number = isinstance(found, int | float) and not isinstance(found, bool)
        return found if is_number else None

    @property
    def section(self) -> dict[str, Any]:
        """Our own section."""
        found = self.get(COLUMN)
        return found if isinstance(found, dict) else {}

    @property
    def mode(self) -> str:
        """The trainer's mode."""
        return str(self.get("trainer.v1.trainer_mode"))

    @property
    def lists(self) -> bool:
        """Whether a rollout may give several rows."""
        return bool(self.get("trainer.use_v1")) and self.get("async_training") is None


def rl_findings(config: Config, names: set[str], *, has_data: bool) -> Iterator[LintFinding]:
    """Yield what is wrong with a configuration for reinforcement learning.

    Args:
        config: the configuration.
        names: agent loops that the data names.
        has_data: whether data was looked at.
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
            "rows without agent_name are run by verl's single-turn loop: no tools, no turns",
            f"write agent_name {COLUMN!r} into the data (write_prompts does), or set {key}",
        )
    path = config.get(f"{_ROLLOUT}.agent.agent_loop_config_path")
    if path and COLUMN in _entries(Path(str(path))):
        yield LintFinding(
            "registered-twice",
            f"{_ROLLOUT}.agent.agent_loop_config_path",
            f"the entry {COLUMN!r} has the name that the plug-in registers: one of the two wins, "
            "from the second rollout on without this entry's settings",
            "give the entry another name, and use that one as agent_name",
        )


def _entries(path: Path) -> set[str]:
    try:
        found = read_yaml(path)
    except InvalidInput:
        return set()
    entries = found if isinstance(found, list) else []
    return {str(entry.get("name")) for entry in entries if isinstance(entry, dict)}


def _logprobs(config: Config) -> Iterator[LintFinding]:
    if not config.get(f"{_ROLLOUT}.calculate_log_probs"):
        yield LintFinding(
            "no-logprobs",
            f"{_ROLLOUT}.calculate_log_probs",
            "the servers report no log-probs: the trainer can't correct for stale weights, and "
            "the loop 'trajgym' gives no rows at all",
            "set it to True",
        )
    mode = str(config.get(f"{_ROLLOUT}.logprobs_mode"))
    if mode.startswith("raw"):
        yield LintFinding(
            "raw-logprobs",
            f"{_ROLLOUT}.logprobs_mode",
            f"{mode} are those before temperature: the ratio in the loss is not the policy's",
            "set it to processed_logprobs",
        )


def _distribution(config: Config) -> Iterator[LintFinding]:
    top_p, top_k = config.number(f"{_ROLLOUT}.top_p"), config.number(f"{_ROLLOUT}.top_k")
    if top_p not in {None, 1} or top_k not in {None, -1, 0}:
        yield LintFinding(
            "cut-distribution",
            f"{_ROLLOUT}.top_p",
            f"top_p={top_p}, top_k={top_k} cut the distribution, and the trainer computes "
            "log-probs of the whole one: ratios are off from the first step",
            "train with top_p=1 and top_k=-1; val_kwargs may differ",
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
            f"{estimator} compares rollouts of a prompt, and there is one: grpo then takes the raw "
            "reward for the advantage, others give 0",
            "set n to 4 or more",
        )
    elif config.mode == "sync" and not config.get("trainer.v1.sampler.sync_refill_failed_groups"):
        yield LintFinding(
            "groups-shrink",
            "trainer.v1.sampler.sync_refill_failed_groups",
            f"groups whose rollouts failed are used as they are; with one left, {estimator} takes "
            "the raw reward for the advantage or gives 0",
            "set trainer.v1.trainer_mode to trajgym_sync with a deriver, where a group of one "
            "gives 0 and the metrics count groups that shrank; refilling needs gen_batch_size=1",
        )


def _trainer(config: Config) -> Iterator[LintFinding]:
    estimator, mode = str(config.get("algorithm.adv_estimator")), config.mode
    ours = mode.startswith(f"{COLUMN}_")
    if config.section.get("deriver") and not ours:
        yield LintFinding(
            "deriver-unused",
            "trainer.v1.trainer_mode",
            f"trajgym.deriver is set, and the trainer {mode!r} does not know it",
            f"set trainer.v1.trainer_mode to {COLUMN}_{mode}",
        )
    if ours and not config.section.get("deriver"):
        yield LintFinding(
            "deriver-missing",
            "trajgym.deriver",
            f"the trainer {mode!r} takes its advantages from a deriver, and none is set",
            "add +trajgym.deriver.name, such as gigpo",
        )
    if ours and estimator != COLUMN:
        yield LintFinding(
            "estimator-unused",
            "algorithm.adv_estimator",
            f"{estimator!r} would not count: the trainer {mode!r} writes the deriver's advantages",
            f"set it to {COLUMN}",
        )
    if estimator == COLUMN and config.get("algorithm.use_kl_in_reward"):
        yield LintFinding(
            "kl-in-advantages",
            "algorithm.use_kl_in_reward",
            "the KL penalty is taken off rm_scores, which hold advantages here",
            "set it to False and use actor.use_kl_loss",
        )


def _correction(config: Config) -> Iterator[LintFinding]:
    key = "algorithm.rollout_correction"
    level, bypass = config.get(f"{key}.rollout_is"), config.get(f"{key}.bypass_mode")
    if level == "sequence":
        yield LintFinding(
            "sequence-weights",
            f"{key}.rollout_is",
            "a weight of a whole sequence is a product over its tokens: on long sessions it "
            "vanishes, and with it the gradient",
            "set it to token",
        )
    if config.get("skip.rollout_tq.enable") and not (level or bypass):
        yield LintFinding(
            "replay-uncorrected",
            f"{key}.bypass_mode",
            "replayed rows are stamped with the current step, so nothing drops them as stale, and "
            "old log-probs are computed anew as if today's weights had sampled them",
            f"set {key}.bypass_mode to True",
        )


def _rows(config: Config) -> Iterator[LintFinding]:
    outputs = config.section.get("outputs", "all")
    if config.section and outputs == "all" and not config.lists:
        yield LintFinding(
            "one-row",
            "trajgym.outputs",
            "this trainer takes one row of a session, and every session would end in an error",
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
            f"({prompt + response}): sessions are cut there",
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
                f"the old trainer splits {batch} prompts over {workers} workers and fails",
                "choose a divisor of data.train_batch_size",
            )
    elif batch and mini and batch % mini:
        yield LintFinding(
            "padded-batch",
            "actor_rollout_ref.actor.ppo_mini_batch_size",
            f"a batch of {batch} prompts is filled up with empty rows to a multiple of {mini}, and "
            "mini-batches are counted in rows: some hold next to nothing",
            "choose a divisor of data.train_batch_size",
        )


_CHECKS: tuple[Callable[[Config], Iterator[LintFinding]], ...] = (
    _logprobs,
    _distribution,
    _groups,
    _trainer,
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
        settings.reward_derivers()
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
            f"{estimator} adds up all rewards of a row: where they stand does not matter",
            "use a trainer trajgym_* with a deriver, or an estimator by position",
        )


def _lost_reward(config: Config) -> Iterator[LintFinding]:
    estimator = str(config.get("algorithm.adv_estimator"))
    if estimator in _BY_POSITION:
        yield LintFinding(
            "reward-on-observation",
            "algorithm.adv_estimator",
            f"verl puts a rollout's score on its last token; where that is an observation, "
            f"{estimator} loses it and every advantage is 0",
            f"use the loop {COLUMN!r}, whose rows end on a sampled token",
        )


def _tool_agent(config: Config) -> Iterator[LintFinding]:
    if config.get(f"{_ROLLOUT}.multi_turn.max_tool_response_length") == 256:
        yield LintFinding(
            "tool-output-cut",
            f"{_ROLLOUT}.multi_turn.max_tool_response_length",
            "tool output is cut to 256 characters (not tokens), in the middle",
            f"raise it, or use the loop {COLUMN!r}, where the environment's budgets count",
        )
    if config.get(f"{_ROLLOUT}.multi_turn.max_parallel_calls") == 1:
        yield LintFinding(
            "calls-dropped",
            f"{_ROLLOUT}.multi_turn.max_parallel_calls",
            "of several calls in a turn the first is carried out, and the text of all is trained",
            f"raise it, or use the loop {COLUMN!r}, which answers every call",
        )


def sft_findings(config: Config) -> Iterator[LintFinding]:
    """Yield what is wrong with a configuration of the SFT trainer."""
    if config.get("data.truncation") == "right" and not config.get("data.custom_cls.path"):
        yield LintFinding(
            "cut-to-nothing",
            "data.truncation",
            "a conversation that is cut before its first answer trains nothing, in silence",
            "set it to error and raise data.max_length, or use TokenDataset, which leaves it out",
        )
    if config.get("data.ignore_input_ids_mismatch"):
        yield LintFinding(
            "rendered-apart",
            "data.ignore_input_ids_mismatch",
            "verl renders each message alone; where that differs from the whole conversation, "
            "the model learns ids that no server will ever show it",
            "write ids with write_sft_tokens and use TokenDataset",
        )
