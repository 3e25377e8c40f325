"""An agent program as a policy."""

from __future__ import annotations

import asyncio
import dataclasses
import logging
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from trajgym.envs import OutsideTurns
from trajgym.envs.sandbox import SandboxAdditions, SandboxEnv, with_additions
from trajgym.rollout import AttemptPolicy
from trajgym.server._limits import Limits
from trajgym.server.control import Control
from trajgym.server.programs._agent import Agent, ProgramCall
from trajgym.server.programs._attempt import FOLDER, ProgramAttempt
from trajgym.server.programs._known import CommandAgent, get_agent
from trajgym.server.programs._listener import Listener
from trajgym.server.sessions import LiveSession, Settings
from trajgym.trajectory import InvalidInput

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Mapping

    from trajgym.envs import EnvSpec, Session
    from trajgym.rollout import RunSettings
    from trajgym.server.upstream import Upstream
    from trajgym.trajectory import Sampling

__all__ = ["AgentProgram"]

_HOST = "model.trajgym"
_PORT = 80
_FIELDS = ("temperature", "top_p", "top_k", "max_tokens")


class AgentProgram(AttemptPolicy):
    """Runs an agent as a program inside the task's sandbox, and records its calls.

    ::

        upstream = Upstream(base_url="http://127.0.0.1:8000", model="Qwen/Qwen3-8B")
        async with AgentProgram(upstream, command="my-agent") as policy:
            await collect(EnvSpec(id="swe"), tasks, policy, "runs/agent")

    The program reaches the recording proxy and no other address. It finds the model's address and
    its key in ``OPENAI_BASE_URL`` and ``OPENAI_API_KEY`` (and Anthropic's names), the model in
    ``TRAJGYM_MODEL``, and the task in the file ``TRAJGYM_PROMPT_FILE`` and on its standard input.
    When it exits, the environment verifies what it left behind.

    ========================================================  ============================
    what ended the program                                    the attempt
    ========================================================  ============================
    it exited, after at least one call                        ``completed``
    a budget: turns, completion tokens, the agent's seconds   ``truncated:<budget>``
    its memory, or the model's context                        ``truncated:memory``, ``:context``
    it exited with another status than 0, or made no call     ``failed:agent``
    its last call failed at the model's endpoint              ``failed:policy``
    ========================================================  ============================

    A call that a budget does not permit is refused, and the program is killed. The ends of its
    output are recorded: in the outcome's ``details["agent"]``, or for failures in the attempt's
    ``error``.

    Args:
        upstream: the engine; closed with this policy.
        agent: an agent, or the name of a known one.
        command: a shell line to run instead.
        model: name of the model that the program requests; the upstream's by default.
        sampling: parameters that replace those of the program's requests.
        extra_body: further fields of each request.
        control: pauses and the policy version.
        limits: limits on the program's requests.
        settings: of the named agent.

    Raises:
        InvalidInput: neither or both of ``agent`` and ``command`` are given, or there is no model.
    """

    def __init__(
        self,
        upstream: Upstream,
        *,
        agent: Agent | str | None = None,
        command: str | None = None,
        model: str | None = None,
        sampling: Sampling | None = None,
        extra_body: Mapping[str, Any] | None = None,
        control: Control | None = None,
        limits: Limits | None = None,
        **settings: Any,
    ) -> None:
        if (agent is None) == (command is None):
            raise InvalidInput("an agent program is either a known agent or a command")
        if command is not None:
            agent = CommandAgent(command=command, **settings)
        elif isinstance(agent, str):
            agent = get_agent(agent, **settings)
        elif settings:
            raise InvalidInput(f"settings {sorted(settings)} belong to an agent that is named")
        assert agent is not None
        found = model or upstream.model
        if found is None:
            raise InvalidInput("an agent program needs the name of a model")
        self.agent: Agent = agent
        self.model = found
        self.name = f"{self.agent.name}:{found}"
        self.control = control or Control()
        self._upstream = upstream
        self._limits = limits or Limits()
        given = {} if sampling is None else dataclasses.asdict(sampling)
        self._sampling = {name: given[name] for name in _FIELDS if given.get(name) is not None}
        self._sampling |= extra_body or {}
        self._listener: Listener | None = None
        self._running: dict[str, tuple[ProgramAttempt, LiveSession]] = {}

    @property
    def identity(self) -> dict[str, Any]:
        """See :meth:`Policy.identity`; the endpoint's URL is not part of it."""
        return {
            "name": self.name,
            "model": self.model,
            "sampling": self._sampling,
            **self.agent.identity,
        }

    def check(self, spec: EnvSpec, settings: RunSettings) -> None:
        """See :meth:`AttemptPolicy.check`."""
        super().check(spec, settings)
        kind = spec.resolve()
        if not issubclass(kind, SandboxEnv) or not kind.agent_programs:
            raise InvalidInput(
                f"environment {spec.id!r} has no sandbox in which {self.name} could run"
            )

    @asynccontextmanager
    async def prepared(self, session: Session) -> AsyncIterator[None]:
        """See :meth:`AttemptPolicy.prepared`: the proxy serves the session inside the block."""
        outside = OutsideTurns(session)
        listener = self._listening(outside)
        allow = f"{_HOST}:{_PORT}=127.0.0.1:{await listener.port()}"
        additions = SandboxAdditions(allow=(allow,), mounts=self.agent.mounts())
        outside.build_from(with_additions(session.spec, additions))
        session.record.tools = []  # the program has its own
        attempt = ProgramAttempt(
            self.agent,
            session,
            outside,
            sampling=self._sampling,
            control=self.control,
            hold_seconds=self._limits.hold_seconds,
        )
        settings = dataclasses.replace(listener.settings, store=_store_of(outside, self.name))
        live = LiveSession(outside.record, outside.attempt, outside.turns, settings, attempt)
        listener.add(live)
        self._running[session.id] = attempt, live
        try:
            yield
        finally:
            del self._running[session.id]
            listener.remove(session.id)

    async def attempt(
        self,
        session: Session,
        *,
        seed: int,
        before_turn: Callable[[], Awaitable[object]],
        after_turn: Callable[[], None],
    ) -> None:
        """See :meth:`AttemptPolicy.attempt`."""
        found = self._running.get(session.id)
        if found is None or self._listener is None:
            raise InvalidInput(f"session {session.id} was not prepared for {self.name}")
        attempt, live = found
        url = f"http://{_HOST}/sessions/{session.id}"
        env = OutsideTurns(session).env
        assert isinstance(env, SandboxEnv)
        call = ProgramCall(
            base_url=f"{url}/v1",
            anthropic_base_url=url,
            api_key=self._listener.token(session.id),
            model=self.model,
            prompt=f"{FOLDER}/prompt.md",
            folder=FOLDER,
            workdir=env.agent_sandbox.spec.workdir,
        )
        await attempt.run(live, call, seed=seed, before_turn=before_turn, after_turn=after_turn)

    async def close(self) -> None:
        """Stop the proxy and close the connections to the engine."""
        listener, self._listener = self._listener, None
        if listener is not None:
            await listener.close()
        await self._upstream.close()

    def _listening(self, outside: OutsideTurns) -> Listener:
        if self._listener is None:
            settings = Settings(
                store=_store_of(outside, self.name),
                upstream=self._upstream,
                control=self.control,
                limits=self._limits,
                log=logging.getLogger("trajgym.server"),
            )
            self._listener = Listener(settings)
        if self._listener.loop is not asyncio.get_running_loop():
            raise InvalidInput(f"{self.name} was used in another event loop: close it there first")
        return self._listener


def _store_of(outside: OutsideTurns, name: str) -> Any:
    if outside.store is None:
        raise InvalidInput(f"{name} records through the proxy, which needs a store: pass one")
    return outside.store
