"""Recorded sessions as the batches that verl's V1 trainer replays (``skip.rollout_tq``)."""

from __future__ import annotations

import itertools
import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Self

import numpy as np

from trajgym.adapters._stream import Export, ExportReport, Membership, rows_of
from trajgym.adapters._verl_rows import in_order, split
from trajgym.rewards import Advantages
from trajgym.trajectory import InvalidInput, MissingExtra

if TYPE_CHECKING:
    import os
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from trajgym.adapters._verl_rows import VerlRow
    from trajgym.rewards import Rewards
    from trajgym.trajectory import Group, SessionTree, TrainingRow

__all__ = ["ReplayShape", "write_replay"]

_PROMPT_TOKENS = 8
"""Length of the prompt of a filler."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayShape:
    """What verl makes the name of the folder from, and how many rows a step takes.

    Args:
        experiment: ``trainer.experiment_name``.
        project: ``trainer.project_name``.
        prompts: ``data.train_batch_size``.
        samples: ``actor_rollout_ref.rollout.n``.
        prompt_length: ``data.max_prompt_length``.
        response_length: ``data.max_response_length``.
        fetched: ``data.gen_batch_size``, if it is set.

    Raises:
        InvalidInput: a number below 1.
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
                raise InvalidInput(f"replay: {name} is {getattr(self, name)}; at least 1")

    @classmethod
    def of(cls, config: Mapping[str, Any]) -> Self:
        """Read verl's configuration, whole and resolved.

        Raises:
            InvalidInput: a key is missing, or the trainer is asynchronous: it would submit its
                prompts before their step.
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
        """Return where verl looks for steps."""
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
    values: Advantages | Sequence[Rewards | Advantages],
    shape: ReplayShape,
    *,
    first_step: int = 1,
    report: ExportReport | None = None,
) -> int:
    """Write ``tq_batch.pt`` files for ``skip.rollout_tq.dump_dir``; return how many steps.

    The stock trainer then trains on them instead of sampling. Each id's advantage stands in
    ``rm_scores``: train with ``algorithm.adv_estimator=trajgym`` and
    ``algorithm.rollout_correction.bypass_mode=True`` (old log-probs are those of the sampling).

    Each row of a session is a rollout of its own, since verl numbers them anew and loses the rest.
    A step takes ``prompts * samples`` rows; the last one is filled up with rows that train nothing.

    Args:
        out: the folder.
        sessions: exact ones.
        groups: their groups.
        values: advantages, and rewards if they shall be recorded too.
        shape: of the run that will replay them.
        first_step: number of the first file; verl counts steps from 1.
        report: filled with what was written and left out.

    Raises:
        InvalidInput: no advantages, or nothing to train on.
        MissingExtra: verl is not installed.
    """
    try:
        from verl.utils.tensordict_utils import list_of_dict_to_tensordict
    except ImportError as error:
        raise MissingExtra("verl", "verl") from error
    given = (values,) if isinstance(values, Advantages) else tuple(values)
    if not any(isinstance(one, Advantages) for one in given):
        raise InvalidInput("replay: needs advantages: the trainer takes them as they are")
    report = report or ExportReport("verl-replay")
    root = shape.folder(Path(out))
    export = Export(
        sessions=sessions, membership=Membership(groups), out=root, values=given, report=report
    )
    size = shape.prompts * shape.samples
    rows = _fitting(export, shape)
    step = first_step
    while batch := list(itertools.islice(rows, size)):
        fields, tags, keys = _batch(batch, shape, step)
        data = list_of_dict_to_tensordict(fields)
        folder = root / str(step) / "0"
        _save(folder, {"tensordict": data, "tags": tags, "keys": keys}, step)
        report.files.append(folder / "tq_batch.pt")
        step += 1
    if step == first_step:
        raise InvalidInput("replay: nothing to train on: every session was left out; see report")
    return step - first_step


def _fitting(export: Export, shape: ReplayShape) -> Iterator[_Row]:
    most = shape.prompt_length + shape.response_length
    for tree, rows in rows_of(export):
        if longest := max((len(row) for row in rows if len(row) > most), default=0):
            reason = f"a row of {longest} ids, and the trainer's limits add up to {most}"
            export.report.drop(tree.record.id, None, reason)
            continue
        for row in in_order(tree, rows):
            export.report.count(synthetic=row.synthetic)
            yield _Row(tree, row, split(row))


def _batch(
    rows: Sequence[_Row], shape: ReplayShape, step: int
) -> tuple[list[dict[str, Any]], list[dict[str, Any]], list[str]]:
    fields, tags, keys = [], [], []
    for place in range(shape.prompts * shape.samples):
        prompt, session = divmod(place, shape.samples)
        uid = f"replay-{step}-{prompt}"
        filler = place >= len(rows)
        one = rows[-1] if filler else rows[place]
        made = _fields(one, filler=filler)
        made |= {"uid": uid, "session_id": session, "global_steps": step, "index": place}
        fields.append(made)
        tags.append(_tag(made, one.parts, step))
        keys.append(f"{uid}_{session}_0")
    return fields, tags, keys


def _fields(one: _Row, *, filler: bool) -> dict[str, Any]:
    import torch

    tree, row, parts = one
    assert parts.advantages is not None
    outcome = tree.attempts[row.attempt].outcome
    prompt, response, mask = parts.prompt, parts.response, parts.mask
    logprobs, values = parts.logprobs, parts.advantages
    if filler:  # like verl's own padding: one id that no loss counts
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
        "rm_scores": torch.from_numpy(values.astype(np.float32)),
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
    """Write the batch first: verl takes a folder for whole once ``meta.json`` is there too."""
    import torch

    folder.mkdir(parents=True, exist_ok=True)
    part = folder / ".tq_batch.pt.part"
    torch.save({**payload, "global_steps": step}, part)
    part.replace(folder / "tq_batch.pt")
    meta = {"global_steps": step, "num_trajectories": len(payload["keys"])}
    (folder / "meta.json").write_text(json.dumps(meta), encoding="utf-8")
