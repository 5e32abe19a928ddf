"""Find secrets in texts and command lines: passwords, keys and tokens, by their form or by the name before them.

The forms are those that the services document for their keys: GitHub, GitLab, Slack, Hugging Face, OpenAI, Anthropic,
AWS, Google, npm, and JSON Web Tokens (RFC 7519). This module uses only the standard library, because a training job
writes its command line with it.
"""

import re
from collections.abc import Callable, Iterable

REMOVED = "<secret-removed>"
TOKEN = re.compile(
    r"(?<![A-Za-z0-9])(?:hf_[A-Za-z0-9]{16,}|api_org_[A-Za-z0-9]{16,}|sk-(?:[a-z]+-)*[A-Za-z0-9_-]{16,}|gh[opusr]_[A-Za-z0-9]{16,}"
    r"|github_pat_\w{16,}|gl(?:pat|dt|rt|ptt|cbt)-[\w-]{16,}|xox[abeoprs]-[\w-]{8,}|xapp-[\w-]{8,}"
    r"|(?:AKIA|ASIA|ABIA|ACCA|AROA|AIDA)[A-Z0-9]{12,}|AIza[\w-]{30,}|ya29\.[\w-]{16,}|npm_[A-Za-z0-9]{20,}|pypi-[\w-]{20,}"
    r"|r8_[A-Za-z0-9]{20,}|nvapi-[\w-]{20,}|dop_v1_[a-f0-9]{32,}|wandb_v\d_\w{20,}|lin_api_\w{20,}|dapi[a-f0-9]{32}"
    r"|(?:sk|rk|pk|whsec)_(?:(?:live|test)_)?[A-Za-z0-9]{20,}|hv[sbr]\.[\w-]{20,}|SG\.[\w-]{16,}\.[\w-]{16,}|gsk_[A-Za-z0-9]{20,}"
    r"|(?:xai|pplx|fw|csk)-[A-Za-z0-9]{20,}|glsa_\w{20,}|ATATT[\w=-]{20,}|sq0[a-z]{3}-[\w-]{20,}|shp(?:at|ca|pa|ss)_[a-f0-9]{32}"
    r"|tskey-[a-z]+-[\w-]{16,}|dckr_pat_[\w-]{10,}|AGE-SECRET-KEY-1[A-Z0-9]{20,}|SK[a-f0-9]{32}|(?:bot)?\d{8,10}:AA[\w-]{30,}"
    r"|eyJ[\w-]{6,}\.[\w-]+(?:\.[\w-]*)?|eyJ[\w-]{30,}={0,2})"
)
_PRIVATE_KEY = re.compile(
    r"-----BEGIN [A-Z ]*PRIVATE KEY-----.{0,20000}?(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)"
    r"|PuTTY-User-Key-File-\d.{0,20000}?(?:Private-MAC:[^\n]*|\Z)",
    re.DOTALL,
)
_KEY_END = re.compile(r"(-----END [A-Z ]*PRIVATE KEY-----)")
_KEY_LINE = re.compile(r"(?:.{0,60}[\s:|>])?[A-Za-z0-9+/=]{16,}\s*")
_LAST_KEY_LINE = re.compile(r"(?:.{0,60}[\s:|>])?[A-Za-z0-9+/=]+\s*")
_LINE_END = re.compile(r"(\n|\\n)")
_OF_TEXT = r"(?:bos|eos|pad|unk|sep|cls|mask|image|special|start|end|stop|next)[_-]?token"
"""The names of tokens of text, which are no secrets."""
_PARTS = r"(?:[A-Za-z0-9]{1,40}[_.-]){0,12}"
"""The parts of a name before the word for a secret; their number is bounded, or long texts would take forever."""
_PREFIX = rf"(?<![A-Za-z0-9_])_?(?!\w*{_OF_TEXT}){_PARTS}"
WORD = (
    r"(?:[a-z0-9]*passw(?:or)?d|passphrase|pwd|[a-z0-9]*secret|credentials?|api[_-]?key|(?:secret[_-]?)?access[_-]?key(?:[_-]?id)?"
    r"|(?:secret|private|account|auth|wandb|hub|ssh|signing|encryption|license|shared)[_-]?key(?:[_-]?id)?"
    r"|[a-z0-9]*(?<!bos)(?<!eos)(?<!pad)(?<!unk)token|pat|sas|signature|authkey)"
)
_VALUE = r"(?:\"(?P<double>[^\"]*)\"|'(?P<single>[^']*)'|(?P<bare>[^\s,;&\"'}\])]+))"
NAMED = re.compile(rf"{_PREFIX}{WORD}(?![\w-])[\"']?\s*[=:]\s*{_VALUE}", re.IGNORECASE)
_OPTION = re.compile(rf"(?<![\w-])--?{_PARTS}{WORD}(?![\w-])(?:\s+|=){_VALUE}", re.IGNORECASE)
_OPTION_NAME = re.compile(rf"--?{_PARTS}{WORD}", re.IGNORECASE)
_TEXT_TOKEN = re.compile(_OF_TEXT, re.IGNORECASE)
_HEADER = re.compile(
    rf"(?:(?:proxy-)?authorization[\"']?\s*[:=]\s*[\"']?(?:(?:bearer|basic|token|digest)\s+)?|x-[\w-]*(?:key|token)\s*:\s*"
    rf"|\b(?:bearer|basic)\s+(?=[\w+/.=-]{{12,}})){_VALUE}",
    re.IGNORECASE,
)
_ANY_KEY = re.compile(
    r"(?<![A-Za-z0-9_])(?:[A-Z][A-Z0-9_]*_KEY|key)[\"']?\s*[=:]\s*[\"']?(?P<bare>(?=[^\d\s]{0,40}\d)[A-Za-z0-9+/=-]{20,})"
)
"""Keys whose name does not say what they open: their values are long, and have digits."""
_LOGIN = tuple(
    re.compile(pattern, re.IGNORECASE)
    for pattern in (
        r"(?<!\S)(?:-u|--user)[ =](?P<user>[^\s:\"']+):(?P<bare>[^\s\"']+)",
        r"\bauth\s*=\s*\(\s*[\"'](?P<user>[^\"'\n]+)[\"']\s*,\s*[\"'](?P<bare>[^\"'\n]+)",
        r"\blogin\b[^\n]{0,200}?\s(?:-p|--password)[ =]?(?P<bare>[^\s\"']+)",
        r"\b(?:mysql|mariadb)\w*\b[^\n]{0,200}?\s-p(?P<bare>[^\s\"']+)",
        r"\blogin\s+\S+\s+password\s+(?P<bare>\S+)",
        r"\b(?:set-)?cookie\"?\s*:\s*(?P<bare>[^\s\"'][^\n\"']*)",
        r"\bpass(?:word|phrase|wd)(?: for \S+)?: (?P<bare>[^\s\"',;][^\n\"',;]*)",
        r"\b(?:password|passphrase|secret) is (?P<quote>[\"'])(?P<bare>[^\"'\n]+)(?P=quote)",
    )
)
"""Where programs and libraries take or print what a login needs."""
# Keys of Weights & Biases before 2025 are 40 hexadecimal digits, as the hashes of commits are: the name must be near.
_WANDB = re.compile(r"wandb\b[^\n]{0,80}?(?<![0-9a-f])(?P<bare>[0-9a-f]{40})(?![0-9a-f])", re.IGNORECASE)
_CREDENTIALS = re.compile(r"(?<=://)(?P<user>[^\s/:@\"']*)(?::(?P<bare>[^\s/@\"']*))?(?=@)")
_PLAIN = re.compile(r"[+-]?\d{1,15}(?:\.\d+)?|none|null|true|false|<s>|</s>", re.IGNORECASE)
"""Values that are no secret, whatever the name before them says."""


def replace_secrets(text: str, stand_in: Callable[[str], str]) -> str:
    """Return a text in which each secret is replaced by `stand_in(secret)`; names, options and quotes stay."""

    def value(match: "re.Match[str]") -> str:
        group = next((name for name in ("double", "single", "bare") if match.groupdict().get(name)), None)
        if group is None or _PLAIN.fullmatch(match[group]):
            return match[0]
        start, end = match.start(group) - match.start(), match.end(group) - match.start()
        return match[0][:start] + stand_in(match[group]) + match[0][end:]

    def login(match: "re.Match[str]") -> str:
        shown = match[0]
        for group in ("bare", "user"):  # the last one first, as its place does not move then
            if match.groupdict().get(group) and not _PLAIN.fullmatch(match[group]):
                start, end = match.start(group) - match.start(), match.end(group) - match.start()
                shown = shown[:start] + stand_in(match[group]) + shown[end:]
        return shown

    text = _PRIVATE_KEY.sub(lambda match: stand_in(match[0]), text)
    text = _without_ends_of_keys(text, stand_in)
    text = _CREDENTIALS.sub(
        lambda match: (
            (stand_in(match["user"]) if match["user"] else "")
            + (f":{stand_in(match['bare'])}" if match["bare"] else "")
        ),
        text,
    )
    text = TOKEN.sub(lambda match: stand_in(match[0]), text)
    for pattern in _LOGIN:
        text = pattern.sub(login, text)
    for pattern in (_HEADER, _WANDB, _OPTION, NAMED, _ANY_KEY):
        text = pattern.sub(value, text)
    return text


def _without_ends_of_keys(text: str, stand_in: Callable[[str], str]) -> str:
    """Return a text without the lines of private keys that end in it, and begin in a text before it."""
    parts = _KEY_END.split(text)
    for number in range(0, len(parts) - 1, 2):
        lines, pattern = _LINE_END.split(parts[number]), _LAST_KEY_LINE
        key = [lines.pop()]  # what a logger writes before the line with the end
        while len(lines) > 1 and pattern.fullmatch(lines[-2]):
            key += [lines.pop(), lines.pop()]
            pattern = _KEY_LINE
        parts[number], parts[number + 1] = "".join(lines), stand_in("".join(reversed(key)) + parts[number + 1])
    return "".join(parts)


def without_secrets(words: Iterable[str]) -> list[str]:
    """Return the words of a command line; `<secret-removed>` is in place of the secrets that its options hold."""
    result: list[str] = []
    expects_secret = False
    for word in words:
        if expects_secret and not word.startswith("--") and not _PLAIN.fullmatch(word):
            result.append(REMOVED)
            expects_secret = False
            continue
        result.append(replace_secrets(word, lambda _: REMOVED))
        expects_secret = bool(_OPTION_NAME.fullmatch(word)) and not _TEXT_TOKEN.search(word)
    return result
