"""Cases over token arrays: ToolPO through training rows, GAE, IGPO's released estimate."""

from __future__ import annotations

from itertools import groupby
from typing import Any

import numpy as np

from tests.vectors._build import Inputs, Method, chain, step, table_of
from trajgym.rewards import ToolPO, apply
from trajgym.rewards.tokens import adaptive_lambda, gae, igpo_token_advantages, whiten
from trajgym.trajectory import Segment, SessionTree, Span, Turn, TurnTokens, build_rows


def toolpo(inputs: Inputs, document: Inputs) -> dict[str, Any]:
    weights = {"lambda1": inputs["lambda1"], "lambda2": inputs["lambda2"]}
    deriver = ToolPO(**weights)
    trees = [_tagged(f"s{i}", own) for i, own in enumerate(inputs["trajectories"])]
    table = table_of(trees, deriver)
    values = deriver.derive(table)
    succeeded = deriver.terms(table)["success"]
    action = deriver.action_advantage(table)
    preference = ToolPO(lambda1=0.0).action_reward(table)
    found = []
    for i, (tree, own) in enumerate(zip(trees, inputs["trajectories"], strict=True)):
        (row,) = apply(build_rows(tree).rows, values)
        assert row.advantage is not None
        # One prompt token comes before the tagged ones; the row ends at its last trained token.
        tokens = np.zeros(len(own["tokens"]))
        tokens[: len(row) - 1] = row.advantage[1:]
        first = int(table.starts[i])
        found.append(
            {
                "R_succ": table.attempt_score[i],
                "R_action": deriver.action_reward(table)[i],
                "S_pref": preference[i],
                "A_succ": succeeded[first],
                "A_action": action[first],
                "token_advantage": tokens,
            }
        )
    return {"per_trajectory": found}


def _tagged(name: str, trajectory: Inputs) -> SessionTree:
    """A session of exact turns: an ``env`` token is the next turn's prompt."""
    turns: list[Turn] = []
    kept, prompt = 0, 1
    for env, run in groupby(trajectory["tokens"], key=lambda tag: tag == "env"):
        tags = list(run)
        if env:
            prompt = len(tags)
            continue
        tokens = TurnTokens(
            prompt_kept=kept,
            prompt_ids=np.zeros(prompt, dtype=np.int32),
            response_ids=np.zeros(len(tags), dtype=np.int32),
            logprobs=np.full(len(tags), -0.5, dtype=np.float32),
            segments=(Segment(len(tags), 0, 0),),
            spans=_spans(tags),
        )
        index = len(turns)
        calls = [bool(call) for call in trajectory["calls"]] if not turns else []
        parent = index - 1 if index else None
        turns.append(step(index, parent, calls=calls, tokens=tokens))
        kept, prompt = kept + prompt + len(tags), 0
    lengths = {key: trajectory.get(key) for key in ("len_direct", "len_fold")}
    return chain(name, turns, trajectory["success"], **lengths)


def _spans(tags: list[str]) -> tuple[Span, ...]:
    spans, start = [], 0
    for tag, run in groupby(tags):
        end = start + len(list(run))
        if tag in {"tool_call", "fold"}:
            spans.append(Span(tag, start, end))
        start = end
    return tuple(spans)


def gae_tokens(inputs: Inputs, document: Inputs) -> dict[str, Any]:
    fixed, alpha = inputs.get("lambda_policy_fixed"), inputs.get("alpha")
    mask = np.array(inputs.get("mask", [1] * len(inputs["rewards"])))
    found = gae(
        inputs["rewards"],
        inputs["values"],
        mask=mask,
        gamma=inputs["gamma"],
        lambda_policy=0.95 if fixed is None else fixed,
        lambda_critic=inputs.get("lambda_critic", 1.0),
        alpha=alpha if fixed is None else None,
    )
    return {
        "action_length": int(mask.sum()),
        "lambda_policy": found.lambda_policy[0],
        "policy_advantage": found.advantages,
        "value_target": found.value_targets,
        "policy_advantage_whitened": whiten(found.advantages, mask),
    }


def lambda_only(inputs: Inputs, document: Inputs) -> dict[str, Any]:
    alpha, length = inputs["alpha"], inputs["l"]
    free = float(adaptive_lambda(alpha, length, clamp=False))
    return {
        "lambda_policy_unclamped": free,
        "lambda_policy": float(adaptive_lambda(alpha, length)),
        "sum_of_powers_alpha_l": 1.0 / (1.0 - free),
    }


def igpo_tokens(inputs: Inputs, document: Inputs) -> dict[str, Any]:
    advantages, returns = igpo_token_advantages(
        inputs["token_rewards"], inputs["mask"], gamma=inputs["gamma"]
    )
    return {"advantage": list(map(list, advantages)), "returns": list(map(list, returns))}


TOKEN_METHODS = [
    Method("ToolPO", frozenset({"trajectories", "lambda1", "lambda2"}), toolpo),
    Method("gae", frozenset({"rewards", "values", "gamma"}), gae_tokens),
    Method("adaptive_lambda", frozenset({"alpha", "l"}), lambda_only),
    Method("igpo_token_advantages", frozenset({"token_rewards", "mask"}), igpo_tokens),
]
