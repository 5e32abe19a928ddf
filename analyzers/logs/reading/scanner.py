"""Read one log into events: only lines that may report an event are parsed, all others are skipped quickly."""

import re
from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path

import msgspec

from analyzers.case.facts import CUT_OFF, EventKind, Facts, LogEvent, Reason
from analyzers.failures.catalogue import is_clue
from analyzers.frames import Origin, origin_of
from analyzers.log_signs import failed_ranks, hint_in
from analyzers.logs.reading.line_patterns.pattern import Found
from analyzers.logs.reading.lines import (
    NO_PREFIX,
    SRUN_LABEL,
    Position,
    Prefix,
    chunks,
    clean,
    excerpt_of,
    global_rank,
    line_before,
    lines_after,
    parts_of,
    split_prefix,
    step_in,
    time_in,
)
from analyzers.logs.reading.nccl_lines import NcclLines
from analyzers.logs.reading.patterns import FILTER, NOISE, TRIGGERS, recognise
from analyzers.logs.reading.roster import Roster, TorchrunTable
from analyzers.logs.reading.tracebacks import (
    FRAME,
    FRAMES_AT_MOST,
    START,
    THREAD,
    Raised,
    Tracebacks,
    is_handled,
    is_wait,
    marked_as_survived,
    meaning_of,
    user_frame,
    with_circumstances,
    with_stack,
)
from analyzers.logs.reading.unread import UnreadLines

_LINES_OF_MESSAGE, _LINES_OF_HINT = 24, 3
"""The numbers of lines after the one that names the exception that can belong to its message, and hold its hint."""
_BLANK_AT_MOST, _LINES_OF_TRACEBACK, _LOOKED_AFTER_AT_MOST = 1, 80, 300
_LINES_AFTER_THE_END = 1
_LOGGED_AS_ERROR = re.compile(r"\b(?:ERROR|CRITICAL|FATAL)\b")
_USER_CODE = "from user code:"
"""The words of torch.compile before the frames of the code that it could not compile."""
_ENDS_ATTEMPT = (EventKind.EXIT, EventKind.SIGNAL, EventKind.TORCHRUN_FAILURE, EventKind.TORCHRUN_ROOT_CAUSE)
_FATAL = (
    *_ENDS_ATTEMPT, EventKind.EXCEPTION, EventKind.OUT_OF_MEMORY, EventKind.CUDA_ERROR, EventKind.WATCHDOG_TIMEOUT,
    EventKind.HOST_OUT_OF_MEMORY, EventKind.DATALOADER_WORKER, EventKind.STOP_REQUESTED, EventKind.TIMEOUT,
    EventKind.CONNECTION_LOST, EventKind.NCCL_ERROR, EventKind.HARDWARE, EventKind.DISK_FULL,
)  # fmt: skip
"""The kinds of events after which a start of the job is a further attempt."""
_ATTEMPTS_AT_MOST = 10_000
_ENDS_TRACEBACK = re.compile(r"\S")
_NEW_RECORD = re.compile(
    r"^\s*(?:\[?\d{4}-\d\d-\d\d|\d\d:\d\d:\d\d|[WIEF]\d{4} |\[[WIEF]\d{3}|\[\d+/\d+\]|\{'|\d{1,3}%\|"
    r"|srun:|slurmstepd:|wandb:|Killed\b|[A-Z][a-z]{2} {1,2}\d{1,2} \d\d:\d\d"
    r"|\[?(?:INFO|WARNING|ERROR|DEBUG)\b|(?:[Ss]tep|[Ii]ter(?:ation)?|[Ee]poch)\W{0,4}\d)"
)
"""Matches the first line of the next record of a log, which belongs to no message before it."""


def _message_after(at: Position, key: str, bare: Callable[[str, str], str], *, labelled: bool) -> list[str]:
    """Return the further lines of an exception's message, whose first line is at `at`.

    `key` is the prefix of the lines of its process, and `labelled` says whether srun put a label before each line.
    `bare` takes off what else stands before each of them.
    """
    lines: list[str] = []
    blank = 0
    for line in lines_after(at, _LINES_OF_MESSAGE):
        prefix, body = split_prefix(line, labelled)
        # Lines of other processes may come between.
        if prefix.key != key:
            continue
        body = bare(key, body)
        blank = 0 if body.strip() else blank + 1
        if blank > _BLANK_AT_MOST or START.search(body) or FRAME.search(body) or _NEW_RECORD.search(body):
            break
        lines.append(body)
    return lines


def _frames_after(at: Position, key: str, *, labelled: bool) -> list[tuple[str, int, str]]:
    """Return the frames of the first traceback in the lines after `at` of the process with the prefix `key`."""
    frames: list[tuple[str, int, str]] = []
    for line in lines_after(at, _LINES_OF_TRACEBACK):
        prefix, body = split_prefix(line, labelled)
        if prefix.key != key:
            continue
        if match := FRAME.search(body):
            frames.append((match[1], int(match[2]), match[3] or ""))
        elif frames and _ENDS_TRACEBACK.match(body):
            break
    return frames


# Read, in the lines before an event, its training step and its device.

_STEP_BYTES, _LINE_LENGTH = 1 << 13, 1000
"""The number of bytes before an event that are searched for a step, and the longest line that is searched."""
DEVICE = re.compile(rb"NVRM: The NVIDIA GPU ([0-9A-Fa-f]{4,8}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.\d)")
_DEVICE_BYTES = 300
_OF_DEVICE = (Reason.FALLEN_OFF_BUS, Reason.UNSUPPORTED_DEVICE)
_NAMES_A_STEP = re.compile(rb"[Ss]tep|[Ii]ter")


def step_of(found: Found, text: str, at: Position, rank: int | None, labelled: bool) -> int | None:
    """Return the training step of the event `found`; None if it is unknown.

    `text` is the event's line, `at` its position, and `rank` the rank that printed it. For a loss that is NaN, the step
    is in this line, if it has one. Otherwise it is the last step printed shortly before by the rank, or by a line
    without a rank. `labelled` says whether srun put a label before each line.
    """
    own = step_in(text) if found.kind in (EventKind.NAN, EventKind.STARTED) else None
    return own if own is not None else step_before(at, rank, labelled)


def _with_device(found: Found, at: Position) -> Found:
    """Return `found` with the PCI address of the device that the driver named in the lines before position `at`.

    The driver begins its message with `NVRM: The NVIDIA GPU 0000:9d:00.0` and wraps it, so that only the next lines
    show the problem of this device. Events that are not about a device are returned unchanged.
    """
    if found.facts.reason not in _OF_DEVICE or found.facts.pci:
        return found
    end = at.chunk.find(b"\n", at.start)
    named = DEVICE.findall(at.chunk, max(0, at.start - _DEVICE_BYTES), end if end >= 0 else len(at.chunk))
    return found._replace(facts=msgspec.structs.replace(found.facts, pci=named[-1].decode())) if named else found


def step_before(at: Position, rank: int | None, labelled: bool) -> int | None:
    """Return the last step that `rank`, or a line without a rank, printed shortly before position `at`; None if none.

    `labelled` says whether srun put a label before each line.
    """
    text = at.chunk[max(0, at.start - _STEP_BYTES) : at.start]
    if not _NAMES_A_STEP.search(text):
        return None
    others = None
    # The first one may be a part of a line.
    for raw in reversed(re.split(rb"[\r\n]", text)[at.start > _STEP_BYTES :]):
        if not _NAMES_A_STEP.search(raw):
            continue
        line = clean(raw[:_LINE_LENGTH])
        prefix, body = split_prefix(line, labelled)
        if NOISE.search(line) or (step := step_in(body)) is None:
            continue
        if prefix.rank in (None, rank):
            return step
        others = step if others is None else others
    # Many jobs print steps on one rank only.
    return others


# Store the events of one log in their order; a repetition of an event is counted, but not stored again.

_EVENTS_AT_MOST = 2000


@dataclass
class EventList:
    """The events found in one log.

    `clocks` has, for each event, the last time that the log had printed by then, in ns since 1970 (0: none). `left_out`
    counts the events that came after the first `_EVENTS_AT_MOST`. `known` is {identity of a stored event: its index};
    an event with the same identity counts as a repetition.
    """

    kept: list[LogEvent] = field(default_factory=list)
    clocks: list[int] = field(default_factory=list)
    left_out: int = 0
    known: dict[Hashable, int] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.kept)

    def __iter__(self) -> Iterator[LogEvent]:
        return iter(self.kept)

    def __getitem__(self, index: int) -> LogEvent:
        return self.kept[index]

    def add(self, identity: Hashable, clock: int, make: Callable[[], LogEvent]) -> int | None:
        """Store the event that `make` returns, or count it as a repetition of the stored event with this `identity`.

        `clock` is the last time that the log has printed, in ns since 1970. Return the index of the stored event, or
        None if too many events are stored already.
        """
        if identity in self.known:
            index = self.known[identity]
            self.change(index, count=self.kept[index].count + 1)
            return index
        if len(self.kept) >= _EVENTS_AT_MOST:
            self.left_out += 1
            return None
        self.known[identity] = len(self.kept)
        self.clocks.append(clock)
        self.kept.append(make())
        return len(self.kept) - 1

    def change(self, index: int, **fields: object) -> None:
        """Set fields of the stored event with this index; they are known only from a later line."""
        self.kept[index] = msgspec.structs.replace(self.kept[index], **fields)

    def last_of(self, kinds: tuple[EventKind, ...]) -> int | None:
        return next((i for i in range(len(self.kept) - 1, -1, -1) if self.kept[i].kind in kinds), None)

    def replace_by_last(self, earlier: int, index: int) -> int:
        """Replace event `earlier` by the last event, which is about the same failure; return its index.

        `index` is the result of `add` for the last event. If the last event only repeats an older event, or if
        `earlier` was repeated, nothing changes, and the result is `index`.
        """
        if index != len(self.kept) - 1 or self.kept[earlier].count > 1:
            return index
        self.kept[earlier] = self.kept.pop()
        self.clocks.pop()
        self.known = {key: earlier if number == index else number for key, number in self.known.items()}
        return earlier


def _without_digits(message: str) -> str:
    """Return the beginning of a message without its digits; it is equal for repetitions of an event."""
    return re.sub(r"\d+", "", message[:200])


# Skip the lines of a log that report no event: most lines differ from an earlier one only in digits.
#
# The *shape* of a line is the line without its digits.

DIGITS = b"0123456789"
_KNOWN_AT_MOST, _KNOWN_BYTES = 50_000, 600
"""The most shapes (lines without digits) that are remembered as irrelevant, and the most bytes of a shape."""
_READ_ON = 30
"""The number of lines that are parsed after a line with an event; these lines of its block may match no pattern."""
_DEPENDS_ON_DIGITS = re.compile(rb"Xid|rrno|NET/IB|xitcode|exit code|rank      :")


@dataclass
class LineFilter:
    """A memory of the lines that report no event, to skip similar lines; lines are compared without their digits.

    `boring` has the shapes (lines without their digits) that are known to report no event. `left_to_parse` is the
    number of next lines that are parsed whatever their shape, because a block of lines, such as a traceback, has begun.
    """

    boring: set[bytes] = field(default_factory=set)
    left_to_parse: int = 0
    odd: set[bytes] = field(default_factory=set)
    """The shapes among those last given to `suspects` that may look like errors, read by a pattern or not."""

    def read_on(self) -> None:
        """Let the next `_READ_ON` lines be parsed, whatever their shape."""
        self.left_to_parse = _READ_ON

    def suspects(self, shapes: set[bytes]) -> set[bytes]:
        """Return the shapes whose lines may report an event; a shape is a line without its digits.

        Shapes without any word of a pattern are left out, and so are shapes whose lines reported no event before.
        """
        fresh = shapes - self.boring
        if not fresh:
            self.odd = set()
            return fresh
        read, odd = FILTER.with_words(fresh)
        suspects, self.odd = set(read), set(odd)
        for shape in fresh - suspects:
            self.skip(shape)
        return suspects

    def matters(self, shape: bytes) -> bool:
        """Return whether a line of this shape (the line without its digits) must be parsed for events.

        Call this method exactly once for each line, because it counts the lines of a block that are parsed anyway.
        """
        if self.left_to_parse:
            self.left_to_parse -= 1
            return True
        if shape in self.boring:
            return False
        if TRIGGERS.search(shape):
            return True
        self.skip(shape)
        return False

    def skip(self, shape: bytes) -> None:
        """Skip lines of this shape (a line without its digits) from now on, because they report no event."""
        if len(shape) <= _KNOWN_BYTES:
            if len(self.boring) >= _KNOWN_AT_MOST:
                # All are forgotten, because frequent shapes are soon known again, and an order of use would cost time
                # for each line.
                self.boring.clear()
            self.boring.add(shape)

    def skip_unless_digits_matter(self, shape: bytes) -> None:
        """Skip lines of this shape from now on, after one of them reported no event, unless digits could change this.

        A shape is a line without its digits.
        """
        if not self.left_to_parse and not _DEPENDS_ON_DIGITS.search(shape) and b"Error" not in shape:
            self.skip(shape)


# Read the stacks that a log shows after an event, to find the user's line of this event.
#
# Such stacks are printed after a crash, when a timer of Python's fault handler expires, and by NCCL's watchdog after
# a timeout.

_STACK_LINE = re.compile(r"^#\d{1,3} (\S{1,200}) from (.{1,500}):(\d{1,9})$")
"""Matches a line of the stack that NCCL's watchdog prints for a collective that timed out."""
TIMED_OUT = (EventKind.WATCHDOG_TIMEOUT, EventKind.DESYNC)


@dataclass
class Dump:
    """An event after which the log shows stacks: a crash in native code, or a timer of Python's fault handler.

    `index` is the event's index among the events of the log. `is_current`: the lines being read belong to the thread
    that crashed. `stack` is None for a crash; for a timer it has the frames read so far of the present thread.
    """

    index: int
    is_current: bool = False
    stack: list[tuple[str, str, str]] | None = None


@dataclass
class StackReader:
    """Adds the user's line to events, from the stacks that the log prints after them.

    `open` has, for each process (by the prefix of its lines), the event whose stacks are being read.
    """

    events: EventList
    lines: LineFilter
    open: dict[str, Dump] = field(default_factory=dict)

    def expect(self, found: Found, text: str, key: str, index: int) -> None:
        """Prepare for reading the stacks that follow an event, if it is a crash or a timer of Python's fault handler.

        `key` is the prefix of the lines of the process, `text` the event's line, and `index` the index of the event.
        """
        if found.kind is EventKind.STACKS:
            # The latest stack counts.
            self.events.change(index, source="")
            self.open[key] = Dump(index, stack=[])
        elif "Fatal Python error" in text:
            self.open[key] = Dump(index)

    def takes(self, key: str, body: str) -> bool:
        """Parse a line of the stacks that Python's fault handler prints; return whether the line is one.

        The user's innermost line of the crashed thread becomes the source of the event. `key` is the prefix of the
        lines of the process, `body` the line without this prefix.
        """
        dump = self.open.get(key)
        if dump is None:
            return False
        if match := THREAD.search(body):
            dump.is_current = match[1] == "Current thread"
            dump.stack = None if dump.stack is None else []
            self.lines.read_on()
            return True
        if match := FRAME.search(body):
            self.take_frame(dump, (match[1], match[2], match[3] or ""))
            return True
        if "Extension modules" in body or (dump.stack is not None and body.strip()):
            del self.open[key]
        return False

    def take_frame(self, dump: Dump, frame: tuple[str, str, str]) -> None:
        """Use a frame of a stack after a crash or a timer to add the user's line to the event of `dump`.

        `frame` is (file, line, function). A timer prints the stacks of all threads; only the stack of the main thread
        is used, which has the outermost frame `<module>`.
        """
        event = self.events[dump.index]
        if dump.stack is not None and len(dump.stack) < FRAMES_AT_MOST:
            dump.stack.append(frame)
            if frame[2] == "<module>" and not event.source:
                self.events.kept[dump.index] = with_stack(event, dump.stack)
        elif dump.is_current and not event.source and origin_of(frame[0]) is Origin.USER:
            self.events.change(dump.index, source=f"{frame[0]}:{frame[1]}", function=frame[2])

    def takes_timeout_frame(self, body: str) -> bool:
        """Parse a frame of the stack that PyTorch prints after a collective timed out; return whether the line is one.

        `body` is the line. It counts only if the log has reported a timeout before. The innermost frame is printed
        first; the first frame of the user's code becomes the source of the last timeout event.
        """
        match = _STACK_LINE.match(body)
        index = self.events.last_of(TIMED_OUT) if match else None
        if match is None or index is None:
            return False
        self.lines.read_on()
        if not self.events[index].source and origin_of(match[2]) is Origin.USER:
            self.events.change(index, source=f"{match[2]}:{match[3]}", function=match[1])
        return True


_GZIP_RATIO = 50
LINES_AT_MOST = 100_000
END_BYTES, HEAD_BYTES = 1 << 22, 1 << 16
"""The number of bytes at the end of a log that are parsed even after LINES_AT_MOST lines that may report errors."""
_UNFINISHED, _BROKEN_AT_MOST = re.compile(r"caught collective operation timeout:\s*(?:WorkNCCL\([^)]*)?$"), 3
"""Matches a report of the watchdog that goes on in at most so many further lines."""
_MESSAGE_LENGTH, _DETAILS_AT_MOST, _CALLS_AT_MOST = 1000, 2000, 60
_AROUND_BYTES, _TRACEBACK_BYTES = (300, 900), (1600, 300)
"""The numbers of bytes before and after the line of an event that are kept as its excerpt.

The first pair is for all events but exceptions, the second pair for exceptions.
"""
_WIDTH_AT_LEAST, _WRAPPED_SHARE, _WRAPPED_AT_MOST = 60, 0.25, 12
"""A console wrapped the lines of a log if this share of the first lines has the same, greatest width of at least the
first number; at most the last number of lines are joined."""
SKIPPED = {"ChildFailedError", "CalledProcessError", "SystemExit", "ProcessExitedException", "ProcessRaisedException"}
"""The exceptions that launchers raise because a rank failed; they are not events of their own."""
_BROKEN_FRAME = re.compile(r'\s*File "(?!.*, in )')
"""Matches a frame of a traceback that is broken before the name of its function."""
_QUOTED = re.compile(r"[|>] ")
"""Matches a line of another log that a program quotes; tracebacks of exception groups have blanks before the bar."""
_CAUGHT_IN_WORKER = re.compile(r"^Caught \w+ in (?:DataLoader worker process|replica \d)")


@dataclass
class Scanner:
    """The state of reading one log: the events found so far, and the data needed to recognise further events.

    `lines` counts the lines that were read, `taken` those that were parsed, and `skipped` the bytes that were not read.
    `clock` is the last printed time, in ns since 1970. The keys of two dicts are the prefixes of the processes' lines.
    `latest` has the index of the event of the process's last exception. `caught` has the index of an exception by which
    a data loader announced that its worker failed; the worker's own exception follows in the log.
    """

    year: int
    rank: int | None = None
    events: EventList = field(default_factory=EventList)
    filter: LineFilter = field(default_factory=LineFilter)
    roster: Roster = field(default_factory=Roster)
    nccl: NcclLines = field(default_factory=NcclLines)
    unread: UnreadLines = field(default_factory=UnreadLines)
    lines: int = 0
    taken: int = 0
    skipped: int = 0
    binary: bool = False
    head: str = ""
    """The first part of the log: at most `HEAD_BYTES`."""
    labelled: bool = False
    width: int = 0
    """The width at which a console wrapped the lines; 0 if it did not."""
    clock: int = 0
    attempt: int = 0
    """The number of times that the job was started again in this log."""
    has_start: bool = False
    """Whether a line with the first step of this attempt was read."""
    first_of_attempt: int = 0
    """The index of the first event of this attempt."""
    tracebacks: Tracebacks = field(default_factory=Tracebacks)
    table: TorchrunTable = field(default_factory=TorchrunTable)
    stacks: StackReader = field(init=False)
    caught: dict[str, int] = field(default_factory=dict)
    latest: dict[str, int] = field(default_factory=dict)
    borrowed: set[str] = field(default_factory=set)
    """The prefixes of processes whose exception stands above its traceback."""
    wrapper: tuple[Raised, Position, Prefix] | None = None
    """The last exception of a launcher, which is an event only if the log has no other."""
    message_below: dict[str, str] = field(default_factory=dict)
    """{prefix of the lines of a process: the line below its exception that is the message of that}."""
    joined: int = 0
    """The number of the line that was read with the one before it, where a console wrapped a frame."""
    logged_last: tuple[int, int] = (-1, 0)
    """The index of the last exception that a logger printed as an error, and the number of the last line of it."""
    last_frames: dict[str, Position] = field(default_factory=dict)
    """{prefix of the lines of a process: where its last frame stands}."""
    before: dict[str, str] = field(default_factory=dict)
    """{prefix of the lines of a process with an open traceback: the line before this traceback}."""

    def __post_init__(self) -> None:
        """Create the reader of stacks, which completes the events of this log."""
        self.stacks = StackReader(self.events, self.filter)

    def read(self, path: Path) -> None:
        """Read a whole log.

        Once `LINES_AT_MOST` lines that may report errors were parsed, only the end of the log (`END_BYTES`) is parsed
        further.
        """
        # How much a gzipped log holds is unknown until it is read.
        rest = path.stat().st_size * (_GZIP_RATIO if path.suffix == ".gz" else 1)
        chunk = b"\n"
        for number, chunk in enumerate(chunks(path)):
            if number == 0:
                self.begin(chunk)
            rest -= len(chunk)
            if self.taken < LINES_AT_MOST or rest < END_BYTES:
                self.scan(chunk)
            else:
                self.skipped += len(chunk)
            self.roster.look(chunk, TRIGGERS, self.labelled, self.lines + 1)
            self.nccl.look(chunk, self.lines + 1)
            self.lines += chunk.count(b"\n")
        self.lines += not chunk.endswith(b"\n")
        self.end_tracebacks(chunk)
        if self.wrapper and not self.events.kept and not self.wrapper[0].name.endswith("SystemExit"):
            raised, at, prefix = self.wrapper
            self.add(Found(EventKind.EXCEPTION), raised.text, at, prefix, replace(raised, frames=[]))
        self.events.kept = [marked_as_survived(event, self.roster) for event in self.events]
        index, last = self.logged_last
        if 0 <= index < len(self.events) and last + _LINES_AFTER_THE_END >= self.lines:
            facts = msgspec.structs.replace(self.events[index].facts, ends_log=True)
            self.events.change(index, facts=facts)

    def end_tracebacks(self, chunk: bytes) -> None:
        """Add an event for each traceback that the end of the log has cut off: its last line is missing."""
        for key, trace in self.tracebacks.open.items():
            # Frames below a message are those of the message.
            if not trace.frames or key in self.borrowed or key in self.latest:
                continue
            raised = Raised(CUT_OFF, "", trace.frames, [], trace.code)
            end = Position(chunk, chunk.rstrip(b"\n").rfind(b"\n") + 1, self.lines)
            at = self.last_frames.get(key, end)
            prefix, _ = split_prefix(key, self.labelled)
            self.add(Found(EventKind.EXCEPTION), CUT_OFF, at, replace(prefix, key=key), raised)

    def begin(self, chunk: bytes) -> None:
        """Determine from a log's first lines whether srun put labels before them, and whether it is binary."""
        head = chunk[:4096]
        self.binary = head.count(b"\0") * 20 > len(head)
        if not self.binary:
            self.head = "\n".join(map(clean, chunk[:HEAD_BYTES].split(b"\n")))
        first = [clean(line) for line in head.split(b"\n")[:20] if line.strip()]
        widths = [len(line.rstrip(b"\r")) for line in chunk[: 1 << 16].split(b"\n")[:400] if line.strip()]
        widest = max(widths, default=0)
        is_wrapped = len(widths) > 2 and widths.count(widest) >= max(2, _WRAPPED_SHARE * len(widths))
        self.width = widest if is_wrapped and widest >= _WIDTH_AT_LEAST else 0
        self.tracebacks.is_quoted = len(first) > 1 and sum(line.startswith(">") for line in first) > 0.8 * len(first)
        # Most lines and not all, because srun's own messages have no label.
        self.labelled = bool(first) and 2 * sum(bool(SRUN_LABEL.match(line)) for line in first) > len(first)

    def scan(self, chunk: bytes) -> None:
        """Parse the lines of a chunk that may report events.

        Most lines of a log differ from an earlier line only in their digits. So each line without its digits is looked
        up among the lines that are known to report no event.
        """
        start, counted, number = 0, 0, self.lines + 1
        shapes = chunk.translate(None, DIGITS).split(b"\n")
        lines = self.filter
        suspects = lines.suspects(set(shapes))
        # Equal in number, as digits are no line ends.
        for raw, shape in zip(chunk.split(b"\n"), shapes, strict=True):
            if (lines.left_to_parse or shape in suspects) and lines.matters(shape):
                number += chunk.count(b"\n", counted, start)
                counted = start
                self.taken += 1
                for part in parts_of(raw, TRIGGERS):
                    self.take(clean(part), shape, Position(chunk, start, number))
            elif lines.odd and shape in lines.odd:
                lines.odd.discard(shape)
                number += chunk.count(b"\n", counted, start)
                counted = start
                self.unread.note(clean(raw[:_MESSAGE_LENGTH]), shape, number)
            start += len(raw) + 1

    def take(self, text: str, shape: bytes, at: Position) -> None:
        """Parse one line (`text`) that may report an event; add the event that it reports, or complete an earlier one.

        `shape` is the line without its digits, `at` its position.
        """
        if at.number == self.joined:
            return
        text = self.tracebacks.unquoted(text)
        prefix, body = split_prefix(text, self.labelled)
        if self.width and len(text) >= self.width and _BROKEN_FRAME.match(body):
            body += next(iter(lines_after(at, 1)), "")
            self.joined = at.number + 1
        self.clock = time_in(text, self.year) or self.clock
        if failure := self.table.feed(body):
            # The block of the next rank follows.
            self.filter.read_on()
            self.add(failure, body, at, prefix)
            return
        if START.search(body):
            self.before[prefix.key] = split_prefix(line_before(at), self.labelled)[1]
            if self.before[prefix.key].rstrip().endswith(":"):
                self.unread.drop(at.number - 1)
        if _QUOTED.match(body) or self.stacks.takes(prefix.key, body) or self.follow_box(prefix.key, body):
            return
        if body.strip() == self.message_below.get(prefix.key):
            del self.message_below[prefix.key]
            return
        body = self.tracebacks.bare(prefix.key, body)
        raised = self.tracebacks.feed(prefix.key, body)
        if FRAME.search(body):
            self.last_frames[prefix.key] = at
        if raised:
            self.filter.read_on()
            self.add_exception(raised, at, prefix)
            return
        if self.stacks.takes_timeout_frame(body):
            return
        is_of_stack = FRAME.search(body) or self.tracebacks.is_code(prefix.key, body)
        found = None if is_of_stack else recognise(text) or self.recognise_wrapped(text, at)
        if found and found.kind is EventKind.STARTED:
            self.begin_attempt(found, text, at, prefix)
            # An entry of the catalogue may compare the step with others.
            found = Found(EventKind.CLUE) if is_clue(text) else None
        if found:
            self.filter.read_on()
            if is_handled(found.kind, text):
                found = found._replace(facts=msgspec.structs.replace(found.facts, survived=True))
            index = self.add(_with_device(found, at), text, at, prefix)
            if index is not None:  # else the log has too many events
                self.stacks.expect(found, text, prefix.key, index)
        elif FRAME.search(body) or "most recent call" in body:
            self.filter.read_on()
        else:
            self.filter.skip_unless_digits_matter(shape)
            # In the block after an event stand further lines of its message.
            if not is_of_stack and not self.filter.left_to_parse and not NOISE.search(text):
                self.unread.note(text, shape, at.number)

    def begin_attempt(self, found: Found, text: str, at: Position, prefix: Prefix) -> None:
        """Begin a further attempt if one has failed before, and the line at hand shows that the job starts again.

        `found` has the number of the attempt or its first step, as far as the line (`text`, at `at`, after `prefix`)
        gives them.
        """
        start = found.facts
        failures = [event for event in self.events.kept[self.first_of_attempt :] if event.kind in _FATAL]
        steps = [event.step for event in failures if event.step is not None]
        has_ended = any(event.kind in _ENDS_ATTEMPT for event in failures)
        is_again = start.joined is None or has_ended or any(start.joined <= step + 1 for step in steps)
        if failures and is_again and self.attempt < _ATTEMPTS_AT_MOST:
            self.attempt += 1
            self.first_of_attempt = len(self.events)
            self.latest.clear()
            self.has_start = False
        if start.joined is not None and not self.has_start:
            self.has_start = True
            self.add(found._replace(facts=Facts()), text, at, prefix)

    def recognise_wrapped(self, text: str, at: Position) -> Found | None:
        """Return the event of a line that a console or a person has broken, read together with its further lines."""
        if not self.width or len(text) < self.width:
            if not _UNFINISHED.search(text):
                return None
            return recognise(" ".join([text.rstrip(), *(line.strip() for line in lines_after(at, _BROKEN_AT_MOST))]))
        whole, begin = text, text.split(maxsplit=1)[:1]
        for line in lines_after(at, _WRAPPED_AT_MOST):
            if line.split(maxsplit=1)[:1] == begin:
                # A further row of the same kind, which has the same length.
                break
            whole += line
            if len(line) < self.width:
                break
        return recognise(whole)

    def follow_box(self, key: str, body: str) -> bool:
        """Parse a line if it belongs to a traceback drawn in a box of characters; return whether it does.

        `key` is the prefix of the lines of the process, `body` the line without this prefix.
        """
        is_inside = self.tracebacks.feed_box(key, body)
        if is_inside:
            self.filter.read_on()
        return is_inside

    def add_exception(self, raised: Raised, at: Position, prefix: Prefix) -> None:
        """Add an exception as an event, unless it only follows from an earlier failure.

        `raised` is the exception, `at` the position of the line that names it, and `prefix` the prefix of its process's
        lines. Class and text of the exception decide the kind of the event. An exception that was raised while another
        one was handled takes the place of the other's event, because both are about the same failure.
        """
        name = raised.name.rpartition(".")[2]
        first = self.latest.get(prefix.key) if raised.chain else None
        # What a rank raises after it gave up waiting is a consequence, whatever it is.
        if name in SKIPPED:
            self.wrapper = (raised, at, prefix)
            return
        if first is not None and is_wait(self.events[first].kind, self.events[first].facts):
            return
        is_early = len(self.events) < _LOOKED_AFTER_AT_MOST
        further = _message_after(at, prefix.key, self.tracebacks.bare, labelled=self.labelled) if is_early else []
        hint = raised.hint or next(filter(None, map(hint_in, further[:_LINES_OF_HINT])), None)
        if raised.goes_on and (first_line := next((line.strip() for line in further if line.strip()), "")):
            self.message_below[prefix.key] = first_line
            raised = replace(raised, message=f"{raised.message} {first_line}".strip())
        raised = replace(raised, details="\n".join(further).strip("\n")[:_DETAILS_AT_MOST])
        if _USER_CODE in raised.details:
            raised = replace(
                raised,
                frames=[*raised.frames, *_frames_after(at, prefix.key, labelled=self.labelled)][-FRAMES_AT_MOST:],
            )
        if not raised.frames and is_early:
            # Excerpts in reports often have the message first.
            raised = replace(raised, frames=_frames_after(at, prefix.key, labelled=self.labelled))
            self.borrowed |= {prefix.key} if raised.frames else set()
        found = meaning_of(raised)
        before = self.before.pop(prefix.key, "")
        facts = with_circumstances(found.facts, raised, before, has_rank="[rank" in prefix.key)
        found = found._replace(facts=msgspec.structs.replace(facts, hint=hint))
        if raised.of_rank is not None:
            self.add_relayed(found, raised, at, replace(prefix, rank=raised.of_rank))
            return
        index = self.add(found, raised.text, at, prefix, raised)
        if index is None:
            return
        if facts.logged and _LOGGED_AS_ERROR.search(before):
            self.logged_last = (index, at.number + sum(line[:1] in (" ", "\t") for line in further))
        announced = self.caught.pop(prefix.key, None)
        # The code that handles an error may wait for ranks that wait for this one: then the error is the cause.
        if announced is None and raised.chain and not is_wait(found.kind, found.facts):
            announced = self.latest.get(prefix.key)
        if announced is not None and announced != index:
            # The worker's own exception follows the one that its loader raised; a chain ends with the one that counts.
            index = self.events.replace_by_last(announced, index)
        self.latest[prefix.key] = index
        if _CAUGHT_IN_WORKER.match(raised.message):
            self.caught[prefix.key] = index

    def add_relayed(self, found: Found, raised: Raised, at: Position, prefix: Prefix) -> None:
        """Add the event of an exception that one rank raised, and that a second exception then reports on all ranks.

        PyTorch relays errors in this way, for example in distributed checkpoints. `found` and `raised` describe the
        first exception; its event takes the place of the relaying exception's event. `prefix` has the rank that raised
        it.
        """
        index = self.add(found, raised.text, at, prefix, raised)
        relaying = self.latest.get(prefix.key)
        if index is not None and relaying is not None and failed_ranks(self.events[relaying].message):
            self.events.replace_by_last(relaying, index)

    def add(
        self, found: Found, text: str, at: Position, prefix: Prefix = NO_PREFIX, raised: Raised | None = None
    ) -> int | None:
        """Add the event `found`, or count it as a repetition of an earlier one; return its index, None if too many.

        `text` is the event's line, `at` its position, and `prefix` what comes before the line's message; `raised` is
        the exception that the event reports, if any.
        """
        rank = self.rank_of(found, text, prefix)
        frame = user_frame(raised.frames) if raised else None
        message = text.strip()[:_MESSAGE_LENGTH]
        source = f"{frame[0]}:{frame[1]}" if frame else ""
        facts = found.facts if found.facts.local_rank is not None else _with_local_rank(found.facts, prefix.local_rank)
        identity = (self.attempt, found.kind, rank, prefix.key, found.seq, found.group, facts.reason,
                    _without_digits(message), source,
                    facts.pid if found.kind is EventKind.EXIT else facts.exit_code)  # fmt: skip
        return self.events.add(
            identity,
            self.clock,
            lambda: LogEvent(
                kind=found.kind,
                message=message,
                rank=rank,
                time_ns=self.time_of(found, text),
                line=at.number,
                step=step_of(found, text, at, rank, self.labelled),
                group=found.group,
                seq=found.seq,
                attempt=self.attempt,
                source=source,
                function=frame[2] if frame else "",
                chain=[link.text[:_MESSAGE_LENGTH] for link in raised.chain] if raised else [],
                details=raised.details if raised else "",
                calls=[f"{file}:{line}:{name}" for file, line, name in raised.frames[-_CALLS_AT_MOST:]]
                if raised
                else [],
                facts=facts,
                # Of an exception what comes before its own line is the traceback.
                excerpt=excerpt_of(at.chunk, at.start, *(_TRACEBACK_BYTES if raised else _AROUND_BYTES)),
            ),
        )

    def time_of(self, found: Found, text: str) -> int | None:
        """Return the time of event `found` in ns since 1970, from its line `text` or torchrun's table, or None."""
        is_table = found.kind in (EventKind.TORCHRUN_FAILURE, EventKind.TORCHRUN_ROOT_CAUSE)
        return time_in(self.table.time if is_table else text, self.year)

    def rank_of(self, found: Found, text: str, prefix: Prefix) -> int | None:
        """Return the global rank that the event `found` is about; None if neither its line nor its file shows one.

        `text` is the line, `prefix` what launchers and loggers put before it.
        """
        # A traceback inside of torchrun's table is that of the table's rank.
        named = [prefix.rank, found.rank, global_rank(text), self.table.rank]
        # The rank in a group is that of the job only in the default group.
        if found.facts.group_rank is not None and found.group in (None, "default_pg", "0"):
            named.append(found.facts.group_rank)
        return next((rank for rank in named if rank is not None), self.rank)


def _with_local_rank(facts: Facts, local_rank: int | None) -> Facts:
    """Return an event's facts with the local rank from its line's prefix; unchanged if `local_rank` is None."""
    return facts if local_rank is None else msgspec.structs.replace(facts, local_rank=local_rank)


def scan(path: Path) -> Scanner:
    """Return a scanner that has read a whole log."""
    # Many loggers print no year, and the year of the last change is most often right.
    changed = datetime.fromtimestamp(path.stat().st_mtime, UTC)
    scanner = Scanner(changed.year)
    scanner.read(path)
    return scanner
