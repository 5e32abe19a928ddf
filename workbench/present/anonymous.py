"""A report without what tells whose run it was: paths, hosts, addresses and users become numbered stand-ins.

The same name gets the same stand-in throughout, so that frames and ranks can still be told apart. What everybody has is
kept: packages below site-packages, Python's own library, this project's trainer, and the names of artefacts.
"""

import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import msgspec

from analyzers.report import Report
from analyzers.run import Kind, Run

PUBLIC_BELOW = re.compile(r"(?:site|dist)-packages|python3(?:\.\d+)?|trainer|torch|aten|c10")
ARTEFACT = re.compile(
    r"(?:rank|iteration|step|stacks|groups|exit|p2p|round|set|attempt)_?\d+\S*|collection\.json|run\.json|error\.json"
    r"|dumps|steps|logs|tb|previous|memory_snapshot|profile_traces?|comm_traces?|outputs?"
)
SUFFIXES = "py|pyx|c|cc|cpp|cu|cuh|h|hpp|so|json|jsonl|gz|toml|yaml|txt|log|bin|pickle|pkl|pt|html"
PATH_FIELDS = frozenset({"path", "source", "filename", "file"})
PATH = re.compile(
    rf"(?<![\w.])(?:~|[A-Za-z]:)?[\\/](?:[^\s:'\"()<>,;]+)|(?:[\w.@+-]+/)*[\w@+-][\w.@+-]*\.(?:{SUFFIXES})\b"
)
ADDRESS = re.compile(r"\b(?:\d{1,3}\.){3}\d{1,3}\b|\b(?:[0-9a-f]{1,4}:){3,7}[0-9a-f]{1,4}\b", re.IGNORECASE)


class Names:
    """Stand-ins, numbered in order of sight."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, str], str] = {}

    def __call__(self, kind: str, name: str) -> str:
        number = 1 + sum(known == kind for known, _ in self._known)
        return self._known.setdefault((kind, name), f"{kind}{number}")


def anonymised(report: Report[Any], run: Run) -> tuple[Report[Any], Run]:
    """The report, and the run that it is told of, with every text replaced."""
    plain = msgspec.to_builtins(report)
    veil = Veil(hosts(run), texts(plain))
    hidden = walked(plain, veil)
    data = msgspec.convert(hidden["data"], type(report.data))
    told = msgspec.structs.replace(msgspec.convert(hidden, Report[Any]), data=data)
    # The files stay, as charts are drawn from them; their names stand in no document.
    return told, Run(Path(veil.path(str(run.root))), run.artefacts)


def hosts(run: Run) -> set[str]:
    """The machines that the files of a run name."""
    told = run.manifest().get("hosts")
    named = set(told.values()) if isinstance(told, dict) else set()
    for artefact in run.of(Kind.GROUPS):
        try:
            named.add(msgspec.json.decode(artefact.path.read_bytes())["host"])
        except (OSError, msgspec.DecodeError, KeyError, TypeError):
            continue
    return {name for name in named if isinstance(name, str) and name}


def texts(value: Any) -> Iterator[str]:
    """All texts in a tree of plain values, but for the keys of mappings."""
    if isinstance(value, str):
        yield value
    for inner in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from texts(inner)


def walked(value: Any, veil: "Veil", field: str = "") -> Any:
    """A tree of plain values with each text replaced; keys of mappings are names of fields, or our own."""
    if isinstance(value, str):
        return veil.path(value) if field in PATH_FIELDS and value else veil(value)
    if isinstance(value, dict):
        return {key: walked(inner, veil, key) for key, inner in value.items()}
    if isinstance(value, list):
        return [walked(inner, veil, field) for inner in value]
    return value


class Veil:
    """Replaces what identifies in a text. `seen` are the texts it will be used on."""

    def __init__(self, hosts: Iterable[str], seen: Iterable[str]) -> None:
        self._names = Names()
        longest_first = sorted(hosts, key=len, reverse=True)
        self._hosts = re.compile("|".join(rf"\b{re.escape(host)}\b" for host in longest_first) or r"(?!)")
        self._public = {short for text in seen for path in PATH.findall(text) for short in public_forms(path)}

    def __call__(self, text: str) -> str:
        text = PATH.sub(lambda found: self.path(found[0]), text)
        text = self._hosts.sub(lambda found: self._names("host", found[0]), text)
        return ADDRESS.sub(lambda found: self._names("address", found[0]), text)

    def path(self, path: str) -> str:
        """A text that is a path as a whole."""
        if path in self._public:
            return path
        parts = parts_of(path)
        public = first_public(parts)
        hidden = [self._part(part, last=i == len(parts) - 1) for i, part in enumerate(parts[:public])]
        return "/".join([*hidden, *parts[public:]])

    def _part(self, part: str, *, last: bool) -> str:
        if ARTEFACT.fullmatch(part):
            return part
        stem, dot, suffix = part.rpartition(".")
        if last and dot and stem:
            return f"{self._names('file', stem)}.{suffix}"
        return self._names("folder", part)


def parts_of(path: str) -> list[str]:
    return [part for part in re.split(r"[\\/]", path) if part]


def first_public(parts: list[str]) -> int:
    """Where the part of a path begins that everybody has; its length if nowhere."""
    return next((i for i, part in enumerate(parts) if PUBLIC_BELOW.fullmatch(part)), len(parts))


def public_forms(path: str) -> list[str]:
    """How a public file may be told in short: by its last two parts, or one."""
    parts = parts_of(path)
    return ["/".join(parts[-count:]) for count in (1, 2)] if first_public(parts) < len(parts) else []
