"""Read one log into events: only lines that may report an event are parsed, all others are skipped quickly."""

import re
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path

import msgspec

from analyzers.log_signs.relayed_errors import failed_ranks
from analyzers.logs.model import EventKind, Facts, LogEvent
from analyzers.logs.reading.aftermath import (
    is_handled,
    marked_as_survived,
    with_circumstances,
)
from analyzers.logs.reading.chains import is_wait, meaning_of
from analyzers.logs.reading.event_list import EventList, without_digits
from analyzers.logs.reading.line_filter import DIGITS, LineFilter
from analyzers.logs.reading.line_patterns.pattern import Found
from analyzers.logs.reading.lines_after import hint_after
from analyzers.logs.reading.lines_before import step_of, with_device
from analyzers.logs.reading.nccl_lines import NcclLines
from analyzers.logs.reading.patterns import TRIGGERS, recognise
from analyzers.logs.reading.prefixes import (
    NO_PREFIX,
    SRUN_LABEL,
    Prefix,
    global_rank,
    split_prefix,
    time_in,
)
from analyzers.logs.reading.roster import Roster
from analyzers.logs.reading.stacks import StackReader
from analyzers.logs.reading.text import Position, chunks, clean, excerpt_of, line_before, parts_of
from analyzers.logs.reading.torchrun_table import TorchrunTable
from analyzers.logs.reading.tracebacks import (
    FRAME,
    START,
    Raised,
    Tracebacks,
    user_frame,
)

_GZIP_RATIO = 50
LINES_AT_MOST = 100_000
END_BYTES = 1 << 22
"""The number of bytes at the end of a log that are parsed even after LINES_AT_MOST lines that may report errors."""
_MESSAGE_LENGTH = 1000
_AROUND_BYTES, _TRACEBACK_BYTES = (300, 900), (1600, 300)
"""The numbers of bytes before and after the line of an event that are kept as its excerpt.

The first pair is for all events but exceptions, the second pair for exceptions.
"""
SKIPPED = {"ChildFailedError", "CalledProcessError", "SystemExit", "ProcessExitedException", "ProcessRaisedException"}
"""The exceptions that launchers raise because a rank failed; they are not events of their own."""
_QUOTED = re.compile(r"[|>] ")
"""Matches a line of another log that a program quotes; tracebacks of exception groups have blanks before the bar."""
_CAUGHT_IN_WORKER = re.compile(r"^Caught \w+ in DataLoader worker process")


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
    lines: int = 0
    taken: int = 0
    skipped: int = 0
    binary: bool = False
    labelled: bool = False
    clock: int = 0
    tracebacks: Tracebacks = field(default_factory=Tracebacks)
    table: TorchrunTable = field(default_factory=TorchrunTable)
    stacks: StackReader = field(init=False)
    caught: dict[str, int] = field(default_factory=dict)
    latest: dict[str, int] = field(default_factory=dict)
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
        self.events.kept = [marked_as_survived(event, self.roster) for event in self.events]

    def begin(self, chunk: bytes) -> None:
        """Determine from a log's first lines whether srun put labels before them, and whether it is binary."""
        head = chunk[:4096]
        self.binary = head.count(b"\0") * 20 > len(head)
        first = [clean(line) for line in head.split(b"\n")[:20] if line.strip()]
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
            start += len(raw) + 1

    def take(self, text: str, shape: bytes, at: Position) -> None:
        """Parse one line (`text`) that may report an event; add the event that it reports, or complete an earlier one.

        `shape` is the line without its digits, `at` its position.
        """
        prefix, body = split_prefix(text, self.labelled)
        self.clock = time_in(text, self.year) or self.clock
        if failure := self.table.feed(body):
            # The block of the next rank follows.
            self.filter.read_on()
            self.add(failure, body, at, prefix)
            return
        if START.search(body):
            self.before[prefix.key] = split_prefix(line_before(at), self.labelled)[1]
        if _QUOTED.match(body) or self.stacks.takes(prefix.key, body) or self.follow_box(prefix.key, body):
            return
        raised = self.tracebacks.feed(prefix.key, body)
        if raised:
            self.filter.read_on()
            self.add_exception(raised, at, prefix)
            return
        if self.stacks.takes_timeout_frame(body):
            return
        is_of_stack = FRAME.search(body) or self.tracebacks.is_code(prefix.key, body)
        found = None if is_of_stack else recognise(text)
        if found:
            self.filter.read_on()
            if is_handled(found.kind, text):
                found = found._replace(facts=msgspec.structs.replace(found.facts, survived=True))
            index = self.add(with_device(found, at), text, at, prefix)
            if index is not None:  # else the log has too many events
                self.stacks.expect(found, text, prefix.key, index)
        elif FRAME.search(body) or "most recent call" in body:
            self.filter.read_on()
        else:
            self.filter.skip_unless_digits_matter(shape)

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
        if name in SKIPPED or (first is not None and is_wait(self.events[first].kind, self.events[first].facts)):
            return
        found = meaning_of(raised)
        before = self.before.pop(prefix.key, "")
        facts = with_circumstances(found.facts, raised, before, has_rank="[rank" in prefix.key)
        hint = raised.hint or hint_after(at, prefix.key, labelled=self.labelled)
        found = found._replace(facts=msgspec.structs.replace(facts, hint=hint))
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
        identity = (found.kind, rank, prefix.key, found.seq, found.group, facts.reason, without_digits(message), source,
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
                source=source,
                function=frame[2] if frame else "",
                chain=[link.text[:_MESSAGE_LENGTH] for link in raised.chain] if raised else [],
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
