"""Store the events of one log in their order; a repetition of an event is counted, but not stored again."""

import re
from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass, field

import msgspec

from analyzers.logs.model import EventKind, LogEvent

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
        """Return the number of kept events."""
        return len(self.kept)

    def __iter__(self) -> Iterator[LogEvent]:
        """Iterate over the kept events in the order of the log."""
        return iter(self.kept)

    def __getitem__(self, index: int) -> LogEvent:
        """Return the kept event with this index."""
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
        """Return the index of the last event of one of these kinds; None if there is none."""
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


def without_digits(message: str) -> str:
    """Return the beginning of a message without its digits; it is equal for repetitions of an event."""
    return re.sub(r"\d+", "", message[:200])
