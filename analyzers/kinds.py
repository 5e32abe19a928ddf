"""Find out the kind of a file: by a name that only one program uses, or else by the file's first bytes."""

import os
import re
import struct
import zlib
from enum import StrEnum
from pathlib import Path

from analyzers.files import is_whole_object, open_regular
from analyzers.log_signs import is_console, is_metrics_json, is_metrics_table

_HEAD_BYTES = 1 << 16
"""The number of bytes at the beginning of a file that are read to recognise its kind."""
_SNAPSHOT_SEGMENTS = re.compile(rb"segments|device_traces|segment_pool_id|segment_type")
_CONSOLE = re.compile(rb"^[^{\n]{0,40}\[(?:titan|trainer)\] \d{4}-\d\d-\d\d |step:\s+\d+[^\n]{1,40}loss:", re.MULTILINE)
"""Matches the console lines of torchtitan and of this project's trainer."""
GANTT = re.compile(
    rb'"traceEvents"\s*:\s*\[\s*\{\s*"name"\s*:\s*"process_name"[^{}]*\{\s*"name"\s*:\s*"[^"]*global_rank_\d+\.'
)
"""Matches the beginning of torchtitan's Gantt chart, in which each process has the name of a structured log."""
_FLIGHT_KEYS = re.compile(rb"pg_config|record_id|pg_status|nccl_comm_state")
DEBUG_SERVER = re.compile(rb"Torch Distributed Debug Server|^=== Rank \d+: http|Exception: KeyError\(\('")
"""Matches text of PyTorch's debug server: of its pages, of its error pages, and of the files that it writes."""


class Kind(StrEnum):
    """The kind of an artefact: what was recorded in the file, or which tool wrote it."""

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
    RAS = "nccl_ras"
    """The state of an NCCL job that its RAS threads report."""
    DEVICE_STATE = "device_state"
    """The output of `nvidia-smi -q`."""
    EXIT = "exit"
    STEPS = "steps"
    STRUCTURED_LOG = "structured_log"
    GANTT = "gantt"
    """The chart that torchtitan makes of its structured logs: a file like a profiler trace, but without kernels."""
    MANIFEST = "run"
    ERROR = "error"
    LOG = "log"
    TEXT = "text_log"
    """The output of a job, its launcher or its scheduler, in which no reader recognises lines about steps."""
    TENSORBOARD = "tensorboard"
    METRICS = "metrics"
    VALUES = "values"
    """Sums of tensors, which are compared between runs on several meshes."""
    NOT_FINITE = "not_finite"
    """The first operation of a rank whose result was not finite."""
    MESHES = "meshes"
    """The list of folders with the runs of `workbench parity`."""


_DEBUG_PAGES = (
    (re.compile(rb"/handler/(?:dump_traceback|pyspy_dump)\b"), Kind.STACKS),
    (re.compile(rb"<h2>Groups</h2>|^=== FR Trace", re.MULTILINE), Kind.FLIGHT),
    (re.compile(rb"/handler/\w*trace_json\b.*(?:pg_config|record_id|pg_status)", re.DOTALL), Kind.FLIGHT),
)
"""Patterns for the pages of PyTorch's debug server that have data of each rank, with the kind of each page."""


def kind_of(path: Path, *, alone: bool = False) -> Kind | None:
    """Return the kind of a file; None if it is of no known kind.

    The name decides if only one program uses it; otherwise the contents decide. `alone` means that the user named this
    very file; then any table of numbers counts as a step log.

    Raises:
        OSError: The file cannot be read.
    """
    head = head_of(path)
    if kind := kind_by_name(path):
        return kind
    return _kind_by_content(head) or _step_log_kind(path, head, alone=alone) or _text_kind(path, head, alone=alone)


def _step_log_kind(path: Path, head: bytes, *, alone: bool) -> Kind | None:
    """Return the kind of another trainer's step log: a table of metrics or console output; None if it is neither.

    `head` has the first bytes of the file. `alone` means that the user named this very file; then any table of
    numbers counts.
    """
    text, name = head.removeprefix(b"\xef\xbb\xbf").lstrip(), path.name.removesuffix(".gz")
    if text.startswith((b'{"', b"{\n", b"{ ", b"{\r", b"[")) and name.endswith((".json", ".jsonl", ".ndjson")):
        named_rows = alone and name.endswith((".jsonl", ".ndjson"))
        return Kind.METRICS if named_rows or is_metrics_json(text, name) else None
    if name.endswith((".csv", ".tsv")):
        if text.startswith((b"\xff\xfe", b"\xfe\xff")):
            text = text.decode("utf-16", "ignore").encode()
        return Kind.METRICS if is_metrics_table(text, alone=alone) else None
    if name.endswith((".log", ".out", ".err", ".txt")) and (is_console(text) or is_console(_tail_of(path))):
        return Kind.LOG
    return None


_TEXT_NAME = re.compile(
    r".*\.(?:log|out|err)(?:\.\d{1,3})?(?:\.gz)?|slurm-\d+\S*|(?:stdout|stderr|nohup|dmesg)\S{0,40}"
)
_TEXT_SIGNS = re.compile(
    rb"Traceback \(most recent call last\)|ProcessGroupNCCL|NCCL (?:WARN|INFO)|ChildFailedError|slurmstepd: error"
    rb"|NVRM: |Watchdog caught collective|CUDA error: |CANCELLED AT"
    rb"|^Root Cause \(first observed failure\):|^ +exitcode +: |OVERFLOW! |(?:it/s|s/it)[],]"
    rb"|torch/distributed/elastic|\[rank\d+\]: |Fatal Python error",
    re.MULTILINE,
)
"""Matches text that only logs of PyTorch or of its launchers have, whatever the name of the file."""
_PASTED = re.compile(rb"^(?:\w+\.)*\w*(?:Error|Exception|Interrupt|Exit)(?:: .|\s*$)", re.MULTILINE)
"""Matches the line of a traceback that names the exception."""
_ROW_OF_LOSS = re.compile(rb'\{"[^{}\n]{0,300}loss"?[^{}\n]{0,500}\}\s*\n')
"""Matches a row of numbers that a trainer prints as JSON."""
_TEXT_SUFFIXES = ("", ".txt", ".gz")


def _text_kind(path: Path, head: bytes, *, alone: bool) -> Kind | None:
    """Return `Kind.TEXT` for a text log, by its name or by typical lines of PyTorch and launchers; else None.

    Of a file that the user named (`alone`), the last line of a traceback is enough, as somebody pastes it.
    """
    if head.startswith((b"\xff\xfe", b"\xfe\xff")):
        head = head.decode("utf-16", "ignore").encode()
    # A JSON file of another kind and a damaged pickle may have any name; a log may begin with a line of JSON.
    if head.startswith((b"\x80", b"PK")) or not head:
        return None
    rest = head.partition(b"\n")[2].lstrip()
    is_json = head.startswith(b'{"') and (not rest or rest.startswith((b"{", b'"', b"}", b"]")))
    if is_json and not _ROW_OF_LOSS.match(head):
        return None
    # Named logs may begin with zero bytes, where they were truncated while a job wrote.
    if _TEXT_NAME.fullmatch(path.name):
        return Kind.TEXT
    if path.suffix not in _TEXT_SUFFIXES:
        return None
    return Kind.TEXT if _TEXT_SIGNS.search(head) or (alone and _PASTED.search(head)) else None


def _tail_of(path: Path) -> bytes:
    """Return the last bytes of a file; empty if it is gzipped, or so short that `head_of` returns all of it."""
    with open_regular(path) as file:
        size = file.seek(0, os.SEEK_END)
        if size <= _HEAD_BYTES or path.suffix == ".gz":
            return b""
        file.seek(size - _HEAD_BYTES)
        return file.read(_HEAD_BYTES)


NAMES = tuple(
    (re.compile(pattern), kind)
    for pattern, kind in (
        (r"run\.json", Kind.MANIFEST),
        (r"parity\.json", Kind.MESHES),
        (r"error\.json", Kind.ERROR),
        (r"nccl_ras_[^/]+\.txt", Kind.RAS),
        (r"nvidia_smi_[^/]+\.txt", Kind.DEVICE_STATE),
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
"""Patterns for file names that only one program uses, and the kind of each."""


def kind_by_name(path: Path) -> Kind | None:
    if path.parent.name == "steps" and path.suffix == ".jsonl":
        return Kind.STEPS
    return next((kind for pattern, kind in NAMES if pattern.fullmatch(path.name)), None)


_RECORDING = re.compile(r"rank\d+_memory_snapshot\.pickle(?:\.gz)?|rank\d+_trace\.json(?:\.gz)?")
_DUMP, _DUMP_FOLDER = re.compile(r"rank_?\d+(?:\.json)?"), re.compile(r"dumps|comm_traces?|nccl_trace.*")


def is_named_recording(path: Path) -> bool:
    """Return whether PyTorch jobs give such a name to snapshots, traces or dumps; the contents are not checked."""
    is_dump = _DUMP.fullmatch(path.name) and _DUMP_FOLDER.fullmatch(path.parent.name)
    return bool(is_dump or _RECORDING.fullmatch(path.name))


def _kind_by_content(head: bytes) -> Kind | None:
    """Return the kind of a file according to its first bytes; None if they show no kind."""
    # Pickles of protocol 2 and later begin with this byte.
    if head.startswith(b"\x80"):
        return _pickled_kind(head)
    text = head.lstrip(b"\xef\xbb\xbf \t\r\n")
    if text.startswith((b"<", b"=== ", b"PARTIAL DATA")):
        return next((kind for pattern, kind in _DEBUG_PAGES if pattern.search(text)), None)
    # A JSON log may quote a line of the console.
    if not text.startswith(b"{") and _CONSOLE.search(text):
        return Kind.LOG
    # A line such as `[rank0]: ... expandable_segments:True` is no list.
    return _json_kind(text) if re.match(rb"\{|\[\s*[\[{]", text) else None


_OWN_SCHEMAS = ((b'"workbench.not_finite/', Kind.NOT_FINITE), (b'"workbench.values/', Kind.VALUES))


def _json_kind(text: bytes) -> Kind | None:
    """Return the kind of a JSON text according to the keys near its beginning; None if they show no kind."""
    if b'"log_type"' in text and b'"log_type_name"' in text:
        return Kind.STRUCTURED_LOG
    if b'"workbench.step' in text:
        return Kind.STEPS
    for schema, kind in _OWN_SCHEMAS:
        if schema in text[:200]:
            return kind
    if GANTT.search(text) and b'"schemaVersion"' not in text:
        return Kind.GANTT
    if b'"traceEvents"' in text or re.match(rb'\[\s*\{[^{}]*"ph"\s*:', text) or b'"schemaVersion"' in text:
        return Kind.TRACE
    return _pickled_kind(text)


def _pickled_kind(head: bytes) -> Kind | None:
    """Return the kind of a pickle or JSON file by its first known key: memory snapshot or Flight Recorder dump."""
    flight = _FLIGHT_KEYS.search(head)
    if _SNAPSHOT_SEGMENTS.search(head, 0, flight.start() if flight else len(head)):
        return Kind.SNAPSHOT
    return Kind.FLIGHT if flight else None


def head_of(path: Path) -> bytes:
    """Return the first bytes of a file, decompressed if it is gzipped; empty if the gzip is damaged."""
    with open_regular(path) as file:
        # None: a file of the kernel, such as /proc/kmsg, that has nothing to say now.
        head = file.read(_HEAD_BYTES) or b""
    if not head.startswith(b"\x1f\x8b"):
        return head
    try:
        # Only the first bytes are inflated: a bomb of a few kilobytes becomes no terabyte here.
        return zlib.decompressobj(wbits=31).decompress(head, _HEAD_BYTES)
    except zlib.error:
        return b""


_JSON_KINDS = (Kind.MANIFEST, Kind.MESHES, Kind.COLLECTION, Kind.EXIT, Kind.GROUPS, Kind.ERROR)
"""The kinds of files that are a single JSON object.

If one is damaged, the report names it, and is made without it.
"""
HEARTBEAT = re.compile(r"heartbeat_\d{1,9}\.bin")
BEAT = struct.Struct("<qqqq32s")
"""The fields of a heartbeat file: time in ns, step, process id, number of heartbeats, and phase."""
STACKS = re.compile(r"stacks_\d{1,9}\.txt")
_STACK_BYTES = 1 << 22
FRAME = re.compile(rb'^\s*File ".*", line \d+,? in .+$|^\s+.+ \([^()]+\)$|^\s*<no Python frame>$')
"""Matches a stack frame as faulthandler or py-spy prints it, or the line that is printed if there is none."""


def damage_of(path: Path, kind: Kind | None) -> str:
    """Return a phrase on why the contents of a file do not fit its name or its `kind`; empty if they fit.

    A file of a name or kind that is not checked always fits.

    Raises:
        OSError: The file cannot be read.
    """
    if HEARTBEAT.fullmatch(path.name):
        return _damage_of_heartbeat(path)
    if kind is None and is_named_recording(path) and path.exists():
        return "not what its name says: it is empty, or damaged"
    if kind in _JSON_KINDS and not is_whole_object(path):
        return "no whole JSON object: it was cut short, or damaged"
    if STACKS.fullmatch(path.name):
        return _damage_of_stacks(path)
    return ""


def _damage_of_heartbeat(path: Path) -> str:
    with open_regular(path) as file:
        # One byte more than a heartbeat has, to see a file that is too long.
        content = file.read(BEAT.size + 1)
    if len(content) != BEAT.size:
        return f"no heartbeat: it has not the {BEAT.size} bytes of one"
    *numbers, phase = BEAT.unpack(content)
    text = phase.rstrip(b"\0")
    is_plain = text.isascii() and text.decode("latin-1").isprintable()
    return "" if min(numbers) >= 0 and is_plain else "no heartbeat: its numbers or its phase make no sense"


def _damage_of_stacks(path: Path) -> str:
    """Return a phrase on the damage of a file of stack dumps; empty if it is not damaged.

    Damage means that the file has no frame, or ends in the middle of one.
    """
    with open_regular(path) as file:
        content = file.read(_STACK_BYTES)
    lines = content.splitlines()
    if not any(map(FRAME.match, lines)):
        return "no stack: it has no frame that faulthandler or py-spy would write"
    # Of a longer file only the beginning was read: its end says nothing.
    is_cut = len(content) < _STACK_BYTES and not content.endswith(b"\n") and not FRAME.match(lines[-1])
    return "a stack that was cut short: it ends in the middle of a line" if is_cut else ""
