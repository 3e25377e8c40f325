"""The base class of environments whose attempts run in sandboxes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from trajgym.envs import Env
from trajgym.envs.sandbox._base import SandboxSpec
from trajgym.envs.sandbox._find import (
    ProviderName,
    hold_shared_providers,
    release_shared_providers,
    shared_provider,
)
from trajgym.trajectory import InvalidInput

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from trajgym.envs.sandbox._additions import SandboxAdditions
    from trajgym.envs.sandbox._base import Sandbox, SandboxProvider
    from trajgym.trajectory import Task

__all__ = ["SandboxEnv"]


class SandboxEnv(Env):
    """An environment whose attempts run in sandboxes of this process's shared provider.

    ::

        class Notes(SandboxEnv):
            async def reset(self, task, seed):
                self.sandbox = await self.start_sandbox()
                return "Write the word done into /work/note.txt."

            @tool
            async def bash(self, command: str) -> str:
                'Run a command.'
                return (await self.sandbox.run(command, timeout=30)).text

            async def verify(self):
                return (await self.sandbox.read_file("note.txt")).strip() == b"done"

    Opening a run removes the sandboxes that a killed run left. The provider stays open until the
    last run of this process has ended. Subclasses choose the provider by :attr:`provider_name`
    or :meth:`run_provider`, and prepare what all sessions share in :meth:`prepare_run`. Sandboxes
    of :meth:`start_sandbox` are closed with the environment.
    """

    provider_name: ClassVar[ProviderName] = "auto"
    """``docker``, ``embedded``, or ``auto``: Docker if an engine answers, else embedded."""

    agent_programs: ClassVar[bool] = True
    """Whether an agent's program can run in the sandbox, and its work be verified there."""
    additions: SandboxAdditions | None = None
    """Set before :meth:`reset` if the agent is a program that runs in its sandbox: then there are
    no tools, and the first message should not mention any."""
    _started: tuple[Sandbox, ...] = ()

    @property
    def agent_sandbox(self) -> Sandbox:
        """The sandbox in which the agent works.

        By default the one of :meth:`start_sandbox`; environments that start it in another way
        override this, and apply :meth:`with_additions` to its spec.

        Raises:
            InvalidInput: there is none.
        """
        if not self._started:
            raise InvalidInput(
                f"{type(self).__name__} does not name the sandbox in which an agent's program "
                "could run: override agent_sandbox"
            )
        return self._started[0]

    def with_additions(self, spec: SandboxSpec) -> SandboxSpec:
        """Return the spec of the agent's sandbox with :attr:`additions`, if there are any."""
        return spec if self.additions is None else self.additions.applied(spec)

    @classmethod
    async def run_provider(cls, config: Mapping[str, Any]) -> SandboxProvider:
        """Return the provider of a run; that of :attr:`provider_name` by default.

        Raises:
            SandboxUnavailable: it can't be used here.
        """
        del config
        return await shared_provider(cls.provider_name)

    async def start_sandbox(self, spec: SandboxSpec | None = None) -> Sandbox:
        """Start a sandbox that is closed with the environment.

        The first one is the agent's, and has :attr:`additions`.

        Args:
            spec: what to start; by default the base image without a network.

        Raises:
            SandboxError: see :meth:`SandboxProvider.start`.
        """
        provider = await shared_provider(self.provider_name)
        spec = spec or SandboxSpec()
        sandbox = await provider.start(spec if self._started else self.with_additions(spec))
        self._started = (*self._started, sandbox)
        return sandbox

    async def close(self) -> None:
        """Close the sandboxes of :meth:`start_sandbox`; overrides call it too."""
        started, self._started = self._started, ()
        for sandbox in started:
            await sandbox.close()

    @classmethod
    async def prepare_run(
        cls, provider: SandboxProvider, config: Mapping[str, Any], tasks: Sequence[Task]
    ) -> None:
        """Prepare what all sessions of a run share, such as images; does nothing by default."""

    @classmethod
    async def open_run(cls, config: Mapping[str, Any], tasks: Sequence[Task] = ()) -> None:
        """See :meth:`Env.open_run`."""
        provider = await cls.run_provider(config)
        await provider.reap()
        await cls.prepare_run(provider, config, tasks)
        hold_shared_providers()

    @classmethod
    async def close_run(cls, config: Mapping[str, Any]) -> None:
        """Close the shared providers if no other run of this process uses them."""
        del config
        await release_shared_providers()
