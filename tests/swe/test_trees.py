"""Tree rollouts of the SWE environment: rivals continue in sandboxes of their own."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from tests.sandbox.conftest import docker
from trajgym.envs import EnvSpec, register
from trajgym.envs.sandbox import DockerProvider, EmbeddedProvider, shared_provider
from trajgym.envs.sandbox.docker._provider import PROVIDER
from trajgym.envs.swe import SweEnv
from trajgym.rollout import (
    EntropyExpansion,
    Expansion,
    Runner,
    SurprisalExpansion,
    TokenPolicy,
    TreeExpansion,
    call,
)
from trajgym.trajectory import Outcome, SessionTree, Store, Task, Turn

if TYPE_CHECKING:
    from pathlib import Path

    from trajgym.envs.sandbox import SandboxProvider
    from trajgym.rollout.engines import FakeCall

KINDS = [pytest.param("docker", marks=pytest.mark.docker), "embedded"]
WRITES = 3
NOTE = "/tmp/note"


@register("test/swe-notes")
class Notes(SweEnv):
    """The SWE environment, graded by what is in the agent's own sandbox at the end."""

    async def verify(self) -> Outcome:
        text = (await self.sandbox.read_file(NOTE)).decode()
        return Outcome(score=1.0, passed=True, details={"numbers": text.split()})


def writer(asked: FakeCall) -> Any:
    """Append a number that depends on the seed to a file, show the file, and submit at the end."""
    if asked.turn == WRITES:
        return call("submit")
    number = (asked.seed or 0) % 10_000
    return call("bash", command=f"echo {number} >> {NOTE}; mkdir d{number}; cat {NOTE}; ls -d d*")


def written(turn: Turn) -> str:
    """The number that a turn writes; empty for the last one."""
    arguments = json.loads(turn.message["tool_calls"][0]["function"]["arguments"])
    return str(arguments.get("command", "")).removeprefix("echo ").partition(" ")[0]


def snapshots(provider: SandboxProvider) -> list[str]:
    """The snapshots that a provider has."""
    if isinstance(provider, DockerProvider):
        label = f"label={PROVIDER}={provider._id}"
        return docker("images", "-q", "--filter", label).split()
    assert isinstance(provider, EmbeddedProvider)
    return sorted(provider._snapshots)


def check_files(tree: SessionTree) -> None:
    """Every turn saw what its own path had written, and nothing of any rival."""
    for attempt in tree.attempts:
        path = tree.trajectory(attempt)
        numbers = [written(turn) for turn in path[:WRITES]]
        for at, turn in enumerate(path[:WRITES], 1):
            shown = [*numbers[:at], *sorted(f"d{number}" for number in numbers[:at])]
            saw = "\n".join([*shown, "[exit status 0]"])
            assert turn.observation[0]["content"] == saw, (attempt.index, turn.index)
        assert attempt.outcome is not None
        assert attempt.outcome.details["numbers"] == numbers


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("every", [0, 1], ids=["replayed", "restored"])
@pytest.mark.parametrize(
    ("expansion", "rivals", "again"),
    [
        (TreeExpansion(nodes=2, rounds=2), 4, True),
        (SurprisalExpansion(nodes=2, rounds=2, branches=1), 4, True),
        (EntropyExpansion(branches=3, base=1.0), 3, False),
    ],
    ids=["tree", "eptree", "arpo"],
)
async def test_rivals_have_the_files_of_their_own_path(
    kind: Any,
    every: int,
    expansion: Expansion,
    rivals: int,
    again: bool,
    spans: Task,
    tmp_path: Path,
) -> None:
    """Rivals, those of rivals too, have the files of their own turns, and leave no sandbox."""
    spec = EnvSpec(id="test/swe-notes", config={"sandbox": kind})
    policy = TokenPolicy.fake(writer)
    settings: dict[str, Any] = {"expansion": expansion, "snapshot_every": every, "seed": 1}
    async with Store(tmp_path) as store:
        async with Runner(spec, [spans], policy, store=store, **settings) as runner:
            provider = await shared_provider(kind)
            (tree,) = [tree async for group in runner for tree in group.sessions]
            open_at_end = len(provider._open)  # type: ignore[attr-defined]
            kept_at_end = snapshots(provider)
    causes = [attempt.cause for attempt in tree.attempts]
    assert [str(a.status) for a in tree.attempts] == ["completed"] * (rivals + 1), causes
    check_files(tree)
    parents = [tree.turns[a.forked_at].attempt for a in tree.attempts if a.forked_at is not None]
    assert any(parents) is again
    assert all((turn.snapshot is not None) is (every == 1) for turn in tree.turns if not turn.done)
    assert open_at_end == 0
    assert kept_at_end == []
    if isinstance(provider, DockerProvider):
        label = f"label={PROVIDER}={provider._id}"
        assert not docker("ps", "-aq", "--filter", label)
        assert not docker("images", "-q", "--filter", label)
