"""Fetching files from a package index and unpacking them."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import os
import subprocess
import tarfile
import threading
import zipfile
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING

import pytest

from trajgym.envs.swe import InvalidTask, SourceUnavailable
from trajgym.envs.swe._archives import unpack_sdist, unpack_wheel
from trajgym.envs.swe._index import IndexFile, _pip_settings, fetch
from trajgym.envs.swe._runner import runner_folder

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

CONTENT = b"archive"
SHA = hashlib.sha256(CONTENT).hexdigest()
FILE = IndexFile("My.Package", "my_package-1.0.tar.gz", SHA)


class Index(BaseHTTPRequestHandler):
    """A package index in either form of the simple API, that fails at first."""

    failures = 0
    form = "json"

    def do_GET(self) -> None:
        if type(self).failures:
            type(self).failures -= 1
            self.send_error(503)
            return
        link = "../../files/my_package-1.0.tar.gz#sha256=0"
        pages = {
            "json": json.dumps({"files": [{"filename": "x", "url": link}]}).encode(),
            "html": f'<a href="{link}">my_package</a>'.encode(),
        }
        body = {"/simple/my-package/": pages[self.form], "/files/my_package-1.0.tar.gz": CONTENT}
        found = body.get(self.path)
        if found is None:
            self.send_error(404)
            return
        self.send_response(200)
        self.send_header("Content-Type", f"application/{self.form}")
        self.end_headers()
        self.wfile.write(found)

    def log_message(self, *arguments: object) -> None:
        pass


@pytest.fixture
def index(monkeypatch: pytest.MonkeyPatch) -> Iterator[type[Index]]:
    """Pip set up to use an index on this host."""
    Index.failures, Index.form = 0, "json"
    server = ThreadingHTTPServer(("127.0.0.1", 0), Index)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    use_index(monkeypatch, f"http://127.0.0.1:{server.server_port}/simple")
    yield Index
    server.shutdown()
    thread.join(10)
    server.server_close()
    _pip_settings.cache_clear()


def use_index(monkeypatch: pytest.MonkeyPatch, url: str) -> None:
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("PIP_INDEX_URL", url)
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    for name in ("PIP_EXTRA_INDEX_URL", "PIP_FIND_LINKS", "PIP_NO_INDEX"):
        monkeypatch.delenv(name, raising=False)
    _pip_settings.cache_clear()


@pytest.mark.parametrize("form", ["json", "html"])
def test_file_comes_from_pips_index_once(index: type[Index], tmp_path: Path, form: str) -> None:
    """Both forms of the simple API are read; the second time the cache answers."""
    index.form = form
    assert fetch(FILE, tmp_path).read_bytes() == CONTENT
    index.failures = 100
    assert fetch(FILE, tmp_path).read_bytes() == CONTENT


def test_short_outage_is_sat_out(index: type[Index], tmp_path: Path) -> None:
    """A server error is tried again."""
    index.failures = 1
    assert fetch(FILE, tmp_path).read_bytes() == CONTENT


def test_other_content_is_refused(index: type[Index], tmp_path: Path) -> None:
    """A file whose hash differs is never kept."""
    other = FILE._replace(sha256="0" * 64)
    with pytest.raises(SourceUnavailable, match=f"sha256 is {SHA}, expected 0000"):
        fetch(other, tmp_path)
    assert not list(tmp_path.rglob("*.tar.gz"))


def test_unknown_file_names_the_index(index: type[Index], tmp_path: Path) -> None:
    """A file that the index does not have is an error that names the remedy."""
    with pytest.raises(SourceUnavailable, match=r"no such file.*builtin"):
        fetch(FILE._replace(filename="other.tar.gz"), tmp_path)


def test_unreachable_index_hides_the_password(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """No index answers: an error of ours, without the credentials of the address."""
    use_index(monkeypatch, "http://user:secret@127.0.0.1:9/simple")
    with pytest.raises(SourceUnavailable, match="check the network") as error:
        fetch(FILE, tmp_path)
    assert "secret" not in str(error.value)
    _pip_settings.cache_clear()


def test_pytest_comes_from_this_python_where_there_is_no_index(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Without an index the built-in tasks still have a pytest that runs, copied from here."""
    use_index(monkeypatch, "http://127.0.0.1:9/simple")
    runner = runner_folder([], tmp_path)
    done = subprocess.run(
        [runner / "bin" / "pytest", "--version"],
        env={"PATH": os.defpath, "PYTHONPATH": str(runner / "site")},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert done.stdout == f"pytest {pytest.__version__}\n"
    _pip_settings.cache_clear()


def test_package_that_is_not_pinned_is_refused(tmp_path: Path) -> None:
    """Only packages with a known hash are ever put into a sandbox."""
    with pytest.raises(InvalidTask, match=r"requests.*not pinned"):
        runner_folder(["requests"], tmp_path)


def sdist(path: Path, entries: list[tarfile.TarInfo]) -> Path:
    with tarfile.open(path, "w:gz") as tar:
        for entry in entries:
            entry.size = 1 if entry.isfile() else 0
            tar.addfile(entry, io.BytesIO(b"x"))
    return path


def entry(name: str, kind: bytes = tarfile.REGTYPE, link: str = "") -> tarfile.TarInfo:
    made = tarfile.TarInfo(name)
    made.type, made.linkname, made.mode = kind, link, 0o755
    return made


def test_archive_without_its_top_folder_and_metadata(tmp_path: Path) -> None:
    """Files land without the top folder; links and generated metadata are left out."""
    archive = sdist(
        tmp_path / "a-1.tar.gz",
        [
            entry("a-1/a/b.py"),
            entry("a-1/PKG-INFO"),
            entry("a-1/src/a.egg-info/SOURCES.txt"),
            entry("a-1/out", tarfile.SYMTYPE, "/etc/passwd"),
        ],
    )
    (tmp_path / "into").mkdir()
    unpack_sdist(archive, tmp_path / "into")
    assert [p.name for p in (tmp_path / "into").rglob("*")] == ["a", "b.py"]


def test_archive_that_reaches_out_is_refused(tmp_path: Path) -> None:
    """A member outside of the directory is an error, and is not written."""
    archive = sdist(tmp_path / "a-1.tar.gz", [entry("a-1/../../evil.py")])
    with pytest.raises(SourceUnavailable, match="unsafe path"):
        unpack_sdist(archive, tmp_path / "into")
    assert not list(tmp_path.parent.glob("evil.py"))


@pytest.mark.parametrize("data", [b"", b"no archive", gzip.compress(b"no tar", mtime=0)[:-6]])
def test_damaged_archive_is_an_error_of_ours(tmp_path: Path, data: bytes) -> None:
    """A damaged file is an error that names it."""
    file = tmp_path / "a-1.tar.gz"
    file.write_bytes(data)
    with pytest.raises(SourceUnavailable, match=r"a-1\.tar\.gz can't be unpacked"):
        unpack_sdist(file, tmp_path)
    with pytest.raises(SourceUnavailable, match=r"a-1\.tar\.gz can't be unpacked"):
        unpack_wheel(file, tmp_path)


def test_wheel_that_reaches_out_is_refused(tmp_path: Path) -> None:
    """A wheel writes below its folder only."""
    wheel = tmp_path / "a.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("../evil.py", "x")
    with pytest.raises(SourceUnavailable, match="unsafe path"):
        unpack_wheel(wheel, tmp_path / "into")
