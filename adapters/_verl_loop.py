"""The agent loop ``trajgym``. Importing this imports verl."""

from __future__ import annotations

import asyncio
import json
import logging
import uuid
from typing import TYPE_CHECKING, Any

import torch
from omegaconf import OmegaConf
from verl.experimental.agent_loop.agent_loop import (
    AgentLoopBase,
    AgentLoopMetrics,
    AgentLoopOutput,
    register,
)

from trajgym.adapters._errors import RolloutFailed
from trajgym.adapters._verl_engine import VerlEngine
from trajgym.adapters._verl_process import open_env, record_member, renderer_of, slots, store_at
from trajgym.adapters._verl_rows import describe_row, in_order, main_row, rewarded_rows, split
from trajgym.adapters._verl_settings import COLUMN, LoopSettings, Work, read_settings
from trajgym.envs import Session
from trajgym.rollout import TokenPolicy, derive_seed, run_session
from trajgym.trajectory import InvalidInput, Member, TrajgymError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from trajgym.rollout import Expansion, Renderer
    from trajgym.trajectory import SessionTree, Store, TrainingRow

__all__ = ["DenseOutput", "TrajgymAgentLoop"]

_log = logging.getLogger(__name__)


class DenseOutput(AgentLoopOutput):  # type: ignore[misc]
    """An output with a reward for every response id.

    verl's V1 workers write what :meth:`as_dict` returns; V0 knows ``reward_score`` only.
    """

    token_rewards: list[float]
    """Of the response ids."""

    def as_dict(self) -> dict[str, Any]:
        """Return the fields of a row, ``rm_scores`` per id among them."""
        fields: dict[str, Any] = super().as_dict()
        rewards = fields.pop("token_rewards")
        fields["rm_scores"] = torch.tensor(rewards, dtype=torch.float32)
        return fields


@register("trajgym")
class TrajgymAgentLoop(AgentLoopBase):  # type: ignore[misc]
    """Runs a session of a trajgym environment for each rollout.

    ``agent_name: trajgym`` in the data chooses it. What to run stands in the row's column
    ``trajgym``, how to run it in the section ``trajgym`` of verl's configuration or in the YAML
    entry of an agent loop; a key that is given twice is refused.

    A session that fails gives no row: an empty list in V1, which leaves its siblings as they are.
    V0 and the fully asynchronous trainer can't take that: there, after ``retries``, it raises.

    Args:
        *args: as for ``AgentLoopBase``.
        **kwargs: the same, and keys of :class:`trajgym.adapters.verl.LoopSettings`.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        names = LoopSettings.model_fields
        self._entry = {key: value for key, value in kwargs.items() if key in names}
        self._copy = uuid.uuid4().hex[:8]
        super().__init__(*args, **{k: v for k, v in kwargs.items() if k not in names})

    async def run(self, sampling_params: dict[str, Any], **kwargs: Any) -> Any:
        """Return the session's outputs, the one that verl scores last.

        Args:
            sampling_params: temperature and the rest.
            **kwargs: columns of the row, and verl's ``uid``, ``session_id``, ``global_steps``.

        Raises:
            RolloutFailed: no row, and verl can't take an empty list.
        """
        try:
            outputs = await self._outputs(sampling_params, kwargs)
        except Exception as error:
            # boundary: an exception would cost the siblings of this session their group, and in
            # verl's asynchronous trainers come back for ever.
            if not self._takes_lists:
                raise RolloutFailed(f"no row for this rollout: {error}") from error
            known = isinstance(error, TrajgymError)
            _log.error("rollout %s: no row: %s", kwargs.get("uid"), error, exc_info=not known)
            return []
        if self._takes_lists:
            return outputs
        if not outputs:
            raise RolloutFailed(
                "the session failed, and V0 has no way to leave it out: see the log, and raise "
                "trajgym.retries",
            )
        return outputs[-1]

    @property
    def _takes_lists(self) -> bool:
        """Whether this verl is V1; V0 and fully_async take exactly one output."""
        if "async_training" in self.config:
            return False
        return bool(OmegaConf.select(self.config, "trainer.use_v1", default=True))

    def _settings(self) -> LoopSettings:
        section = self.config.get(COLUMN) or {}
        entry = {key: _plain(value) for key, value in self._entry.items()}
        settings = read_settings(_plain(section), entry)
        if settings.outputs == "all" and not self._takes_lists:
            raise InvalidInput(
                "this trainer takes one row of a session: set trajgym.outputs to main (rows of "
                "rewritten contexts are then lost), or use trainer.use_v1",
            )
        return settings

    async def _outputs(self, params: dict[str, Any], row: dict[str, Any]) -> list[DenseOutput]:
        settings = self._settings()
        work = Work.read(row.get(COLUMN), settings)
        uid = str(row.get("uid", ""))
        if not uid or "_" in uid:
            raise InvalidInput(f"uid {uid!r}: verl splits keys at underscores")
        derivers, deriver = settings.reward_derivers(), settings.group_deriver()
        expansion = settings.session_expansion()
        store = await store_at(settings.store)
        async with asyncio.timeout(settings.deadline):
            await open_env(work.env)
        async with slots(settings.concurrency):
            session = await self._session(settings, work, expansion, params, row, store)
        if session is None:
            return []

        def made() -> list[DenseOutput]:
            tree = session.tree
            rows = in_order(tree, rewarded_rows(tree, derivers))
            if settings.outputs == "main":
                main = main_row(tree, rows)
                rows = [] if main is None else [main]
            outputs = [self._output(tree, one) for one in rows]
            if outputs and deriver is not None:
                _carry(outputs, tree, rows, uid, deriver.pack(tree))
            return outputs

        return await asyncio.to_thread(made)

    async def _session(
        self,
        settings: LoopSettings,
        work: Work,
        expansion: Expansion | None,
        params: Mapping[str, Any],
        row: Mapping[str, Any],
        store: Store | None,
    ) -> Session | None:
        """Return a session that ended scored, None after the last try that failed."""
        uid, sample = str(row["uid"]), int(row.get("session_id", 0))
        renderer = await renderer_of(self.tokenizer, _plain(self.apply_chat_template_kwargs))
        step = int(row.get("global_steps", 0))
        if store is not None:
            await store.put_task(work.task)
        for attempt in range(settings.retries + 1):
            session = Session(
                work.env,
                work.task,
                store=store,
                session_id=self._name(row, attempt),
                group=uid,
                sample=sample,
                seed=derive_seed(settings.seed, work.task.id),
                budgets=work.budgets,
                labels={"policy": "engine:verl", "step": str(step)},
            )
            policy = self._policy(settings, renderer, params, step)
            await run_session(
                session,
                policy,
                work.task,
                sample=sample,
                seed=settings.seed,
                deadline=settings.deadline,
                expansion=expansion,
            )
            state = session.attempt
            scored = state.status.scored
            await record_member(
                store,
                uid,
                work.task,
                int(self.rollout_config.n),
                Member(session.id, sample, "" if scored else str(state.status)),
                last=scored or attempt == settings.retries,
            )
            if scored:
                return session
            _log.warning("session %s: %s: %s", session.id, state.status, state.cause)
        return None

    def _policy(
        self, settings: LoopSettings, renderer: Renderer, params: Mapping[str, Any], step: int
    ) -> TokenPolicy:
        """Return a policy for one session: the engine follows its context."""
        config = self.rollout_config
        engine = VerlEngine(
            self.server_manager,
            params,
            prompt_length=int(config.prompt_length),
            response_length=int(config.response_length),
            padded=settings.outputs == "main",
            version=step,
            context=config.get("max_model_len"),
            logprobs_mode=config.get("logprobs_mode", "processed_logprobs"),
        )
        return TokenPolicy(
            engine,
            renderer,
            sampling=engine.sampling,
            max_tokens=settings.max_tokens,
            timeout=settings.turn_timeout,
        )

    def _name(self, row: Mapping[str, Any], attempt: int) -> str:
        if "session_id" in row:
            name = f"{row['uid']}-{row['session_id']}"
        else:  # V0 repeats a row without numbering the copies
            name = f"{row['uid']}-{self._copy}"
        return f"{name}.{attempt}" if attempt else name

    def _output(self, tree: SessionTree, row: TrainingRow) -> DenseOutput:
        parts = split(row)
        assert row.reward is not None
        assert parts.rewards is not None
        turns = [tree.turns[index] for index in row.turns]
        outcome = tree.attempts[row.attempt].outcome
        assert outcome is not None
        return DenseOutput(
            prompt_ids=parts.prompt.tolist(),
            response_ids=parts.response.tolist(),
            response_mask=parts.mask.astype(int).tolist(),
            response_logprobs=parts.logprobs.tolist(),
            token_rewards=parts.rewards.tolist(),
            reward_score=float(parts.rewards.sum(dtype="float64")),
            num_turns=len(tree.conversation(turns[-1])),
            metrics=AgentLoopMetrics(
                generate_sequences=sum(turn.policy_seconds for turn in turns),
                tool_calls=sum(turn.env_seconds for turn in turns),
            ),
            extra_fields={
                "min_global_steps": parts.version_low,
                "max_global_steps": parts.version_high,
                "turn_scores": row.reward[row.turn_ends].tolist(),
                "tool_rewards": [],
                "reward_extra_info": {
                    "trajgym_score": float(outcome.score),
                    "trajgym_passed": float(outcome.passed),
                    "trajgym_turns": float(len(turns)),
                },
                COLUMN: json.dumps(describe_row(row)),
            },
        )


def _carry(
    outputs: list[DenseOutput],
    tree: SessionTree,
    rows: list[TrainingRow],
    group: str,
    table: dict[str, Any],
) -> None:
    """Give the session's part of the turn table to its last row, for our trainers."""
    whole = {"group": group, "task": tree.record.task, "table": table}
    outputs[-1].extra_fields[COLUMN] = json.dumps(describe_row(rows[-1]) | whole)


def _plain(value: Any) -> Any:
    return OmegaConf.to_container(value, resolve=True) if OmegaConf.is_config(value) else value
