"""`trajgym search`, as a user types it."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from typing import TYPE_CHECKING

import pytest
from typer.testing import CliRunner

from tests.ports import free_port
from trajgym.cli import app
from trajgym.envs.search import IndexMismatch

if TYPE_CHECKING:
    from pathlib import Path


def run(*arguments: object) -> str:
    result = CliRunner(env={"COLUMNS": "160"}).invoke(app, ["search", *map(str, arguments)])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code == 0, result.output
    return result.output


def test_index_check_query(tmp_path: Path) -> None:
    """Indexing, indexing again, checking and querying each report the result."""
    rows = [{"id": "a", "title": "Salt", "text": "tide salt"}] * 2
    rows.append({"id": "b", "title": "Eel [smoked]", "text": "an eel"})
    source = tmp_path / "corpus.jsonl"
    source.write_text("".join(json.dumps(row) + "\n" for row in rows))
    out = tmp_path / "index"
    said = run("index", source, "--out", out, "--with", "bm25")
    assert f"2 passages in {out} (2 passages added, 1 repeated ones left out)" in said
    assert "bm25: built" in said
    said = run("index", source, "--out", out, "--with", "bm25", "--check")
    assert said.count("up to date") == 2
    assert "2 passages, sound. Hash " in said
    assert "2 passages, sound" in run("index", "--out", out)
    assert "Eel [smoked] b" in run("query", out, "smoked eels?")
    assert "Eel [smoked] b" in run("query", out, "smokes", "--rank", "bm25")
    assert "bm25: built" in run("index", "--out", out, "--with", "bm25", "--stemmer", "none")
    with pytest.raises(IndexMismatch, match="more passages"):
        run("index", tmp_path / "corpus.jsonl", tmp_path / "corpus.jsonl", "--out", out)


def test_serve_answers_until_it_is_told_to_stop(tmp_path: Path) -> None:
    """The server runs as a process, prints its address, and exits cleanly on SIGTERM."""
    port = free_port()
    command = [sys.executable, "-m", "trajgym.cli", "search", "serve", "builtin"]
    server = subprocess.Popen(
        [*command, "--port", str(port), "--topk", "2"], stderr=subprocess.PIPE, text=True
    )
    try:
        assert server.stderr is not None
        assert f"http://127.0.0.1:{port}" in server.stderr.readline()
        answer = None
        while answer is None:
            assert server.poll() is None
            try:
                url = f"http://127.0.0.1:{port}/retrieve"
                body = json.dumps({"queries": ["salt"], "return_scores": True}).encode()
                request = urllib.request.Request(url, body)
                with urllib.request.urlopen(request, timeout=120) as response:
                    answer = json.loads(response.read())
            except urllib.error.URLError:
                continue  # it is not listening yet
        assert len(answer["result"][0]) == 2
        server.send_signal(signal.SIGTERM)
        server.communicate(timeout=120)
        assert server.returncode in {0, 130, -signal.SIGTERM}  # 130: as Ctrl-C ends it
    finally:
        server.kill()
        server.communicate()
