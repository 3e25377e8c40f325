"""Archives of this project, and environments in which they are installed."""

from __future__ import annotations

import shutil
import site
import subprocess
import sys
from pathlib import Path

import pytest

from tests.workers import made_once

ROOT = Path(__file__).parent.parent


def run(*command: str | Path, cwd: Path, ok: bool = True) -> str:
    """Run a command and return what it printed."""
    done = subprocess.run(
        [str(word) for word in command], cwd=cwd, capture_output=True, text=True, timeout=800
    )
    assert not ok or done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    return done.stdout


def tracked(*folders: str) -> list[str]:
    """Return the files that are tracked or about to be, links included."""
    options = ["-z", "--cached", "--others", "--exclude-standard"]
    listed = run("git", "ls-files", *options, "--", *folders, cwd=ROOT).split("\0")
    return [name for name in listed if name and (ROOT / name).is_symlink() | (ROOT / name).exists()]


@pytest.fixture(scope="session")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the sources: files that git ignores do not get into a build."""

    def copy(folder: Path) -> None:
        for name in tracked():
            target = folder / name
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, target, follow_symlinks=False)

    return made_once(tmp_path_factory, "checkout", copy)


@pytest.fixture(scope="session")
def archives(checkout: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The sdist, and the wheel that is built from it."""

    def build(out: Path) -> None:
        run(sys.executable, "-m", "build", "--no-isolation", "--outdir", out, checkout, cwd=out)

    out = made_once(tmp_path_factory, "dist", build)
    (sdist,), (wheel,) = out.glob("*.tar.gz"), out.glob("*.whl")
    return sdist, wheel


def new_venv(folder: Path) -> Path:
    """Make a virtual environment with the dependencies of this one but without trajgym."""
    run(sys.executable, "-m", "venv", "--without-pip", folder, cwd=folder.parent)
    (packages,) = folder.glob("lib/python*/site-packages")
    borrowed = [path for path in sys.path if path.endswith("site-packages")]
    (packages / "borrowed.pth").write_text("\n".join(borrowed or site.getsitepackages()))
    return folder / "bin" / "python"


def install(python: Path, *arguments: str | Path) -> None:
    """Install into a virtual environment, without dependencies and without an index."""
    options = ["--no-deps", "--no-index", "--no-build-isolation", "--ignore-installed", "--quiet"]
    pip = [sys.executable, "-m", "pip", "--python", python]
    run(*pip, "install", *options, *arguments, cwd=python.parent)


@pytest.fixture(scope="session")
def installed(archives: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The Python of an environment in which the wheel is installed, as users have it."""

    def make(folder: Path) -> None:
        install(new_venv(folder / "venv"), archives[1])

    return made_once(tmp_path_factory, "installed", make) / "venv" / "bin" / "python"
