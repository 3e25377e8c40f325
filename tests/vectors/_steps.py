"""Cases of methods over steps, spans and tokens."""

from __future__ import annotations

from itertools import groupby
from typing import Any

import numpy as np

from tests.vectors._build import (
    Inputs,
    Method,
    Unsupported,
    chain,
    groups_of,
    step,
    steps_chain,
    table_of,
)
from tests.vectors._tokens import TOKEN_METHODS
from trajgym.rewards import (
    GRPO,
    HGPO,
    IGPO,
    MSGRPO,
    MTGRPO,
    SRL,
    GiGPO,
    InformationGain,
    OutcomeReward,
    ReturnToGo,
    SoftOverlong,
    StepPenalty,
    TurnGAE,
    TurnTable,
)
from trajgym.rewards._gigpo import similar_states
from trajgym.rewards.filters import (
    DynamicSampling,
    ResampleOnCorrect,
    SpreadFilter,
    ZeroAdvantage,
    inverse_probabilities,
    text_penalty,
    wanted_counts,
)
from trajgym.rewards.toolkit import SimilarityMatcher, belief, belief_change, similarity
from trajgym.trajectory import InvalidInput, SessionTree, Turn


def _scored(scores: list[float]) -> list[SessionTree]:
    return [chain(f"s{i}", [step(0, None)], score) for i, score in enumerate(scores)]


def srl(inputs: Inputs, document: Inputs) -> dict[str, Any]:
    model, expert = inputs["model_action"], inputs["expert_action"]
    junk = inputs.get("autojunk", True)

    def reward(action: Any, wanted: Any) -> float:
        if not isinstance(action, str):
            return similarity(action, wanted, autojunk=junk) if inputs["format_ok"] else -1.0
        signals = {"action": action, "expert_action": wanted, "format_ok": inputs["format_ok"]}
        deriver = SRL(autojunk=junk)
        table = table_of([chain("s", [step(0, None, signals=signals)])], deriver)
        return float(deriver.derive(table).values[0])

    return {
        "matched": SimilarityMatcher(expert, autojunk=junk).matched(model),
        "total": len(model) + len(expert),
        "similarity": similarity(model, expert, autojunk=junk),
        "reward": reward(model, expert),
        "reward_swapped_arguments": reward(expert, model),
    }


def spread(inputs: Inputs, document: Inputs) -> dict[str, Any]:
    rewards = np.array(inputs["rewards"], dtype=float)
    trees = _scored(rewards.tolist())
    table = TurnTable.build(groups_of(trees), trees)
    kept = SpreadFilter(epsilon=inputs["epsilon"]).select(table)
    return {
        "mean": rewards.mean(),
        "std_population": rewards.std(),
        "keep": bool(kept.attempts.all()),
        "advantage_population_std": GRPO().derive(table).values,
    }


def ms_grpo(inputs: Inputs, document: Inputs) -> dict[str, Any]:
    episodes = inputs["step_rewards_by_episode"]
    trees = [steps_chain(name, rewards) for name, rewards in episodes.items()]
    deriver = MSGRPO(
        variant="official", earn="env", eps=inputs.get("epsilon"), ddof=inputs.get("ddof")
    )
    table = table_of(trees, deriver)
    values = deriver.derive(table)
    total = ReturnToGo(earn="env").derive(table)
    return {
        "episode_return": {name: total.of(name)[0] for name in episodes},
        "step_advantage": {name: values.of(name) for name in episodes},
    }


def _by_trajectory(inputs: Inputs, key: str) -> tuple[list[SessionTree], list[int]]:
    """Sessions of the steps, and the place in the table of each step of the input."""
    turns: dict[tuple[str, str], list[Turn]] = {}
    spots = []
    for item in inputs["steps"]:
        own = turns.setdefault((item["group"], item["traj"]), [])
        spots.append((item["group"], item["traj"], len(own)))
        own.append(
            step(
                len(own),
                len(own) - 1 if own else None,
                reward=item[key],
                seen=str(item["obs"]),
                signals={"format_ok": not item.get("invalid", False)},
            )
        )
    prompts = list(dict.fromkeys(name for name, _ in turns))
    trees = [
        chain(f"{name}-{trajectory}", own, group=f"g{prompts.index(name)}")
        for (name, trajectory), own in turns.items()
    ]
    starts = np.r_[0, np.cumsum([len(own) for own in turns.values()])]
    order = {name: int(start) for name, start in zip(turns, starts, strict=False)}
    return trees, [order[g, t] + i for g, t, i in spots]


def gigpo(inputs: Inputs, document: Inputs) -> dict[str, Any]:
    trees, at = _by_trajectory(inputs, "reward")
    similar = inputs.get("similarity_thresh") if inputs.get("enable_similarity") else None
    penalty = inputs.get("invalid_action_penalty", 0.0)
    settings = {
        "earn": "env",
        "gamma": inputs["gamma"],
        "mode": inputs["mode"],
        "invalid_penalty": penalty,
        "similarity": similar,
        "eps": inputs.get("eps"),
        "ddof": inputs.get("ddof"),
    }
    official = GiGPO(variant="official", omega=inputs["omega"], **settings)
    table = table_of(trees, official)
    terms = official.terms(table)
    step_part = GiGPO(variant="official", **settings).terms(table)["step"]
    paper = GiGPO(**settings).terms(table)["episode"]
    returns = ReturnToGo(earn="env", gamma=inputs["gamma"]).derive(table).values
    states = table.state if similar is None else similar_states(table, similar)
    anchors = list(zip(table.group[at].tolist(), states[at].tolist(), strict=True))
    numbers = {anchor: i for i, anchor in enumerate(dict.fromkeys(anchors))}
    return {
        "step_return": returns[at] - penalty * ~table.format_ok[at],
        "step_group": [numbers[anchor] for anchor in anchors],
        "episode_advantage": terms["episode"][at],
        "step_advantage": step_part[at],
        "advantage": official.derive(table).values[at],
        "episode_advantage_paper_eq3": paper[at],
    }


def hgpo(inputs: Inputs, document: Inputs) -> dict[str, Any]:
    trees, at = _by_trajectory(inputs, "ret")
    deriver = HGPO(
        variant="official",
        earn="env",
        gamma=0.0,
        history=inputs["history_length"],
        alpha=inputs["length_weight_alpha"],
        mode=inputs["mode"],
        eps=inputs.get("eps"),
        base_group=inputs.get("base_group", False),
    )
    return {"advantage": deriver.derive(table_of(trees, deriver)).values[at]}


def soft_overlong(inputs: Inputs, document: Inputs) -> dict[str, Any]:
    length = np.array([float(inputs["length"])])
    settings = {
        "max_tokens": inputs["L_max"],
        "cache": inputs["L_cache"],
        "factor": inputs.get("penalty_factor", 1.0),
    }
    return {
        "paper": SoftOverlong(**settings).penalty(length)[0],
        "verl_code": SoftOverlong(variant="official", **settings).penalty(length)[0],
    }


def _nebius(episodes: list[Inputs], inputs: Inputs) -> tuple[list[SessionTree], StepPenalty]:
    trees = [steps_chain(f"s{i}", [0.0] * episode["n_steps"]) for i, episode in enumerate(episodes)]
    for tree, episode in zip(trees, episodes, strict=True):
        outcome = tree.attempts[0].outcome
        assert outcome is not None
        outcome.score, outcome.passed = float(episode["success"]), bool(episode["success"])
    return trees, StepPenalty(threshold=inputs["L_thr"], max_turns=inputs["T_max"])


def step_penalty(inputs: Inputs, document: Inputs) -> dict[str, Any]:
    found = {}
    for name, success in (("failure", False), ("success", True)):
        trees, deriver = _nebius([{"n_steps": inputs["n_steps"], "success": success}], inputs)
        table = table_of(trees, deriver)
        penalty = deriver.derive(table)
        found["R_length"] = penalty.values.sum()
        found[f"R_final_{name}"] = (OutcomeReward().derive(table) + penalty).values.sum()
    return found


def nebius_group(inputs: Inputs, document: Inputs) -> dict[str, Any]:
    trees, deriver = _nebius(inputs["episodes"], inputs)
    table = table_of(trees, deriver)
    rewards = OutcomeReward().derive(table) + deriver.derive(table)
    advantages = GRPO(variant="verl", eps=inputs.get("eps")).derive_from(rewards)
    names = [tree.record.id for tree in trees]
    return {
        "R_final": [rewards.of(name).sum() for name in names],
        "advantage": [advantages.of(name)[0] for name in names],
        "kept_by_zero_advantage_rule": ZeroAdvantage().select_from(advantages).attempts,
        "kept_by_dapo_accuracy_rule": bool(DynamicSampling().select(table).attempts.all()),
    }


def policy_loss(inputs: Inputs, document: Inputs) -> dict[str, Any]:
    raise Unsupported("losses belong to trainers")


def penalty(inputs: Inputs, document: Inputs) -> dict[str, Any]:
    found = text_penalty(inputs["text"])
    return {"p_err": found.error, "p_format": found.format, "p_total": found.total}


def roc_select(inputs: Inputs, document: Inputs) -> dict[str, Any]:
    rollouts, n = inputs["rollouts"], inputs["down_sample_to_n"]
    trees = [_rollout(i, rollout) for i, rollout in enumerate(rollouts)]
    minima = {
        "min_negatives": inputs["min_zero_reward_trace_num"],
        "min_positives": inputs["min_non_zero_reward_trace_num"],
    }
    table = TurnTable.build(groups_of(trees), trees)
    kept = ResampleOnCorrect(variant="official", keep=n, **minima).select(table)
    indices = np.flatnonzero(kept.attempts).tolist()
    yes = sum(rollout["reward"] > 0 for rollout in rollouts)
    no = len(rollouts) - yes
    found: dict[str, Any] = {
        "p_total": [text_penalty(rollout["text"]).total for rollout in rollouts],
        "kept_indices": indices,
    }
    if no + yes > n:
        counts = wanted_counts(no, yes, n)
        found["paper_counts"] = counts._asdict()
        try:
            wanted_counts(no, yes, n, variant="official", **minima)
        except InvalidInput as error:
            stop = f"raises AssertionError: down_sample_to_n={n} != "
            rounded = str(error).split("round to ")[1].split(",")[0]
            found["kept_indices"] = stop + str(sum(int(x) for x in rounded.split(" + ")))
    advantages = GRPO(variant="verl").derive(kept.table)
    found["advantage_of_kept_std_ddof1_eps1e6"] = [advantages.of(f"s{i}")[0] for i in indices]
    return found


def _rollout(index: int, rollout: Inputs) -> SessionTree:
    """A session with a turn for each call, and one for the answers."""
    calls = rollout["tool_calls"]
    turns = [step(i, i - 1 if i else None, calls=[call == "ok"]) for i, call in enumerate(calls)]
    content = " ".join(["<answer>7</answer>"] * rollout["answers"])
    turns.append(step(len(turns), len(turns) - 1 if turns else None, content=content))
    return chain(f"s{index}", turns, float(rollout["reward"]))


def reject_equal(inputs: Inputs, document: Inputs) -> dict[str, Any]:
    trees = _scored([float(reward) for reward in inputs["rewards"]])
    kept = SpreadFilter().select(TurnTable.build(groups_of(trees), trees))
    return {"kept": bool(kept.attempts.all())}


def paper_probability(inputs: Inputs, document: Inputs) -> dict[str, Any]:
    return {"probability": inverse_probabilities(inputs["p_total"])}


def mt_grpo(inputs: Inputs, document: Inputs) -> dict[str, Any]:
    trees, splits = [], []
    columns = (inputs["turn_rewards"], inputs["outcome_rewards"], inputs["completion_mask"])
    for i, (turn, outcome, mask) in enumerate(zip(*columns, strict=True)):
        runs = [len(list(run)) for _, run in groupby(mask)]
        result = inputs["result_segment"][i] >= 0
        turns = [step(0, None, reward=turn, calls=[True] if result else [])]
        if result:
            turns.append(step(1, 0))
        splits.append(runs[0] if result else len(mask))
        trees.append(chain(f"s{i}", turns, outcome))
    settings = {"eps": inputs["eps"], "variant": "official"}
    deriver = MTGRPO(coef=inputs["turn_advantage_coef"], **settings)
    table = table_of(trees, deriver)
    values = deriver.derive(table)
    tokens = []
    for i, (split, mask) in enumerate(zip(splits, inputs["completion_mask"], strict=True)):
        own = values.of(f"s{i}")
        tokens.append([own[0]] * split + [own[-1]] * (len(mask) - split))
    found = {"token_advantage": tokens}
    merged = np.add(inputs["turn_rewards"], inputs["outcome_rewards"])
    for name, rewards in (
        ("turn", inputs["turn_rewards"]),
        ("outcome", inputs["outcome_rewards"]),
        ("combined", merged.tolist()),
    ):
        plain = [chain(f"s{i}", [step(0, None)], reward) for i, reward in enumerate(rewards)]
        one = MTGRPO(**settings)
        found[f"{name}_advantage"] = one.derive(table_of(plain, one)).values
    return found


def igpo_turns(inputs: Inputs, document: Inputs) -> dict[str, Any]:
    rewards = inputs["turn_rewards"]
    trees = [steps_chain(f"s{i}", own) for i, own in enumerate(rewards)]

    def values(gamma: float) -> list[Any]:
        deriver = IGPO(earn="env", gamma=gamma, eps=inputs.get("eps"), ddof=inputs.get("ddof"))
        derived = deriver.derive(table_of(trees, deriver))
        return [derived.of(tree.record.id) for tree in trees]

    return {"turn_normalised": values(0.0), "turn_advantage": values(inputs["gamma"])}


def info_gain(inputs: Inputs, document: Inputs) -> dict[str, Any]:
    logs = inputs["gold_token_logprobs_per_state"]
    means = [float(np.mean(own)) for own in logs]
    turns = [
        step(i, i - 1 if i else None, signals={"gold_logprob": own, "gold_logprob_before": before})
        for i, (before, own) in enumerate(zip(means[:-1], logs[1:], strict=True))
    ]
    deriver = InformationGain(last=True)
    gain = deriver.derive(table_of([chain("s", turns)], deriver)).values
    return {"prob": [belief(own) for own in logs], "info_gain": gain}


def delta_belief(inputs: Inputs, document: Inputs) -> dict[str, Any]:
    logs = np.log(inputs["belief"])
    turns = []
    for i, after in enumerate(logs[1:].tolist()):
        signals = {"gold_logprob": after} | ({} if i else {"gold_logprob_before": float(logs[0])})
        turns.append(step(i, i - 1 if i else None, signals=signals))
    deriver = InformationGain(kind="delta_belief", scale=inputs["lam"], last=True)
    return {
        "delta": belief_change(logs[:-1], logs[1:], "delta_belief"),
        "intrinsic": deriver.derive(table_of([chain("s", turns)], deriver)).values,
    }


def turn_gae(inputs: Inputs, document: Inputs) -> dict[str, Any]:
    pairs = zip(inputs["turn_rewards"], inputs["turn_values"], strict=True)
    turns = [
        step(i, i - 1 if i else None, reward=reward, signals={"value": value})
        for i, (reward, value) in enumerate(pairs)
    ]
    deriver = TurnGAE(earn="env", gamma=inputs["gamma"], lambda_policy=inputs["lam"])
    return {"turn_advantage": deriver.derive(table_of([chain("s", turns)], deriver)).values}


METHODS = [
    Method("SRL", frozenset({"model_action", "expert_action"}), srl),
    Method("SpreadFilter", frozenset({"rewards", "epsilon"}), spread),
    Method("MSGRPO", frozenset({"step_rewards_by_episode"}), ms_grpo),
    Method("HGPO", frozenset({"steps", "history_length"}), hgpo),
    Method("GiGPO", frozenset({"steps", "omega"}), gigpo),
    Method("SoftOverlong", frozenset({"length", "L_max"}), soft_overlong),
    Method("StepPenalty", frozenset({"n_steps", "L_thr", "T_max"}), step_penalty),
    Method("StepPenalty in a group", frozenset({"episodes", "L_thr"}), nebius_group),
    Method("policy loss", frozenset({"ratio", "advantage"}), policy_loss),
    Method("text_penalty", frozenset({"text"}), penalty),
    Method("ResampleOnCorrect", frozenset({"rollouts", "down_sample_to_n"}), roc_select),
    Method("SpreadFilter(0)", frozenset({"rewards"}), reject_equal, {"kind": "reject_equal"}),
    Method("inverse_probabilities", frozenset({"p_total"}), paper_probability),
    Method("MTGRPO", frozenset({"turn_rewards", "outcome_rewards"}), mt_grpo),
    Method("TurnGAE", frozenset({"turn_rewards", "turn_values"}), turn_gae),
    Method("IGPO", frozenset({"turn_rewards", "gamma"}), igpo_turns),
    Method("InformationGain", frozenset({"gold_token_logprobs_per_state"}), info_gain),
    Method("InformationGain (delta_belief)", frozenset({"belief", "lam"}), delta_belief),
    *TOKEN_METHODS,
]
