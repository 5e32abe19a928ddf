"""Anonymise a report so that it can be shared: paths, hosts, addresses and users get numbered stand-ins.

A name has the same stand-in everywhere, so frames and ranks can still be told apart. Public names stay: packages below
site-packages, Python's own library, this project's trainer, and the names of the files of a run.
"""

import re
from collections.abc import Iterable, Iterator
from enum import Enum
from pathlib import Path

import msgspec

from analyzers.files import read_json
from analyzers.report import Data_co, Report
from analyzers.run import Kind, Run

PUBLIC_BELOW = re.compile(r"(?:site|dist)-packages|python3(?:\.\d+)?|trainer|torch|aten|c10")
ARTEFACT = re.compile(
    r"(?:rank|iteration|step|stacks|groups|exit|p2p|round|set|attempt)_?\d+\S*|collection\.json|run\.json|error\.json"
    r"|dumps|steps|logs|tb|previous|memory_snapshot|profile_traces?|comm_traces?|outputs?"
)
SUFFIXES = "py|pyx|c|cc|cpp|cu|cuh|h|hpp|so|json|jsonl|gz|toml|yaml|txt|log|bin|pickle|pkl|pt|html"
# A field of paths may hold one without a folder or a known suffix, which PATH cannot recognise in a sentence.
PATH_FIELDS = frozenset({"path", "source", "filename", "file"})
PATH = re.compile(
    rf"(?<![\w.])(?:~|[A-Za-z]:)?[\\/](?:[^\s:'\"()<>,;]+)|(?:[\w.@+-]+/)*[\w@+-][\w.@+-]*\.(?:{SUFFIXES})\b"
)
# IPv4, and IPv6 with at least four groups: `12:30:05` in a log is a time, not an address.
ADDRESS = re.compile(r"\b(?:\d{1,3}\.){3}\d{1,3}\b|\b(?:[0-9a-f]{1,4}:){3,7}[0-9a-f]{1,4}\b", re.IGNORECASE)
HIDDEN = ("inputs", "verdict", "findings", "data")
"""The fields of a report whose texts are anonymised."""


class StandIns:
    """Replaces names by stand-ins such as `host2`; each kind of name is numbered in the order of first use."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, str], str] = {}

    def __call__(self, kind: str, name: str) -> str:
        """Return the stand-in for `name`, always the same for the same name; `kind` is its prefix, such as `host`."""
        number = 1 + sum(known == kind for known, _ in self._known)
        return self._known.setdefault((kind, name), f"{kind}{number}")


def anonymised(report: Report[Data_co], run: Run) -> tuple[Report[Data_co], Run]:
    """Return the report and its run with paths, hosts and addresses replaced in all texts; numbers and ids stay."""
    anonymiser = Anonymiser(hosts(run), texts(msgspec.to_builtins(report)))
    hidden = {name: replaced(getattr(report, name), anonymiser, name) for name in HIDDEN}
    anonymous = msgspec.structs.replace(report, **hidden)
    # The files stay, as charts are drawn from them; their names stand in no document.
    return anonymous, Run(Path(anonymiser.path(str(run.root))), run.artefacts)


def hosts(run: Run) -> set[str]:
    """Return the host names that occur in the run's files."""
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
        return anonymiser.path(value) if field in PATH_FIELDS and value else anonymiser(value)
    if isinstance(value, msgspec.Struct):
        names = value.__struct_fields__
        return msgspec.structs.replace(
            value, **{name: replaced(getattr(value, name), anonymiser, name) for name in names}
        )
    if isinstance(value, dict):
        return {key: replaced(inner, anonymiser, str(key)) for key, inner in value.items()}
    if isinstance(value, list | tuple):
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
        # The longest first: `node1` must not replace the beginning of `node1.cluster`.
        longest_first = sorted(hosts, key=len, reverse=True)
        self._hosts = re.compile("|".join(rf"\b{re.escape(host)}\b" for host in longest_first) or r"(?!)")
        self._public = {short for text in seen for path in PATH.findall(text) for short in public_forms(path)}

    def __call__(self, text: str) -> str:
        """Return a text with its paths, hosts and addresses replaced."""
        # Paths first: a host name inside a path must become part of a folder, not a host.
        text = PATH.sub(lambda match: self.path(match[0]), text)
        text = self._hosts.sub(lambda match: self._stand_ins("host", match[0]), text)
        return ADDRESS.sub(lambda match: self._stand_ins("address", match[0]), text)

    def path(self, path: str) -> str:
        """Return `path` with a stand-in for each folder and file name that may differ between machines."""
        if path in self._public:
            return path
        parts = parts_of(path)
        public = first_public(parts)
        hidden = [self._part(part, last=i == len(parts) - 1) for i, part in enumerate(parts[:public])]
        return "/".join([*hidden, *parts[public:]])

    def _part(self, part: str, *, last: bool) -> str:
        # Names of artefacts tell rank and step, which the reader of the report needs, and nothing about its owner.
        if ARTEFACT.fullmatch(part):
            return part
        stem, dot, suffix = part.rpartition(".")
        if last and dot and stem:
            return f"{self._stand_ins('file', stem)}.{suffix}"
        return self._stand_ins("folder", part)


def parts_of(path: str) -> list[str]:
    """Return the names of the folders and the file in a Unix or Windows path."""
    return [part for part in re.split(r"[\\/]", path) if part]


def first_public(parts: list[str]) -> int:
    """Return the index in `parts` of the first folder that every machine has, such as site-packages.

    Return the length of `parts` if there is no such folder.
    """
    return next((i for i, part in enumerate(parts) if PUBLIC_BELOW.fullmatch(part)), len(parts))


def public_forms(path: str) -> list[str]:
    """Return the short forms of a path that appear in messages: its last part, and its last two parts.

    The list is empty unless the path is below a folder that every machine has, such as site-packages.
    """
    parts = parts_of(path)
    return ["/".join(parts[-count:]) for count in (1, 2)] if first_public(parts) < len(parts) else []
