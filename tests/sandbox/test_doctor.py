"""The commands about sandboxes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.sandbox.conftest import docker
from trajgym.envs.sandbox import clean_sandboxes, examine_sandboxes

LEFT = """
import asyncio, os
from trajgym.envs.sandbox import DockerProvider, EmbeddedProvider, SandboxSpec

async def main():
    for provider in (DockerProvider(), EmbeddedProvider()):
        box = await provider.start(SandboxSpec(image="trajgym/base:bookworm"))
        print(box.id, flush=True)
    os._exit(9)

asyncio.run(main())
"""


def _trajgym(*words: str) -> subprocess.CompletedProcess[str]:
    program = Path(sys.executable).with_name("trajgym")
    return subprocess.run([str(program), *words], capture_output=True, text=True, timeout=120)


@pytest.mark.docker
@pytest.mark.usefixtures("engine")
def test_doctor_and_clean(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`doctor` reports both kinds; `clean` removes what a killed process left of either."""
    monkeypatch.setenv("TRAJGYM_SANDBOX_DIR", str(tmp_path / "boxes"))
    seen = _trajgym("sandboxes", "doctor")
    assert seen.returncode == 0, seen.stderr
    assert "ok docker: engine" in seen.stdout
    assert "ok embedded: namespaces work" in seen.stdout
    left = subprocess.run([sys.executable, "-c", LEFT], capture_output=True, text=True)
    container, folder = left.stdout.split()
    assert docker("ps", "-aq", "--filter", f"name={container}")
    cleaned = _trajgym("sandboxes", "clean")
    assert cleaned.returncode == 0, cleaned.stderr
    assert "embedded: 1 sandboxes removed" in cleaned.stdout
    assert not docker("ps", "-aq", "--filter", f"name={container}")
    assert not (tmp_path / "boxes" / folder).exists()


async def test_without_docker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without an engine, doctor reports how to get one, and still checks the rest."""
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/none.sock")
    monkeypatch.setenv("TRAJGYM_SANDBOX_DIR", str(tmp_path / "boxes"))
    findings = await examine_sandboxes()
    docker_says = [finding for finding in findings if finding.part == "docker"]
    assert [finding.level for finding in docker_says] == ["missing"]
    assert "docker-engine.sh" in docker_says[0].said
    assert any(f.part == "embedded" and f.level == "good" for f in findings)
    assert await clean_sandboxes() == {"embedded": 0}
