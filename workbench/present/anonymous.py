"""Anonymise a report so that it can be shared: paths, hosts, addresses and users get numbered stand-ins.

A name has the same stand-in everywhere, so frames and ranks can still be told apart. Public names stay: packages below
site-packages, Python's own library, this project's trainer, and the names of the files of a run.
"""

import ipaddress
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from enum import Enum
from pathlib import Path
from typing import Any

import msgspec

from analyzers.files import read_json
from analyzers.report import Data_co, Report
from analyzers.run import Kind, Run
from analyzers.words import quantity
from workbench.recorders.secret_text import replace_secrets, without_secrets

# Find the numbers of persons in a text: of phones, accounts, cards and identity papers.
#
# Logs are full of other numbers. So a number counts only where a word before it says what it is, where it is written as
# nothing else is, or where its check digits are right.

_DIGITS = r"\d(?:[ ./-]?\(?\d\)?){5,14}"
_PHONE_WORDS = (
    r"(?:tele?(?:phone|fon|fax)?|phone|mobil(?:e|funk)?|handy|cell(?: ?phone)?|fax|whatsapp|sms|pager|hotline|on-?call)"
)
_PAPERS = r"(?:ssn|social security|passport|tax|national|identity|id card|insurance|aadhaar|driver'?s? licen[cs]e)"
_PERSONS = r"(?:employee|personnel|staff|badge|student|matriculation|patient|customer|card ?holder)"
_NUMBER = r"(?:id|no|nr|number|num|#)\b\.?"
_CODE = r"(?P<number>(?=[\w.-]*\d)[A-Za-z0-9][\w-]{2,}(?:[ .-]\d[\w-]*)*)"
_UNIT = r"(?! ?(?:bytes|[kKMGTP]i?B|B|us|ms|ns|s|steps?|tokens?|%|x)\b)"

_RULES = tuple(
    (kind, re.compile(pattern, re.IGNORECASE))
    for kind, pattern in (
        (
            "phone",
            rf"\b{_PHONE_WORDS}(?: ?{_NUMBER})?[\"']?\s?[.:=]*\s?[\"']?(?P<number>\+?\(?{_DIGITS})(?![\w.])",
        ),
        # With a country, as in E.123, in groups or as one number of ten digits and more.
        (
            "phone",
            r"(?<![\w.+(-])(?P<number>\+[1-9]\d{0,2}(?:[ .-]?\(\d{1,4}\))?(?:[ .-]\d{2,5}){2,5})(?![\w.-])" + _UNIT,
        ),
        ("phone", r"(?<![\w.+(-])(?P<number>\+[1-9]\d{9,14})(?![\w.-])" + _UNIT),
        ("phone", r"(?<![\w.-])(?P<number>\(\d{3}\) ?\d{3}-\d{4})(?![\w.-])"),
        ("number", rf"\b(?:{_PAPERS}|{_PERSONS})[ _-]?{_NUMBER}[\"']?\s*[:=#]?\s*[\"']?{_CODE}"),
        ("number", rf"\b(?:ssn|passport|aadhaar)[\"']?\s*[:=#]\s*[\"']?{_CODE}"),
    )
)


def _has_check_digits(letters: str) -> bool:
    """Return whether an account number is one of ISO 13616 (IBAN): its remainder by 97 is 1."""
    return int("".join(str(int(letter, 36)) for letter in letters[4:] + letters[:4])) % 97 == 1


def _is_card(digits: str) -> bool:
    """Return whether the digits have the check digit of ISO 7812 (Luhn), and are no row of four sizes."""
    if digits[0] not in "3456" or not any(int(digits[start : start + 4]) % 8 for start in (0, 4, 8, 12)):
        return False
    doubled = (int(digit) * (1 + place % 2) for place, digit in enumerate(reversed(digits)))
    return sum(number // 10 + number % 10 for number in doubled) % 10 == 0


def _is_author(digits: str) -> bool:
    """Return whether the digits have the check digit of an ORCID (ISO 7064, modulus 11 with radix 2)."""
    total = 0
    for digit in digits[:-1]:
        total = (total + int(digit)) * 2
    return "0123456789X"[(12 - total % 11) % 11] == digits[-1].upper()


def _is_phone(digits: str) -> bool:
    """Return whether ten digits, as Americans group them, are rather those of a phone than the sizes of layers."""
    return digits[-2:] != "00" and any(int(part) % 8 for part in (digits[:3], digits[3:6], digits[6:]))


_CHECKED: tuple[tuple[str, re.Pattern[str], Callable[[str], bool]], ...] = (
    ("phone", re.compile(r"(?<![\w.-])[2-9]\d{2}-\d{3}-\d{4}(?![\w.-])"), _is_phone),
    (
        "number",
        re.compile(r"(?<![\w-])[A-Z]{2}\d{2}(?: ?[A-Z0-9]{4}){3,7}(?: ?[A-Z0-9]{1,3})?(?![\w-])"),
        _has_check_digits,
    ),
    ("number", re.compile(r"(?<![\w-])(?:\d{4}[ -]){3}\d{4}(?![\w-])"), _is_card),
    ("number", re.compile(r"(?<![\w-])(?:\d{4}-){3}\d{3}[\dXx](?![\w-])"), _is_author),
)


def _replace_person_numbers(text: str, hidden: Callable[[str, str], str]) -> str:
    """Return a text in which `hidden(kind, number)` stands for each number of a person; `kind` is phone or number."""
    for kind, pattern, is_right in _CHECKED:
        text = pattern.sub(
            lambda match, kind=kind, is_right=is_right: (  # type: ignore[misc]
                hidden(kind, match[0]) if is_right(re.sub(r"[ -]", "", match[0])) else match[0]
            ),
            text,
        )
    for kind, pattern in _RULES:
        text = pattern.sub(
            lambda match, kind=kind: (  # type: ignore[misc]
                match[0][: match.start("number") - match.start()]
                + hidden(kind, match["number"])
                + match[0][match.end("number") - match.start() :]
            ),
            text,
        )
    return text


_PUBLIC_BELOW = re.compile(r"(?:site|dist)-packages|python3(?:\.\d+)?|trainer|torch|aten|c10")
_ARTEFACT = re.compile(
    r"(?:rank|iteration|step|stacks|groups|exit|p2p|round|set|attempt)_?\d+\S*|collection\.json|run\.json|error\.json"
    r"|dumps|steps|logs|tb|previous|memory_snapshot|profile_traces?|comm_traces?|outputs?"
)
SUFFIXES = "py|pyx|c|cc|cpp|cu|cuh|h|hpp|so|json|jsonl|gz|toml|yaml|txt|log|bin|pickle|pkl|pt|html"
# A field of paths may hold one without a folder or a known suffix, which PATH cannot recognise in a sentence.
_PATH_FIELDS = frozenset({"path", "source", "filename", "file"})
PATH = re.compile(
    rf"(?<![\w.<])(?:~|[A-Za-z]:)?[\\/](?:[^\s:'\"()<>,;]+)|(?:[\w.@+-]+/)*[\w@+-][\w.@+-]*\.(?:{SUFFIXES})\b"
)
_IPV4 = re.compile(r"(?<![\w.])(?:\d{1,3}\.){3}\d{1,3}(?![\w.]*\w)")
_COLONS = re.compile(r"(?<![\w:.])(?:[0-9a-f]{0,4}:){2,7}[0-9a-f]{0,4}(?![\w:])", re.IGNORECASE)
"""IPv6 addresses, node GUIDs, and what looks alike: a time such as `12:30:05` is none of these (see `_is_address`)."""
_MAC = re.compile(r"(?<![\w:-])(?:[0-9a-f]{2}[:-]){5,19}[0-9a-f]{2}(?![\w:-])", re.IGNORECASE)
_LOCAL = frozenset({"127.0.0.1", "0.0.0.0", "::1", "localhost", "255.255.255.255"})  # noqa: S104  # names, not a server
_MAIL = re.compile(r"[A-Za-z0-9._%+-]+(?:@|%40)[A-Za-z0-9-]+(?:\.[A-Za-z0-9-]+)+")
_INDEXED = r"(?:ranks?|local_rank|gpu|cuda|cpu|xpu|npu|hpu|step|layer|node|worker|device|group|proc|stage)[-_:]?\d{0,2}"
"""What has a number and is no name, such as rank3 or gpu0."""
_LOGIN = re.compile(rf"(?<![\w.@/])(?!{_INDEXED}@)(?P<user>[A-Za-z_][\w.-]*)@(?P<host>[A-Za-z][\w.-]*\w)(?=[\s:]|\Z)")
_DOMAINS = (
    "com|org|net|edu|gov|mil|io|ai|dev|app|cloud|internal|local"
    "|localdomain|corp|lan|intra|example|test|invalid|info|biz"
)
_COUNTRIES = "de|fr|ch|at|uk|eu|nl|be|it|es|pt|se|fi|no|dk|pl|cz|ca|us|cn|jp|kr|tw|sg|au|nz|in|br|il|ru|ie|sa|ae"
_DOMAIN = re.compile(
    rf"(?<![\w.@/-])(?:[A-Za-z0-9](?:[\w-]*[A-Za-z0-9])?\.)+(?:{_DOMAINS})(?![\w-]|\.\w|\()"
    rf"|(?<![\w.@/-])(?:[A-Za-z0-9](?:[\w-]*[A-Za-z0-9])?\.){{2,}}(?:{_COUNTRIES})(?![\w-]|\.\w|\()"
)
_PUBLIC_HOSTS = re.compile(
    r"(?:[\w-]+\.)*(?:pytorch\.org|python\.org|github\.com|huggingface\.co|wandb\.ai|pypi\.org|nvidia\.com|readthedocs\.io"
    r"|w3\.org|amazonaws\.com|microsoft\.com|llvm\.org|ietf\.org)"
)
URL = re.compile(r"\b(?P<scheme>[a-z][a-z0-9+.-]*)://(?P<rest>[^\s\"'<>|\\]+)", re.IGNORECASE)
KEY = r"(?<![\w./-])[\"']?"
_IS = r"[\"']?\s*[=:]\s*[\"']?"
_NO_FILE = rf"(?!\S+\.(?:{SUFFIXES})\b)"
NAME = r"(?P<name>[A-Za-z0-9_][\w.\[\],-]*\w\]?)"
_NODE = (
    r"(?<![\w.@/-])(?P<name>(?:node|nid|cn|dgx|gpu|compute|login|head|hpc|worker|srv|server)"
    r"(?:[\w-]{0,40}?[A-Za-z-])?\d{1,9}(?:-\d{1,9}){0,4}(?<=\d\d)"
)
"""The beginning of a name as nodes of clusters have them, with two digits or more, and the end still open."""
_PLACE = rf"(?!{_INDEXED}\b)(?P<name>[A-Za-z](?=[\w.-]*\d)[\w.-]*\w)"
_VERB = r"(?:is|has|was|does|can|cannot|may|must|not|needs)\b"
_CONTEXTS = tuple(
    (kind, re.compile(pattern, re.IGNORECASE))
    for kind, pattern in (
        (
            "user",
            rf"{KEY}(?:user|(?:\w*_)?username|user_name|login|logname|owner|slurm_job_user|sudo_user|mailto){_IS}(?!arn:){NAME}",
        ),
        ("user", rf"\b(?:for|by|as|of) user {NAME}"),
        ("user", rf"\buser (?!{_VERB}){NAME}(?= {_VERB})"),
        ("user", r"\bsudo:\s+(?P<name>[A-Za-z_][\w.-]*)(?= :)"),
        ("user", r"\b[ug]id=\d+\((?P<name>[^()\s]+)\)"),
        ("user", rf"\blogin {NAME}(?=\s+password\b)"),
        ("user", rf"\b(?:login|psql|pg_dump|mysql|mariadb|mongosh?)\b[^\n]{{0,200}}?\s-[uU][ =]?{_NO_FILE}{NAME}"),
        ("user", rf"logged in as: {NAME}"),
        ("account", r"logged in as: \S+ \((?P<name>[^()]+)\)"),
        ("user", r"^(?:Author|Committer|Signed-off-by|Co-authored-by): (?P<name>[^<>\n]+?)(?= <)"),
        (
            "host",
            rf"{KEY}(?:\w*_)?(?:host|hostname|host_name|node_?name|master_addr|rdzv_host|slurmd_nodename){_IS}{NAME}",
        ),
        ("host", rf"{KEY}slurm_\w*(?:node_?list|host){_IS}(?P<name>[^\s\"',;]+)"),
        ("host", rf"--?(?:master[_-]addr|rdzv[_-](?:endpoint|host)|host|hostname|nodelist)[ =]{NAME}"),
        ("host", rf"{KEY}rdzv_endpoint{_IS}{NAME}"),
        ("host", rf"\b(?:psql|pg_dump|mysql|mariadb|mongosh?|redis-cli)\b[^\n]{{0,200}}?\s-h[ =]?{NAME}"),
        (
            "host",
            (
                r"\b(?:connect\w*|reach|resolve|server|host|hostname|peer|from|to) "
                r"(?:(?:to|from|host|hostname|server|node|peer) ){0,3}"
                rf"{_NO_FILE}{NAME}(?=:\d{{4,5}}\b|,? port \d| not responding"
                r"|: (?:Name or service|Temporary failure|No route|Connection))"
            ),
        ),
        ("host", r"(?P<name>\bip(?:-\d{1,3}){4}\b)"),
        ("address", r"\b(?P<name>(?:GPU|MIG)-[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})"),
        ("address", r"guid\W{1,4}(?P<name>0x[0-9a-f]{16})\b"),
        ("serial", r"\bserial(?: ?(?:number|no\.?))?\s*[:=]\s*(?P<name>[A-Z0-9]{6,})"),
        ("host", rf"\b(?:running )?on (?:node|host)s?:? {NAME}"),
        (
            "host",
            r"(?<![\w.@/-])(?P<name>[A-Za-z][\w-]*\d)(?=-(?:ib|eth|en[opsx]|hsn|opa|roce|bond|bmc|ipmi|mgmt)\d*\b)",
        ),
        ("host", rf"{_NODE}(?:\.[a-z][\w-]*)+)(?![\w(])"),
        ("host", rf"{_NODE})(?=(?::|/|\[|#)\d{{1,4}}\b)"),
        ("host", rf"\brank \d+(?: on|,? at| @|:)? \(?{_PLACE}"),
        (
            "host",
            (
                r"\b[A-Za-z_]{0,20}\d{1,6} ?@ ?(?!(?:rank|gpu|cuda|cpu|step)[-_:]?\d)"
                r"(?P<name>[A-Za-z](?=[\w.-]*\d)[\w.-]*\w)"
            ),
        ),
        ("host", rf"\bSTEP \S+ ON {NAME}"),
        ("host", rf"\b(?:remote peer|master_addr is) {NAME}"),
        ("host", rf"\bsrun: error: {NAME}(?=:)"),
        ("host", rf"(?:^|[\n\]]\s*){NAME}(?=:\d+:\d+ \[\d+\] NCCL)"),
        ("host", r"^\[(?P<name>[A-Za-z][\w.-]*)(?=:\d+\] )"),
        ("host", r"\(['\"]?(?P<name>[A-Za-z][\w.-]*)['\"]?(?=, \d{2,5}\))"),
        ("account", rf"(?:#SBATCH\s+|\bsbatch\b.*?|\bsrun\b.*?)(?:--account[= ]|-A ){NAME}"),
        ("account", rf"{KEY}slurm_\w*account{_IS}{NAME}"),
        ("job", rf"(?:--job-name[= ]|{KEY}slurm_job_name{_IS}|#SBATCH\s+-J ){NAME}"),
        ("account", rf"{KEY}(?:project_id|accountname|entity|tenant_id|subscription_id){_IS}{NAME}"),
        ("account", r"\barn:aws[\w-]*:[\w-]*:[\w-]*:(?P<name>\d{12})"),
        ("account", r"\barn:aws[\w-]*:[\w-]*:[\w-]*:\w*:[\w-]+[/:](?P<name>[\w+=,.@/-]+)"),
        ("account", r"(?<!\d)(?P<name>\d{12})(?=\.dkr\.ecr\.)"),
        ("image", r"\.dkr\.ecr\.[\w-]+\.amazonaws\.com/(?P<name>[\w./-]+)"),
        (
            "image",
            r"\b(?:docker|podman|apptainer|singularity|enroot)\s+(?:pull|run|push|import)\s+(?P<name>[a-z][\w.-]*/[\w./-]+)",
        ),
        ("name", rf"\bkubectl\b[^\n]{{0,200}}?\s(?:-n|--namespace)[ =]{NAME}"),
        ("name", rf"\bkubectl (?:logs|exec|describe|get|delete|attach)(?: -\S+){{0,4}}(?: pods?)? {NAME}"),
        ("name", r"\b(?:pod|namespace|experiment) (?P<name>(?=\S*[-/])[\w./-]+)"),
        ("account", r"\b(?:cn|ou|dc|uid)=(?P<name>[A-Za-z][\w.-]*)"),
        ("account", r"wandb\.ai/(?P<name>[^/\s]+/[^/\s]+)"),
    )
)
"""(kind, what names stand after): a name is replaced where one of these says what it is, and then everywhere else."""
_LONG_WORD = re.compile(r"\S{1000,}")
"""A word that is too long for a name, a path or a key: it is left out, as nobody can say what it holds."""
_HELD = re.compile("\ue100(\\d+)\ue101")
_HAS_LETTERS = re.compile(r"[A-Za-z]")
_COMMON_WORDS = (
    "root user users admin ubuntu ec2-user nobody none null true false unknown self all any localhost cpu cuda gpu rank"
    " ranks host node worker master main train training trainer home data model test job run default torch"
)
_COMMON = frozenset(_COMMON_WORDS.split(" "))
"""Words that name nobody; they are not replaced outside the place where they were found."""
BUCKETS = frozenset({"s3", "s3a", "gs", "gcs", "az", "abfs", "abfss", "wasb", "wasbs", "r2", "oss", "cos", "hdfs"})
HOME = re.compile(r"(?:/(?:home|Users|homes)/|\\\\?Users\\\\?|[A-Za-z]:\\Users\\)([A-Za-z][\w.-]{2,})(?=[/\\])")
_HIDDEN = ("inputs", "verdict", "findings", "data")
"""The fields of a report whose texts are anonymised."""


class StandIns:
    """Replaces names by stand-ins such as `host2`; each kind of name is numbered in the order of first use."""

    def __init__(self) -> None:
        self._known: dict[str, str] = {}
        self.counts: Counter[str] = Counter()

    def __call__(self, kind: str, name: str) -> str:
        """Return the stand-in for `name`, always the same for the same name; `kind` is its prefix, such as `host`."""
        if name not in self._known:
            self.counts[kind] += 1
            self._known[name] = f"{kind}{self.counts[kind]}"
        return self._known[name]


def anonymised(report: Report[Data_co], run: Run) -> tuple[Report[Data_co], Run]:
    """Return the report and its run with paths, hosts and addresses replaced in all texts; numbers and ids stay."""
    anonymiser = Anonymiser(hosts(run), texts(msgspec.to_builtins(report)))
    hidden: dict[str, Any] = {name: replaced(getattr(report, name), anonymiser, name) for name in _HIDDEN}
    verdict = hidden["verdict"]
    hidden["verdict"] = msgspec.structs.replace(verdict, missing=[*verdict.missing, anonymiser.statement()])
    anonymous = msgspec.structs.replace(report, **hidden)
    # The files stay, as charts are drawn from them; their names stand in no document.
    return anonymous, Run(Path(anonymiser.path(str(run.root))), run.artefacts)


def hosts(run: Run) -> set[str]:
    listed = run.manifest().get("hosts")
    named = set(listed.values()) if isinstance(listed, dict) else set()
    for artefact in run.of(Kind.GROUPS):
        try:
            named.add(read_json(artefact.path)["host"])
        except (OSError, ValueError, KeyError, TypeError):
            # A damaged file names no host that could leak.
            continue
    return {name for name in named if isinstance(name, str) and name}


def texts(value: object) -> Iterator[str]:
    """Yield all strings in nested dicts and lists, except the keys of dicts."""
    if isinstance(value, str):
        yield value
    for inner in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from texts(inner)


def replaced(value: object, anonymiser: "Anonymiser", field: str) -> object:
    """Return a copy of `value` with each string inside it replaced by `anonymiser`.

    `field` is the name of the struct field or dict key whose value this is. Enum members and keys of mappings stay,
    because they are names of this project.
    """
    if isinstance(value, str) and not isinstance(value, Enum):
        return anonymiser.path(value) if field in _PATH_FIELDS and value else anonymiser(value)
    if isinstance(value, msgspec.Struct):
        names = value.__struct_fields__
        return msgspec.structs.replace(
            value, **{name: replaced(getattr(value, name), anonymiser, name) for name in names}
        )
    if isinstance(value, dict):
        return {
            anonymiser.key(key) if isinstance(key, str) else key: replaced(inner, anonymiser, str(key))
            for key, inner in value.items()
        }
    if isinstance(value, list | tuple):
        if any(isinstance(word, str) and word.startswith("--") for word in value):
            # An option and its value are two words of a command line.
            value = type(value)(without_secrets(value)) if all(isinstance(word, str) for word in value) else value
        return type(value)(replaced(inner, anonymiser, field) for inner in value)
    return value


class Anonymiser:
    """A function that replaces the paths, hosts and addresses in a text by stand-ins such as `folder1` or `host2`.

    `seen` has all texts that will be passed to the function. They may contain paths that are the same on every machine,
    such as a path below site-packages. Short forms of such a path (its last one or two parts) are not replaced in any
    text.
    """

    def __init__(self, hosts: Iterable[str], seen: Iterable[str]) -> None:
        self._stand_ins = StandIns()
        self._held: list[str] = []
        self._names: dict[str, str] = {}
        seen = [_LONG_WORD.sub("", text) for text in seen]
        self._learn("host", hosts)
        for text in seen:
            self._learn("user", (match for match in HOME.findall(text)))
            for kind, pattern in _CONTEXTS:
                if kind in ("host", "user", "account"):
                    self._learn(
                        kind, (match["name"] for match in pattern.finditer(text) if _names_somebody(match["name"]))
                    )
        # The longest first: `node1` must not replace the beginning of `node1.cluster`.
        longest_first = sorted(self._names, key=len, reverse=True)
        known = "|".join(map(re.escape, longest_first))
        nodes = "|".join(re.escape(name) for name in longest_first if self._is_node(name))
        # Of a node, the name is also in those of its interfaces, its ranks and its domain.
        self._known = re.compile(
            (rf"(?<![\w-])(?:{known})(?![\w-])" if known else r"(?!)")
            + (rf"|(?<![A-Za-z0-9])(?:{nodes})(?![A-Za-z0-9])(?:(?:\.[A-Za-z][\w-]*)+(?!\())?" if nodes else "")
        )
        self._public = {short for text in seen for path in PATH.findall(text) for short in _public_forms(path)}

    def _is_node(self, name: str) -> bool:
        return (
            self._names[name] == "host" and len(name) > 3 and bool(_HAS_LETTERS.search(name)) and name[-1].isdecimal()
        )

    def _learn(self, kind: str, names: Iterable[str]) -> None:
        self._names |= {name: kind for name in names if name not in self._names}

    def __call__(self, text: str) -> str:
        """Return a text with its secrets, addresses, names and paths replaced."""
        text = self._without_strong(text)
        for kind, pattern in _CONTEXTS:
            text = pattern.sub(lambda match, kind=kind: self._context(kind, match), text)  # type: ignore[misc]
        text = PATH.sub(lambda match: self._hold_text(self.path(match[0])), text)
        text = self._known.sub(lambda match: self._hold(self._names.get(match[0], "host"), match[0]), text)
        text = _DOMAIN.sub(lambda match: self._domain(match[0]), text)
        text = _MAC.sub(lambda match: self._hold("address", match[0]), text)
        text = _COLONS.sub(lambda match: self._hold("address", match[0]) if _is_address(match[0]) else match[0], text)
        text = _IPV4.sub(lambda match: match[0] if match[0] in _LOCAL else self._hold("address", match[0]), text)
        return self._shown(text)

    def key(self, text: str) -> str:
        """Return the key of a mapping; only secrets, addresses and known names in it are replaced."""
        text = self._known.sub(
            lambda match: self._hold(self._names.get(match[0], "host"), match[0]), self._without_strong(text)
        )
        return self._shown(text)

    def statement(self) -> str:
        counts = ", ".join(quantity(number, kind) for kind, number in sorted(self._stand_ins.counts.items()))
        return (
            f"names, as this report is anonymised (replaced: {counts or 'nothing'}). Names that no rule knows, such as"
            " those of modules, functions, phases and data sets, are still there: read it before you share it"
        )

    def _without_strong(self, text: str) -> str:
        """Return a text without secrets, e-mail addresses, logins and the private parts of URLs."""
        text = _LONG_WORD.sub(lambda match: f"<{len(match[0])} characters>", text)
        text = URL.sub(self._url, text)
        text = replace_secrets(text, lambda secret: secret if _HELD.fullmatch(secret) else self._hold("secret", secret))
        text = _replace_person_numbers(text, self._hold)
        text = _MAIL.sub(lambda match: self._hold("email", match[0]), text)
        return _LOGIN.sub(
            lambda match: f"{self._hold('user', match['user'])}@{self._hold('host', match['host'])}", text
        )

    def _url(self, match: "re.Match[str]") -> str:
        scheme, rest = match["scheme"], match["rest"]
        trailing = rest[len(rest.rstrip(".,;:)]}")) :]
        rest = rest[: len(rest) - len(trailing)]
        place, query_sign, query = rest.partition("?")
        authority, slash, path = place.partition("/")
        login, at, server = authority.rpartition("@")
        login = ":".join(self._stand_ins("secret", part) if part else "" for part in login.split(":")) if at else ""
        host, colon, port = (server, "", "") if server.startswith("[") else server.partition(":")
        is_public = bool(_PUBLIC_HOSTS.fullmatch(host)) and not at
        is_local = host.strip("[]") in _LOCAL
        if host and not is_public and not is_local:
            host = self._shown(self._stand_ins("bucket" if scheme in BUCKETS else "host", host))
        if is_public and host == "wandb.ai":
            path = "/".join(self._stand_ins("account", part) if part != "runs" else part for part in path.split("/"))
        elif path and not is_public:
            parts = [self._part(part, last=False) for part in path.split("/")]
            path = "/".join(parts)
        query = "&".join(self._parameter(part) for part in query.split("&")) if query else ""
        return self._hold_text(f"{scheme}://{login}{at}{host}{colon}{port}{slash}{path}{query_sign}{query}") + trailing

    def _parameter(self, part: str) -> str:
        name, sign, value = part.partition("=")
        return f"{name}{sign}{self._stand_ins('secret', value)}" if value and not value.isdecimal() else part

    def _context(self, kind: str, match: "re.Match[str]") -> str:
        name = match["name"]
        if (
            _HELD.search(name)
            or (not _names_somebody(name) and kind not in ("account", "serial"))
            or name in _LOCAL
            or (_is_number(name) and kind not in ("account", "serial"))
        ):
            return match[0]
        start, end = match.start("name") - match.start(), match.end("name") - match.start()
        return match[0][:start] + self._hold(kind, name) + match[0][end:]

    def _domain(self, name: str) -> str:
        return name if _PUBLIC_HOSTS.fullmatch(name) else self._hold("host", name)

    def _hold(self, kind: str, name: str) -> str:
        return self._hold_text(self._stand_ins(kind, name))

    def _hold_text(self, text: str) -> str:
        """Return a mark that stands for a finished text, so that no later rule changes it again."""
        self._held.append(text)
        return f"\ue100{len(self._held) - 1}\ue101"

    def _shown(self, text: str) -> str:
        while _HELD.search(text):
            text = _HELD.sub(lambda match: self._held[int(match[1])], text)
        return text

    def path(self, path: str) -> str:
        """Return `path` with a stand-in for each folder and file name that may differ between machines."""
        if path in self._public:
            return path
        parts = parts_of(path)
        public = _first_public(parts)
        hidden = [self._part(part, last=i == len(parts) - 1) for i, part in enumerate(parts[:public])]
        return "/".join([*hidden, *parts[public:]])

    def _part(self, part: str, *, last: bool) -> str:
        # Names of artefacts tell rank and step, which the reader of the report needs, and nothing about its owner.
        if _ARTEFACT.fullmatch(part) or _HELD.search(part):
            return part
        stem, dot, suffix = part.rpartition(".")
        if last and dot and stem:
            return f"{self._stand_ins('file', stem)}.{suffix}"
        return self._stand_ins("folder", part)


def _names_somebody(name: str) -> bool:
    return len(name) > 1 and bool(_HAS_LETTERS.search(name)) and name.casefold() not in _COMMON


def _is_number(text: str) -> bool:
    return not _HAS_LETTERS.search(text)


def _is_address(text: str) -> bool:
    """Return whether a text with colons is an IPv6 address or a GUID, and no time and no C++ name."""
    if text in _LOCAL or not any(character.isdecimal() for character in text) or len(text) < 6:
        return False
    if re.fullmatch(r"(?:[0-9a-f]{4}:){3}[0-9a-f]{4}", text, re.IGNORECASE):
        return True
    try:
        ipaddress.IPv6Address(text)
    except ValueError:
        return False
    return True


def parts_of(path: str) -> list[str]:
    """Return the names of the folders and the file in a Unix or Windows path."""
    return [part for part in re.split(r"[\\/]", path) if part]


def _first_public(parts: list[str]) -> int:
    """Return the index in `parts` of the first folder that every machine has, such as site-packages.

    Return the length of `parts` if there is no such folder.
    """
    return next((i for i, part in enumerate(parts) if _PUBLIC_BELOW.fullmatch(part)), len(parts))


def _public_forms(path: str) -> list[str]:
    """Return the short forms of a path that appear in messages: its last part, and its last two parts.

    The list is empty unless the path is below a folder that every machine has, such as site-packages.
    """
    parts = parts_of(path)
    return ["/".join(parts[-count:]) for count in (1, 2)] if _first_public(parts) < len(parts) else []
