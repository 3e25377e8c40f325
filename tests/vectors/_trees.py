"""Cases of tree methods: Tree-GRPO, TreeRL, ARPO."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.vectors._build import Documented, Inputs, Method, Node, groups_of, tree_session
from trajgym.rewards import TreeGRPO, TreeRL, TurnTable
from trajgym.rewards.trees import branch_probability, eptree_leaves, tree_budget, tree_diff_scores


def _settings(inputs: Inputs) -> dict[str, Any]:
    return {key: inputs[key] for key in ("eps", "ddof") if key in inputs}


def tree_grpo(inputs: Inputs, document: Inputs) -> dict[str, Any]:
    leaves = inputs["leaves"]
    by_tree: dict[tuple[str, str], list[Node]] = {}
    for i, leaf in enumerate(leaves):
        key = str(leaf.get("prompt", "q")), str(leaf["tree"])
        by_tree.setdefault(key, []).append(Node(str(leaf.get("id", i)), [], leaf["reward"]))
    nodes = inputs.get("leaves_under_node", {})
    trees, names = [], []
    prompts = list(dict.fromkeys(prompt for prompt, _ in by_tree))
    for i, ((prompt, _), members) in enumerate(by_tree.items()):
        own = {n: below for n, below in nodes.items() if below[0] in {m.name for m in members}}
        session, found = tree_session(f"s{i}", _nested(members, own), f"p{prompts.index(prompt)}")
        trees.append(session)
        names += found
    table = TurnTable.build(groups_of(trees), trees)
    place = {name: i for i, name in enumerate(names)}
    labels = [str(leaf.get("id", i)) for i, leaf in enumerate(leaves)]
    deriver = TreeGRPO(variant="official", **_settings(inputs))
    terms = deriver.terms(table)
    total = deriver.derive(table).values
    norm = TreeGRPO(variant="official", combine="two_norm", **_settings(inputs)).derive(table)
    mean = table.spread(sum(deriver.of_leaves(table).values()))
    at = [place[label] for label in labels]
    counts = table.spread(np.ones(table.attempt_score.size), "sum")
    return {
        "intra_tree_advantage": terms["intra"][at],
        "inter_tree_advantage": terms["inter"][at],
        "advantage": dict(zip(labels, total[at], strict=True)) if nodes else total[at],
        "advantage_tree_2norm": norm.values[at],
        "node": {
            n: {
                "n_leaves": counts[place[n]],
                "sum_of_leaf_advantages": total[place[n]],
                "mean_of_leaf_advantages": mean[place[n]],
            }
            for n in nodes
        },
    }


def _nested(leaves: list[Node], nodes: dict[str, list[str]]) -> list[Node]:
    """Leaves under the smallest node that holds them, nodes under the next larger."""
    roots: list[Node] = []
    made: list[tuple[set[str], Node]] = []
    for name, below in sorted(nodes.items(), key=lambda item: -len(item[1])):
        node = Node(name, [])
        _holder(made, set(below), roots).append(node)
        made.append((set(below), node))
    for leaf in leaves:
        _holder(made, {leaf.name}, roots).append(leaf)
    return roots


def _holder(made: list[tuple[set[str], Node]], names: set[str], roots: list[Node]) -> list[Node]:
    return next((node.children for below, node in reversed(made) if names <= below), roots)


def _node(tree: Inputs) -> Node:
    children = [_node(child) for child in tree.get("children", ())]
    return Node(str(tree["id"]), children, float(tree.get("reward", 0.0)))


def tree_diff(inputs: Inputs, document: Inputs) -> dict[str, Any]:
    root = _node(inputs["tree"])
    session, names = tree_session("s", root.children)
    table = TurnTable.build(groups_of([session]), [session])
    scores = tree_diff_scores(table, inputs["margin"])
    sums = table.spread(table.attempt_score, "sum")
    return {
        "node_final_score": dict(zip(names, scores, strict=True)),
        "subtree_leaf_score_sum": dict(zip(names, sums, strict=True))
        | {root.name: table.attempt_score.sum()},
    }


def treerl(inputs: Inputs, document: Inputs) -> dict[str, Any]:
    root = _node(inputs["tree"])
    session, names = tree_session("s", root.children)
    table = TurnTable.build(groups_of([session]), [session])
    value = table.spread(table.attempt_score)
    leaves = table.spread(np.ones(table.attempt_score.size), "sum")
    bare = TreeRL(weight="none").terms(table)
    reward = TreeRL().derive(table).values
    return {
        "paper": {
            "V_root": table.attempt_score.mean(),
            "nodes": {
                name: {
                    "V": value[i],
                    "n_leaves": leaves[i],
                    "GA": bare["global"][i],
                    "LA": bare["local"][i],
                    "R": reward[i],
                }
                for i, name in enumerate(names)
            },
        },
        "code_sqrt_state_value": _official(inputs, session, names, table),
    }


def _official(inputs: Inputs, session: Any, names: list[str], table: TurnTable) -> Any:
    if len(session.attempts) == 1:
        assert not TreeRL(variant="official").derive(table).values.any()
        return Documented("one leaf gives 0")
    ends = [names[attempt.leaf] for attempt in session.attempts]
    selected = inputs.get("selected", ends)
    kept = np.array([end in selected for end in ends])
    deriver = TreeRL(
        variant="official",
        weight="none" if inputs.get("style") == "original" else "sqrt",
        state_value=inputs.get("state", True),
    )
    terms = deriver.node_terms(table, kept)
    total = sum(terms.values())
    return {
        end: [
            {"node": names[turn.index], "value": total[turn.index]}
            for turn in session.trajectory(attempt)
        ]
        for end, attempt in zip(ends, session.attempts, strict=True)
        if end in selected
    }


def budget(inputs: Inputs, document: Inputs) -> dict[str, Any]:
    found = tree_budget(inputs["M"], inputs["N"], inputs["L"], inputs["B"])
    return {
        "leaves": found.leaves,
        "paper_expected_cost": found.paper_cost,
        "code_expected_cost": found.code_cost,
    }


def leaf_count(inputs: Inputs, document: Inputs) -> dict[str, Any]:
    return {"leaves": eptree_leaves(inputs["M"], inputs["N"], inputs["L"], inputs["T"])}


def arpo_branch(inputs: Inputs, document: Inputs) -> dict[str, Any]:
    p = branch_probability(
        inputs["H_initial"],
        inputs["H_t"],
        base=inputs["branch_probability"],
        weight=inputs["entropy_weight"],
    )
    return {"p_branch": p}


def arpo_hard(inputs: Inputs, document: Inputs) -> dict[str, Any]:
    advantages = inputs["branch_advantages"]
    root = Node("shared", [Node(str(i), []) for i in range(len(advantages))])
    session, _ = tree_session("s", [root])
    table = TurnTable.build(groups_of([session]), [session])
    return {"shared_token_advantage": table.spread(np.array(advantages, dtype=float))[0]}


METHODS = [
    Method("TreeGRPO", frozenset({"leaves"}), tree_grpo),
    Method("tree_diff_scores", frozenset({"tree", "margin"}), tree_diff),
    Method("TreeRL", frozenset({"tree"}), treerl),
    Method("tree_budget", frozenset("MNLB"), budget),
    Method("eptree_leaves", frozenset("MNLT"), leaf_count),
    Method("branch_probability", frozenset({"H_initial", "H_t"}), arpo_branch),
    Method("prefix rule mean", frozenset({"branch_advantages"}), arpo_hard),
]
