"""Records: what a run consists of, as plain slotted objects.

The loop that drives sessions builds these thousands of times a second, so they are dataclasses;
pydantic validates them where they come from a file or a wire (`trajectory/_codec.py`).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar, Literal, NamedTuple, TypeAlias, get_args

from pydantic import BaseModel, ConfigDict, Field, PlainSerializer, PlainValidator

from trajgym.trajectory._errors import InvalidInput
from trajgym.trajectory._messages import Message, digest
from trajgym.trajectory._tokens import TurnTokens

__all__ = [
    "Attempt",
    "CallResult",
    "CallStatus",
    "Edge",
    "Group",
    "Member",
    "Outcome",
    "Sampling",
    "SessionRecord",
    "Status",
    "StatusKind",
    "Task",
    "Turn",
    "Usage",
]

Edge: TypeAlias = Literal["continue", "alternative", "rewrite", "spawn", "return"]
CallStatus: TypeAlias = Literal["ok", "error", "invalid", "timeout", "not_executed"]
StatusKind: TypeAlias = Literal[
    "running", "completed", "truncated", "failed", "interrupted", "cancelled"
]


_STRICT = ConfigDict(extra="forbid")


class Task(BaseModel):
    """One problem instance; how it is verified is the environment's business.

    Attributes:
        id: unique in a task set; it names groups, so keep it stable between runs.
        prompt: the first user message, if the environment does not make it itself.
        data: whatever the environment needs (records of any shape); JSON values only.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True)

    id: str = Field(min_length=1)
    prompt: str | None = None
    data: dict[str, Any] = Field(default_factory=dict)


class Status(NamedTuple):
    """How an attempt ended. ``str(status)`` is ``completed``, ``truncated:turns``, ``failed:env``.

    ``truncated`` is the agent's own doing (a budget, a deadline, out of memory): it is verified
    and scored. ``failed`` lies outside the agent's control: it has a cause, no outcome, and stays
    out of group statistics. Neither is ever written as a reward of zero.
    """

    kind: StatusKind
    detail: str = ""

    def __str__(self) -> str:
        return f"{self.kind}:{self.detail}" if self.detail else self.kind

    @classmethod
    def parse(cls, text: str) -> Status:
        """Read the form that ``str`` writes.

        Raises:
            InvalidInput: unknown kind, a missing budget or part, or one where none belongs.
        """
        kind, _, detail = text.partition(":")
        needs_detail = kind in {"truncated", "failed"}
        if kind not in get_args(StatusKind) or needs_detail != bool(detail):
            raise InvalidInput(
                f"status {text!r}: expected completed, truncated:<budget>, failed:<part>, "
                "interrupted, cancelled or running",
            )
        return cls(kind, detail)  # type: ignore[arg-type]

    @property
    def scored(self) -> bool:
        """True if an outcome belongs to this ending."""
        return self.kind in {"completed", "truncated"}

    @property
    def ended(self) -> bool:
        """True for every status but ``running``."""
        return self.kind != "running"


_RUNNING = Status("running")


def _tokens_from_json(value: object) -> TurnTokens | None:
    if value is None or isinstance(value, TurnTokens):
        return value
    if not isinstance(value, dict):
        raise InvalidInput(f"tokens: expected an object, got {type(value).__name__}")
    return TurnTokens.from_json(value)


def _tokens_to_json(value: TurnTokens | None) -> dict[str, Any] | None:
    return None if value is None else value.to_json()


def _status_from_json(value: object) -> Status:
    return value if isinstance(value, Status) else Status.parse(str(value))


_TokensField: TypeAlias = Annotated[
    TurnTokens | None,
    PlainValidator(_tokens_from_json),
    PlainSerializer(_tokens_to_json),
]
_StatusField: TypeAlias = Annotated[Status, PlainValidator(_status_from_json), PlainSerializer(str)]


@dataclass(slots=True, kw_only=True)
class Outcome:
    """What verification found.

    Args:
        score: the outcome reward, any finite float; 1.0 and 0.0 where it is pass or fail.
        passed: whether the task counts as solved.
        details: facts for people and derivers (failing tests, partial scores); JSON values.
    """

    __pydantic_config__: ClassVar[ConfigDict] = _STRICT

    score: float
    passed: bool
    details: dict[str, Any] = field(default_factory=dict)


@dataclass(slots=True, kw_only=True)
class CallResult:
    """How one tool call of a turn went.

    ``invalid``: unknown tool or arguments that do not validate. ``error``: the tool refused.
    ``not_executed``: the episode had ended, or the turn was cut, before this call's place.
    """

    __pydantic_config__: ClassVar[ConfigDict] = _STRICT

    call_id: str
    name: str
    status: CallStatus
    reward: float | None = None
    seconds: float = 0.0


@dataclass(slots=True, kw_only=True)
class Usage:
    """Token counts as the policy reported them (exact turns carry the ids besides)."""

    __pydantic_config__: ClassVar[ConfigDict] = _STRICT

    prompt_tokens: int = 0
    completion_tokens: int = 0
    reasoning_tokens: int = 0


@dataclass(slots=True, kw_only=True)
class Sampling:
    """Parameters that a turn was sampled with.

    ``logprob_mode`` says what the engine's log-probs mean: ``processed`` (after temperature,
    before top-k/top-p cuts: what trainers need), ``raw`` (of the untempered model; most servers'
    default), or ``unknown``.
    """

    __pydantic_config__: ClassVar[ConfigDict] = _STRICT

    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    max_tokens: int | None = None
    seed: int | None = None
    logprob_mode: Literal["processed", "raw", "unknown"] = "unknown"


@dataclass(slots=True, kw_only=True)
class Turn:
    """One policy call and what the environment answered.

    Context is stored as a delta: the policy saw the first ``kept`` messages of the base turn's
    conversation (all of them if None) followed by ``context``. The base is the causal parent, but
    for ``return`` it is the nearest ancestor of the same agent, and ``spawn`` starts afresh.

    Args:
        index: position in the session, from 0, in the order of acknowledgement.
        parent: index of the causal parent; None for a first turn.
        edge: how this turn follows from its parent.
        attempt: which attempt recorded it (0 unless the session was forked).
        agent: ``main``, or the id of a sub-agent.
        kept: messages kept of the base's conversation; None keeps all.
        context: messages new to the policy at this turn (the prompt, on a first turn).
        message: what the policy said.
        observation: what the environment answered: tool results, or an observation.
        calls: one entry per tool call of ``message``, in order.
        reward: the environment's step reward, None if it gave none.
        done: the environment ended the episode with this turn.
        signals: facts for derivers; JSON values.
        finish: why sampling stopped: ``stop``, ``tool_calls``, ``length``, ``abort``.
        policy: who spoke, as ``kind:name`` (``scripted:explorer``, ``openai:gpt``, ``engine:m``).
        synthetic: the ids and log-probs come from a fake engine and train nothing.
        tokens: the exact ids; None makes this a text turn.
        snapshot: id of the environment snapshot taken after this turn, if any.
        started_at: Unix time (s) when the policy was called.
        policy_seconds: time in the policy, pauses left out.
        env_seconds: time in the environment.
    """

    __pydantic_config__: ClassVar[ConfigDict] = _STRICT

    index: int
    parent: int | None
    message: Message
    edge: Edge = "continue"
    attempt: int = 0
    agent: str = "main"
    kept: int | None = None
    context: list[Message] = field(default_factory=list)
    observation: list[Message] = field(default_factory=list)
    calls: list[CallResult] = field(default_factory=list)
    reward: float | None = None
    done: bool = False
    signals: dict[str, Any] = field(default_factory=dict)
    finish: str = "stop"
    usage: Usage | None = None
    sampling: Sampling | None = None
    policy: str = ""
    synthetic: bool = False
    tokens: _TokensField = None
    snapshot: str | None = None
    started_at: float = 0.0
    policy_seconds: float = 0.0
    env_seconds: float = 0.0

    @property
    def exact(self) -> bool:
        """True if the engine's own ids and log-probs are there."""
        return self.tokens is not None

    @property
    def observation_digest(self) -> str:
        """Digest of the observation; equal observations have equal digests (replay, anchors)."""
        return digest(self.observation)


@dataclass(slots=True, kw_only=True)
class Attempt:
    """One attempt at the task: the path from the root to ``leaf``.

    A session has attempt 0; each fork adds one. Rewrites and sub-agents are part of an attempt.

    Args:
        index: 0 for the first, then in the order of forking.
        forked_at: turn after which the environment was forked; None for attempt 0 and for a
            fork before the first turn.
        leaf: the last turn of the main agent's path; None if no turn was recorded.
        status: how it ended.
        cause: what went wrong, for ``failed`` and ``interrupted``; else what cut it.
        outcome: only where ``status.scored``.
        error: the traceback, for failures in code.
        ended_at: Unix time (s).
    """

    __pydantic_config__: ClassVar[ConfigDict] = _STRICT

    index: int = 0
    forked_at: int | None = None
    leaf: int | None = None
    status: _StatusField = _RUNNING
    cause: str = ""
    outcome: Outcome | None = None
    error: str = ""
    ended_at: float | None = None

    def __post_init__(self) -> None:
        if self.outcome is not None and not self.status.scored:
            raise InvalidInput(
                f"attempt {self.index}: status {self.status} can't carry an outcome: a failure is "
                "not a score",
            )


@dataclass(slots=True, kw_only=True)
class SessionRecord:
    """The head of a session.

    Args:
        id: unique in the run.
        task: id of the task.
        env: the environment spec, ``{"id": ..., "config": {...}}``.
        group: id of the group, if it belongs to one.
        sample: which sample of the group's task this is, from 0.
        seed: what the environment was reset with.
        tools: JSON schemas shown to the policy.
        budgets: the limits in force; JSON values.
        labels: free text by name (policy, sandbox, library version).
        created_at: Unix time (s).
    """

    __pydantic_config__: ClassVar[ConfigDict] = _STRICT

    id: str
    task: str
    env: dict[str, Any]
    group: str | None = None
    sample: int = 0
    seed: int | None = None
    tools: list[dict[str, Any]] = field(default_factory=list)
    budgets: dict[str, Any] = field(default_factory=dict)
    labels: dict[str, str] = field(default_factory=dict)
    created_at: float = 0.0


class Member(NamedTuple):
    """A session's place in a group.

    ``left`` is empty while the member counts; otherwise it says why it left (a status such as
    ``failed:sandbox``, or ``stale``): a group that shrank says so.
    """

    session: str
    sample: int
    left: str = ""


@dataclass(slots=True, kw_only=True)
class Group:
    """The unit of group-relative advantages.

    Args:
        id: no underscore (verl splits keys there).
        task: id of the task that all members attempt.
        planned: how many samples were wanted.
        members: every session that belonged, those that left included.
        sealed: True once no member will be added; derivers run on sealed groups.
    """

    __pydantic_config__: ClassVar[ConfigDict] = _STRICT

    id: str
    task: str
    planned: int
    members: list[Member] = field(default_factory=list)
    sealed: bool = False

    def __post_init__(self) -> None:
        if not self.id or "_" in self.id:
            raise InvalidInput(f"group id {self.id!r} must be non-empty and without underscores")

    @property
    def counted(self) -> list[Member]:
        """Members that count in group statistics."""
        return [m for m in self.members if not m.left]
