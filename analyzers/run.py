"""Which artefacts are in a folder: kind, rank and step of each, in every layout that PyTorch jobs leave behind.

    run = discover(Path("outputs"))
    run.of(Kind.SNAPSHOT)  # the memory snapshots, ordered by step and rank

Names are hints, contents decide: torchtitan alone has renamed its folders three times. So every file is looked at, and
the keys near the beginning of a pickle or JSON file say what it is.
"""

import os
import re
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

import msgspec

from analyzers.errors import InputError, WorkbenchError
from analyzers.report import Evidence, Finding, Input, Severity
from analyzers.step_log_signs import is_console, is_metrics_json, is_metrics_table

HEAD_BYTES = 1 << 16
"""How much of a file is read to recognise its kind."""
FILES_AT_MOST = 500_000
SKIPPED_FOLDERS = {"checkpoint", "previous", "__pycache__", ".git", ".venv", "node_modules"}

STEP = re.compile(r"(?:iteration|step)_(\d+)(_exit)?")
SNAPSHOT_SEGMENTS = re.compile(rb"segments|device_traces|segment_pool_id|segment_type")
CONSOLE = re.compile(rb"^[^{\n]{0,40}\[(?:titan|trainer)\] \d{4}-\d\d-\d\d |step:\s+\d+[^\n]{1,40}loss:", re.MULTILINE)
"""Lines that torchtitan or our trainer print on the console."""
FLIGHT_KEYS = re.compile(rb"pg_config|record_id|pg_status|nccl_comm_state")
DEBUG_SERVER = re.compile(rb"Torch Distributed Debug Server|^=== Rank \d+: http|Exception: KeyError\(\('")
"""Any page of PyTorch's debug server, the texts that it writes to files, and the page of a table that failed."""


class Kind(StrEnum):
    """What a file is."""

    SNAPSHOT = "memory_snapshot"
    TRACE = "trace"
    FLIGHT = "flight_record"
    GROUPS = "groups"
    NEW_GROUPS = "new_groups"
    MESSAGES = "messages"
    STACKS = "stacks"
    FATAL_SIGNAL = "fatal_signal"
    CHILD_STACKS = "child_stacks"
    COLLECTION = "collection"
    EXIT = "exit"
    STEPS = "steps"
    STRUCTURED_LOG = "structured_log"
    MANIFEST = "run"
    ERROR = "error"
    LOG = "log"
    TEXT = "text_log"
    """What a job, its launcher or its scheduler printed, without lines of steps that a reader knows."""
    TENSORBOARD = "tensorboard"
    METRICS = "metrics"
    VALUES = "values"
    """Sums of tensors, by which runs on several meshes are compared."""


DEBUG_PAGES = (
    (re.compile(rb"/handler/(?:dump_traceback|pyspy_dump)\b"), Kind.STACKS),
    (re.compile(rb"<h2>Groups</h2>|^=== FR Trace", re.MULTILINE), Kind.FLIGHT),
    (re.compile(rb"/handler/\w*trace_json\b.*(?:pg_config|record_id|pg_status)", re.DOTALL), Kind.FLIGHT),
)
"""The pages of the debug server that have something of each rank."""
ANALYSED = (Kind.SNAPSHOT, Kind.TRACE, Kind.FLIGHT, Kind.STEPS, Kind.STRUCTURED_LOG, Kind.METRICS)
"""The kinds that answer a question on their own; the others add to them."""
TIMED = (Kind.STEPS, Kind.STRUCTURED_LOG, Kind.TENSORBOARD, Kind.METRICS, Kind.LOG)
"""The kinds that record steps, the most detailed first."""


@dataclass(frozen=True)
class Artefact:
    """A file of a known kind. `exit`: it was written because the job died; `step` is then the last finished one."""

    path: Path
    kind: Kind
    rank: int | None = None
    step: int | None = None
    exit: bool = False
    bytes: int = 0

    def as_input(self) -> Input:
        """Return the file as a report names it."""
        return Input(str(self.path), str(self.kind), self.rank, self.step, self.bytes)


@dataclass(frozen=True)
class Run:
    """The artefacts below `root`, which is a folder or a single file."""

    root: Path
    artefacts: tuple[Artefact, ...]

    def of(self, *kinds: Kind) -> list[Artefact]:
        """Return the artefacts of these kinds, in order of step, then rank, then path."""
        return [a for a in self.artefacts if a.kind in kinds]

    def manifest(self) -> dict[str, Any]:
        """Return `run.json` as a dict; empty when there is none or it cannot be read."""
        for artefact in self.of(Kind.MANIFEST):
            try:
                return dict(msgspec.json.decode(artefact.path.read_bytes()))
            except (msgspec.DecodeError, OSError, ValueError, TypeError):
                continue
        return {}


def discover(path: Path) -> Run:
    """Return every artefact of a known kind at `path`, a run folder or a single file.

    Raises:
        InputError: There is no such path, nothing of a known kind, or too many files to look at.
    """
    if not path.exists():
        raise InputError(f"{path}: no such file or folder", "give a run folder, or one of its artefacts")
    try:
        alone = path.is_file()
        artefacts = [artefact for file in files_below(path) if (artefact := identify(file, alone=alone))]
    except OSError as error:
        raise InputError(f"{error.filename}: {error.strerror}", "check the permissions") from error
    if not artefacts:
        raise InputError(f"{path}: nothing of a known kind", hint_for(path))
    # Ranks are numbers: by path, rank 10 would come before rank 2.
    artefacts.sort(key=lambda a: (a.step or 0, -1 if a.rank is None else a.rank, str(a.path)))
    return Run(path, tuple(artefacts))


def as_run(source: Run | str | os.PathLike[str]) -> Run:
    """Return a run as it is, and the run at a path.

    Raises:
        InputError: As `discover` does.
    """
    return source if isinstance(source, Run) else discover(Path(source))


def hint_for(path: Path) -> str:
    """Return what to give instead of files of no known kind."""
    texts = (file for file in files_below(path) if file.name.removesuffix(".gz").endswith((".html", ".htm", ".txt")))
    if any(DEBUG_SERVER.search(head_of(file)) for file in texts):
        return "save /fr_trace_json, /stacks and /pyspy_dump of PyTorch's debug server: only they show who waits"
    return "known are memory snapshots, profiler traces, Flight Recorder dumps, step logs and consoles (.gz of each)"


def files_below(root: Path) -> Iterator[Path]:
    """Yield every file at or below `root`, without hidden files, checkpoints and links to folders.

    Raises:
        InputError: There are more than FILES_AT_MOST.
    """
    if root.is_file():
        yield root
        return
    seen = 0
    # os.walk leaves out links to folders, which may form a ring.
    for folder, folders, names in os.walk(root):
        folders[:] = sorted(name for name in folders if name not in SKIPPED_FOLDERS)
        for name in sorted(name for name in names if not name.startswith(".")):
            seen += 1
            if seen > FILES_AT_MOST:
                raise InputError(f"{root}: more than {FILES_AT_MOST} files", "give the folder of one run")
            yield Path(folder, name)


def identify(path: Path, *, alone: bool = False) -> Artefact | None:
    """Return what a file is; None for an unknown kind, or where a running job has just removed it.

    A file that the user named `alone` may be a table of any numbers.
    """
    try:
        kind = kind_of(path, alone=alone) if path.is_file() else None
        size = path.stat().st_size
    except FileNotFoundError:
        return None
    if kind is None:
        return None
    step, is_exit = step_of(path)
    return Artefact(path, kind, rank_of(path), step, is_exit, size)


TEXT_NAME = re.compile(r".*\.(?:log|out|err)(?:\.\d{1,3})?(?:\.gz)?|slurm-\d+\S*|(?:stdout|stderr|nohup|dmesg)\S{0,40}")
TEXT_SIGNS = re.compile(
    rb"Traceback \(most recent call last\)|ProcessGroupNCCL|NCCL (?:WARN|INFO)|ChildFailedError|slurmstepd: error"
    rb"|NVRM: |Watchdog caught collective|CUDA error: |CANCELLED AT"
    rb"|OVERFLOW! |(?:it/s|s/it)[],]|torch/distributed/elastic|\[rank\d+\]: |Fatal Python error"
)
"""What stands in a log of PyTorch whatever its file is called."""
TEXT_SUFFIXES = ("", ".txt", ".gz")


def text_kind(path: Path, head: bytes) -> Kind | None:
    """Return whether a file is a log of text: by its name, or by what PyTorch and its launchers print."""
    # A JSON file of another kind and a damaged pickle may have any name.
    if head.startswith((b"\x80", b'{"', b"PK")) or not head:
        return None
    # Named logs may begin with zero bytes, where they were truncated while a job wrote.
    if TEXT_NAME.fullmatch(path.name):
        return Kind.TEXT
    return Kind.TEXT if path.suffix in TEXT_SUFFIXES and TEXT_SIGNS.search(head) else None


SIDE_FILE = re.compile(r"(?:stacks|groups|exit|p2p|crash|children)_(\d+)\.")


def rank_of(path: Path) -> int | None:
    """Return the rank in a file's name, else in its folder's."""
    if match := re.search(r"^(\d{6})_step_", path.name):
        return int(match[1])
    named = re.search(r"rank[_-]?(\d+)", path.name) or SIDE_FILE.search(path.name)
    named = named or re.search(r"global_rank_(\d+)", path.name) or re.search(r"rank[_-]?(\d+)", path.parent.name)
    return int(named[1]) if named else None


def step_of(path: Path) -> tuple[int | None, bool]:
    """Return the step, and whether the job died in the next one: by the nearest folder that has it, else the name."""
    # The nearest folder counts: a run may itself lie in a folder called step_5.
    for part in (*reversed(path.parts[-4:-1]), path.name):
        if match := STEP.search(part):
            return int(match[1]), bool(match[2])
    return None, False


def kind_of(path: Path, *, alone: bool = False) -> Kind | None:
    """Return the kind of a file: by a name that only one writer uses, else by its content."""
    if kind := kind_by_name(path):
        return kind
    head = head_of(path)
    return kind_by_content(head) or step_log_kind(path, head, alone=alone) or text_kind(path, head)


def step_log_kind(path: Path, head: bytes, *, alone: bool) -> Kind | None:
    """Return whether a file is a step log of another trainer: a table of metrics, or what it printed."""
    text, name = head.removeprefix(b"\xef\xbb\xbf").lstrip(), path.name.removesuffix(".gz")
    if text.startswith((b'{"', b"{\n", b"{ ", b"{\r", b"[")) and name.endswith((".json", ".jsonl", ".ndjson")):
        named_rows = alone and name.endswith((".jsonl", ".ndjson"))
        return Kind.METRICS if named_rows or is_metrics_json(text, name) else None
    if name.endswith((".csv", ".tsv")):
        if text.startswith((b"\xff\xfe", b"\xfe\xff")):
            text = text.decode("utf-16", "ignore").encode()
        return Kind.METRICS if is_metrics_table(text, alone=alone) else None
    if name.endswith((".log", ".out", ".err", ".txt")) and (is_console(text) or is_console(tail_of(path))):
        return Kind.LOG
    return None


def tail_of(path: Path) -> bytes:
    """Return the last bytes of a file; empty where the first ones are all of it, or it is gzipped."""
    with path.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        if size <= HEAD_BYTES or path.suffix == ".gz":
            return b""
        file.seek(size - HEAD_BYTES)
        return file.read(HEAD_BYTES)


NAMES = tuple(
    (re.compile(pattern), kind)
    for pattern, kind in (
        (r"run\.json", Kind.MANIFEST),
        (r"error\.json", Kind.ERROR),
        (r"collection\.json", Kind.COLLECTION),
        (r"std(?:out|err)\.log", Kind.LOG),
        (r"events\.out\.tfevents.*", Kind.TENSORBOARD),
        (r"stacks_\d+\.txt", Kind.STACKS),
        (r"crash_\d+\.txt", Kind.FATAL_SIGNAL),
        (r"children_\d+\.txt", Kind.CHILD_STACKS),
        (r"groups_\d+\.json", Kind.GROUPS),
        (r"new_groups_\d+\.jsonl", Kind.NEW_GROUPS),
        (r"p2p_\d+\.bin", Kind.MESSAGES),
        (r"exit_\d+\.json", Kind.EXIT),
        (r".*global_rank_\d+\..*\.jsonl", Kind.STRUCTURED_LOG),
    )
)
"""File names that only one writer uses."""


def kind_by_name(path: Path) -> Kind | None:
    """Return the kind that a file's name alone says."""
    if path.parent.name == "steps" and path.suffix == ".jsonl":
        return Kind.STEPS
    return next((kind for pattern, kind in NAMES if pattern.fullmatch(path.name)), None)


def kind_by_content(head: bytes) -> Kind | None:
    """Return the kind of a file by its first bytes."""
    # Pickles of protocol 2 and later begin with this byte.
    if head.startswith(b"\x80"):
        return pickled_kind(head)
    text = head.lstrip(b"\xef\xbb\xbf \t\r\n")
    if text.startswith((b"<", b"=== ", b"PARTIAL DATA")):
        return next((kind for pattern, kind in DEBUG_PAGES if pattern.search(text)), None)
    # A JSON log may quote a line of the console.
    if not text.startswith(b"{") and CONSOLE.search(text):
        return Kind.LOG
    # A line such as `[rank0]: ... expandable_segments:True` is no list.
    return json_kind(text) if re.match(rb"\{|\[\s*[\[{]", text) else None


def json_kind(text: bytes) -> Kind | None:
    """Return the kind of a JSON text by the keys near its beginning."""
    if b'"log_type"' in text and b'"log_type_name"' in text:
        return Kind.STRUCTURED_LOG
    if b'"workbench.step' in text:
        return Kind.STEPS
    if b'"workbench.values/' in text[:200]:
        return Kind.VALUES
    if b'"traceEvents"' in text or re.match(rb'\[\s*\{[^{}]*"ph"\s*:', text) or b'"schemaVersion"' in text:
        return Kind.TRACE
    return pickled_kind(text)


def pickled_kind(head: bytes) -> Kind | None:
    """Return whether a pickle is a snapshot or a Flight Recorder dump, by whose keys come first (also in JSON)."""
    flight = FLIGHT_KEYS.search(head)
    if SNAPSHOT_SEGMENTS.search(head, 0, flight.start() if flight else len(head)):
        return Kind.SNAPSHOT
    return Kind.FLIGHT if flight else None


def head_of(path: Path) -> bytes:
    """Return the first bytes of a file, inflated if gzipped; empty when the gzip is damaged."""
    with path.open("rb") as file:
        head = file.read(HEAD_BYTES)
    if not head.startswith(b"\x1f\x8b"):
        return head
    try:
        # Only the first bytes are inflated: a bomb of a few kilobytes becomes no terabyte here.
        return zlib.decompressobj(wbits=31).decompress(head, HEAD_BYTES)
    except zlib.error:
        return b""


def newest_step(artefacts: Sequence[Artefact]) -> list[Artefact]:
    """Return the artefacts of the last step; those written on an exit count as last."""
    if not artefacts:
        return []
    # A job that ran out of memory in step 7 leaves an exit folder named after step 6.
    last = max((a.exit, a.step or 0) for a in artefacts)
    return [a for a in artefacts if (a.exit, a.step or 0) == last]


def selected(artefacts: Sequence[Artefact], rank: int | None, step: int | None) -> list[Artefact]:
    """Return the artefacts of a rank and a step; None takes all.

    Raises:
        InputError: There is none.
    """
    matching = [a for a in artefacts if rank in (None, a.rank) and step in (None, a.step)]
    if not matching:
        raise InputError("nothing of this rank and step", "leave out --rank or --step to see which there are")
    return matching


def unreadable(artefact: Artefact, room: str, error: WorkbenchError) -> Finding:
    """Return the finding of a room on one damaged file: it must not hide what the others show."""
    return Finding(
        id=f"{room}.unreadable",
        severity=Severity.WARNING,
        title="a file could not be read",
        why=error.message,
        next=error.hint,
        ranks=[] if artefact.rank is None else [artefact.rank],
        step=artefact.step,
        evidence=[Evidence(text=error.message, source=str(artefact.path))],
        confidence=1.0,
    )
