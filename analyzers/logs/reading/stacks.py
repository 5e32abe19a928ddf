"""Read the stacks that a log shows after an event, to find the user's line of this event.

Such stacks are printed after a crash, when a timer of Python's fault handler expires, and by NCCL's watchdog after a
timeout.
"""

import re
from dataclasses import dataclass, field

from analyzers.frames import Origin, origin_of
from analyzers.logs.model import EventKind
from analyzers.logs.reading.aftermath import with_stack
from analyzers.logs.reading.event_list import EventList
from analyzers.logs.reading.line_filter import LineFilter
from analyzers.logs.reading.line_patterns.pattern import Found
from analyzers.logs.reading.tracebacks import FRAME, FRAMES_AT_MOST, THREAD

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
