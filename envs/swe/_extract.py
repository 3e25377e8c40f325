"""The agent's change as a patch, taken from its sandbox."""

from __future__ import annotations

import secrets
import shlex
from typing import TYPE_CHECKING, NamedTuple

from trajgym.envs.sandbox import SandboxFileError
from trajgym.envs.swe._git import ATTRIBUTES, SAFE_ENV
from trajgym.envs.swe._layout import BASE_GIT, REPO

if TYPE_CHECKING:
    from trajgym.envs.sandbox import Sandbox

__all__ = ["Extracted", "extract_change", "git_env", "git_setup"]

MAX_PATCH = 8 << 20
_SECONDS = 120.0

_EXTRACT = """
cd /
mkdir -p {repo}
chmod -R u+rwX {repo} 2>/dev/null || true
cd {repo}
git add -A -f --ignore-errors 2>/dev/null || true
git ls-files -s -z | sed -z -n 's/^160000 [^\\t]*\\t//p' \
  | git update-index -z --force-remove --stdin
git ls-files -z | sed -z -n -E '/(^|\\/)(__pycache__|\\.pytest_cache)\\/|\\.py[co]$/p' \
  | git update-index -z --force-remove --stdin
git diff --cached --binary --full-index --no-renames --no-color --no-ext-diff --no-textconv HEAD \
  > {work}/patch
"""


class Extracted(NamedTuple):
    """The change, or in ``problem`` the reason why there is none."""

    patch: bytes
    problem: str = ""


def git_env(work: str) -> str:
    """Return shell lines that make git use the folder under ``work``, without other settings."""
    exports = " ".join(f"{name}={value}" for name, value in SAFE_ENV.items())
    return f"set -eu\nexport {exports} HOME={work} GIT_DIR={work}/git GIT_WORK_TREE={REPO}\n"


def git_setup(work: str) -> str:
    """Return shell lines that create a separate git folder under ``work``.

    The agent's ``.git`` may contain hooks, filters and other commits; it is never used.
    """
    return f"""{git_env(work)}
umask 022
mkdir -p {work}
cp -R {BASE_GIT} {work}/git
chmod -R u+rwX {work}/git
printf %s {shlex.quote(ATTRIBUTES)} > {work}/git/info/attributes
rm -f {work}/git/index
git read-tree HEAD
git update-index -q --refresh || true
"""


async def extract_change(sandbox: Sandbox) -> Extracted:
    """Return all differences from the base: tracked and new files, binary, deletions, modes.

    The agent controls the result, whatever happened in its sandbox: grading does not trust it. The
    steps work on every unchanged sandbox, so what breaks them (a full disk, a process that uses
    all memory) was caused by the agent and is returned as ``problem``.

    Raises:
        SandboxDied: the sandbox is gone.
    """
    work = f"/tmp/trajgym-{secrets.token_hex(8)}"  # noqa: S108  # a path inside the sandbox
    script = git_setup(work) + _EXTRACT.format(repo=REPO, work=work)
    try:
        done = await sandbox.run(script, timeout=_SECONDS, cwd="/")
        if not done.ok:
            output = done.stderr[-500:].decode("utf-8", "replace").strip() or "timed out"
            return Extracted(b"", f"the change could not be read: {output}")
        try:
            return Extracted(await sandbox.read_file(f"{work}/patch", limit=MAX_PATCH))
        except SandboxFileError as error:
            return Extracted(b"", f"the change could not be read: {error}")
    finally:
        await sandbox.run(["rm", "-rf", work], timeout=30.0, cwd="/")
