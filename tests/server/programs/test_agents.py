"""Agents by name, and what the command line makes of them."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.server.programs.harness import LOOP
from trajgym.cli._agents import AgentOptions, agent_policy
from trajgym.cli._endpoint import EndpointOptions
from trajgym.envs import EnvSpec
from trajgym.rollout import RunSettings, TreeExpansion
from trajgym.server import AgentProgram, Upstream, get_agent, list_agents
from trajgym.trajectory import InvalidInput

UPSTREAM = Upstream(base_url="http://127.0.0.1:9")


def trajgym(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "trajgym.cli", *words], capture_output=True, text=True, timeout=120
    )


def test_the_known_agents_are_listed_with_their_settings() -> None:
    """`trajgym agents` shows every agent, what it is, and what can be set."""
    listed = {entry["name"]: entry for entry in json.loads(trajgym("agents", "--json").stdout)}
    assert list(listed) == list_agents()
    assert listed["mini-swe-agent"]["settings"] == {"packages": "required", "config": "'mini.yaml'"}
    assert all(entry["about"] for entry in listed.values())


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (
            lambda: get_agent("nobody"),
            "no agent 'nobody'; known: aider, claude-code, codex, command",
        ),
        (lambda: get_agent("script"), "agent 'script'.*script.*see trajgym agents"),
        (lambda: get_agent("script", script=LOOP, speed=2), "agent 'script'.*speed"),
        (lambda: get_agent("script", script="/missing"), "can't be read"),
        (lambda: get_agent("command", command=" "), "command is empty"),
        (lambda: get_agent("command", command="true", mount="/missing"), "is not a directory"),
        (lambda: get_agent("aider", packages="/usr"), "pip install --target DIR"),
        (lambda: get_agent("mini-swe-agent", packages="/usr"), "pip install --target DIR"),
        (lambda: get_agent("claude-code", packages="/usr"), "pip install --target DIR"),
        (lambda: get_agent("codex", packages="/usr"), "npm install --prefix DIR"),
        (lambda: get_agent("openhands", packages="/usr"), "pip install --target DIR openhands-sdk"),
        (lambda: get_agent("terminus-2", packages="/usr"), "pip install --target DIR harbor"),
        (lambda: AgentProgram(UPSTREAM, model="m"), "either a known agent or a command"),
        (lambda: AgentProgram(UPSTREAM, command="true"), "needs the name of a model"),
    ],
)
def test_wrong_settings_are_refused(make: Callable[[], object], reason: str) -> None:
    """What can't work is refused before anything runs, with what to do."""
    with pytest.raises(InvalidInput, match=reason):
        make()


def test_the_identity_of_a_run_has_what_the_agent_depends_on() -> None:
    """The script's content and the model, but no address."""
    policy = AgentProgram(UPSTREAM, agent="script", model="m", script=LOOP)
    assert policy.name == "script:m"
    found = policy.identity
    assert found["agent"] == "script"
    assert len(found["script"]) == 64
    assert "127.0.0.1" not in json.dumps(found)


@pytest.mark.parametrize("env", ["search", "code"])
def test_environments_without_a_sandbox_for_programs_are_refused(env: str) -> None:
    """The run ends before its first session."""
    policy = AgentProgram(UPSTREAM, command="true", model="m")
    with pytest.raises(InvalidInput, match="no sandbox in which command:m could run"):
        policy.check(EnvSpec(id=env), RunSettings())


def test_an_expansion_is_refused() -> None:
    """A program's attempt can't be forked."""
    policy = AgentProgram(UPSTREAM, command="true", model="m")
    with pytest.raises(InvalidInput, match="can't be forked"):
        policy.check(EnvSpec(id="swe"), RunSettings(expansion=TreeExpansion()))


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ({"agent": "nobody", "model": "m"}, "no agent 'nobody'"),
        ({"agent_command": "true"}, "needs a model: --model NAME"),
        ({"agent_command": "true", "model": "anthropic:m"}, "forwarded as chat completions"),
        ({"agent_command": "true", "model": "m", "stream": False}, "--stream has no effect"),
        ({"agent_command": "true", "model": "m", "engine": "x"}, "--engine x: use one of"),
        ({"agent": "script", "agent_command": "true", "model": "m"}, "either a known agent"),
    ],
)
def test_wrong_options_are_refused(given: dict[str, Any], reason: str) -> None:
    """Options that contradict each other, or have no effect on programs."""
    endpoint = EndpointOptions.of({"base_url": "http://127.0.0.1:9", **given})
    with pytest.raises(InvalidInput, match=reason):
        agent_policy(AgentOptions.of(given, {}), endpoint)


def test_a_wrong_option_ends_the_command(tmp_path: Path) -> None:
    """One line says what is wrong, and no run is made."""
    out = tmp_path / "run"
    base = ["--env", "swe", "--tasks", "builtin", "--out", str(out)]
    done = trajgym("collect", *base, "--agent-command", "true")
    assert done.returncode == 2
    assert done.stderr == "error: an agent program needs a model: --model NAME\n"
    assert not out.exists()
