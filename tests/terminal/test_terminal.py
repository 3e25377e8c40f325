"""Terminal tasks in Harbor's and Terminal-Bench's formats, with real containers."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from trajgym.envs import EnvSpec, Session
from trajgym.envs.sandbox import ImageNotFound, close_shared_providers
from trajgym.envs.terminal import TerminalEnv, load_tasks, mapped_dockerfile, read_task
from trajgym.trajectory import InvalidInput

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

BASES = {"*": "trajgym/base:bookworm"}
HARBOR = {
    "task.toml": """
version = "1.0"
[metadata]
difficulty = "easy"
tags = ["text"]
[verifier]
timeout_sec = 60.0
env = { WANTED = "3" }
[agent]
timeout_sec = 120.0
[environment]
build_timeout_sec = 300.0
cpus = 1
memory_mb = 512
storage_mb = 1024
allow_internet = true
""",
    "instruction.md": "Write the number of lines of words.txt to count.txt.\n",
    "environment/Dockerfile": "FROM python:3.13-slim-bookworm AS base\nWORKDIR /app\n"
    'COPY words.txt ./\nRUN test "$(id -u)" = 0 && echo built > /app/.built\n',
    "environment/words.txt": "one\ntwo\nthree\n",
    "solution/solve.sh": "#!/bin/bash\ncd /app\nwc -l < words.txt > count.txt\n",
    "tests/test.sh": "#!/bin/bash\ncd /app\n"
    'if [ "$(tr -d " " < count.txt)" = "$WANTED" ] && python3 /tests/more.py; then\n'
    "  echo 1 > /logs/verifier/reward.txt\nelse\n  echo 0 > /logs/verifier/reward.txt\nfi\n",
    "tests/more.py": "assert open('/app/.built').read() == 'built\\n'\n",
}
TERMINAL_BENCH = {
    "task.yaml": "instruction: |-\n  Create hello.txt that says hello.\nparser_name: pytest\n"
    "difficulty: easy\nmax_agent_timeout_sec: 60.0\nmax_test_timeout_sec: 30.0\n",
    "Dockerfile": "FROM ghcr.io/some/ubuntu-24-04:latest\nWORKDIR /app\n",
    "docker-compose.yaml": "services:\n  client:\n    build: .\n",
    "run-tests.sh": "#!/bin/bash\npython3 $TEST_DIR/test_outputs.py\n",
    "tests/test_outputs.py": "import pathlib\nfile = pathlib.Path('/app/hello.txt')\n"
    "good = file.is_file() and file.read_text() == 'hello\\n'\n"
    "print('short test summary info')\n"
    "print('PASSED' if good else 'FAILED', 'test_outputs.py::test_hello')\n",
    "solution.sh": "echo hello > /app/hello.txt\n",
}


def folder_of(root: Path, name: str, files: dict[str, str], **changes: str | None) -> Path:
    folder = root / name
    for path, text in {**files, **changes}.items():
        if text is not None:
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / path).write_text(text)
    return folder


@pytest.fixture(autouse=True)
async def no_provider_stays() -> AsyncIterator[None]:
    yield
    await close_shared_providers()


def spec(**config: Any) -> EnvSpec:
    return EnvSpec(id="trajgym.envs.terminal:TerminalEnv", config={"bases": BASES, **config})


def bash(command: str, **more: Any) -> dict[str, Any]:
    function = {"name": "bash", "arguments": json.dumps({"command": command, **more})}
    return {"role": "assistant", "content": "", "tool_calls": [
        {"id": "c", "type": "function", "function": function}]}  # fmt: skip


@pytest.mark.docker
@pytest.mark.parametrize("files", [HARBOR, TERMINAL_BENCH], ids=["harbor", "terminal-bench"])
async def test_a_task_folder_runs_unchanged(tmp_path: Path, files: dict[str, str]) -> None:
    """Its image is built, its own solution scores 1, handing in nothing scores 0."""
    folder_of(tmp_path, "task", files)
    (task,) = TerminalEnv.load_tasks(str(tmp_path))
    assert task.id == "task"
    for sample, score in ((0, 1.0), (1, 0.0)):
        async with Session(spec(), task) as session:
            for message in TerminalEnv.script(task, sample):
                await session.step(message)
        assert str(session.status) == "completed", session.attempt
        assert session.outcome is not None
        assert session.outcome.score == score


@pytest.mark.docker
async def test_the_shell_keeps_its_state_and_a_broken_grader_scores_nothing(
    tmp_path: Path,
) -> None:
    """Directory and variables stay; an agent that breaks the test script gets 0, not a failure."""
    task = read_task(folder_of(tmp_path, "task", HARBOR))
    async with Session(spec(output_bytes=200), task) as session:
        assert "You work in a shell" in str(session.messages[0]["content"])
        await session.step(bash("cd /tmp; export WORD=kept"))
        shown = await session.step(bash("pwd; echo $WORD; ls /tests; id -u; seq 1000"))
        text = str(shown.observation[0]["content"])
        assert text.startswith("/tmp\nkept\nls: cannot access '/tests'")
        assert "bytes of output left out" in text
        broken = "rm -f /usr/bin/python3* /bin/tr /usr/bin/tr; mkdir -p /logs/verifier/reward.txt"
        await session.step(bash(f"{broken}; chmod 0 /logs/verifier"))
        await session.step(bash("mkdir -p /logs/verifier/reward.json; mv /bin/bash /bin/gone"))
        await session.step("done")
    assert str(session.status) == "completed", session.attempt
    assert session.outcome is not None
    assert session.outcome.score == 0.0
    assert "no result" in session.outcome.details["problem"]


@pytest.mark.docker
async def test_root_installs_and_its_services_are_there_when_the_tests_run(tmp_path: Path) -> None:
    """Packages are unpacked, files change owners, and what was started is still running."""
    control = "Package: it\nVersion: 1\nArchitecture: all\nMaintainer: a <a@b.c>\nDescription: it"
    package = (
        "mkdir -p /tmp/p/DEBIAN /tmp/p/opt && echo installed > /tmp/p/opt/it\n"
        f"cat > /tmp/p/DEBIAN/control <<'END'\n{control}\nEND\n"
        "dpkg-deb -b /tmp/p /tmp/it.deb && dpkg -i /tmp/it.deb\n"
    )
    solve = f"""{package}
mkdir -p /srv/box && chown nobody:nogroup /srv/box
su -s /bin/sh nobody -c 'touch /srv/box/mine'
cd /app && nohup python3 -m http.server 8123 > /dev/null 2>&1 &
until python3 -c 'import socket; socket.create_connection(("127.0.0.1", 8123))'; do :; done
"""
    tests = """set -e
mkdir -p /logs/verifier; echo 0 > /logs/verifier/reward.txt
python3 -c 'import urllib.request as u; u.urlopen("http://127.0.0.1:8123/words.txt").read()'
test "$(cat /opt/it)" = installed
test "$(stat -c %U /srv/box/mine)" = nobody
echo '{"reward": 1, "seconds": 0.5}' > /logs/verifier/reward.json
"""
    changes = {"solution/solve.sh": solve, "tests/test.sh": tests}
    task = read_task(folder_of(tmp_path, "task", HARBOR, **changes))
    async with Session(spec(command_seconds=250.0), task) as session:
        solved, submitted = TerminalEnv.script(task, 0)
        await session.step(solved)
        await session.step(bash("sleep 600", timeout=0.5))  # killed, which spares the service
        await session.step(submitted)
    assert session.outcome is not None, session.attempt
    assert session.outcome.details == {"rewards": {"reward": 1.0, "seconds": 0.5}}
    assert session.outcome.passed


@pytest.mark.docker
async def test_the_user_of_an_image_works_and_is_graded_as_itself(tmp_path: Path) -> None:
    """`USER` by name: its numbers and home are those of the image; it can't become root."""
    dockerfile = (
        "FROM ubuntu:24.04\nRUN useradd -m -u 1234 worker\nWORKDIR /home/worker/project\n"
        "COPY words.txt .\nRUN chown -R worker /home/worker\nUSER worker\n"
        'ENTRYPOINT ["/bin/false"]\n'
    )
    tests = 'test "$(cat who.txt)" = "worker /home/worker" && echo 1 > /logs/verifier/reward.txt\n'
    changes = {"environment/Dockerfile": dockerfile, "tests/test.sh": tests}
    task = read_task(folder_of(tmp_path, "task", HARBOR, **changes))
    async with Session(spec(), task) as session:
        shown = await session.step(bash("echo $(id -un) $HOME | tee who.txt; chown root who.txt"))
        text = str(shown.observation[0]["content"])
        assert text.startswith("worker /home/worker\nchown: changing ownership")
        await session.step("done")
    assert session.outcome is not None, session.attempt
    assert session.outcome.passed
    (tmp_path / "other").mkdir()
    changes["environment/Dockerfile"] = "FROM ubuntu:24.04\nUSER nobody-knows\n"
    unknown = read_task(folder_of(tmp_path / "other", "task", HARBOR, **changes))
    with pytest.raises(InvalidInput, match="no user 'nobody-knows'"):
        await TerminalEnv(bases=BASES).reset(unknown, None)


@pytest.mark.docker
async def test_a_grader_that_never_works_is_a_failure(tmp_path: Path) -> None:
    """A test script without a result on an untouched container is the task's fault."""
    task = read_task(folder_of(tmp_path, "task", HARBOR, **{"tests/test.sh": "exit 0\n"}))
    async with Session(spec(), task) as session:
        await session.step("done")
    assert str(session.status).startswith("failed:verify"), session.attempt
    assert session.outcome is None


@pytest.mark.docker
async def test_a_base_that_is_not_here_is_named(tmp_path: Path) -> None:
    """Without a mapping, the error names the image and how to choose another."""
    task = read_task(folder_of(tmp_path, "task", HARBOR))
    env = TerminalEnv()
    with pytest.raises(ImageNotFound, match=r"python:3.13-slim-bookworm.*bases"):
        await env.reset(task, None)


def test_bases_are_mapped_in_every_stage_but_not_stages_themselves() -> None:
    """Each FROM of an image is mapped and made root; a FROM of an earlier stage stays."""
    text = "FROM --platform=linux/amd64 node:20 as build\nRUN x\nFROM build\nFROM alpine\n"
    made, needed = mapped_dockerfile(text, {"node:20": "a:1"})
    assert made == (
        "FROM --platform=linux/amd64 a:1 as build\nUSER root\nRUN x\nFROM build\nFROM alpine\n"
    )
    assert needed == ["a:1", "alpine"]


@pytest.mark.parametrize(
    ("files", "changes", "said"),
    [
        (HARBOR, {"task.toml": "[agent"}, "table declaration"),
        (HARBOR, {"task.toml": "agent = 3"}, "agent: expected a table"),
        (HARBOR, {"task.toml": "[verifier]\ntimeout_sec = -1"}, "verifier_seconds"),
        (HARBOR, {"task.toml": "[environment]\nmemory = 'lots'"}, "memory"),
        (HARBOR, {"task.toml": "[environment]\ngpus = 1"}, "gpus"),
        (HARBOR, {"task.toml": "[verifier]\nenv = { KEY = '${KEY}' }"}, "variables of the host"),
        (HARBOR, {"task.toml": "[verifier]\nuser = 'root'\n[agent]\nuser = 'me'"}, "verifier.user"),
        (HARBOR, {"task.toml": "[[steps]]\nname = 'a'"}, "steps"),
        (HARBOR, {"instruction.md": " \n"}, "instruction"),
        (HARBOR, {"instruction.md": None}, "instruction.md"),
        (HARBOR, {"tests/test.sh": None}, "test.sh is missing"),
        (HARBOR, {"environment/Dockerfile": None}, "Dockerfile is missing"),
        (HARBOR, {"environment/docker-compose.yaml": "services: {}"}, "compose"),
        (TERMINAL_BENCH, {"task.yaml": "- 1"}, "mapping"),
        (TERMINAL_BENCH, {"task.yaml": "instruction: x\nparser_name: other"}, "parser_name"),
        (TERMINAL_BENCH, {"docker-compose.yaml": "services: {a: {}, b: {}}"}, "several"),
        (TERMINAL_BENCH, {"run-tests.sh": None}, "run-tests.sh"),
    ],
)  # fmt: skip
def test_malformed_folders_are_refused_on_load(
    tmp_path: Path, files: dict[str, str], changes: dict[str, str | None], said: str
) -> None:
    """What is missing, malformed or unsupported is named with its folder before any session."""
    folder = folder_of(tmp_path, "odd", files, **changes)
    for path, text in changes.items():
        if text is None:
            (folder / path).unlink(missing_ok=True)
    with pytest.raises(InvalidInput, match=rf"odd.*{said}"):
        load_tasks(str(tmp_path))


def test_a_folder_without_tasks_and_a_changed_task(tmp_path: Path) -> None:
    """An empty folder is refused; a task whose files changed has other data."""
    with pytest.raises(InvalidInput, match="neither"):
        load_tasks(str(tmp_path))
    folder = folder_of(tmp_path, "task", HARBOR)
    before = read_task(folder)
    (folder / "tests/more.py").write_text("")
    assert read_task(folder).data["content"] != before.data["content"]
    shutil.rmtree(folder)
    with pytest.raises(InvalidInput, match="not there"):
        TerminalEnv.script(before, 0)
