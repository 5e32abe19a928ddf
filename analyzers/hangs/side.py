"""The files beside the dumps: process groups, stacks, ends of ranks, and how the dumps were collected."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from analyzers import run
from analyzers.hangs.model import Frame, user_frame
from analyzers.wording import place, signal_of

SIDE_BYTES = 64 << 20
SIGTERM = 15
LOOK_NS = 2_000_000_000
ORDERLY = (-SIGTERM, -2)
"""How a launcher ends the ranks that are left over."""
COMMUNICATION = re.compile(
    r"gloo|nccl|c10d|rendezvous|monitoredbarrier|processgroup|\bDist\w*Error|\w*store\b.*(?:get|wait)", re.IGNORECASE
)
"""What a rank's error speaks of when another rank is gone or does not come."""
CONNECTION = re.compile(r"connection (?:closed|reset|refused)|timed? ?out|socket|broken pipe", re.IGNORECASE)
"""The same, unless the user's own code raised it: data are read over connections too."""
FAULTHANDLER = re.compile(r'^\s*File "(?P<file>.*)", line (?P<line>\d+),? in (?P<name>.+)$')
PY_SPY = re.compile(r"^\s+(?P<name>.+) \((?P<file>[^()]+):(?P<line>\d+)\)$")
ROUND = re.compile(r"round_(\d+)")
THREAD = re.compile(r"^(?:Current thread|Thread|Process)\b")

Struct = TypeVar("Struct", bound=msgspec.Struct)


class GroupEntry(msgspec.Struct):
    desc: str = ""
    ranks: list[int] = []


class GroupsFile(msgspec.Struct):
    rank: int
    world_size: int = 0
    host: str = ""
    pid: int = 0
    groups: dict[str, GroupEntry] = {}


class ExitFile(msgspec.Struct):
    rank: int
    pid: int = 0
    step: int | None = None
    phase: str | None = None
    error: str = ""
    message: str = ""
    out_of_memory: bool = False
    traceback: list[Frame] = []
    time_ns: int = 0


class Heartbeat(msgspec.Struct):
    step: int
    phase: str = ""
    time_ns: int = 0


class Asked(msgspec.Struct):
    """What came back from one rank."""

    status: str = ""
    channel: str | None = None
    asked_ns: int | None = None
    answered_ns: int | None = None
    file: str | None = None
    stacks: str | None = None
    exit_code: int | None = None
    heartbeat: Heartbeat | None = None


class Round(msgspec.Struct):
    round: int = 1
    asked_ns: int = 0
    ranks: dict[int, Asked] = {}


class Collection(msgspec.Struct):
    reason: str = ""
    detail: str | None = None
    asked_ns: int = 0
    stalled_s: float | None = None
    timeout_s: float | None = None
    rounds: list[Round] = []


@dataclass(frozen=True)
class Death:
    """The end of a rank. `victim`: it ended because of another rank."""

    rank: int
    how: str
    victim: bool
    time_ns: int = 0
    exit: ExitFile | None = None


@dataclass
class Side:
    """Everything known beside the dumps; each part may be empty."""

    groups: dict[int, GroupsFile] = field(default_factory=dict)
    exits: dict[int, ExitFile] = field(default_factory=dict)
    stack_files: dict[int, Path] = field(default_factory=dict)
    message_files: dict[int, Path] = field(default_factory=dict)
    collection: Collection | None = None
    exit_codes: dict[int, int] = field(default_factory=dict)
    world_size: int = 0

    def asked(self, rank: int) -> Asked | None:
        """What the first look brought from a rank."""
        if self.collection is None or not self.collection.rounds:
            return None
        return self.collection.rounds[0].ranks.get(rank)

    def answered_ns(self, rank: int) -> int | None:
        asked = self.asked(rank)
        return (asked.answered_ns or asked.asked_ns) if asked and asked.status == "ok" else None

    def looked_ns(self, rank: int) -> int | None:
        """Since when a rank's dump may have been taken: what began later it need not hold."""
        asked = self.asked(rank)
        return asked.asked_ns if asked and asked.status == "ok" else None

    def heartbeat(self, rank: int) -> Heartbeat | None:
        asked = self.asked(rank)
        return asked.heartbeat if asked else None

    def main_stack(self, rank: int) -> list[Frame]:
        """The main thread's frames, innermost first."""
        path = self.stack_files.get(rank)
        return main_thread(path) if path else []

    def death(self, rank: int) -> Death | None:
        """How a rank ended, if it had ended when the dumps were taken."""
        asked, gone = self.asked(rank), self.exits.get(rank)
        answered = self.answered_ns(rank)
        # A look lasts: who loses its connection just after its dump was taken waited for the lost rank all the same.
        grace = LOOK_NS if gone and is_victim(gone) else 0
        if gone and (answered is None or gone.time_ns < answered + grace):
            return Death(rank, exception_text(gone), is_victim(gone), gone.time_ns, gone)
        if answered is not None:
            return None
        code = asked.exit_code if asked and asked.exit_code is not None else self.exit_codes.get(rank)
        if code:
            return Death(rank, signal_of(code), victim=code in ORDERLY)
        if asked and asked.status in ("exited", "refused"):
            return Death(
                rank, "its process was gone" if asked.status == "exited" else "refused connection", victim=False
            )
        return None


def is_victim(gone: ExitFile) -> bool:
    """Whether a rank ended because another one did, or kept it waiting too long."""
    return not gone.out_of_memory and is_symptom(f"{gone.error} {gone.message}", [f.filename for f in gone.traceback])


def is_symptom(text: str, files: Sequence[str]) -> bool:
    """Whether an error is what a rank gets for another one's fault; `files` of its traceback, innermost first."""
    if COMMUNICATION.search(text):
        return True
    return bool(CONNECTION.search(text)) and (not files or "/torch/" in files[0])


def exception_text(gone: ExitFile) -> str:
    line = user_frame(gone.traceback)
    where = f" at {line.name} ({place(line.filename, line.line)})" if line else ""
    return ("out of memory" if gone.out_of_memory else f"{gone.error}: {gone.message}"[:200]) + where


def gather(found: run.Run, folders: Sequence[Path], *, first_look: int = 1) -> Side:
    """The side files of a set of dumps, which may lie in a folder for each node; those next to its dumps win.

    What looks before `first_look` brought is left out.
    """
    manifest = manifest_of(found)
    groups = {f.rank: f for f in read_all(found, run.Kind.GROUPS, folders, GroupsFile)}
    exits = {f.rank: f for f in read_all(found, run.Kind.EXIT, folders, ExitFile)}
    side = Side(
        groups=groups,
        # The end of another process than the one that speaks for the rank now is that of an earlier attempt.
        exits={r: f for r, f in exits.items() if r not in groups or f.pid in (0, groups[r].pid)},
        stack_files=by_rank(found, run.Kind.STACKS, folders, first_look),
        message_files=by_rank(found, run.Kind.MESSAGES, folders, first_look),
        exit_codes=exit_codes(manifest),
        world_size=manifest["world_size"] if isinstance(manifest.get("world_size"), int) else 0,
    )
    side.collection = joined([c for f in folders if (c := read_side(f / "collection.json", Collection))])
    if side.collection:
        side.collection.rounds = side.collection.rounds[first_look - 1 :]
    return side


def joined(collections: Sequence[Collection]) -> Collection | None:
    """One account of what the collectors of several nodes did at the same time."""
    if len(collections) < 2:
        return collections[0] if collections else None
    first = min(collections, key=lambda c: c.asked_ns)
    looks = zip_longest(*(c.rounds for c in collections))
    rounds = [
        Round(number, first.asked_ns, {rank: asked for one in look if one for rank, asked in one.ranks.items()})
        for number, look in enumerate(looks, 1)
    ]
    return msgspec.structs.replace(first, rounds=rounds)


def by_rank(found: run.Run, kind: run.Kind, folders: Sequence[Path], first_look: int) -> dict[int, Path]:
    """The file of each rank, of the first look that brought one; what other sets say of a rank is of another time."""
    other_sets = {a.path.parent for a in found.of(run.Kind.COLLECTION)}.difference(folders)
    files = [(a, *base_of(a.path)) for a in near(found, kind, folders)]
    return {
        a.rank: a.path
        for a, base, look in files
        if a.rank is not None and base not in other_sets and not (base in folders and look < first_look)
    }


def near(found: run.Run, kind: run.Kind, folders: Sequence[Path]) -> list[run.Artefact]:
    """Artefacts of a kind, those of the set last, so that they win, and of these those of the first look."""

    def closeness(artefact: run.Artefact) -> tuple[bool, int, Path]:
        base, look = base_of(artefact.path)
        return base in folders, -look, artefact.path

    return sorted(found.of(kind), key=closeness)


def base_of(path: Path) -> tuple[Path, int]:
    """The folder of a file's set of dumps, and the number of the look."""
    found = ROUND.fullmatch(path.parent.name)
    return (path.parent.parent, int(found[1])) if found else (path.parent, 1)


def read_all(found: run.Run, kind: run.Kind, folders: Sequence[Path], struct: type[Struct]) -> Iterable[Struct]:
    return [content for a in near(found, kind, folders) if (content := read_side(a.path, struct))]


def read_side(path: Path, struct: type[Struct]) -> Struct | None:
    """A side file, or None when it is damaged: it only helps."""
    try:
        if path.stat().st_size > SIDE_BYTES:
            return None
        return msgspec.convert(msgspec.json.decode(path.read_bytes()), struct, strict=False)
    except (OSError, msgspec.DecodeError, UnicodeDecodeError):
        return None


def manifest_of(found: run.Run) -> dict[str, Any]:
    """run.json, which lies above the folder when only the dumps were given."""
    if manifest := found.manifest():
        return manifest
    folders = (found.root, *found.root.resolve().parents[:3])
    above = next((f / "run.json" for f in folders if (f / "run.json").is_file()), None)
    return run.Run(above.parent, (run.Artefact(above, run.Kind.MANIFEST),)).manifest() if above else {}


def exit_codes(manifest: dict[str, Any]) -> dict[int, int]:
    codes = manifest.get("exit_codes")
    if not isinstance(codes, dict):
        return {}
    return {int(rank): code for rank, code in codes.items() if str(rank).isdigit() and isinstance(code, int)}


def main_thread(path: Path) -> list[Frame]:
    """The stack of the thread that runs the script, from py-spy's or faulthandler's text."""
    try:
        with path.open(errors="replace") as file:
            lines = file.read(1 << 22).splitlines()
    except OSError:
        return []
    threads = split_threads(lines)
    whole = [t for t in threads if t[-1].name.strip() == "<module>"]
    return max(whole or threads, key=len, default=[])


def split_threads(lines: list[str]) -> list[list[Frame]]:
    threads: list[list[Frame]] = [[]]
    for line in lines:
        if THREAD.match(line):
            threads.append([])
        elif found := FAULTHANDLER.match(line) or PY_SPY.match(line):
            threads[-1].append(Frame(found["name"], found["file"], int(found["line"])))
    return [thread for thread in threads if thread]
