"""What the rules find in texts, and what they leave."""

from __future__ import annotations

import base64
import json
import random
import string
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trajgym.trajectory import InvalidInput
from trajgym.trajectory.redaction import Redactor, default_rules, find

_CHANCE = random.Random(7)
_LETTERS = string.ascii_letters + string.digits


def chars(n: int, alphabet: str = _LETTERS) -> str:
    """Random characters, with every kind that the alphabet has."""
    kinds = [[c for c in alphabet if test(c)] for test in (str.isdigit, str.islower, str.isupper)]
    first = [_CHANCE.choice(kind) for kind in kinds if kind]
    return "".join([*first, *(_CHANCE.choice(alphabet) for _ in range(n - len(first)))])


def jwt() -> str:
    parts = [
        base64.urlsafe_b64encode(json.dumps(part).encode()).decode().rstrip("=")
        for part in (
            {"alg": "HS256", "typ": "JWT"},
            {"sub": "123", "name": "Jane"},
        )
    ]
    return ".".join([*parts, chars(43)])


PEM = "-----BEGIN RSA PRIVATE KEY-----\n" + f"{chars(64)}\n" * 3 + "-----END RSA PRIVATE KEY-----"
SECRETS = {
    "private-key": [PEM, PEM.replace("\n", "\\n")],
    "aws-key": ["AKIA" + chars(16, string.ascii_uppercase + string.digits)],
    "github-token": ["ghp_" + chars(36), "github_pat_" + chars(22) + "_" + chars(59)],
    "gitlab-token": ["glpat-" + chars(20)],
    "slack-token": ["xoxb-" + "1" * 12 + "-" + chars(24)],
    "model-key": [
        "sk-" + chars(48),
        "sk-proj-" + chars(60),
        "sk-ant-api03-" + chars(90),
        "hf_" + chars(34),
    ],
    "google-key": ["AIza" + chars(35)],
    "stripe-key": ["sk_live_" + chars(24)],
    "registry-token": ["npm_" + chars(36), "pypi-AgEIcHlwaS5vcmc" + chars(60)],
    "bot-token": ["1234567890:AA" + chars(33)],
    "jwt": [jwt()],
    "email": ["jane.doe+spam@mail.corp.co.uk"],
    "card-number": ["4012 8888 8888 1881", "378282246310005"],
    "iban": ["DE89 3704 0044 0532 0130 00", "GB82WEST12345698765432"],
    "social-security-number": ["536-90-4399"],
    "phone": ["+49 30 901820", "+1 (415) 555-2671", "(415) 555-2671"],
    "ip-address": ["93.184.216.34", "2606:2800:220:1:248:1893:25c8:1946"],
}


@pytest.mark.parametrize(
    ("rule", "secret"), [(rule, one) for rule, all_of in SECRETS.items() for one in all_of]
)
@pytest.mark.parametrize("around", ["{}", "it is {}.", '"{}"', "({})", "a\n{}\nb", "see {}, and"])
def test_known_shapes_are_found_whole(rule: str, secret: str, around: str) -> None:
    """Exactly the secret is found, whatever surrounds it."""
    text = around.format(secret)
    found = find(text, default_rules())
    assert [(text[one.start : one.end], one.rule) for one in found] == [(secret, rule)]


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("export DB_PASSWORD=s3cr3t-Pa55", "s3cr3t-Pa55"),
        ('api_key = "aB3dE6gH9jK2mN5p"', "aB3dE6gH9jK2mN5p"),
        ("{'auth_token': 'tok3n-value-77'}", "tok3n-value-77"),
        (r"{\"secret\": \"abc123DEF456\"}", "abc123DEF456"),
        (
            "aws_secret_access_key = wJalrXUtnFEMI/K7MDENG/bPxRfiCYzzzzzzKEYX",
            "wJalrXUtnFEMI/K7MDENG/bPxRfiCYzzzzzzKEYX",
        ),
        ("Authorization: Bearer 0a1b2c3d4e5f6a7b8c9d", "0a1b2c3d4e5f6a7b8c9d"),
        ("curl -H 'authorization: Basic amFuZTpodW50ZXIy'", "amFuZTpodW50ZXIy"),
        ("postgres://jane:hunt3r2@db:5432/x", "hunt3r2"),
        (
            "the token for staging is 9f86d081884c7d659a2feaa0c55ad015",
            "9f86d081884c7d659a2feaa0c55ad015",
        ),
        ("cd /home/jdoe/src", "jdoe"),
        ("/Users/Jane.Doe/x", "Jane.Doe"),
        (r"C:\Users\jdoe\AppData", "jdoe"),
        (r"C:\\Users\\jdoe\\AppData", "jdoe"),
        ("AccountKey=" + "Ab1/" * 21 + "==", "Ab1/" * 21 + "=="),
    ],
)
def test_values_are_found_by_their_context(text: str, value: str) -> None:
    """The value is replaced; what names it stays."""
    found = find(text, default_rules())
    assert [text[one.start : one.end] for one in found] == [value]


@pytest.mark.parametrize(
    "text",
    [
        "token = tokenizer.next_token()",
        "password = os.environ['PASSWORD']",
        "API_KEY=${API_KEY}",
        "secret: <your secret>",
        'password = "changeme123"',
        "max_tokens: 1000000",
        "the tokens are counted, see count_tokens(text)",
        "commit 9f86d081884c7d659a2feaa0c55ad015a3bf4f1b",
        "git@github.com:org/repo.git",
        "mail user@example.com or root@localhost",
        "icon@2x.png",
        "@pytest.mark.parametrize",
        "-127.0.0.1 10.0.0.3 192.168.1.1 0.0.0.0",
        "numpy==1.26.4.1",
        "std::vector<int>::iterator a::b::c",
        "at 12:30:45",
        "/home/user/x /home/runner/work /Users/Shared",
        "@@ -1,4 +12345678901,6 @@",
        "+1234567890123",
        "1234-5678-9012-3456",
        "1700000000000",
        "skip-sk-learn-something-that-is-long-enough",
        "data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAIAAACQd1PeAAAADElEQVR4nGP4",
        "-----BEGIN CERTIFICATE-----",
        "http://localhost:8000/@vite/client",
        "2024-01-15 10:00:00",
    ],
)
def test_ordinary_texts_stay(text: str) -> None:
    """Code, versions, hashes, reserved domains and placeholders are not taken for secrets."""
    assert Redactor().text(text) == text


def test_equal_values_get_equal_placeholders() -> None:
    """In all texts, with one key; another key gives others, and no text shows the value."""
    redactor = Redactor(key=b"k" * 16)
    text = redactor.text("a@corp.com wrote to b@corp.com and a@corp.com")
    first, _, _, second, _, third = text.split()
    assert first == third != second
    assert first.startswith("[EMAIL-")
    assert redactor.value({"to": ["a@corp.com"]}) == {"to": [first]}
    assert Redactor(key=b"k" * 16).text("a@corp.com") == first
    assert Redactor().text("a@corp.com") != first
    finding = redactor.report.findings[first[7:-1]]
    assert (finding.count, finding.length, finding.rule) == (3, 10, "email")
    assert "corp" not in repr(redactor.report)


def test_json_is_searched_in_depth() -> None:
    """Keys, nested values, JSON in strings, and values under keys that name a secret."""
    inner = json.dumps({"note": "line\njane@corp.com", "deep": [{"x": "bob@corp.com"}]})
    value = {"jane@corp.com": 1, "arguments": inner, "db_password": "Hunter-22", "n": None}
    redactor = Redactor()
    changed = redactor.value(value)
    jane = redactor.text("jane@corp.com")
    assert changed[jane] == 1
    arguments = json.loads(changed["arguments"])
    assert arguments["note"] == f"line\n{jane}"
    assert arguments["deep"][0]["x"].startswith("[EMAIL-")
    assert changed["db_password"].startswith("[ASSIGNED-SECRET-")
    clean = '{"a": "x\\ny",  "b": 1}'
    assert Redactor().text(clean) == clean  # spaces too


def test_decisions_keep_values() -> None:
    """A kept value stays in the text and is counted apart; an unknown decision is refused."""
    first = Redactor(key=b"k" * 16)
    first.text("a@corp.com b@corp.com")
    keep = next(iter(first.report.findings))
    second = Redactor(key=first.key, decisions={keep: "keep"})
    assert second.text("a@corp.com b@corp.com").startswith("a@corp.com [EMAIL-")
    assert (second.report.kept["email"], second.report.rules["email"]) == (1, 1)
    with pytest.raises(InvalidInput, match="use 'redact' or 'keep'"):
        Redactor(decisions={keep: "no"})


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=20,
)


@given(JSON)
def test_redaction_is_idempotent_and_keeps_shapes(value: Any) -> None:
    """Placeholders are not found again, and the value has the same shape."""

    def shape(one: Any) -> Any:
        if isinstance(one, list):
            return [shape(part) for part in one]
        return len(one) if isinstance(one, dict) else type(one)

    once = Redactor().value(value)
    assert shape(once) == shape(value)
    assert Redactor().value(once) == once


@given(
    st.text(), st.sampled_from([one for all_of in SECRETS.values() for one in all_of]), st.text()
)
def test_no_secret_survives(before: str, secret: str, after: str) -> None:
    """A secret between spaces is replaced, whatever text is around it."""
    assert secret not in Redactor().text(f"{before} {secret} {after}")


@pytest.mark.parametrize(
    "unit",
    [
        "a@",
        "+1 ",
        "token=",
        "1.",
        "a:",
        "://:",
        "-----BEGIN PRIVATE KEY-----",
        "eyJa.",
        "/home/",
        "[",
        "key ",
    ],
)
def test_time_grows_with_the_text_only(unit: str) -> None:
    """Repeated beginnings of a match don't make the search quadratic."""
    import time

    def seconds(n: int) -> float:
        took = []
        for _ in range(3):  # other programs slow some down
            begun = time.process_time()
            Redactor().text(unit * n)
            took.append(time.process_time() - begun)
        return min(took)

    seconds(1000)
    assert seconds(80_000) < 40 * max(seconds(8_000), 0.02)
