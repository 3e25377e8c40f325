"""Rules that find secrets and personal data in a text.

The shapes of keys are those that their issuers document. A rule has literals, one of which every
match contains: a text without them is not searched, which makes clean texts cheap.
"""

from __future__ import annotations

import ipaddress
import math
import re
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

__all__ = ["Found", "Rule", "default_rules", "find", "names_a_secret", "secret_value"]


@dataclass(frozen=True, slots=True)
class Rule:
    """A kind of secret or personal data.

    Args:
        name: in kebab case; placeholders show it in capitals. Rules for different notations of
            one kind have the same name.
        about: what it finds, for people.
        pattern: finds candidates. If it has a group, the group is the value, else the whole match.
        hints: texts of which each match contains at least one, in lower case; empty if there are
            none.
        accept: confirms a candidate by its value.
        folded: the pattern is for the text in lower case, which is faster than ignoring case.
    """

    name: str
    about: str
    pattern: re.Pattern[str]
    hints: tuple[str, ...] = ()
    accept: Callable[[str], bool] | None = None
    folded: bool = False


class Found(NamedTuple):
    """A place in a text, ``[start, end)``, and the rule that found it."""

    start: int
    end: int
    rule: str


def find(text: str, rules: Sequence[Rule]) -> list[Found]:
    """Return what the rules find in a text, in order and without overlaps.

    Of overlapping finds, the one that begins first counts; of those, the rule that comes first.
    """
    lowered = text.lower()
    if len(lowered) != len(text):  # a few characters have longer ones in lower case
        lowered = "".join(c.lower() if len(c.lower()) == 1 else c for c in text)
    found: list[tuple[int, int, int]] = []
    for order, rule in enumerate(rules):
        if rule.hints and not any(hint in lowered for hint in rule.hints):
            continue
        group = 1 if rule.pattern.groups else 0
        for match in rule.pattern.finditer(lowered if rule.folded else text):
            start, end = match.span(group)
            if start < end and (rule.accept is None or rule.accept(text[start:end])):
                found.append((start, order, end))
    kept: list[Found] = []
    for start, order, end in sorted(found):
        if not kept or start >= kept[-1].end:
            kept.append(Found(start, end, rules[order].name))
    return kept


def default_rules() -> tuple[Rule, ...]:
    """Return the rules that are used by default, the most specific first."""
    return _RULES


def names_a_secret(key: str) -> bool:
    """Return whether a key, such as ``db_password``, names a secret value."""
    return _KEY.search(key) is not None


def secret_value(text: str) -> bool:
    """Return whether the value of a key that names a secret can be one.

    References to variables, masks, placeholders, ordinary words and numbers are not.
    """
    if not 6 <= len(text) <= 512 or _REFERENCE.search(text) or text.isdigit():
        return False
    if len(set(text)) < 4 or any(c.isspace() for c in text):
        return False
    kinds = sum(any(test(c) for c in text) for test in (str.islower, str.isupper, str.isdigit))
    kinds += any(not c.isalnum() for c in text)
    return kinds >= 2 and _entropy(text) >= 2.5


def _entropy(text: str) -> float:
    """Return the Shannon entropy of the characters (bits per character)."""
    size = len(text)
    return -sum(n / size * math.log2(n / size) for n in Counter(text).values())


def _random(text: str) -> bool:
    """Return whether a long text looks random: dense in characters, with letters and digits."""
    least = 3.0 if re.fullmatch(r"[0-9a-fA-F]+", text) else 3.7
    return _entropy(text) >= least and any(map(str.isdigit, text)) and not text.isdigit()


def _public_address(text: str) -> bool:
    try:
        return ipaddress.ip_address(text).is_global
    except ValueError:
        return False


_RESERVED = re.compile(
    r"@(?:[\w-]+\.)*(?:example\.(?:com|org|net)|localhost|users\.noreply\.github\.com)$"
    r"|\.(?:example|invalid|test|localhost|local)$"
    r"|^(?:git|noreply|no-reply)@|\.(?:png|jpe?g|gif|svg|webp|py|js|ts|css|html?)$",
    re.IGNORECASE,
)


def _personal_address(text: str) -> bool:
    return _RESERVED.search(text) is None


_ACCOUNTS = """
agent all app build builder circleci coder codespace debian default developer docker git guest
jovyan linuxbrew me my name node nobody oai public pwuser root runner sandbox server shared swe
test testbed travis ubuntu user username vagrant vscode work worker workspace www you your
"""
_SHARED_ACCOUNTS = frozenset(_ACCOUNTS.split())
"""Names in home directories that belong to no person."""


def _personal_account(text: str) -> bool:
    return text.lower() not in _SHARED_ACCOUNTS


def _card(text: str) -> bool:
    digits = [int(c) for c in text if c.isdigit()]
    if not 13 <= len(digits) <= 19 or len(set(digits)) < 3:
        return False
    doubled = [sum(divmod(2 * d, 10)) for d in digits[-2::-2]]
    return (sum(doubled) + sum(digits[-1::-2])) % 10 == 0


def _iban(text: str) -> bool:
    plain = text.replace(" ", "").upper()
    return (
        15 <= len(plain) <= 34
        and int("".join(str(int(c, 36)) for c in plain[4:] + plain[:4])) % 97 == 1
    )


def _phone(text: str) -> bool:
    return 8 <= sum(map(str.isdigit, text)) <= 15


_KEY = re.compile(
    r"(?:^|[_\W]|(?<=[a-z]))(?:api_?-?key|apikey|secret|token|passw(?:or)?d|passwd|passphrase|"
    r"credentials?|private_?-?key|access_?-?key|auth_?-?key|client_?-?secret|Secret|Token|"
    r"Passw(?:or)?d|ApiKey|AccessKey)(?:$|[_\W\d])",
    re.IGNORECASE,
)
_REFERENCE = re.compile(
    r"^[$%{<\[(]|[({\[<]|^(?:os\.|process\.|env\.|self\.|config\.|settings\.|none$|null$|true$|"
    r"false$)|\*{3}|x{4}|\.{3}|(?:your|my|example|changeme|placeholder|dummy|redacted)",
    re.IGNORECASE,
)
_NAMED = (
    r"(?:api[_-]?key|secret|token|passw(?:or)?d|passphrase|credentials?|private[_-]?key|"
    r"access[_-]?key|auth[_-]?key)"
)


def _rule(
    name: str,
    about: str,
    pattern: str,
    hints: str = "",
    accept: Callable[[str], bool] | None = None,
    *,
    flags: int = 0,
    folded: bool = False,
) -> Rule:
    return Rule(name, about, re.compile(pattern, flags), tuple(hints.split()), accept, folded)


_E = r"(?![A-Za-z0-9])"
_RULES = (
    _rule(
        "private-key",
        "private keys in PEM form",
        r"-----BEGIN (?:[A-Z0-9 ]{1,40} )?PRIVATE KEY(?: BLOCK)?-----"
        r"(?:.{1,8000}?-----END (?:[A-Z0-9 ]{1,40} )?PRIVATE KEY(?: BLOCK)?-----"
        r"|(?:[A-Za-z0-9+/=:,\s-]|\\[nr])+)",
        "-----begin",
        flags=re.DOTALL,
    ),
    _rule(
        "aws-key",
        "access keys of Amazon Web Services",
        rf"\b(?:A3T[A-Z0-9]|AKIA|ASIA|ABIA|ACCA|AROA|AIDA)[A-Z0-9]{{16}}{_E}",
        "a3t akia asia abia acca aroa aida",
    ),
    _rule(
        "aws-secret",
        "secret keys of Amazon Web Services",
        rf"(?i:aws\w{{0,20}}secret\w{{0,20}}[\"']?\s{{0,4}}[:=]\s{{0,4}}[\"']?)([A-Za-z0-9/+=]{{40}}){_E}",
        "aws",
    ),
    _rule(
        "github-token",
        "tokens of GitHub",
        rf"\b(?:gh[pousr]_[A-Za-z0-9]{{36,255}}|github_pat_\w{{22,255}}){_E}",
        "ghp_ gho_ ghu_ ghs_ ghr_ github_pat_",
    ),
    _rule(
        "gitlab-token",
        "tokens of GitLab",
        rf"\bgl(?:pat|dt|rt|cbt|ptt|oas|soat|ft|agent|imt)-[\w-]{{20,255}}{_E}",
        "glpat- gldt- glrt- glcbt- glptt- gloas- glsoat- glft- glagent- glimt-",
    ),
    _rule(
        "slack-token",
        "tokens and web hooks of Slack",
        r"\bxox[abeoprs]-[A-Za-z0-9-]{10,255}|\bxapp-\d-[A-Za-z0-9-]{10,255}"
        r"|(?<=hooks\.slack\.com/services/)[\w/]{20,80}",
        "xox xapp- hooks.slack.com",
    ),
    _rule(
        "model-key",
        "keys of model providers",
        rf"\b(?:sk-(?:(?:proj|svcacct|admin|None|ant|or|lf)-)?[A-Za-z0-9_-]{{20,255}}"
        rf"|hf_[A-Za-z0-9]{{30,64}}|api_org_[A-Za-z0-9]{{30,64}}|gsk_[A-Za-z0-9]{{40,64}}"
        rf"|xai-[A-Za-z0-9]{{40,128}}|r8_[A-Za-z0-9]{{37}}|pplx-[A-Za-z0-9]{{40,64}}"
        rf"|nvapi-[\w-]{{40,128}}|fw_[A-Za-z0-9]{{20,64}}){_E}",
        "sk- hf_ api_org_ gsk_ xai- r8_ pplx- nvapi- fw_",
        lambda text: any(map(str.isdigit, text)) and _entropy(text) >= 3.0,
    ),
    _rule(
        "google-key",
        "keys and tokens of Google",
        rf"\bAIza[0-9A-Za-z_-]{{35}}{_E}|\bya29\.[0-9A-Za-z_-]{{20,512}}|\bGOCSPX-[\w-]{{28}}",
        "aiza ya29. gocspx-",
    ),
    _rule(
        "stripe-key",
        "keys of Stripe",
        rf"\b(?:(?:sk|rk|pk)_(?:live|test)_[A-Za-z0-9]{{16,255}}|whsec_[A-Za-z0-9+/=]{{24,255}}){_E}",
        "sk_live_ sk_test_ rk_live_ rk_test_ pk_live_ pk_test_ whsec_",
    ),
    _rule(
        "registry-token",
        "tokens of package registries and hosts",
        rf"\b(?:npm_[A-Za-z0-9]{{36}}|pypi-AgE[\w-]{{50,512}}|do[opr]_v1_[a-f0-9]{{64}}"
        rf"|dapi[0-9a-f]{{32}}|SG\.[\w-]{{16,32}}\.[\w-]{{16,64}}|dckr_pat_[\w-]{{20,64}}){_E}",
        "npm_ pypi-age doo_v1_ dop_v1_ dor_v1_ dapi sg. dckr_pat_",
    ),
    _rule(
        "bot-token",
        "tokens of Telegram, Discord and Twilio",
        rf"\b\d{{8,10}}:AA[A-Za-z0-9_-]{{33}}{_E}",
        ":aa",
    ),
    _rule(
        "bot-token",
        "tokens of Telegram, Discord and Twilio",
        rf"[MNO](?<!\w[MNO])[A-Za-z\d_-]{{23,25}}\.[\w-]{{6}}\.[\w-]{{27,40}}{_E}",
        ".",
    ),
    _rule(
        "bot-token",
        "tokens of Telegram, Discord and Twilio",
        rf"[AS](?<!\w[AS])(?<=A)C[0-9a-f]{{32}}{_E}|[AS](?<!\w[AS])(?<=S)K[0-9a-f]{{32}}{_E}",
        "ac sk",
    ),
    _rule(
        "azure-key",
        "account keys of Azure",
        r"(?:AccountKey|SharedAccessKey)=([A-Za-z0-9+/]{40,90}={0,2})",
        "accountkey= sharedaccesskey=",
    ),
    _rule(
        "jwt",
        "JSON Web Tokens",
        r"\beyJ[A-Za-z0-9_-]{8,4096}\.eyJ[A-Za-z0-9_-]{8,8192}\.[A-Za-z0-9_-]{5,2048}",
        "eyj",
    ),
    _rule(
        "authorization",
        "credentials in HTTP headers",
        r"(?i:\bauthorization[\"']?\s{0,4}[:=]\s{0,4}[\"']?(?:bearer|basic|token)\s{1,4}"
        r"|\bbearer\s{1,4})([A-Za-z0-9._~+/=-]{12,2048})",
        "authorization bearer",
        lambda text: any(map(str.isdigit, text)),
    ),
    _rule(
        "url-password",
        "passwords in URLs",
        r"\b[a-zA-Z][a-zA-Z0-9+.-]{1,20}://[^\s:/@\"'<>]{0,64}:([^\s/@\"'<>{}$]{3,128})@",
        "://",
        lambda text: _REFERENCE.search(text) is None,
    ),
    _rule(
        "assigned-secret",
        "values that are assigned to keys, tokens and passwords",
        rf"{_NAMED}\w{{0,20}}(?:\\?[\"'])?\s{{0,4}}(?::=|=>|[:=])\s{{0,4}}(?:\\?[\"'])?"
        r"([^\s\"'`,;\\&]{6,512})",
        "key secret token passw passphrase credential",
        lambda text: secret_value(text) and any(map(str.isdigit, text)),
        folded=True,
    ),
    _rule(
        "random-text",
        "long random texts in a line that names a secret",
        rf"{_NAMED}(?!\w)[^\n]{{0,60}}?(?<![a-z0-9/+_=-])([a-z0-9+/_=-]{{24,512}})(?![a-z0-9/+_=-])",
        "key secret token passw passphrase credential",
        _random,
        folded=True,
    ),
    _rule(
        "email",
        "e-mail addresses, except those of reserved domains",
        r"(?<![A-Za-z0-9._%+/-])[A-Za-z0-9][A-Za-z0-9._%+-]{0,63}@(?:[A-Za-z0-9-]{1,63}\.){1,8}[A-Za-z]{2,24}"
        r"(?![A-Za-z0-9@(-])",
        "@",
        _personal_address,
    ),
    _rule(
        "card-number",
        "payment card numbers with a valid check digit",
        r"[3-6](?<![\w.-][3-6])\d{3}(?:[ -]?\d{4}){2}[ -]?\d{1,7}(?![\w-]|\.\d)",
        "",
        _card,
    ),
    _rule(
        "iban",
        "bank account numbers with a valid check sum",
        r"[A-Z](?<!\w[A-Z])[A-Z]\d{2}(?: ?[A-Z0-9]{4}){2,7}(?: ?[A-Z0-9]{1,3})?(?!\w)",
        "",
        _iban,
    ),
    _rule(
        "social-security-number",
        "social security numbers of the USA",
        r"[0-8](?<![\w-][0-8])\d{2}(?<!000)(?<!666)-(?!00)\d{2}-(?!0000)\d{4}(?![\w-])",
        "-",
    ),
    _rule(
        "phone",
        "phone numbers in international or North American notation",
        r"\+(?<![\w.+-]\+)\d{1,3}(?:[ .-]?\(\d{1,4}\))?(?:[ .-]\d{1,8}){1,5}(?![\w-])"
        r"|\+(?<=[^\n\w.+-]\+)\d{9,15}(?![\w-]|,\d)",
        "+",
        _phone,
    ),
    _rule(
        "phone",
        "phone numbers in international or North American notation",
        r"[(\d](?<![\w.+-].)(?:(?<=\()\d{3}\) ?|(?<=\d)\d{2}[-.])\d{3}[-.]\d{4}(?![\w-])",
        "- .",
        _phone,
    ),
    _rule(
        "ip-address",
        "public IP addresses",
        r"\d(?<![\w.:-]\d)(?<!==\d)\d{0,2}\.(?:\d{1,3}\.){2}\d{1,3}(?![\w-]|\.\d)",
        ".",
        _public_address,
    ),
    _rule(
        "ip-address",
        "public IP addresses",
        r"[0-9a-fA-F](?<![\w.:].)[0-9a-fA-F]{0,3}:{1,2}(?:[0-9a-fA-F]{1,4}:{1,2}){1,6}[0-9a-fA-F]{1,4}"
        r"(?![\w:]|\.\d)",
        ":",
        _public_address,
    ),
    _rule(
        "user-name",
        "names of users in paths of their home directories",
        r"(?:/home/|/Users/|[A-Za-z]:(?:\\{1,4}|/)Users(?:\\{1,4}|/))([A-Za-z0-9_][A-Za-z0-9_.-]{0,31})"
        r"(?![A-Za-z0-9_.-])",
        "/home/ /users/ \\users",
        _personal_account,
    ),
)
