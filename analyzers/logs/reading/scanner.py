"""Read one log into events: only lines that may report an event are parsed, all others are skipped quickly."""

import re
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path

import msgspec

from analyzers.frames import Origin, origin_of
from analyzers.logs.model import EventKind, Facts, LogEvent, Reason
from analyzers.logs.reading.aftermath import (
    is_handled,
    marked_as_survived,
    with_circumstances,
    with_stack,
)
from analyzers.logs.reading.chains import is_wait, meaning_of
from analyzers.logs.reading.line_patterns.pattern import Found
from analyzers.logs.reading.patterns import FILTER, NOISE, TRIGGERS, recognise
from analyzers.logs.reading.prefixes import (
    NO_PREFIX,
    SRUN_LABEL,
    Prefix,
    global_rank,
    split_prefix,
    step_in,
    time_in,
)
from analyzers.logs.reading.roster import Roster
from analyzers.logs.reading.text import Position, chunks, clean, excerpt_of, line_before, parts_of
from analyzers.logs.reading.torchrun_table import TorchrunTable
from analyzers.logs.reading.tracebacks import (
    FRAME,
    FRAMES_AT_MOST,
    START,
    THREAD,
    Raised,
    Tracebacks,
    user_frame,
)
from analyzers.relayed import failed_ranks

DIGITS = b"0123456789"
KNOWN_AT_MOST, KNOWN_BYTES = 50_000, 600
"""How many shapes (lines without digits) are remembered as irrelevant, and how long such a line may be in bytes."""
READ_ON = 30
"""How many lines are parsed after one that reports an event: the next lines of its block may match no pattern."""
GZIP_RATIO = 50
LINES_AT_MOST = 100_000
END_BYTES = 1 << 22
"""How many bytes at the end of a log are parsed even after LINES_AT_MOST lines that may report errors."""
EVENTS_AT_MOST = 2000
MESSAGE_LENGTH = 1000
STEP_BYTES = 1 << 13
DEVICE = re.compile(rb"NVRM: The NVIDIA GPU ([0-9A-Fa-f]{4,8}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.\d)")
DEVICE_BYTES = 300
OF_DEVICE = (Reason.FALLEN_OFF_BUS, Reason.UNSUPPORTED_DEVICE)
NAMES_A_STEP = re.compile(rb"[Ss]tep|[Ii]ter")
AROUND_BYTES, TRACEBACK_BYTES = (300, 900), (1600, 300)
"""How many bytes before and after the line of an event are kept as its excerpt; the second pair is for exceptions."""
DEPENDS_ON_DIGITS = re.compile(rb"Xid|rrno|NET/IB|xitcode|exit code|rank      :")
SKIPPED = {"ChildFailedError", "CalledProcessError", "SystemExit", "ProcessExitedException", "ProcessRaisedException"}
"""The exceptions that launchers raise because a rank failed; they are not events of their own."""
QUOTED = re.compile(r"[|>] ")
"""Matches a line of another log that a program quotes; tracebacks of exception groups have blanks before the bar."""
STACK_LINE = re.compile(r"^#\d{1,3} (\S{1,200}) from (.{1,500}):(\d{1,9})$")
"""Matches a line of the stack that NCCL's watchdog prints for a collective that timed out."""
TIMED_OUT = (EventKind.WATCHDOG_TIMEOUT, EventKind.DESYNC)
CAUGHT_IN_WORKER = re.compile(r"^Caught \w+ in DataLoader worker process")


@dataclass
class Fatal:
    """An event after which the log shows stacks: a crash in native code, or a timer of Python's fault handler.

    `index` is the event's index among the events of the log. `is_current` says whether the lines that are being read
    belong to the thread that crashed. `stack` is None for a crash; for a timer it has the frames read so far.
    """

    index: int
    is_current: bool = False
    stack: list[tuple[str, str, str]] | None = None


@dataclass
class Scanner:
    """The state of reading one log: the events found so far, and the data needed to recognise further events."""

    year: int
    rank: int | None = None
    events: list[LogEvent] = field(default_factory=list)
    clocks: list[int] = field(default_factory=list)
    roster: Roster = field(default_factory=Roster)
    lines: int = 0
    left_out: int = 0
    taken: int = 0
    skipped: int = 0
    binary: bool = False
    labelled: bool = False
    boring: set[bytes] = field(default_factory=set)
    hot: int = 0
    clock: int = 0
    tracebacks: Tracebacks = field(default_factory=Tracebacks)
    table: TorchrunTable = field(default_factory=TorchrunTable)
    known: dict[tuple[object, ...], int] = field(default_factory=dict)
    fatal: dict[str, "Fatal"] = field(default_factory=dict)
    caught: dict[str, int] = field(default_factory=dict)
    latest: dict[str, int] = field(default_factory=dict)
    before: dict[str, str] = field(default_factory=dict)
    """For each process that has an open traceback, the line before that traceback."""

    def read(self, path: Path) -> None:
        """Read a whole log.

        The middle of a very long log is skipped after LINES_AT_MOST lines that may report errors.
        """
        # How much a gzipped log holds is unknown until it is read.
        rest = path.stat().st_size * (GZIP_RATIO if path.suffix == ".gz" else 1)
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
            self.lines += chunk.count(b"\n")
        self.lines += not chunk.endswith(b"\n")
        self.events = [marked_as_survived(event, self.roster) for event in self.events]

    def begin(self, chunk: bytes) -> None:
        """Determine from the first lines whether srun put labels before them, and whether the file is binary."""
        head = chunk[:4096]
        self.binary = head.count(b"\0") * 20 > len(head)
        first = [clean(line) for line in head.split(b"\n")[:20] if line.strip()]
        self.labelled = bool(first) and 2 * sum(bool(SRUN_LABEL.match(line)) for line in first) > len(first)

    def scan(self, chunk: bytes) -> None:
        """Parse those lines of a chunk that may report events.

        Most lines of a log differ from an earlier line only in their digits. So each line is looked up, without its
        digits, among those that are known to report no event.
        """
        start, counted, number = 0, 0, self.lines + 1
        shapes = chunk.translate(None, DIGITS).split(b"\n")
        suspects = self.suspects(set(shapes))
        # Equal in number, as digits are no line ends.
        for raw, shape in zip(chunk.split(b"\n"), shapes, strict=True):
            if (self.hot or shape in suspects) and self.matters(shape):
                number += chunk.count(b"\n", counted, start)
                counted = start
                self.taken += 1
                for part in parts_of(raw, TRIGGERS):
                    self.take(clean(part), shape, Position(chunk, start, number))
            start += len(raw) + 1

    def suspects(self, shapes: set[bytes]) -> set[bytes]:
        """Return those shapes whose lines may report an event; a shape is a line without its digits.

        Left out are shapes without any word of a pattern, and shapes whose lines reported no event before.
        """
        fresh = shapes - self.boring
        meaningless = FILTER.without_words(fresh)
        for shape in meaningless:
            self.forget(shape)
        return fresh.difference(meaningless)

    def matters(self, shape: bytes) -> bool:
        """Return whether lines of this shape (a line without its digits) must be parsed for events."""
        if self.hot:
            self.hot -= 1
            return True
        if shape in self.boring:
            return False
        if TRIGGERS.search(shape):
            return True
        self.forget(shape)
        return False

    def forget(self, shape: bytes) -> None:
        """Remember that lines of this shape (the line without its digits) hold no event, so that they are skipped."""
        if len(shape) <= KNOWN_BYTES:
            if len(self.boring) >= KNOWN_AT_MOST:
                self.boring.clear()
            self.boring.add(shape)

    def take(self, text: str, shape: bytes, at: Position) -> None:
        """Parse one line that may report an event, and add the event that it reports or completes.

        `shape` is the line without its digits, `at` its position.
        """
        prefix, body = split_prefix(text, self.labelled)
        self.clock = time_in(text, self.year) or self.clock
        if failure := self.table.feed(body):
            # The block of the next rank follows.
            self.hot = READ_ON
            self.add(failure, body, at, prefix)
            return
        if START.search(body):
            self.before[prefix.key] = split_prefix(line_before(at), self.labelled)[1]
        if QUOTED.match(body) or self.follow_fatal(prefix.key, body) or self.follow_box(prefix.key, body):
            return
        raised = self.tracebacks.feed(prefix.key, body)
        if raised:
            self.hot = READ_ON
            self.add_exception(raised, at, prefix)
            return
        if (match := STACK_LINE.match(body)) and self.follow_stack(match):
            return
        found = None if FRAME.search(body) else recognise(text)
        if found:
            self.hot = READ_ON
            if is_handled(found.kind, text):
                found = found._replace(facts=msgspec.structs.replace(found.facts, survived=True))
            index = self.add(with_device(found, at), text, at, prefix)
            self.expect_stacks(found, text, prefix.key, index)
        elif FRAME.search(body) or "most recent call" in body:
            self.hot = READ_ON
        elif not self.hot and not DEPENDS_ON_DIGITS.search(shape) and b"Error" not in shape:
            self.forget(shape)

    def expect_stacks(self, found: Found, text: str, key: str, index: int | None) -> None:
        """Prepare for reading the stacks that follow a crash, or that a timer of Python's fault handler prints.

        `key` is the prefix of the process's lines. `index` is the index of the event; if it is None, the log has too
        many events for this one to be added, and its stacks are not read.
        """
        if index is None:
            return
        if found.kind is EventKind.STACKS:
            # The latest stack counts.
            self.events[index] = msgspec.structs.replace(self.events[index], source="")
            self.fatal[key] = Fatal(index, stack=[])
        elif "Fatal Python error" in text:
            self.fatal[key] = Fatal(index)

    def follow_fatal(self, key: str, body: str) -> bool:
        """Parse a line of the stacks that Python's fault handler prints; return whether the line is part of them.

        The user's innermost line of the crashed thread becomes the source of the event. `key` is the line's prefix.
        """
        fatal = self.fatal.get(key)
        if fatal is None:
            return False
        if match := THREAD.search(body):
            fatal.is_current = match[1] == "Current thread"
            fatal.stack = None if fatal.stack is None else []
            self.hot = READ_ON
            return True
        if match := FRAME.search(body):
            self.take_frame(fatal, (match[1], match[2], match[3] or ""))
            return True
        if "Extension modules" in body or (fatal.stack is not None and body.strip()):
            del self.fatal[key]
        return False

    def follow_box(self, key: str, body: str) -> bool:
        """Parse a line of a traceback that is drawn in a box of characters; return whether the line belongs to one."""
        is_inside = self.tracebacks.feed_box(key, body)
        self.hot = READ_ON if is_inside else self.hot
        return is_inside

    def take_frame(self, fatal: Fatal, frame: tuple[str, str, str]) -> None:
        """Take over a frame of the stack that follows a crash or a timer of Python's fault handler into the event.

        A timer prints the stacks of all threads. Only the stack of the main thread is used, whose outermost frame is
        `<module>`.
        """
        event = self.events[fatal.index]
        if fatal.stack is not None and len(fatal.stack) < FRAMES_AT_MOST:
            fatal.stack.append(frame)
            if frame[2] == "<module>" and not event.source:
                self.events[fatal.index] = with_stack(event, fatal.stack)
        elif fatal.is_current and not event.source and origin_of(frame[0]) is Origin.USER:
            self.events[fatal.index] = msgspec.structs.replace(
                event, source=f"{frame[0]}:{frame[1]}", function=frame[2]
            )

    def follow_stack(self, match: "re.Match[str]") -> bool:
        """Parse a frame of the stack that PyTorch prints after a collective timed out; return whether the log has a
        timeout.

        The innermost frame is printed first. The first frame of the user's code becomes the source of the last timeout
        event.
        """
        index = next((i for i in range(len(self.events) - 1, -1, -1) if self.events[i].kind in TIMED_OUT), None)
        if index is None:
            return False
        self.hot = READ_ON
        if not self.events[index].source and origin_of(match[2]) is Origin.USER:
            self.events[index] = msgspec.structs.replace(
                self.events[index], source=f"{match[2]}:{match[3]}", function=match[1]
            )
        return True

    def add_exception(self, raised: Raised, at: Position, prefix: Prefix) -> None:
        """Add an exception as an event, unless it only follows from an earlier failure.

        The name and the text of the exception decide the kind of the event; an unknown exception becomes a general
        event with its name.
        """
        name = raised.name.rpartition(".")[2]
        first = self.latest.get(prefix.key) if raised.chain else None
        # What a rank raises after it gave up waiting is a consequence, whatever it is.
        if name in SKIPPED or (first is not None and is_wait(self.events[first].kind, self.events[first].facts)):
            return
        found = meaning_of(raised)
        before = self.before.pop(prefix.key, "")
        found = found._replace(facts=with_circumstances(found.facts, raised, before, has_rank="[rank" in prefix.key))
        if raised.of_rank is not None:
            self.add_relayed(found, raised, at, replace(prefix, rank=raised.of_rank))
            return
        index = self.add(found, raised.text, at, prefix, raised)
        if index is None:
            return
        announced = self.caught.pop(prefix.key, None)
        # The code that handles an error may wait for ranks that wait for this one: then the error is the cause.
        if announced is None and raised.chain and not is_wait(found.kind, found.facts):
            announced = self.latest.get(prefix.key)
        if announced is not None and announced != index:
            # The worker's own exception follows the one that its loader raised; a chain ends with the one that counts.
            index = self.replace_by_last(announced, index)
        self.latest[prefix.key] = index
        if CAUGHT_IN_WORKER.match(raised.message):
            self.caught[prefix.key] = index

    def add_relayed(self, found: Found, raised: Raised, at: Position, prefix: Prefix) -> None:
        """Add an exception of the rank of `prefix` that another one relays to all ranks, in place of the other one."""
        index = self.add(found, raised.text, at, prefix, raised)
        relaying = self.latest.get(prefix.key)
        if index is not None and relaying is not None and failed_ranks(self.events[relaying].message):
            self.replace_by_last(relaying, index)

    def replace_by_last(self, earlier: int, index: int) -> int:
        """Replace event `earlier` by the last event, which is about the same failure, and return the last event's new
        index.

        If event `index` is not the last one (it repeats an older one), or `earlier` was repeated, nothing changes, and
        the result is `index`.
        """
        if index != len(self.events) - 1 or self.events[earlier].count > 1:
            return index
        self.events[earlier] = self.events.pop()
        self.clocks.pop()
        self.known = {key: earlier if number == index else number for key, number in self.known.items()}
        return earlier

    def add(
        self, found: Found, text: str, at: Position, prefix: Prefix = NO_PREFIX, raised: Raised | None = None
    ) -> int | None:
        """Add an event, or count it as a repetition of an earlier one; return its index, or None if there are too many
        events.
        """
        rank = self.rank_of(found, text, prefix)
        frame = user_frame(raised.frames) if raised else None
        message = text.strip()[:MESSAGE_LENGTH]
        source = f"{frame[0]}:{frame[1]}" if frame else ""
        facts = found.facts if found.facts.local_rank is not None else with_local_rank(found.facts, prefix.local_rank)
        key = (found.kind, rank, prefix.key, found.seq, found.group, facts.reason, shape_of(message), source,
               facts.pid if found.kind is EventKind.EXIT else facts.exit_code)  # fmt: skip
        if key in self.known:
            index = self.known[key]
            self.events[index] = msgspec.structs.replace(self.events[index], count=self.events[index].count + 1)
            return index
        if len(self.events) >= EVENTS_AT_MOST:
            self.left_out += 1
            return None
        self.known[key] = len(self.events)
        self.clocks.append(self.clock)
        self.events.append(
            LogEvent(
                kind=found.kind,
                message=message,
                rank=rank,
                time_ns=self.time_of(found, text),
                line=at.number,
                step=step_of(found, text, at, rank, self.labelled),
                group=found.group,
                seq=found.seq,
                source=source,
                function=frame[2] if frame else "",
                chain=[link.text[:MESSAGE_LENGTH] for link in raised.chain] if raised else [],
                facts=facts,
                # Of an exception what comes before its own line is the traceback.
                excerpt=excerpt_of(at.chunk, at.start, *(TRACEBACK_BYTES if raised else AROUND_BYTES)),
            )
        )
        return len(self.events) - 1

    def time_of(self, found: Found, text: str) -> int | None:
        """Return the time of an event (ns) in its line or in the block of torchrun's failure table; None if neither has
        one.
        """
        is_table = found.kind in (EventKind.TORCHRUN_FAILURE, EventKind.TORCHRUN_ROOT_CAUSE)
        return time_in(self.table.time if is_table else text, self.year)

    def rank_of(self, found: Found, text: str, prefix: Prefix) -> int | None:
        """Return the global rank that an event is about; None if neither the event's line nor its file shows one."""
        # A traceback inside of torchrun's table is that of the table's rank.
        named = [prefix.rank, found.rank, global_rank(text), self.table.rank]
        # The rank in a group is that of the job only in the default group.
        if found.facts.group_rank is not None and found.group in (None, "default_pg", "0"):
            named.append(found.facts.group_rank)
        return next((rank for rank in named if rank is not None), self.rank)


def with_local_rank(facts: Facts, local_rank: int | None) -> Facts:
    """Return an event's facts with the local rank from its line's prefix; unchanged if `local_rank` is None."""
    return facts if local_rank is None else msgspec.structs.replace(facts, local_rank=local_rank)


def shape_of(message: str) -> str:
    """Return the beginning of a message without its digits, which is equal for repetitions of an event."""
    return re.sub(r"\d+", "", message[:200])


def step_of(found: Found, text: str, at: Position, rank: int | None, labelled: bool) -> int | None:
    """Return the training step of an event; None if it is unknown.

    For a loss that is NaN it is the step in the event's own line, if there is one. Otherwise it is the last step that
    was printed shortly before that line.
    """
    own = step_in(text) if found.kind is EventKind.NAN else None
    return own if own is not None else step_before(at, rank, labelled)


def with_device(found: Found, at: Position) -> Found:
    """Return the event, completed with the PCI address of the device that the driver named some lines before.

    The driver begins its message with `NVRM: The NVIDIA GPU 0000:9d:00.0` and wraps it, so that the next lines say what
    is wrong with that device.
    """
    if found.facts.reason not in OF_DEVICE or found.facts.pci:
        return found
    end = at.chunk.find(b"\n", at.start)
    named = DEVICE.findall(at.chunk, max(0, at.start - DEVICE_BYTES), end if end >= 0 else len(at.chunk))
    return found._replace(facts=msgspec.structs.replace(found.facts, pci=named[-1].decode())) if named else found


def step_before(at: Position, rank: int | None, labelled: bool) -> int | None:
    """Return the last step that the rank, or a line without a rank, printed shortly before a position;
    None if unknown.
    """
    text = at.chunk[max(0, at.start - STEP_BYTES) : at.start]
    if not NAMES_A_STEP.search(text):
        return None
    for raw in reversed(re.split(rb"[\r\n]", text)):
        if not NAMES_A_STEP.search(raw):
            continue
        line = clean(raw[:MESSAGE_LENGTH])
        prefix, body = split_prefix(line, labelled)
        if prefix.rank in (None, rank) and not NOISE.search(line) and (step := step_in(body)) is not None:
            return step
    return None


def scan(path: Path) -> Scanner:
    """Return the scanner that has read a whole log."""
    changed = datetime.fromtimestamp(path.stat().st_mtime, UTC)
    scanner = Scanner(changed.year)
    scanner.read(path)
    return scanner
