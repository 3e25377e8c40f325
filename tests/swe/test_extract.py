"""Taking the agent's change out of its sandbox."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from trajgym.envs.swe import extract_change, grade, prepare

if TYPE_CHECKING:
    from trajgym.envs.sandbox import SandboxProvider
    from trajgym.trajectory import Task


async def changed(provider: SandboxProvider, task: Task, *lines: str) -> bytes:
    """Return what is extracted after some shell lines by the agent."""
    async with await provider.start(await prepare(task, provider)) as sandbox:
        for line in lines:
            done = await sandbox.run(line)
            assert done.ok, done
        found = await extract_change(sandbox)
    assert not found.problem
    return found.patch


async def test_every_kind_of_change_is_taken(provider: SandboxProvider, spans: Task) -> None:
    """New, binary, deleted, CRLF and executable files come out, and apply to a clean copy."""
    patch = await changed(
        provider,
        spans,
        "printf 'a\\r\\nb' > crlf.txt; printf '\\000\\377\\001' > 'spans/b i\tn'; rm README.md",
        "chmod 755 spans/_text.py; printf '\\377 latin' > latin.txt; mkdir e; ln -s x link",
    )
    assert b"+a\r\n+b\n\\ No newline at end of file" in patch
    assert b"old mode 100644\nnew mode 100755" in patch
    assert b"deleted file mode 100644" in patch
    assert b"GIT binary patch" in patch
    outcome = await grade(spans, patch, provider)
    assert outcome.details["problem"] == ""
    assert outcome.details["left_out"] == {"link": "not a regular file"}
    assert outcome.details["p2p"] == 1.0


HOSTILE = """
git config user.name a; git config user.email a@b
echo 'x = 1' > spans/new.py; git add -A -f; git commit -qm one
mkdir nested; cd nested; git init -q; touch file; cd ..
echo '*.py filter=evil diff=evil' > .gitattributes; echo '*' > .gitignore
git config filter.evil.clean 'touch /tmp/ran; echo evil'; git config diff.external 'touch /tmp/ran'
git config core.fsmonitor 'touch /tmp/ran'; git config core.worktree /tmp
git update-ref -d HEAD
"""


@pytest.mark.parametrize("last", ["rm -f /tmp/ran", "rm -rf .git /tmp/ran"])
async def test_the_agents_git_is_not_used(
    provider: SandboxProvider, spans: Task, last: str
) -> None:
    """Commits, filters, monitors, ignore rules and a deleted .git hide nothing and run nothing."""
    async with await provider.start(await prepare(spans, provider)) as sandbox:
        for script in (HOSTILE, last):
            await sandbox.run(script)
        found = await extract_change(sandbox)
        assert not (await sandbox.run("test -e /tmp/ran")).ok
    assert b"+x = 1" in found.patch
    assert b"+evil" not in found.patch
    assert b"Subproject" not in found.patch
    assert b".gitignore" in found.patch


async def test_caches_are_not_part_of_the_change(sandboxes: SandboxProvider, spans: Task) -> None:
    """What running tests leaves behind is no change."""
    line = "PYTHONDONTWRITEBYTECODE= python3 -m pytest -q -p cacheprovider"
    patch = await changed(sandboxes, spans, line, "ls spans/__pycache__ .pytest_cache")
    assert patch == b""


async def test_removed_repository_is_a_change(sandboxes: SandboxProvider, spans: Task) -> None:
    """An agent that deletes everything gets its own change graded: nothing passes."""
    patch = await changed(sandboxes, spans, "find . -mindepth 1 -delete")
    outcome = await grade(spans, patch, sandboxes)
    assert outcome.score == 0.0
    assert outcome.details["p2p_passed"] == 0


async def test_change_that_is_too_large_says_so(sandboxes: SandboxProvider, spans: Task) -> None:
    """A change of more than the limit is reported as the agent's problem."""
    async with await sandboxes.start(await prepare(spans, sandboxes)) as sandbox:
        await sandbox.run("head -c 20000000 /dev/urandom > big")
        found = await extract_change(sandbox)
    assert found.patch == b""
    assert "larger than" in found.problem
