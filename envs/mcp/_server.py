"""The settings of an MCP server: its program or address, and where it runs."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

__all__ = ["McpServer"]


class McpServer(BaseModel):
    """An MCP server: a program that is started for each attempt, or the URL of a running server.

    Attributes:
        command: the program and its arguments; the server uses stdin and stdout.
        url: the URL of a server with the streamable HTTP transport; instead of ``command``.
        where: ``host`` starts the program on this host with the permissions of this process;
            ``sandbox`` starts it in the environment's sandbox, which must contain the program.
        env: environment variables of the program.
        cwd: working directory of the program.
        only: names of the tools to use; None uses all of them.
        prefix: prepended to the names of its tools; avoids conflicts between servers.
        seconds: time limit (s) for starting and connecting.
        call_seconds: time limit (s) for one call.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    command: list[str] = Field(default_factory=list)
    url: str = ""
    where: Literal["host", "sandbox"] = "host"
    env: dict[str, str] = Field(default_factory=dict)
    cwd: str | None = None
    only: list[str] | None = None
    prefix: str = ""
    seconds: float = Field(default=60.0, gt=0)
    call_seconds: float = Field(default=120.0, gt=0)

    @model_validator(mode="after")
    def _one_way(self) -> Self:
        if bool(self.command) == bool(self.url):
            raise ValueError("give either 'command' or 'url'")
        if self.url and (self.where == "sandbox" or self.env or self.cwd):
            raise ValueError("where, env and cwd need a 'command'")
        return self

    @property
    def name(self) -> str:
        """The server's name in error messages."""
        return self.url or self.command[0]
