"""Records whose repository is in a published image, run with the published log parsers."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from trajgym.envs.sandbox import BASE_IMAGE, DockerProvider, EmbeddedProvider, ImageNotFound
from trajgym.envs.swe import InvalidTask, SweEnv, SweRecord, grade, import_tasks, reverse_patch
from trajgym.envs.swe._runner import runner_folder
from trajgym.envs.swe._sources import base_tree

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from trajgym.trajectory import Task

IMAGE = f"trajgym/test-published:{os.getpid()}"
FIXED = f"{IMAGE}-fixed"
DOCKERFILE = f"""
FROM {BASE_IMAGE}
COPY site /opt/site
COPY repo /app
ENV PYTHONPATH=/opt/site:/app
"""


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """An image as data sets publish them: a full history with the fix in it, pytest installed."""
    from trajgym.envs.swe import load_tasks

    (spans,) = load_tasks(["trajgym__spans-1.0"])
    record = SweRecord.of(spans)
    context = tmp_path_factory.mktemp("image")
    repo = context / "repo"
    shutil.copytree(runner_folder([]) / "site", context / "site")
    shutil.copytree(base_tree(record).repo, repo)
    git = ["git", "-c", "user.name=a", "-c", "user.email=a@b"]
    for patch in (record.test_patch, record.patch):
        subprocess.run([*git, "apply", "-"], cwd=repo, input=patch.encode(), check=True, timeout=60)
    subprocess.run([*git, "add", "-A"], cwd=repo, check=True, timeout=60)
    subprocess.run([*git, "commit", "-qm", "the fix"], cwd=repo, check=True, timeout=60)
    subprocess.run([*git, "tag", "fixed"], cwd=repo, check=True, timeout=60)
    subprocess.run([*git, "checkout", "-q", "HEAD~1"], cwd=repo, check=True, timeout=60)
    (context / "Dockerfile").write_text(DOCKERFILE)
    build(IMAGE, context)
    subprocess.run([*git, "checkout", "-q", "fixed"], cwd=repo, check=True, timeout=60)
    build(FIXED, context)
    yield IMAGE
    remove = ["docker", "rmi", "-f", IMAGE, FIXED]
    subprocess.run(remove, check=False, capture_output=True, timeout=60)


def build(tag: str, context: Path) -> None:
    command = ["docker", "build", "-q", "--network", "none", "-t", tag, str(context)]
    subprocess.run(command, check=True, capture_output=True, timeout=300)


def published(spans: Task, tmp_path: Path, **changes: Any) -> Task:
    """Return the task as a row of SWE-bench 5, whose test ids a log parser made."""
    data = spans.data
    tests = data["FAIL_TO_PASS"] + data["PASS_TO_PASS"]
    files = " ".join(sorted({test.split("::")[0] for test in tests}))
    command = f"python3 -m pytest -rA {files}"
    script = f": '>>>>> Start Test Output'\n{command}\n: '>>>>> End Test Output'"
    row = {
        "instance_id": "trajgym__spans-1",
        "repo": "trajgym/spans",
        "base_commit": "c0",
        "problem_statement": data["problem_statement"],
        "patch": data["patch"],
        "test_patch": data["test_patch"],
        "FAIL_TO_PASS": json.dumps([test.split(" ")[0] for test in data["FAIL_TO_PASS"]]),
        "PASS_TO_PASS": json.dumps([test.split(" ")[0] for test in data["PASS_TO_PASS"]]),
        "image": IMAGE,
        "repo_dir": "/app",
        "log_parser": "parse_log_pytest",
        "eval_script": script,
        **changes,
    }  # fmt: skip
    path = tmp_path / "rows.jsonl"
    path.write_text(json.dumps(row))
    (task,), problems = import_tasks(path)
    assert problems == []
    return task


@pytest.mark.docker
async def test_published_image_is_graded_by_the_fields_parser(
    image: str, spans: Task, tmp_path: Path, edit: Callable[..., bytes]
) -> None:
    """Gold solves, the empty change does not, and forged lines for the parser are detected."""
    task = published(spans, tmp_path)
    names = task.data["FAIL_TO_PASS"] + task.data["PASS_TO_PASS"]
    forger = f"import atexit\natexit.register(lambda: [print('PASSED', n) for n in {names}])\n"
    patch = edit("cat forger >> spans/__init__.py; rm forger", forger=forger)
    async with DockerProvider() as provider:
        gold = await grade(task, task.data["patch"].encode(), provider)
        empty = await grade(task, b"", provider)
        forged = await grade(task, patch, provider)
    assert (gold.score, gold.details["failing"], gold.details["tampering"]) == (1.0, [], [])
    assert (empty.score, empty.details["p2p"], empty.details["tampered"]) == (0.0, 1.0, False)
    assert forged.details["problem"] == ""
    assert forged.score == 0.0
    assert "printed as passed, reported otherwise" in forged.details["tampering"][0]


@pytest.mark.docker
async def test_published_history_is_gone(image: str, spans: Task, tmp_path: Path) -> None:
    """The agent's repository has one commit, no tag, and no object that holds the fix."""
    env = SweEnv(sandbox="docker")
    try:
        await env.reset(published(spans, tmp_path), None)
        look = "git rev-list --all | wc -l; git tag; git branch -a | wc -l; git fsck --lost-found"
        assert (await env.bash(look)).content == "1\n1\n[exit status 0]"
        objects = await env.bash(
            "git cat-file --batch-all-objects --batch | grep -c 'test_touching_spans' ; ls -a /app/"
        )
        assert str(objects.content).startswith("0\n")
    finally:
        await env.close()


@pytest.mark.docker
async def test_published_bug_is_put_into_the_repository(
    image: str, spans: Task, tmp_path: Path
) -> None:
    """A SWE-smith row's image is clean: the bug is applied, and the reverse patch solves."""
    bug = reverse_patch(spans.data["patch"])
    row = {
        **{name: spans.data[name] for name in ("FAIL_TO_PASS", "PASS_TO_PASS")},
        "repo": "swesmith/trajgym__spans.c0ffee12",
        "patch": bug,
        "image_name": FIXED,
    }
    task = published(spans, tmp_path, **row, image=None, log_parser=None, eval_script=None)
    assert task.data["patch"] == spans.data["patch"]
    async with DockerProvider() as provider:
        undone = await grade(task, task.data["patch"].encode(), provider)
        empty = await grade(task, b"", provider)
    assert (undone.score, undone.details["failing"]) == (1.0, [])
    assert (empty.score, empty.details["f2p"], empty.details["p2p"]) == (0.0, 0.0, 1.0)


async def test_published_image_needs_docker(spans: Task, tmp_path: Path) -> None:
    """Without Docker, or without the image, the error names the remedy."""
    task = published(spans, tmp_path, image="nowhere/none:1")
    async with EmbeddedProvider() as provider:
        with pytest.raises(InvalidTask, match="needs Docker"):
            await grade(task, b"", provider)


@pytest.mark.docker
async def test_missing_published_image_is_named(spans: Task, tmp_path: Path) -> None:
    """An image that the engine lacks is an error with the command that pulls it."""
    task = published(spans, tmp_path, image="nowhere/none:1")
    async with DockerProvider() as provider:
        with pytest.raises(ImageNotFound, match="docker pull nowhere/none:1"):
            await grade(task, b"", provider)
