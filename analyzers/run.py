"""Find the artefacts in a folder, with the kind, rank and step of each, for every folder layout of PyTorch jobs.

    run = discover(Path("outputs"))
    run.of(Kind.SNAPSHOT)  # the memory snapshots, ordered by step and rank

An artefact is a file of a known kind. File names are only hints, because trainers rename their folders (torchtitan did
so three times). So every file is opened, and the keys near the beginning of a pickle or JSON file decide its kind.
"""

import errno
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import msgspec

from analyzers.errors import InputError, WorkbenchError
from analyzers.files import RANKS_AT_MOST, rank_in, read_json
from analyzers.kinds import DEBUG_SERVER, Kind, damage_of, head_of, is_named_recording, kind_by_name, kind_of
from analyzers.report import Evidence, Finding, Input, Report, Severity

NODES, NODE_FILE = "nodes", "node.json"
_SCHEMA = "workbench.node/1"
_ENDED_WELL = ("running", "completed", "interrupted", "failed")
"""The states of a run from best to worst; the whole run has the worst state of any node."""


class Node(msgspec.Struct):
    """The content of `node.json`: a node that writes files, and the times (Unix ns) at which it first and last did so.

    `ended`: its job has ended, and all of its files are there. `session` is a random name of the node's own run folder,
    by which a restarted sender is recognised. `expected` is the number of nodes of the job (0: unknown).
    """

    schema: str = _SCHEMA
    session: str = ""
    host: str = ""
    first_ns: int = 0
    last_ns: int = 0
    ended: bool = False
    expected: int = 0
    files: int = 0
    bytes: int = 0


class NodeList(msgspec.Struct):
    """The nodes by name, and how many were `expected` (0: unknown)."""

    nodes: dict[str, Node]

    @property
    def expected(self) -> int:
        """The number of nodes of the job; 0 if unknown."""
        return max((node.expected for node in self.nodes.values()), default=0)


def node_of(path: Path, root: Path) -> str | None:
    """Return the name of the node that sent the file `path` to the run folder `root`; None if the file was not sent."""
    parts = path.relative_to(root).parts if path.is_relative_to(root) else ()
    return parts[1] if len(parts) > 2 and parts[0] == NODES else None


def read_node_list(folder: Path) -> NodeList | None:
    """Return the nodes whose files are in a run folder; None if there is none. Damaged reports are left out."""
    nodes: dict[str, Node] = {}
    for path in sorted((folder / NODES).glob(f"*/{NODE_FILE}")):
        try:
            nodes[path.parent.name] = msgspec.convert(read_json(path), Node)
        except (OSError, ValueError, msgspec.ValidationError):
            continue
    return NodeList(nodes) if nodes else None


def merged_manifest(own: Mapping[str, Any], others: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the manifest (run.json) of a run, merged from the manifests of its launchers.

    `own` is the manifest in the run folder, `others` are the manifests that nodes sent. Exit codes and launches of all
    nodes are combined, and the cause is the earliest one. The job failed if it failed on any node. Other fields are
    taken from `own`, then from the first of `others` that has them.
    """
    every = [manifest for manifest in (own, *others) if manifest]
    merged: dict[str, Any] = {}
    # Backwards, so that the first manifest with a field has the last word.
    for manifest in reversed(every):
        merged |= manifest
    for name in ("exit_codes", "launches"):
        parts = [part for manifest in every if isinstance(part := manifest.get(name), dict)]
        if parts:
            merged[name] = {key: value for part in parts for key, value in part.items()}
    causes = [
        cause for m in every if isinstance(cause := m.get("cause"), dict) and isinstance(cause.get("time_ns"), int)
    ]
    if causes:
        merged["cause"] = min(causes, key=lambda cause: int(cause["time_ns"]))
    states = [state for manifest in every if (state := manifest.get("status")) in _ENDED_WELL]
    if states:
        merged["status"] = max(states, key=_ENDED_WELL.index)
    return merged


__all__ = [
    "ANALYSED",
    "TIMED",
    "Artefact",
    "Kind",
    "Run",
    "Unreadable",
    "as_run",
    "discover",
    "files_below",
    "hint_for",
    "identify",
    "newest_step",
    "rank_of",
    "selected",
    "step_of",
    "unreadable",
    "with_unreadable",
]

Data = TypeVar("Data")
FILES_AT_MOST = 500_000
DIGITS_AT_MOST = 15
"""The most digits that are read of a step number in a file's name."""
DEEPEST = 64
"""The greatest depth of folders below a run that is searched; recorders use at most eight levels."""
SKIPPED_FOLDERS = {"checkpoint", "previous", "__pycache__", ".git", ".venv", "node_modules"}

STEP = re.compile(r"(?:iteration|step)_(\d+)(_exit)?")
ANALYSED = (Kind.SNAPSHOT, Kind.TRACE, Kind.FLIGHT, Kind.STEPS, Kind.STRUCTURED_LOG, Kind.GANTT, Kind.METRICS)
"""The kinds of artefacts that an analyzer can read by themselves; other kinds only add information."""
TIMED = (Kind.STEPS, Kind.STRUCTURED_LOG, Kind.GANTT, Kind.TENSORBOARD, Kind.METRICS, Kind.LOG)
"""The kinds of artefacts that record steps, the most detailed first."""


@dataclass(frozen=True)
class Artefact:
    """A file that an analyzer can read, such as a memory snapshot or a profiler trace (`kind`).

    `rank` and `step` are the rank and the step at which it was written, from its name or content (None: unknown);
    `bytes` is its size. `exit`: the file was written because the job died; `step` is then the last finished step.
    """

    path: Path
    kind: Kind
    rank: int | None = None
    step: int | None = None
    exit: bool = False
    bytes: int = 0

    def as_input(self) -> Input:
        """Return the file as an `Input`, as the field `inputs` of a report lists it."""
        return Input(str(self.path), str(self.kind), self.rank, self.step, self.bytes)


class Unreadable(NamedTuple):
    """A file or folder that could not be read or listed, with the reason."""

    path: Path
    reason: str


@dataclass(frozen=True)
class Run:
    """The files of a run below `root` (a folder or one file): those to analyze, and those that cannot be read."""

    root: Path
    artefacts: tuple[Artefact, ...]
    unreadable: tuple[Unreadable, ...] = ()

    def of(self, *kinds: Kind) -> list[Artefact]:
        """Return the artefacts of these kinds, in order of step, then rank, then path."""
        return [a for a in self.artefacts if a.kind in kinds]

    def manifest(self) -> dict[str, Any]:
        """Return the content of `run.json`: the configuration, versions, start and end of the job, as a dict.

        The dict is empty if there is no such file, or if it cannot be read. If the nodes of a job sent their files to
        this folder, the `run.json` files of all nodes are merged into one.
        """
        own = [a.path for a in self.of(Kind.MANIFEST) if node_of(a.path, self.root) is None]
        others = [a.path for a in self.of(Kind.MANIFEST) if node_of(a.path, self.root) is not None]
        first = next((content for path in own if (content := read_manifest(path))), {})
        return merged_manifest(first, [read_manifest(path) for path in others]) if others else first


def read_manifest(path: Path) -> dict[str, Any]:
    """Return the content of a `run.json`; empty if it cannot be read."""
    try:
        return dict(read_json(path))
    except (OSError, ValueError, TypeError):
        return {}


def discover(path: Path) -> Run:
    """Return every artefact of a known kind at `path`, a run folder or a single file.

    Raises:
        InputError: There is no such path, no file of a known kind, or too many files.
    """
    try:
        path.stat()
    # ValueError: the path has a zero byte.
    except (FileNotFoundError, ValueError) as error:
        raise InputError(f"{path}: no such file or folder", "give a run folder, or one of its artefacts") from error
    except OSError as error:
        raise InputError(f"{path}: {error.strerror}", "check the permissions, and what it is") from error
    artefacts: list[Artefact] = []
    unreadable: list[Unreadable] = []
    for file in files_below(path, unreadable):
        try:
            artefact = identify(file, alone=file == path)
            if damage := damage_of(file, artefact.kind if artefact else None):
                unreadable.append(Unreadable(file, damage))
        except OSError as error:
            unreadable.append(Unreadable(file, error.strerror or str(error)))
        else:
            artefacts += [artefact] if artefact else []
    if not artefacts and unreadable:
        raise InputError(f"{unreadable[0].path}: {unreadable[0].reason}", "check the permissions, and what it is")
    if not artefacts:
        raise InputError(f"{path}: nothing of a known kind", hint_for(path))
    # Ranks are numbers: by path, rank 10 would come before rank 2.
    artefacts.sort(key=lambda a: (a.step or 0, -1 if a.rank is None else a.rank, str(a.path)))
    return Run(path, tuple(artefacts), tuple(unreadable))


def as_run(source: Run | str | os.PathLike[str]) -> Run:
    """Return the run at a path; if `source` is a `Run`, return it unchanged.

    Raises:
        InputError: There is no such path, or no file of a known kind (see `discover`).
    """
    return source if isinstance(source, Run) else discover(Path(source))


def hint_for(path: Path) -> str:
    """Return a hint for a user who gave `path`, which has no files of a known kind: which files to give instead."""
    texts = (
        file for file in files_below(path, []) if file.name.removesuffix(".gz").endswith((".html", ".htm", ".txt"))
    )
    if any(DEBUG_SERVER.search(head_of(file)) for file in texts):
        return "save /fr_trace_json, /stacks and /pyspy_dump of PyTorch's debug server: only they show who waits"
    if path.suffix in (".json", ".jsonl"):
        return (
            "it is JSON, but no trace (`traceEvents`), Flight Recorder dump (`entries`), or step log (a JSON object "
            "on each line with `step` and numbers); give the folder of the run, which holds the files that are"
        )
    return "known are memory snapshots, profiler traces, Flight Recorder dumps, step logs and consoles (.gz of each)"


def files_below(root: Path, unreadable: list[Unreadable]) -> Iterator[Path]:
    """Yield every file at or below `root`, except for hidden files, checkpoints and links to folders.

    Three kinds of folders are added to `unreadable`: those that cannot be listed, those that are nested too deeply, and
    those with the name of an artefact, which should be a file.

    Raises:
        InputError: There are more than FILES_AT_MOST files.
    """
    if not root.is_dir():
        yield root
        return

    def keep(error: OSError) -> None:
        unreadable.append(Unreadable(Path(error.filename), error.strerror or str(error)))

    seen, depth = 0, len(root.parts)
    # os.walk leaves out links to folders, which may form a ring.
    for folder, folders, names in os.walk(root, onerror=keep):
        below = (Path(folder, name) for name in folders)
        misplaced = (path for path in below if kind_by_name(path) or is_named_recording(path))
        unreadable += [Unreadable(path, "a folder in the place of a file") for path in misplaced]
        folders[:] = sorted(name for name in folders if name not in SKIPPED_FOLDERS)
        if folders and len(Path(folder).parts) - depth >= DEEPEST:
            unreadable.append(Unreadable(Path(folder), "folders are nested too deeply below it"))
            folders.clear()
        for name in sorted(name for name in names if not name.startswith(".")):
            seen += 1
            if seen > FILES_AT_MOST:
                raise InputError(f"{root}: more than {FILES_AT_MOST} files", "give the folder of one run")
            yield Path(folder, name)


def identify(path: Path, *, alone: bool = False) -> Artefact | None:
    """Return a file as an `Artefact`; None if it is of no known kind, or if a running job has just removed it.

    `alone` means that the user named this very file; then any table of numbers counts as a step log.

    Raises:
        OSError: The file cannot be read, or is not a regular file.
    """
    try:
        size = path.stat().st_size
        kind = kind_of(path, alone=alone)
    # A running job may delete a file after it was listed.
    except FileNotFoundError:
        return None
    if kind is None:
        return None
    step, is_exit = step_of(path)
    return Artefact(path, kind, rank_of(path), step, is_exit, size)


_SIDE_FILE = re.compile(r"(?:stacks|groups|exit|p2p|crash|children)_(\d+)\.")


def rank_of(path: Path) -> int | None:
    """Return the rank in a file's name, or else in its folder's name; None if neither has one.

    Raises:
        OSError: The number is larger than any rank that a job can have.
    """
    named = (
        re.search(r"^(\d{6})_step_", path.name)
        or re.search(r"rank[_-]?(\d+)", path.name)
        or _SIDE_FILE.search(path.name)
        or re.search(r"global_rank_(\d+)", path.name)
        or re.search(r"rank[_-]?(\d+)", path.parent.name)
    )
    if named is None:
        return None
    rank = rank_in(named[1])
    if rank is None:
        raise OSError(errno.EINVAL, f"no job has a rank {named[1][:DIGITS_AT_MOST]}", str(path))
    return rank


def step_of(path: Path) -> tuple[int | None, bool]:
    """Return the step of a file, and whether the file was written because the job died in the step after it.

    Both come from the nearest folder that names a step, or else from the file's name; (None, False) if none does.
    """
    # The nearest folder counts: a run may itself lie in a folder called step_5.
    for part in (*reversed(path.parts[-4:-1]), path.name):
        if match := STEP.search(part):
            return int(match[1][:DIGITS_AT_MOST]), bool(match[2])
    return None, False


def newest_step(artefacts: Sequence[Artefact]) -> list[Artefact]:
    """Return the artefacts of the last step; artefacts written when the job died count as later than all others."""
    if not artefacts:
        return []
    # A job that ran out of memory in step 7 leaves an exit folder named after step 6.
    last = max((a.exit, a.step or 0) for a in artefacts)
    return [a for a in artefacts if (a.exit, a.step or 0) == last]


def selected(artefacts: Sequence[Artefact], rank: int | None, step: int | None) -> list[Artefact]:
    """Return the artefacts with this rank and this step; None stands for all ranks or all steps.

    Raises:
        InputError: There is no such artefact.
    """
    matching = [a for a in artefacts if rank in (None, a.rank) and step in (None, a.step)]
    if not matching:
        raise InputError("nothing of this rank and step", "leave out --rank or --step to see which there are")
    return matching


def unreadable(artefact: Artefact, analyzer: str, error: WorkbenchError) -> Finding:
    """Return a finding which says that `artefact` could not be read because of `error`; the other files are analyzed.

    `analyzer` is the first part of the finding's id.
    """
    return Finding(
        id=f"{analyzer}.unreadable",
        severity=Severity.WARNING,
        title=f"the file {artefact.path.name} could not be read",
        why=error.message.removeprefix(f"{artefact.path}: "),
        next=error.hint,
        ranks=[] if artefact.rank is None else [artefact.rank],
        step=artefact.step,
        evidence=[Evidence(text=f"the file: {artefact.path}", source=str(artefact.path))],
        confidence=1.0,
    )


_NAMED_AT_MOST = 10
"""The highest number of unreadable files that a report names."""


def with_unreadable(report: Report[Data], source: Run) -> Report[Data]:
    """Return a copy of a report with a finding on the files of `source` that could not be read.

    They are also added to the verdict's missing evidence. If all files could be read, the report is returned
    unchanged.
    """
    if not source.unreadable:
        return report
    texts = [f"{path}: {reason}" for path, reason in source.unreadable]
    finding = Finding(
        id="run.unreadable",
        severity=Severity.INFO,
        title=f"{len(texts)} files could not be read"
        if len(texts) > 1
        else f"the file {Path(source.unreadable[0][0]).name} could not be read",
        why="; ".join(texts[:3]) + (f"; and {len(texts) - 3} more" if len(texts) > 3 else ""),
        next="check that each file was copied whole and that you may read it (`ls -l`), and run the command again",
        evidence=[
            Evidence(text=text, source=str(path)) for text, (path, _) in zip(texts, source.unreadable, strict=True)
        ][:_NAMED_AT_MOST],
        confidence=1.0,
    )
    verdict = msgspec.structs.replace(report.verdict, missing=[*report.verdict.missing, *texts[:_NAMED_AT_MOST]])
    return msgspec.structs.replace(report, verdict=verdict, findings=[*report.findings, finding])


def first_ranks(manifest: Mapping[str, object]) -> dict[str, int]:
    """Return {launch: rank of its first worker}, from the launchers' records in `run.json`.

    A launch is one torchrun command; each node runs one. `manifest` is the content of `run.json`.
    """
    launches = manifest.get("launches")
    recorded = launches.items() if isinstance(launches, dict) else ()
    first = {name: launch.get("first_rank") for name, launch in recorded if isinstance(launch, dict)}
    return {name: rank for name, rank in first.items() if isinstance(rank, int) and 0 <= rank < RANKS_AT_MOST}
