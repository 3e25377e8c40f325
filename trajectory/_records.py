"""The records that a run consists of, as slotted dataclasses.

The rollout loop builds thousands of them per second, so they are dataclasses; pydantic validates
them when they are read from a file or a connection (`trajectory/_codec.py`).
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
    "Delivery",
    "Edge",
    "Group",
    "Member",
    "Outcome",
    "Sampling",
    "SessionRecord",
    "Status",
    "StatusKind",
    "Task",
    "Try",
    "Turn",
    "Usage",
    "Wire",
]

Edge: TypeAlias = Literal["continue", "alternative", "rewrite", "spawn", "return"]
Delivery: TypeAlias = Literal["delivered", "open", "orphan"]
CallStatus: TypeAlias = Literal["ok", "error", "invalid", "timeout", "not_executed"]
StatusKind: TypeAlias = Literal[
    "running", "completed", "truncated", "failed", "interrupted", "cancelled"
]


_STRICT = ConfigDict(extra="forbid")


class Task(BaseModel):
    """One problem instance; the environment decides how it is verified.

    Attributes:
        id: unique in a task set. Group ids derive from it, so keep it stable between runs.
        prompt: the first user message, unless the environment builds it.
        data: what the environment needs; JSON values only.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True)

    id: str = Field(min_length=1)
    prompt: str | None = None
    data: dict[str, Any] = Field(default_factory=dict)


class Status(NamedTuple):
    """How an attempt ended. ``str(status)`` is ``completed``, ``truncated:turns``, ``failed:env``.

    ``truncated`` attempts were ended by a limit that the agent reached (a budget, a deadline, out
    of memory); they are verified and scored. ``failed`` attempts ended for a reason outside the
    agent's control; they have a cause and no outcome, and are excluded from group statistics.
    Neither is recorded as a reward of zero.
    """

    kind: StatusKind
    detail: str = ""

    def __str__(self) -> str:
        return f"{self.kind}:{self.detail}" if self.detail else self.kind

    def __format__(self, spec: str) -> str:
        """Format as a string, with width and alignment."""
        return format(str(self), spec)

    @classmethod
    def parse(cls, text: str) -> Status:
        """Parse the form that ``str`` returns.

        Raises:
            InvalidInput: the kind is unknown, its budget or part is missing, or it takes none.
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
        """True if an attempt that ended this way has an outcome."""
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
    """The result of verification.

    Args:
        score: the outcome reward, any finite float; 1.0 or 0.0 where the task is pass or fail.
        passed: whether the task counts as solved.
        details: more for people and derivers (failing tests, partial scores); JSON values.
    """

    __pydantic_config__: ClassVar[ConfigDict] = _STRICT

    score: float
    passed: bool
    details: dict[str, Any] = field(default_factory=dict)


@dataclass(slots=True, kw_only=True)
class CallResult:
    """The result of one tool call of a turn.

    ``invalid``: the tool is unknown or the arguments do not validate. ``error``: the tool reported
    an error. ``not_executed``: the episode ended, or the turn was cut, before this call.
    """

    __pydantic_config__: ClassVar[ConfigDict] = _STRICT

    call_id: str
    name: str
    status: CallStatus
    reward: float | None = None
    seconds: float = 0.0


@dataclass(slots=True, kw_only=True)
class Usage:
    """Token counts as the policy reported them (exact turns carry the ids besides).

    ``reasoning_tokens`` are part of ``completion_tokens``; ``cached_tokens``, which the provider
    read from a prompt cache, are part of ``prompt_tokens``.
    """

    __pydantic_config__: ClassVar[ConfigDict] = _STRICT

    prompt_tokens: int = 0
    completion_tokens: int = 0
    reasoning_tokens: int = 0
    cached_tokens: int = 0


@dataclass(slots=True, kw_only=True)
class Sampling:
    """The parameters with which a turn was sampled.

    ``logprob_mode`` is the distribution that the engine's log-probs refer to: ``processed`` (after
    temperature, before top-k and top-p: what trainers need), ``raw`` (before temperature; the
    default of most servers), or ``unknown``.
    """

    __pydantic_config__: ClassVar[ConfigDict] = _STRICT

    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    max_tokens: int | None = None
    seed: int | None = None
    logprob_mode: Literal["processed", "raw", "unknown"] = "unknown"


class Try(NamedTuple):
    """A failed try of a call, before the one that succeeded."""

    at: float
    """Unix time (s) when it began."""
    seconds: float
    """How long it took."""
    cause: str
    """What went wrong: ``status 503``, ``connection lost``, ``client gone``."""


@dataclass(slots=True, kw_only=True)
class Wire:
    """How a recording proxy received a turn, and why it placed it in the tree where it did.

    Args:
        call: id of the response, as the client received it.
        dialect: ``chat``, ``completions``, ``responses`` or ``messages``.
        request: digest of path, body and the agent's hints; equal for a repeated request.
        head: digest of system text, tools, template settings and response format.
        tools: hash of the blob that holds the tool schemas, empty if none were offered.
        rule: the rule that placed it, with the reason: ``C``, ``W2:dropped``, ``S2:argument``.
        inexact: why there are no token ids although they were requested.
        renamed: the engine's tool call id by the id that the client received.
        hints: ids that the agent sent (its own session, agent and parent ids).
        links: other turns that it refers to, by kind: ``summary``, ``duplicate``.
        tries: earlier tries of the same call that failed.
    """

    __pydantic_config__: ClassVar[ConfigDict] = _STRICT

    call: str
    dialect: str
    request: str = ""
    head: str = ""
    tools: str = ""
    rule: str = ""
    inexact: str = ""
    renamed: dict[str, str] = field(default_factory=dict)
    hints: dict[str, str] = field(default_factory=dict)
    links: dict[str, int] = field(default_factory=dict)
    tries: list[Try] = field(default_factory=list)


@dataclass(slots=True, kw_only=True)
class Turn:
    """One policy call and the environment's response.

    Context is stored as a delta: the policy was shown the first ``kept`` messages of the base
    turn's conversation (all of them if None), followed by ``context``. The base is the causal
    parent; for a ``return`` edge it is the nearest ancestor of the same agent, and a ``spawn``
    edge has no base.

    Args:
        index: position in the session, from 0, in the order of acknowledgement.
        parent: index of the causal parent; None for a first turn.
        edge: how this turn follows from its parent.
        attempt: which attempt recorded it (0 unless the session was forked).
        agent: ``main``, or the id of a sub-agent.
        kept: messages kept of the base's conversation; None keeps all.
        context: messages that this turn adds to the base (the prompt, on a first turn).
        message: the assistant message.
        observation: the environment's response: tool results, or an observation.
        calls: one entry per tool call of ``message``, in order.
        reward: the environment's step reward, None if it gave none.
        done: the environment ended the episode with this turn.
        signals: values for derivers, by name; JSON values.
        finish: why sampling stopped: ``stop``, ``tool_calls``, ``length``, ``abort``.
        policy: the policy, as ``kind:name`` (``scripted:explorer``, ``openai:gpt``, ``engine:m``).
        synthetic: the ids and log-probs come from a fake engine and are not to be trained on.
        tokens: the exact ids; None makes this a text turn.
        snapshot: id of the environment snapshot taken after this turn, if any.
        started_at: Unix time (s) when the policy was called.
        policy_seconds: time in the policy, without pauses.
        env_seconds: time in the environment.
        returns: last turns of sub-agents whose results this turn received, besides the parent.
        delivery: whether the response reached the agent: ``delivered``; ``open`` until that is
            known; ``orphan`` if the agent never received it (nothing follows such a turn).
        role: the purpose of the call: ``main``; ``side:<purpose>`` (a title, a summary), of which
            rows are built only on request, or ``side:lost`` for one that could not be written and
            has no content; ``user`` for the turns of a simulated user, which is another policy than
            the agent's: they have no rows, values or exports.
        role_reason: why it has this role.
        wire: how a recording proxy received it; None for sessions that trajgym runs itself.
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
    returns: list[int] = field(default_factory=list)
    delivery: Delivery = "delivered"
    role: str = "main"
    role_reason: str = ""
    wire: Wire | None = None

    @property
    def exact(self) -> bool:
        """True if the engine's own ids and log-probs are there."""
        return self.tokens is not None

    @property
    def empty(self) -> bool:
        """True if the model answered without sampling a token: no ids, no text and no calls."""
        return (
            self.tokens is None
            and self.usage is not None
            and not self.usage.completion_tokens
            and not self.message.get("content")
            and not self.message.get("tool_calls")
        )

    @property
    def simulated(self) -> bool:
        """True for a turn of a simulated user: it is recorded, and nothing trains on it."""
        return self.role == "user"

    @property
    def observation_digest(self) -> str:
        """Digest of the observation, which replay and state-matching derivers compare."""
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
        cause: what went wrong, for ``failed`` and ``interrupted``; else the limit that ended it.
        outcome: only where ``status.scored``.
        error: the traceback, if an exception ended the attempt.
        ended_at: Unix time (s).
        waits: seconds by what the attempt waited for: ``policy``, ``environment``, ``sandbox``,
            ``verify``, ``store`` and others; see :func:`trajgym.envs.waiting`.
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
    waits: dict[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.outcome is not None and not self.status.scored:
            raise InvalidInput(
                f"attempt {self.index}: status {self.status} can't have an outcome: a failure is "
                "not a score",
            )


@dataclass(slots=True, kw_only=True)
class SessionRecord:
    """A session's record, without its turns and attempts.

    Args:
        id: unique in the run.
        task: id of the task.
        env: the environment spec, ``{"id": ..., "config": {...}}``.
        group: id of the group, if it belongs to one.
        sample: which sample of the group's task this is, from 0.
        seed: the seed that the environment was reset with.
        tools: JSON schemas of the tools offered to the policy.
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

    @property
    def env_id(self) -> str:
        """The environment's id; ``(unnamed)`` if the record has none."""
        return str(self.env.get("id") or "(unnamed)")


class Member(NamedTuple):
    """A session's membership in a group.

    ``left`` is empty while the member counts in group statistics; otherwise it is the reason why
    it left: a status such as ``failed:sandbox``, or ``stale``.
    """

    session: str
    sample: int
    left: str = ""


@dataclass(slots=True, kw_only=True, repr=False)
class Group:
    """The unit of group-relative advantages.

    Args:
        id: must not contain an underscore (verl splits keys there).
        task: id of the task that all members attempt.
        planned: the number of samples requested.
        members: all sessions of the group, including those that left.
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

    def __repr__(self) -> str:
        state = "sealed" if self.sealed else "open"
        return (
            f"<Group {self.id}: task {self.task}, {state}, {len(self.counted)} of {self.planned} "
            "members count>"
        )

    def _repr_html_(self) -> str:
        from trajgym.trajectory._html import group_html  # records are below everything

        return group_html(self)

    @property
    def counted(self) -> list[Member]:
        """Members that count in group statistics."""
        return [m for m in self.members if not m.left]
