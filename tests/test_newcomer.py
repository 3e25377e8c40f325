"""A newcomer's first steps, with the installed command and a model over HTTP that has faults."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parent.parent
KEY = "sk-newcomer-0123456789"
QUICK = ("--patience", "2", "--request-timeout", "30")
pytestmark = pytest.mark.timeout(600)


class Model:
    """Plays a model that guesses numbers; says what is wrong with a request, as services do."""

    def __init__(self) -> None:
        self.faults: list[tuple[int, str]] = []
        """What the next requests get instead of an answer: a status and a body; 0 hangs up."""
        self.always: tuple[int, str] | None = None
        self.hang = threading.Event()
        """Set when hanging requests may end."""
        self.requests = 0
        self.lock = threading.Lock()

    def answer(self, path: str, headers: Any, body: dict[str, Any]) -> tuple[int, str]:
        with self.lock:
            self.requests += 1
            fault = self.always or (self.faults.pop(0) if self.faults else None)
        if fault is not None:
            return fault
        if path != "/v1/chat/completions":
            return 404, '{"detail": "Not Found"}'
        if headers["authorization"] != f"Bearer {KEY}":
            error = {"message": f"Incorrect API key: {headers['authorization']}", "type": "auth"}
            return 401, json.dumps({"error": error})
        if body["model"] != "guesser":
            error = {"message": f"The model {body['model']} does not exist", "type": "invalid"}
            return 404, json.dumps({"error": error | {"code": "model_not_found"}})
        return 200, json.dumps(self._completion(body["messages"]))

    def _completion(self, messages: list[dict[str, Any]]) -> dict[str, Any]:
        low, high = 1, 100
        guesses = [m for m in messages if m["role"] == "assistant"]
        hints = [m["content"] for m in messages if m["role"] == "tool"]
        for guess, hint in zip(guesses, hints, strict=True):
            number = json.loads(guess["tool_calls"][0]["function"]["arguments"])["number"]
            if "Higher" in hint:
                low = number + 1
            else:
                high = number - 1
        arguments = json.dumps({"number": (low + high) // 2})
        call = {"id": f"c{len(hints)}", "type": "function"}
        call["function"] = {"name": "guess", "arguments": arguments}
        message = {"role": "assistant", "content": None, "tool_calls": [call]}
        choice = {"index": 0, "message": message, "finish_reason": "tool_calls"}
        usage = {"prompt_tokens": 100, "completion_tokens": 10, "total_tokens": 110}
        body = {"id": "c", "object": "chat.completion", "created": 0, "model": "guesser"}
        return {**body, "choices": [choice], "usage": usage}


@contextmanager
def serving(model: Model) -> Iterator[str]:
    """Serve a model on loopback; return the URL without ``/v1``."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["content-length"])))
            status, text = model.answer(self.path, self.headers, body)
            if status == 0:
                model.hang.wait(120)
                return
            data = text.encode()
            self.send_response(status)
            kind = "text/html" if text.startswith("<") else "application/json"
            self.send_header("content-type", kind)
            self.send_header("content-length", str(len(data)))
            self.send_header("retry-after", "0")
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        model.hang.set()
        server.shutdown()
        thread.join()
        server.server_close()


class Desk:
    """A terminal in the newcomer's project."""

    def __init__(self, project: Path) -> None:
        self.project = project

    def run(self, *words: object, status: int = 0, **environment: str) -> tuple[str, str]:
        path = os.pathsep.join([str(self.project), str(ROOT)])
        env = os.environ | {"PYTHONPATH": path, "OPENAI_API_KEY": KEY} | environment
        command = [sys.executable, "-m", "trajgym.cli", *map(str, words)]
        done = subprocess.run(command, cwd=self.project, env=env, capture_output=True, text=True)
        assert done.returncode == status, done.stdout + done.stderr
        assert "Traceback" not in done.stderr
        return done.stdout, done.stderr


@pytest.fixture(scope="module")
def desk(tmp_path_factory: pytest.TempPathFactory) -> Desk:
    """`init`, then edit the environment and its tasks, then check."""
    parent = Desk(tmp_path_factory.mktemp("home"))
    parent.run("init", "my_env")
    project = parent.project / "my_env"
    code = project / "my_env" / "__init__.py"
    text = code.read_text()
    assert "I think of a number" in text
    code.write_text(text.replace("I think of a number", "I have a number in mind"))
    tasks = [{"id": f"t{n}", "data": {"secret": n}} for n in (7, 50)]
    lines = "".join(json.dumps(task) + "\n" for task in tasks)
    (project / "my_env" / "tasks.jsonl").write_text(lines)
    made = Desk(project)
    assert "ok" in made.run("check-env", "my_env:MyEnv", "--tasks", "my_env/tasks.jsonl")[0]
    return made


@pytest.fixture
def model() -> Model:
    return Model()


@pytest.fixture
def url(model: Model) -> Iterator[str]:
    with serving(model) as found:
        yield found


def collecting(url: str, out: str, *more: object, name: str = "guesser") -> tuple[object, ...]:
    env = ("--env", "my_env:MyEnv", "--tasks", "my_env/tasks.jsonl", "--samples", 2)
    return ("collect", *env, "--base-url", url, "--model", name, "--out", out, *QUICK, *more)


def test_the_whole_way(desk: Desk, model: Model, url: str) -> None:
    """Collect over rate limits and errors, then eval, show, stats, reward and export."""
    busy = (429, '{"error": {"message": "slow down"}}')
    model.faults = [busy, (500, "oops"), busy, (503, "<html>busy</html>")]
    said, _ = desk.run(*collecting(f"{url}/v1", "runs/one", "--patience", 60))
    assert "4 sessions (4 completed), 4 solved, 2 groups sealed" in said
    assert re.search(r"\d{1,3}(,\d{3})* prompt and \d+ completion tokens", said)
    asked = model.requests
    again, _ = desk.run(*collecting(f"{url}/v1", "runs/one"))
    assert "nothing was left to do" in again
    assert model.requests == asked

    words = collecting(f"{url}/v1", "runs/eval", "--against", "runs/one", "--json")
    report = json.loads(desk.run("eval", *words[1:])[0])
    assert report["groups"][0]["solved"]["value"] == 1.0
    assert report["against"][0]["value"] == 0.0

    table, _ = desk.run("show", "runs/one")
    session = table.splitlines()[1].split("\t")[0]
    shown, _ = desk.run("show", "runs/one", session)
    assert "I have a number in mind" in shown
    assert "completion tokens" in shown
    stats = json.loads(desk.run("stats", "runs/one", "--json")[0])
    assert stats["all"]["passed"] == 4
    assert "sum 4" in desk.run("reward", "runs/one", "--with", "outcome")[0]
    export, _ = desk.run("export", "runs/one", "--to", "sft", "--out", "data")
    assert "4 records" in export
    lines = (desk.project / "data" / "sft.jsonl").read_text().splitlines()
    assert json.loads(lines[0])["messages"][0]["content"].startswith("I have a number")


@pytest.mark.parametrize(
    ("path", "name", "environment", "fault", "cause", "advice"),
    [
        ("/v1", "guesser", {"OPENAI_API_KEY": "sk-wrong-key"}, None, "401", "--api-key-env"),
        ("/v1", "other", {}, None, "does not exist", "check --model"),
        ("", "guesser", {}, None, "404", "usually ends in /v1"),
        ("/v1", "guesser", {}, (200, "<html>Hello</html>"), "html", "--base-url"),
        ("/v1", "guesser", {}, (429, "{}"), "429", "--concurrency"),
        ("/v1", "guesser", {}, (500, "boom"), "500", "--patience"),
        ("/v1", "guesser", {}, (0, ""), "no answer within", "--request-timeout"),
    ],
    ids=["wrong-key", "unknown-model", "no-v1", "html", "429", "500", "hang"],
)
def test_what_goes_wrong_is_said(
    desk: Desk, model: Model, url: str, tmp_path: Path,
    path: str, name: str, environment: dict[str, str], fault: Any, cause: str, advice: str,
) -> None:  # fmt: skip
    """Status 1, the cause once with its count, and which option to look at."""
    model.always = fault
    out = tmp_path / "run"
    more = ("--request-timeout", 1) if fault == (0, "") else ()
    words = collecting(url + path, str(out), *more, name=name)
    _, error = desk.run(*words, status=1, **environment)
    assert "Every session of 2 tasks failed (t7, t50):" in error
    causes = re.findall(r"^  (\d+) x (.*)$", error, re.M)
    assert sum(int(count) for count, _ in causes) == 4
    assert cause in causes[0][1]
    assert advice in error
    for file in out.rglob("*"):
        if file.is_file():
            data = file.read_bytes()
            assert KEY.encode() not in data
            assert b"sk-wrong-key" not in data


def test_a_wrong_key_stops_the_run_early(desk: Desk, model: Model, url: str) -> None:
    """After eight refused sessions no other begins, and the rest is run with the right key."""
    words = collecting(url + "/v1", "runs/wrong", "--samples", 20, "--concurrency", 2)
    _, error = desk.run(*words, status=1, OPENAI_API_KEY="sk-wrong-key")
    assert "refused the API key in the first 8 sessions" in error
    assert "check --api-key-env or --api-key-file" in error
    assert 8 <= model.requests < 40
    said, _ = desk.run(*words, "--json")
    assert json.loads(said)["statuses"]["completed"] == 40


def test_a_missing_key_stops_before_the_first_session(desk: Desk) -> None:
    """Without a key and without an own endpoint nothing is collected."""
    words = ["collect", "--env", "my_env:MyEnv", "--tasks", "my_env/tasks.jsonl"]
    for name, variable in (("gpt-x", "OPENAI_API_KEY"), ("anthropic:c", "ANTHROPIC_API_KEY")):
        _, error = desk.run(
            *words, "--model", name, "--out", "runs/no-key", status=2, **{variable: ""}
        )
        assert f"{variable} is not set" in error
    assert not (desk.project / "runs" / "no-key").exists()


def test_costs_end_a_run_and_a_higher_limit_resumes_it(desk: Desk, url: str) -> None:
    """Options from TOML, the key from a file; status 3 at the limit, then the rest."""
    (desk.project / "key.txt").write_text(KEY + "\n")
    (desk.project / "prices.toml").write_text("[models.guesser]\nprompt = 1000\ncompletion = 0\n")
    (desk.project / "collect.toml").write_text(
        f'env = "my_env:MyEnv"\ntasks = "my_env/tasks.jsonl"\nbase-url = "{url}/v1"\n'
        'model = "guesser"\nsamples = 2\nconcurrency = 1\nprices = "prices.toml"\n'
        'api-key-file = "key.txt"\ntemperature = 0.5\n[extra-body]\nmin_p = 0.1\n'
    )
    words = ("collect", "--config", "collect.toml", "--out", "runs/cost", "--json")
    first, error = desk.run(*words, "--max-cost", 0.15, status=3, OPENAI_API_KEY="")
    assert "the cost limit of 0.15 USD is reached" in error
    report = json.loads(first)
    assert report["sessions"] == 1
    assert report["spent"]["cost"] >= 0.15
    again, _ = desk.run(*words, "--max-cost", 50, OPENAI_API_KEY="")
    assert json.loads(again)["sessions"] == 3
    stats = json.loads(desk.run("stats", "runs/cost", "--prices", "prices.toml", "--json")[0])
    assert stats["all"]["cost"] == pytest.approx(json.loads(again)["spent"]["cost"])
    for file in (desk.project / "runs" / "cost").rglob("*"):
        if file.is_file():
            assert KEY.encode() not in file.read_bytes()
    (desk.project / "bad.toml").write_text('api_key = "sk-1"\n')
    _, refused = desk.run("collect", "--config", "bad.toml", "--out", "x", status=2)
    assert "keys are not read from configuration" in " ".join(refused.replace("│", "").split())


def test_a_limit_without_a_price_is_wrong_usage(desk: Desk, url: str) -> None:
    """A cost limit that could not be kept is refused before the first session."""
    (desk.project / "other.toml").write_text("[models.other]\nprompt = 1\ncompletion = 1\n")
    words = collecting(f"{url}/v1", "runs/unpriced", "--max-cost", 1)
    assert "needs a price table" in desk.run(*words, status=2)[1]
    _, error = desk.run(*words, "--prices", "other.toml", status=2)
    assert "needs a price for guesser" in error
    assert not (desk.project / "runs" / "unpriced").exists()


def test_tracking_from_the_command_line(desk: Desk) -> None:
    """`--track tensorboard` leaves event files in the run directory."""
    pytest.importorskip("tensorboard")
    words = ("collect", "--env", "my_env:MyEnv", "--tasks", "my_env/tasks.jsonl", "--samples", 1)
    desk.run(*words, "--out", "runs/tracked", "--track", "tensorboard")
    assert list((desk.project / "runs" / "tracked" / "tracking").rglob("events.*"))
    _, error = desk.run(*words, "--out", "runs/other", "--track", "nope", status=2)
    assert "no tracker 'nope'" in error
