"""mini-swe-agent, unmodified, on a SWE task in our sandbox (`scripts/test-mini-swe-agent.sh`)."""

from __future__ import annotations

import pytest

from trajgym.envs.swe import MiniSweEnvironment
from trajgym.trajectory import Task

pytestmark = pytest.mark.mini
SUBMIT = "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT; git diff"


def answer(text: str, command: str) -> dict[str, object]:
    return {
        "role": "assistant",
        "content": text,
        "extra": {"actions": [{"command": command}], "cost": 0.0, "timestamp": 0},
    }


@pytest.mark.parametrize("solved", [True, False])
@pytest.mark.parametrize("kind", [pytest.param("docker", marks=pytest.mark.docker), "embedded"])
def test_default_agent_solves_a_task_in_our_sandbox(spans: Task, kind: str, solved: bool) -> None:
    """The package's own agent loop runs its commands here, submits its diff and is graded here."""
    from minisweagent.agents.default import DefaultAgent
    from minisweagent.models.test_models import DeterministicModel

    patch = spans.data["patch"]
    apply = f"git apply - <<'END'\n{patch}END" if solved else "echo x > note.txt"
    outputs = [
        answer("Look.", "ls; python3 -m pytest -q | tail -n 1"),
        answer("A mistake.", "cat missing.py"),
        answer("The change.", apply),
        answer("Done.", SUBMIT),
    ]
    with MiniSweEnvironment(spans, sandbox=kind, command_seconds=240.0) as env:
        agent = DefaultAgent(
            DeterministicModel(outputs=outputs),
            env,
            system_template="You repair repositories.",
            instance_template="{{task}} Work in {{cwd}}.",
        )
        info = agent.run(env.prompt)
        outcome = env.grade()
    said = [str(message["content"]) for message in agent.messages]
    assert "Spans that touch are not joined" in said[1]
    assert "25 passed" in said[3]
    assert "<returncode>1</returncode>" in said[5]
    assert info["exit_status"] == "Submitted"
    assert ("+++ b/spans/" in info["submission"]) == solved
    assert outcome.score == float(solved)
    assert agent.serialize()["info"]["config"]["environment_type"].endswith("MiniSweEnvironment")
