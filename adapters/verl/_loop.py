"""The agent loop ``trajgym``. Importing this module imports verl."""

from __future__ import annotations

import asyncio
import json
import logging
import uuid
from typing import TYPE_CHECKING, Any, get_args

import torch
from omegaconf import OmegaConf
from verl.experimental.agent_loop.agent_loop import (
    AgentLoopBase,
    AgentLoopMetrics,
    AgentLoopOutput,
    register,
)

from trajgym.adapters._errors import RolloutFailed
from trajgym.adapters._gate import Allowance
from trajgym.adapters._group_rows import RowBuilder
from trajgym.adapters.verl._engine import VerlEngine
from trajgym.adapters.verl._feed import fed_sessions, share_of
from trajgym.adapters.verl._process import (
    annotators_of,
    close_group,
    open_env,
    open_group,
    renderer_of,
    slots,
    store_at,
)
from trajgym.adapters.verl._rows import describe_row, in_order, main_row, split
from trajgym.adapters.verl._settings import (
    COLUMN,
    FeedSettings,
    LoopSettings,
    Work,
    read_settings,
)
from trajgym.rewards import Rewards
from trajgym.rollout import SealedGroup, SessionHooks, TokenPolicy, derive_seed, run_sample
from trajgym.trajectory import Group, InvalidInput, Member, TrajgymError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from trajgym.envs import Session
    from trajgym.rollout.rendering import Renderer
    from trajgym.trajectory import SessionTree, Store, TrainingRow

__all__ = ["DenseOutput", "TrajgymAgentLoop"]

_log = logging.getLogger(__name__)


class DenseOutput(AgentLoopOutput):  # type: ignore[misc]
    """An output with a reward for every response id.

    verl's V1 workers write the fields of :meth:`as_dict`; V0 reads ``reward_score`` only.
    """

    token_rewards: list[float]
    """Reward of each response id."""

    def as_dict(self) -> dict[str, Any]:
        """Return the fields of a row, including ``rm_scores`` for each id."""
        fields: dict[str, Any] = super().as_dict()
        rewards = fields.pop("token_rewards")
        fields["rm_scores"] = torch.tensor(rewards, dtype=torch.float32)
        return fields


@register("trajgym")
class TrajgymAgentLoop(AgentLoopBase):  # type: ignore[misc]
    """Runs a session of a trajgym environment for each rollout.

    Rows of the data select it with ``agent_name: trajgym``. The row's column ``trajgym`` has the
    task; the section ``trajgym`` of verl's configuration, or the YAML entry of an agent loop, has
    the settings. A key in both is an error.

    A failed session returns no row: an empty list in V1, which does not affect the other sessions
    of its group. V0 and the fully asynchronous trainer don't accept an empty list; there, a session
    that still fails after ``retries`` raises.

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
        """Run a session and return its outputs; verl scores the last one.

        Args:
            sampling_params: temperature, ``top_p``, ``top_k`` and others.
            **kwargs: columns of the row, and verl's ``uid``, ``session_id``, ``global_steps``.

        Raises:
            RolloutFailed: there is no row, and this trainer does not accept an empty list.
        """
        try:
            outputs = await self._outputs(sampling_params, kwargs)
        except Exception as error:
            # boundary: an exception would discard the whole group, and verl's asynchronous trainers
            # would repeat it endlessly.
            if not self._takes_lists:
                raise RolloutFailed(f"no row for this rollout: {error}") from error
            known = isinstance(error, TrajgymError)
            _log.error("rollout %s: no row: %s", kwargs.get("uid"), error, exc_info=not known)
            return []
        if self._takes_lists:
            return outputs
        if not outputs:
            raise RolloutFailed(
                "the session failed, and this trainer can't leave it out: see the log, and raise "
                "trajgym.retries",
            )
        return outputs[-1]

    @property
    def _takes_lists(self) -> bool:
        """Whether the trainer is V1; V0 and fully_async take exactly one output."""
        if "async_training" in self.config:
            return False
        return bool(OmegaConf.select(self.config, "trainer.use_v1", default=True))

    @property
    def _server(self) -> str:
        return str(self.rollout_config.get("name") or "vllm")

    def _settings(self) -> LoopSettings:
        section = self.config.get(COLUMN) or {}
        entry = {key: _plain(value) for key, value in self._entry.items()}
        settings = read_settings(_plain(section), entry)
        if settings.outputs == "all" and not self._takes_lists:
            raise InvalidInput(
                "this trainer takes one row of a session: set trajgym.outputs to main (which drops "
                "rows of rewritten contexts), or use trainer.use_v1",
            )
        return settings

    async def _outputs(self, params: dict[str, Any], row: dict[str, Any]) -> list[DenseOutput]:
        settings = self._settings()
        if settings.feed is not None and self._is_trained(params):
            return await self._fed(settings, settings.feed, int(row.get("global_steps", 0)))
        work = Work.read(row.get(COLUMN), settings)
        uid = str(row.get("uid", ""))
        if not uid or "_" in uid:
            raise InvalidInput(f"uid {uid!r}: verl splits keys at underscores")
        temperature = self.rollout_config.temperature if self._is_trained(params) else None
        makers = _Makers(settings, temperature)
        store = await store_at(settings.store)
        async with asyncio.timeout(settings.deadline):
            await open_env(work.env)
        session = await self._session(settings, work, params, row, store)
        if session is None:
            return []

        if annotators := annotators_of(settings):
            await annotators(_alone(session.tree), store)
        return await asyncio.to_thread(self._made, session.tree, uid, makers)

    async def _fed(
        self, settings: LoopSettings, feed: FeedSettings, step: int
    ) -> list[DenseOutput]:
        """Return the rows of the next session of a feed, with its group's advantages."""
        estimator = OmegaConf.select(self.config, "algorithm.adv_estimator")
        if estimator != COLUMN or settings.trainer or not self._takes_lists:
            raise InvalidInput(
                f"trajgym.feed gives advantages: set algorithm.adv_estimator to {COLUMN!r} (it is "
                f"{estimator!r}), and use verl's own V1 trainer",
            )
        sessions = fed_sessions(
            feed,
            share_of(int(self.rollout_config.agent.num_workers)),
            allow=settings.allow,
            temperature=self.rollout_config.temperature,
            missing_signals=settings.missing_signals,
        )
        async with asyncio.timeout(feed.seconds):
            tree, rows = await sessions.take(step)
        return [self._output(tree, one) for one in in_order(tree, rows)]

    def _is_trained(self, params: Mapping[str, Any]) -> bool:
        """Return whether a rollout may be trained, so that the gate applies to it.

        verl does not inform a loop which rollouts are validation. They have the parameters of
        ``rollout.val_kwargs``; baselines of ReMax, which are not trained either, are greedy. All
        other rollouts count as training, whatever their parameters.
        """
        names = ("temperature", "top_p", "top_k")
        given = [params.get(name) for name in names]
        if given == [self.rollout_config.get(name) for name in names]:
            return True
        validation = self.rollout_config.get("val_kwargs") or {}
        untrained = [[validation.get(name) for name in names]]
        if OmegaConf.select(self.config, "algorithm.adv_estimator") == "remax":
            untrained.append([0, 1.0, -1])
        return given not in untrained

    def _made(self, tree: SessionTree, uid: str, makers: _Makers) -> list[DenseOutput]:
        found = makers.rewards(_alone(tree))
        if not found.sessions:
            raise InvalidInput(f"session {tree.record.id}: no row: {dict(found.reasons)}")
        rows = in_order(tree, found.rows)
        if makers.main_only:
            main = main_row(tree, rows)
            rows = [] if main is None else [main]
        outputs = [self._output(tree, one) for one in rows]
        if makers.group is not None:
            lacking = makers.group.lacks(tree)
            if lacking and not makers.group.uses_lacking:
                raise InvalidInput(f"session {tree.record.id}: no row: {lacking}")
            assert makers.group.deriver is not None
            _carry(outputs, tree, rows, uid, makers.group.deriver.pack(tree))
        return outputs

    async def _session(
        self,
        settings: LoopSettings,
        work: Work,
        params: Mapping[str, Any],
        row: Mapping[str, Any],
        store: Store | None,
    ) -> Session | None:
        """Return a scored session, or None if all tries failed."""
        renderer = await renderer_of(self.tokenizer, _plain(self.apply_chat_template_kwargs))
        step = int(row.get("global_steps", 0))
        if store is not None:
            await store.put_task(work.task)
        group = open_group(store, str(row["uid"]), work.task, int(self.rollout_config.n))
        seed = None
        if self.rollout_config.get("full_determinism") and self._server == "vllm":
            place = f"{step}/{work.task.id}/{row.get('session_id', 0)}"
            seed = derive_seed(int(self.rollout_config.seed), place)
        session = await run_sample(
            work.env,
            lambda: self._policy(settings, renderer, params, step, seed),
            group,
            int(row.get("session_id", 0)),
            settings=settings.run_settings(work.budgets, step),
            session_id=self._name(row),
            hooks=SessionHooks(slots=slots(settings.concurrency), on_end=_log_failed),
        )
        if group.complete:
            close_group(group)
            await group.seal()
        return session if session.status.scored else None

    def _policy(
        self,
        settings: LoopSettings,
        renderer: Renderer,
        params: Mapping[str, Any],
        step: int,
        seed: int | None,
    ) -> TokenPolicy:
        """Return a policy for one session; its engine keeps the session's context."""
        config = self.rollout_config
        engine = VerlEngine(
            self.server_manager,
            params,
            prompt_length=int(config.prompt_length),
            response_length=int(config.response_length),
            padded=settings.outputs == "main",
            version=step,
            context=config.get("max_model_len"),
            seed=seed,
            logprobs_mode=_logprobs_mode(config, self._server),
        )
        return TokenPolicy(
            engine,
            renderer,
            sampling=engine.sampling,
            max_tokens=settings.max_tokens,
            timeout=settings.turn_timeout,
        )

    def _name(self, row: Mapping[str, Any]) -> str:
        if "session_id" in row:
            return f"{row['uid']}-{row['session_id']}"
        return f"{row['uid']}-{self._copy}"  # V0 does not number the rollouts of a prompt

    def _output(self, tree: SessionTree, row: TrainingRow) -> DenseOutput:
        parts = split(row)
        values = parts.rewards if parts.advantages is None else parts.advantages
        assert values is not None
        turns = [tree.turns[index] for index in row.turns]
        outcome = tree.attempts[row.attempt].outcome
        assert outcome is not None
        return DenseOutput(
            prompt_ids=parts.prompt.tolist(),
            response_ids=parts.response.tolist(),
            response_mask=parts.mask.astype(int).tolist(),
            response_logprobs=parts.logprobs.tolist(),
            token_rewards=values.tolist(),
            reward_score=float(values.sum(dtype="float64")),
            num_turns=len(tree.conversation(turns[-1])),
            metrics=AgentLoopMetrics(
                generate_sequences=sum(turn.policy_seconds for turn in turns),
                tool_calls=sum(turn.env_seconds for turn in turns),
            ),
            extra_fields={
                "min_global_steps": parts.version_low,
                "max_global_steps": parts.version_high,
                "turn_scores": [] if row.reward is None else row.reward[row.turn_ends].tolist(),
                "tool_rewards": [],
                "reward_extra_info": {
                    "trajgym_score": float(outcome.score),
                    "trajgym_passed": float(outcome.passed),
                    "trajgym_turns": float(len(turns)),
                },
                COLUMN: json.dumps(describe_row(row)),
            },
        )


class _Makers:
    """Row builders of a session: for its rewards, and for the group's deriver if one is set."""

    def __init__(self, settings: LoopSettings, temperature: float | None) -> None:
        """Make the builders.

        Args:
            settings: of the run.
            temperature: of training; None for a rollout that is not trained.
        """
        allow = get_args(Allowance) if temperature is None else settings.allow
        options: dict[str, Any] = {
            "allow": allow,
            "temperature": temperature,
            "missing_signals": settings.missing_signals,
        }
        where = "verl's agent loop"
        self.rewards = RowBuilder(settings.reward_deriver(), where, kind=Rewards, **options)
        deriver = settings.group_deriver()
        self.group = None if deriver is None else RowBuilder(deriver, where, **options)
        self.main_only = settings.outputs == "main"


def _logprobs_mode(config: Any, server: str) -> str:
    """Return the mode in which the servers report log-probs: ``engine_kwargs`` override verl's."""
    own = config.get("logprobs_mode", "processed_logprobs")
    given = OmegaConf.select(config, f"engine_kwargs.{server}.logprobs_mode", default=own)
    if given is None:
        return "raw_logprobs" if server == "vllm" else "processed_logprobs"  # their defaults
    return str(given)


def _alone(tree: SessionTree) -> SealedGroup:
    """Return a group of this session only, because a worker sees one session at a time."""
    members = [Member(tree.record.id, tree.record.sample)]
    group = Group(id="session", task=tree.record.task, planned=1, members=members, sealed=True)
    return SealedGroup(group, [tree])


def _carry(
    outputs: list[DenseOutput],
    tree: SessionTree,
    rows: list[TrainingRow],
    group: str,
    table: dict[str, Any],
) -> None:
    """Add the session's part of the turn table to its last row, for the trainers ``trajgym_*``."""
    whole = {"group": group, "task": tree.record.task, "table": table}
    outputs[-1].extra_fields[COLUMN] = json.dumps(describe_row(rows[-1]) | whole)


def _log_failed(session: Session) -> None:
    state = session.attempt
    if not state.status.scored:
        _log.warning("session %s: %s: %s", session.id, state.status, state.cause)


def _plain(value: Any) -> Any:
    return OmegaConf.to_container(value, resolve=True) if OmegaConf.is_config(value) else value
