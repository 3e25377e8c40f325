"""Recorded sessions as the batches that verl's V1 trainer replays (``skip.rollout_tq``)."""

from __future__ import annotations

import itertools
import json
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Self

import numpy as np

from trajgym.adapters._gate import Gate
from trajgym.adapters._group_rows import all_values
from trajgym.adapters.exports._stream import Export, ExportReport, Membership, rows_of
from trajgym.adapters.verl._denominators import session_factors
from trajgym.adapters.verl._rows import in_order, split
from trajgym.rewards import Advantages
from trajgym.trajectory import InvalidInput
from trajgym.trajectory._internal import MissingExtra

if TYPE_CHECKING:
    import os
    from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

    from trajgym.adapters._group_rows import Values
    from trajgym.adapters.verl._rows import VerlRow
    from trajgym.trajectory import Group, SessionTree, TrainingRow

__all__ = ["ReplayShape", "write_replay"]

_PROMPT_TOKENS = 8
"""Length of a filler's prompt."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayShape:
    """The settings from which verl derives the directory of a replay, and the rows of a step.

    Args:
        experiment: ``trainer.experiment_name``.
        project: ``trainer.project_name``.
        prompts: ``data.train_batch_size``.
        samples: ``actor_rollout_ref.rollout.n``.
        prompt_length: ``data.max_prompt_length``.
        response_length: ``data.max_response_length``.
        fetched: ``data.gen_batch_size``, if it is set.

    Raises:
        InvalidInput: a number is below 1.
    """

    experiment: str
    project: str
    prompts: int
    samples: int
    prompt_length: int
    response_length: int
    fetched: int | None = None

    def __post_init__(self) -> None:
        for name in ("prompts", "samples", "prompt_length", "response_length"):
            if getattr(self, name) < 1:
                raise InvalidInput(
                    f"replay: {name} is {getattr(self, name)}; it must be at least 1"
                )

    @classmethod
    def of(cls, config: Mapping[str, Any]) -> Self:
        """Return the shape for verl's full configuration, with interpolations resolved.

        Raises:
            InvalidInput: a key is missing, or the trainer is asynchronous, which can't replay
                because it submits prompts before their step.
        """
        try:
            data, trainer = config["data"], config["trainer"]
            mode = str(trainer["v1"]["trainer_mode"])
            if mode.removeprefix("trajgym_") != "sync":
                raise InvalidInput(f"replay: trainer.v1.trainer_mode is {mode!r}; use sync")
            return cls(
                experiment=trainer["experiment_name"],
                project=trainer["project_name"],
                prompts=int(data["train_batch_size"]),
                samples=int(config["actor_rollout_ref"]["rollout"]["n"]),
                prompt_length=int(data["max_prompt_length"]),
                response_length=int(data["max_response_length"]),
                fetched=data.get("gen_batch_size"),
            )
        except (KeyError, TypeError) as error:
            raise InvalidInput(f"replay: verl's configuration lacks {error}") from error

    def folder(self, root: Path) -> Path:
        """Return the directory in which verl looks for steps."""
        sizes = f"GBS{self.fetched or self.prompts}_N{self.samples}_in{self.prompt_length}"
        return root / f"{self.experiment}_{self.project}" / f"{sizes}_out{self.response_length}"


class _Row(NamedTuple):
    tree: SessionTree
    row: TrainingRow
    parts: VerlRow


def write_replay(
    out: str | os.PathLike[str],
    sessions: Iterable[SessionTree],
    groups: Iterable[Group],
    values: Values | Sequence[Values],
    shape: ReplayShape,
    *,
    first_step: int = 1,
    loss_agg_mode: str = "token-mean",
    allow: Collection[str] = (),
    temperature: float | None = None,
    report: ExportReport | None = None,
) -> int:
    """Write ``tq_batch.pt`` files for ``skip.rollout_tq.dump_dir``; return how many steps.

    verl's own trainer then trains on these batches instead of sampling. ``rm_scores`` has each id's
    advantage: train with ``algorithm.adv_estimator=trajgym`` and
    ``algorithm.rollout_correction.bypass_mode=True``, which uses the recorded log-probs as the old
    ones.

    Each row of a session becomes a separate rollout, because verl would keep only one row of a
    rollout. A step has ``prompts * samples`` rows; the last step is padded with masked rows.

    Args:
        out: the directory.
        sessions: with exact turns.
        groups: their groups.
        values: advantages, and optionally rewards.
        shape: of the run that will replay the batches.
        first_step: number of the first step; verl counts from 1.
        loss_agg_mode: ``actor.loss_agg_mode`` of that run. For ``seq-mean-*`` the advantages are
            scaled so that padding does not count and each session counts once. With the policy
            loss ``sapo``, which ignores that setting, pass ``seq-mean-token-mean``.
        allow: kinds of sessions that are accepted nevertheless; see
            :class:`trajgym.adapters.Gate`.
        temperature: the trainer's, ``rollout.temperature``; None takes the first session's.
        report: filled with what was written and left out.

    Raises:
        InvalidInput: there are no advantages, or no session is left.
        MissingExtra: verl is not installed.
    """
    try:
        from verl.utils.tensordict_utils import list_of_dict_to_tensordict
    except ImportError as error:
        raise MissingExtra("verl", "verl") from error
    given = all_values(values)
    if not any(one.kind is Advantages for one in given):
        raise InvalidInput("replay needs advantages; pass the values of a deriver such as GRPO")
    report = report or ExportReport("verl-replay")
    root = shape.folder(Path(out))
    export = Export(
        sessions=sessions, membership=Membership(groups), out=root, values=given, report=report
    )
    size = shape.prompts * shape.samples
    rows = _fitting(export, shape, Gate(allow, temperature=temperature))
    step = first_step
    while batch := list(itertools.islice(rows, size)):
        factors = _factors(batch, size, loss_agg_mode)
        fields, tags, keys = _batch(batch, shape, step, factors)
        data = list_of_dict_to_tensordict(fields)
        folder = root / str(step) / "0"
        _save(folder, {"tensordict": data, "tags": tags, "keys": keys}, step)
        report.files.append(folder / "tq_batch.pt")
        step += 1
    if step == first_step:
        reasons = Counter(one.reason for one in report.dropped)
        raise InvalidInput(f"replay: nothing to train on; left out: {dict(reasons)}")
    return step - first_step


def _fitting(export: Export, shape: ReplayShape, gate: Gate) -> Iterator[_Row]:
    most = shape.prompt_length + shape.response_length
    for tree, rows in rows_of(export, gate=gate):
        if longest := max((len(row) for row in rows if len(row) > most), default=0):
            reason = f"a row has {longest} ids, more than the trainer's limits of {most} together"
            export.report.drop(tree.record.id, None, reason)
            continue
        for row in in_order(tree, rows):
            export.report.count(synthetic=row.synthetic)
            yield _Row(tree, row, split(row))


def _factors(rows: Sequence[_Row], size: int, mode: str) -> list[float]:
    names = [one.row.session for one in rows]
    tokens = [int(one.parts.mask.sum()) for one in rows]
    return session_factors(mode, names, tokens, divisor=size)


def _batch(
    rows: Sequence[_Row], shape: ReplayShape, step: int, factors: Sequence[float]
) -> tuple[list[dict[str, Any]], list[dict[str, Any]], list[str]]:
    fields, tags, keys = [], [], []
    for place in range(shape.prompts * shape.samples):
        prompt, session = divmod(place, shape.samples)
        uid = f"replay-{step}-{prompt}"
        filler = place >= len(rows)
        one = rows[-1] if filler else rows[place]
        made = _fields(one, 0.0 if filler else factors[place], filler=filler)
        made |= {"uid": uid, "session_id": session, "global_steps": step, "index": place}
        fields.append(made)
        tags.append(_tag(made, one.parts, step))
        keys.append(f"{uid}_{session}_0")
    return fields, tags, keys


def _fields(one: _Row, factor: float, *, filler: bool) -> dict[str, Any]:
    import torch

    tree, row, parts = one
    assert parts.advantages is not None
    outcome = tree.attempts[row.attempt].outcome
    prompt, response, mask = parts.prompt, parts.response, parts.mask
    logprobs, values = parts.logprobs, parts.advantages
    if filler:  # like verl's own padding: a single masked id
        prompt, response = prompt[:_PROMPT_TOKENS], response[-1:]
        mask = np.zeros(1, dtype=np.bool_)
        logprobs = values = np.zeros(1, dtype=np.float32)
    ids = torch.from_numpy(np.concatenate([prompt, response]).astype(np.int64))
    marks = torch.from_numpy(mask.astype(np.int64))
    score = 0.0 if outcome is None else float(outcome.score)
    return {
        "prompts": ids[: prompt.size],
        "responses": ids[prompt.size :],
        "response_mask": marks,
        "loss_mask": marks.clone(),
        "input_ids": ids,
        "position_ids": torch.arange(ids.numel()),
        "rollout_log_probs": torch.from_numpy(logprobs.astype(np.float32)),
        "rm_scores": torch.from_numpy((values * factor).astype(np.float32)),
        "multi_modal_inputs": {},
        "num_turns": len(row.turns),
        "metrics": {
            "generate_sequences": 0.0,
            "tool_calls": 0.0,
            "compute_score": 0.0,
            "num_preempted": -1,
        },
        "extra_fields": {
            "turn_scores": [] if row.reward is None else row.reward[row.turn_ends].tolist(),
            "tool_rewards": [],
            "min_global_steps": parts.version_low,
            "max_global_steps": parts.version_high,
            "reward_extra_info": {"trajgym_score": score},
            "session": row.session,
        },
        "raw_prompt": [{"role": "user", "content": tree.record.task}],
        "data_source": "trajgym",
        "reward_model": {"style": "rule", "ground_truth": ""},
        "extra_info": {"index": 0},
        "tools_kwargs": {},
        "interaction_kwargs": {},
    }


def _tag(fields: dict[str, Any], parts: VerlRow, step: int) -> dict[str, Any]:
    prompt, response = fields["prompts"].numel(), fields["responses"].numel()
    return {
        "status": "success",
        "prompt_len": prompt,
        "response_len": response,
        "seq_len": prompt + response,
        "global_steps": step,
        "min_global_steps": parts.version_low,
        "max_global_steps": parts.version_high,
    }


def _save(folder: Path, payload: dict[str, Any], step: int) -> None:
    """Write the batch, then ``meta.json``, by which verl recognises a complete directory."""
    import torch

    folder.mkdir(parents=True, exist_ok=True)
    part = folder / ".tq_batch.pt.part"
    torch.save({**payload, "global_steps": step}, part)
    part.replace(folder / "tq_batch.pt")
    meta = {"global_steps": step, "num_trajectories": len(payload["keys"])}
    (folder / "meta.json").write_text(json.dumps(meta), encoding="utf-8")
