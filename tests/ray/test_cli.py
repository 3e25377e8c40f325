"""`trajgym collect --ray`: a run over a cluster, and addresses where there is none."""

from __future__ import annotations

import socket
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from tests.rollout.test_fleet import statuses

if TYPE_CHECKING:
    from tests.ray.cluster import Nodes

ROOT = Path(__file__).parents[2]


def collect(out: Path, address: str, *more: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "trajgym.cli", "collect", "--env", "dialogue-rental"]
    command += ["--tasks", "builtin", "--samples", "2", "--out", str(out), "--ray", address, *more]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=240)


def test_a_run_is_collected_on_the_nodes(nodes: Nodes, tmp_path: Path) -> None:
    """The command prints what it prints otherwise, and nothing of Ray; it also resumes."""
    nodes.add(4)
    done = collect(tmp_path, nodes.address, "--concurrency", "4", "--json")
    assert done.returncode == 0, done.stderr
    found = statuses(tmp_path)
    assert set(found) == {"completed"}
    assert f'"sessions": {found.total()}' in done.stdout
    again = collect(tmp_path, nodes.address)
    assert again.returncode == 0
    assert "nothing was left to do" in again.stdout


def test_an_address_without_a_cluster_is_named(tmp_path: Path) -> None:
    """The command ends with status 2."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    done = collect(tmp_path / "run", f"127.0.0.1:{port}")
    assert done.returncode == 2
    assert f"no Ray cluster at 127.0.0.1:{port}" in " ".join(done.stderr.split())


CONNECT = """
import sys
from trajgym.rollout.fleet.ray._cluster import connect
from trajgym.trajectory import TrajgymError

for address in sys.argv[1:]:
    try:
        connect(address, 1.0)
    except TrajgymError as error:
        print(error)
"""


def test_an_address_that_does_not_answer_has_a_deadline() -> None:
    """Something that accepts connections and says nothing is not waited for."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        addresses = ["ray://127.0.0.1:10001", "127.0.0.1", address]
        command = [sys.executable, "-c", CONNECT, *addresses]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=240)
    client, bare, late = done.stdout.splitlines()
    assert "connect from a node of the cluster" in client
    assert "expected HOST:PORT" in bare
    assert late == f"the Ray cluster at {address} did not answer within 1 s"
