"""The files beside the dumps: process groups, stacks, ends of ranks, and how the dumps were collected."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from pathlib import Path
from typing import Any

import msgspec

from analyzers import run
from analyzers.hangs.model import Frame
from analyzers.hangs.reading.debug_server import holds_many, stacks, unanswered
from analyzers.hangs.reading.exits import ORDERLY, Death, exception_text, is_victim
from analyzers.hangs.reading.side_formats import (
    Asked,
    Collection,
    ExitFile,
    GroupsFile,
    Heartbeat,
    Round,
    Struct,
    read_side,
)
from analyzers.hangs.reading.thread_stacks import main_thread
from analyzers.hangs.reading.torchrun_workers import last_errors, log_files
from analyzers.words import exit_reason

LOOK_NS = 2_000_000_000
ROUND = re.compile(r"round_(\d+)")


@dataclass
class Side:
    """Everything known beside the dumps; each part may be empty."""

    groups: dict[int, GroupsFile] = field(default_factory=dict)
    exits: dict[int, ExitFile] = field(default_factory=dict)
    stack_files: dict[int, Path] = field(default_factory=dict)
    message_files: dict[int, Path] = field(default_factory=dict)
    log_files: dict[int, Path] = field(default_factory=dict)
    step_logs: dict[int, Path] = field(default_factory=dict)
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
        return main_thread(path, rank) if path else []

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
            return Death(rank, exit_reason(code), victim=code in ORDERLY)
        if asked and asked.status == "exited" and (code == 0 or is_done(asked)):
            return Death(rank, "it ended without an error", victim=False)
        if asked and asked.status in ("exited", "refused"):
            return Death(
                rank, "its process was gone" if asked.status == "exited" else "refused connection", victim=False
            )
        return None


def is_done(asked: Asked) -> bool:
    """Whether a rank had marked a clean end."""
    return asked.heartbeat is not None and asked.heartbeat.phase == "done"


def gather(found: run.Run, folders: Sequence[Path], *, first_look: int = 1) -> Side:
    """The side files of a set of dumps, which may lie in a folder for each node; those next to its dumps win.

    What looks before `first_look` brought is left out.
    """
    manifest = manifest_of(found)
    groups = {f.rank: f for f in read_all(found, run.Kind.GROUPS, folders, GroupsFile)}
    exits = last_errors(found) | {f.rank: f for f in read_all(found, run.Kind.EXIT, folders, ExitFile)}
    side = Side(
        groups=groups,
        # The end of another process than the one that speaks for the rank now is that of an earlier attempt.
        exits={r: f for r, f in exits.items() if r not in groups or f.pid in (0, groups[r].pid)},
        stack_files=stack_pages(found) | by_rank(found, run.Kind.STACKS, folders, first_look),
        message_files=by_rank(found, run.Kind.MESSAGES, folders, first_look),
        log_files=log_files(found),
        step_logs={a.rank: a.path for a in found.of(run.Kind.STEPS) if a.rank is not None},
        exit_codes=exit_codes(manifest),
        world_size=manifest["world_size"] if isinstance(manifest.get("world_size"), int) else 0,
    )
    side.collection = joined([c for f in folders if (c := read_side(f / "collection.json", Collection))])
    side.collection = side.collection or told_by_pages(found)
    if side.collection:
        side.collection.rounds = side.collection.rounds[first_look - 1 :]
    return side


def stack_pages(found: run.Run) -> dict[int, Path]:
    """The page that shows each rank's stack: the newest of `/stacks`, else of `/pyspy_dump`, which needs no GIL."""
    many = [a.path for a in found.of(run.Kind.STACKS) if a.rank is None and holds_many(a.path)]
    many.sort(key=lambda path: (path.stat().st_mtime, path.name))
    newest = {"py" in path.name: path for path in many}
    return {rank: newest[by_py_spy] for by_py_spy in sorted(newest, reverse=True) for rank in stacks(newest[by_py_spy])}


def told_by_pages(found: run.Run) -> Collection | None:
    """Which ranks PyTorch's debug server could not ask, as the collection that its pages are."""
    many = [a.path for a in found.of(run.Kind.FLIGHT) if holds_many(a.path)]
    lost = {rank: Asked(status=how) for path in many for rank, how in unanswered(path).items()}
    return Collection(reason="asked", rounds=[Round(ranks=lost)]) if lost else None


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
