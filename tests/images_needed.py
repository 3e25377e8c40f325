"""Container images that tests need; a missing one fails them, it never skips."""

from __future__ import annotations

import os
import subprocess

import pytest

__all__ = ["need_image"]


def need_image(name: str, script: str) -> None:
    """Fail unless a Docker engine has the image; ``script`` is what makes it."""
    if os.environ.get("TRAJGYM_TEST_DOCKER") == "0":
        pytest.skip("TRAJGYM_TEST_DOCKER=0")
    try:
        subprocess.run(
            ["docker", "image", "inspect", name],
            capture_output=True,
            timeout=60,
            check=True,
        )
    except (OSError, subprocess.SubprocessError) as error:
        said = getattr(error, "stderr", b"") or error
        pytest.fail(
            f"no Docker engine with {name} ({said!r}): run scripts/docker-engine.sh and "
            f"{script}, or set TRAJGYM_TEST_DOCKER=0 to leave these tests out"
        )
