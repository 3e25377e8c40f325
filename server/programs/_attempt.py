"""One attempt of a program: started in the sandbox, followed through its calls, and judged."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, NamedTuple

from trajgym.envs._clock import OutOfTime
from trajgym.envs._threads import finish_despite_cancel
from trajgym.envs.faults import contained
from trajgym.envs.sandbox import CommandResult, SandboxEnv
from trajgym.rollout import derive_seed
from trajgym.rollout._context import context_full
from trajgym.server._errors import Refused
from trajgym.server.sessions import CallWatch
from trajgym.trajectory import InvalidInput, StoreError, TrajgymError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence

    from trajgym.envs import OutsideTurns, Session, Truncate
    from trajgym.envs.sandbox import Sandbox
    from trajgym.server.control import Control
    from trajgym.server.dialects import ClientCall
    from trajgym.server.programs._agent import Agent, ProgramCall
    from trajgym.server.sessions import LiveSession
    from trajgym.trajectory import Turn

__all__ = ["FOLDER", "ProgramAttempt"]

FOLDER = "/tmp/trajgym-agent"  # noqa: S108 - inside the sandbox
"""The program's own directory inside."""
_TAIL = 8_000
"""Bytes of each output stream that are recorded."""
_LONGEST = 30 * 86_400.0
"""Seconds after which the sandbox would end the program; the session's deadlines end it before."""
_HELPER_SECONDS = 30.0
_OURS = frozenset({401, 402, 403, 404, 408, 429})
"""Statuses below 500 that are not about the request: the endpoint's key, name or rate."""


class _Failure(NamedTuple):
    """The last call that got no answer."""

    status: int
    cause: str

    @property
    def upstream(self) -> bool:
        """Whether the model's endpoint is the reason, not the request."""
        return self.status >= 500 or self.status in _OURS


class ProgramAttempt(CallWatch):
    """Runs a program until it exits or a limit stops it, and records how the attempt ended.

    Args:
        agent: the program.
        session: its session.
        outside: records turns into the session.
        sampling: fields that replace those of the program's requests.
        control: pauses and policy version.
        hold_seconds: longest time that a call waits for a paused engine.
    """

    def __init__(
        self,
        agent: Agent,
        session: Session,
        outside: OutsideTurns,
        *,
        sampling: Mapping[str, Any],
        control: Control,
        hold_seconds: float,
    ) -> None:
        self._agent = agent
        self._session = session
        self._outside = outside
        self._sampling = dict(sampling)
        self._control = control
        self._hold_seconds = hold_seconds
        self._seed = 0
        self._asked = 0
        self._failure: _Failure | None = None
        self._cut: Truncate | None = None
        self._error: Exception | None = None
        self._stop = asyncio.Event()
        self._before: Callable[[], Awaitable[object]] | None = None
        self._after: Callable[[], None] | None = None

    # Calls --------------------------------------------------------------------------------

    def asked(self, call: ClientCall, running: int) -> None:
        """See :meth:`CallWatch.asked`: the budgets permit it, and our sampling replaces its own."""
        cut = self._outside.exhausted(running)
        if cut is not None or self._stop.is_set():
            self._cut = self._cut or cut
            self._stop.set()
            raise Refused(403, f"the attempt has ended: {cut or 'it was stopped'}")
        body = call.body
        field = "max_completion_tokens" if "max_completion_tokens" in body else "max_tokens"
        most = self._sampling.get("max_tokens") or body.get(field)
        left = self._session.limits.completion_tokens
        limits = [n for n in (most, left) if isinstance(n, int)]
        body |= {name: value for name, value in self._sampling.items() if name != "max_tokens"}
        if limits:
            body[field] = min(limits)
        body["seed"] = derive_seed(self._seed, f"{self._session.id}/{self._asked}")
        self._asked += 1

    async def admit(self) -> None:
        """See :meth:`CallWatch.admit`; waiting is not the agent's time."""
        if self._before is not None:
            with self._session.clock.hold():
                await self._before()
        if self._control.paused:
            with self._session.clock.hold():
                await self._control.admit(self._hold_seconds)

    def recorded(self, turns: Sequence[Turn]) -> None:
        """See :meth:`CallWatch.recorded`."""
        self._failure = None
        for turn in turns:
            self._outside.count(turn)
            try:
                if self._after is not None:
                    self._after()
            except TrajgymError as error:  # a callback's; it ends the attempt
                self._error = error
                self._stop.set()

    def failed(self, status: int, cause: str) -> None:
        """See :meth:`CallWatch.failed`."""
        self._failure = _Failure(status, cause)

    # The program --------------------------------------------------------------------------

    async def run(
        self,
        live: LiveSession,
        call: ProgramCall,
        *,
        seed: int,
        before_turn: Callable[[], Awaitable[object]],
        after_turn: Callable[[], None],
    ) -> None:
        """Run the program, and end the session's attempt accordingly.

        Raises:
            SandboxError: the sandbox failed.
            StoreError: the store can't be written any more.
            TrajgymError: what ``after_turn`` raised.
        """
        self._seed, self._before, self._after = seed, before_turn, after_turn
        env = self._outside.env
        if not isinstance(env, SandboxEnv):
            raise InvalidInput(f"{type(env).__name__} has no sandbox in which a program could run")
        sandbox = env.agent_sandbox
        await self._write_files(sandbox, call)
        try:
            done = await self._until_stopped(sandbox, call)
        finally:
            await finish_despite_cancel(live.settle(0.0))
        await self._end(sandbox, done)

    async def _write_files(self, sandbox: Sandbox, call: ProgramCall) -> None:
        with contained():
            files = {call.prompt: self._outside.prompt.encode(), **self._agent.files(call)}
        for path, data in files.items():
            await sandbox.write_file(path, data)

    async def _until_stopped(self, sandbox: Sandbox, call: ProgramCall) -> CommandResult | None:
        """Return how the program ended; None if it was stopped."""
        program = asyncio.ensure_future(self._program(sandbox, call))
        stopped = asyncio.ensure_future(self._stop.wait())
        try:
            async with self._session.clock.running(self._session.seconds_left):
                await asyncio.wait([program, stopped], return_when=asyncio.FIRST_COMPLETED)
        except OutOfTime:
            self._cut = self._cut or self._outside.out_of_time()
        finally:
            stopped.cancel()
            if not program.done():
                program.cancel()  # the sandbox kills its process tree
                await finish_despite_cancel(_ended(program))
        if self._error is not None:
            raise self._error
        return None if program.cancelled() else program.result()

    async def _program(self, sandbox: Sandbox, call: ProgramCall) -> CommandResult:
        with contained():  # in a task of its own, which a SystemExit would end the loop with
            command, own = self._agent.command(call), dict(self._agent.variables(call))
        line = f"{{ {command}\n}} >{FOLDER}/stdout 2>{FOLDER}/stderr"
        variables = {
            "OPENAI_BASE_URL": call.base_url,
            "OPENAI_API_BASE": call.base_url,
            "OPENAI_API_KEY": call.api_key,
            "ANTHROPIC_BASE_URL": call.anthropic_base_url,
            "ANTHROPIC_API_KEY": call.api_key,
            "TRAJGYM_MODEL": call.model,
            "TRAJGYM_PROMPT_FILE": call.prompt,
            "TRAJGYM_AGENT_DIR": call.folder,
            **own,
        }
        prompt = self._outside.prompt.encode()
        return await sandbox.run(line, timeout=_LONGEST, env=variables, stdin=prompt)

    # The end ------------------------------------------------------------------------------

    async def _end(self, sandbox: Sandbox, done: CommandResult | None) -> None:
        output = {name: await _tail(sandbox, f"{FOLDER}/{name}") for name in ("stdout", "stderr")}
        details: dict[str, Any] = {"name": self._agent.name, **output}
        if done is not None:
            details |= {"exit": done.exit_code, "seconds": round(done.seconds, 3)}
        said = "\n".join(f"[{name}]\n{text}" for name, text in output.items() if text)
        session = self._session
        if done is not None and done.oom_killed and done.exit_code not in self._agent.exits:
            await session.truncate("memory", "the agent's program ran out of memory")
        elif self._cut is not None:
            await session.truncate(str(self._cut.budget), str(self._cut))
        elif done is None:
            await session.fail("agent", "the agent's program was stopped", said)
        elif self._failure is not None and (full := context_full(self._failure.cause)) is not None:
            await session.truncate("context", str(full))
        elif self._failure is not None and self._failure.upstream:
            cause = f"the model's endpoint: status {self._failure.status}: {self._failure.cause}"
            await session.fail("policy", f"{cause} (the program: {_exit(done)})", said)
        elif done.exit_code not in self._agent.exits:
            await session.fail("agent", f"{_exit(done)}{self._reason(output['stderr'])}", said)
        elif not self._outside.turns:
            await session.fail("agent", f"no call of the model was made ({_exit(done)})", said)
        else:
            await self._outside.complete()
        await self._outside.add_details("agent", details)

    def _reason(self, stderr: str) -> str:
        if self._failure is not None:
            return f"; its last call was refused: {self._failure.cause[:300]}"
        lines = [line.strip() for line in stderr.splitlines() if line.strip()]
        return f": {lines[-1][:300]}" if lines else ""


def _exit(done: CommandResult) -> str:
    return f"exit status {done.exit_code}"


async def _ended(program: asyncio.Future[Any]) -> None:
    await asyncio.wait([program])


async def _tail(sandbox: Sandbox, path: str) -> str:
    """Return the end of a file inside; empty if it can't be read, which must not change the end."""
    try:
        done = await sandbox.run(["tail", "-c", str(_TAIL), "--", path], timeout=_HELPER_SECONDS)
    except StoreError:
        raise
    except TrajgymError:
        return ""
    return done.stdout[-_TAIL:].decode("utf-8", "replace").replace("\0", "\ufffd")
