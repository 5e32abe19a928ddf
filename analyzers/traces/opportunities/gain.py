"""Estimate by how much a step becomes shorter if kernels become shorter, by simulating the streams and the launches.

Shorter kernels help only if the host is ahead of the device. If the next kernel has not been launched yet when a
shorter kernel ends, the device only becomes idle.

Example: two kernels of 10 µs each are launched at 0 and 15 µs, so the second one ends at 25 µs. If the first kernel
took 5 µs, the second one would still end at 25 µs: nothing is saved. If both had been launched at 0, 5 µs would be
saved.
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from analyzers.columns import Column, Integers
from analyzers.traces.answers.launches import BLOCKED_FACTOR, waiting_calls
from analyzers.traces.columns.work import Work
from analyzers.traces.reading.distinct import distinct_values, rows_by_value

_UNBLOCKED = 10
"""The percentile of the durations of launching calls at which a call did not wait for room in the queue."""
_WAITED_NS = 10_000
"""The time in ns below which a synchronising call is taken not to have waited for the device."""


@dataclass(frozen=True)
class Playback:
    """A simulation of the events of a device or host, which computes how much time shorter events would save."""

    work: Work

    @cached_property
    def waits(self) -> tuple[Column, Column]:
        """The starts and ends (ns) of the host's calls that waited for the device, in order of their end."""
        c, rows = self.work.trace.columns, waiting_calls(self.work.trace)
        start, end = c["start"][rows], c["end"][rows]
        order = np.argsort(end, kind="stable")
        order = order[(end - start)[order] > _WAITED_NS]
        return start[order], end[order]

    @cached_property
    def launched(self) -> Integers:
        """For each event, the time (ns) at which it would have been launched if the launch queue always had room.

        If the launch is unknown, the event's start is used.
        """
        work = self.work
        return np.where(work.linked, np.minimum(work.launch_start, work.start) - self.blocked, work.start)

    @cached_property
    def blocked(self) -> Integers:
        """For each event, how long the host's launching calls had waited in total up to its launch, in ns.

        The call that launched the event is included. The launch queue holds about 1024 kernels; if it is full, a
        launching call waits until a kernel ends. With shorter kernels these waits would be shorter.
        """
        work = self.work
        calls = distinct_values(work.launch[work.linked]).astype(np.int64)
        c = work.trace.columns
        start, length = c["start"][calls], (c["end"][calls] - c["start"][calls]).astype(np.int64)
        # With a full queue most calls wait, but those before it was full did not.
        usual = int(np.percentile(length, _UNBLOCKED)) if len(length) else 0
        blocked = np.where(length > BLOCKED_FACTOR * max(1, usual), length - usual, 0)
        order = np.argsort(start, kind="stable")
        return np.concatenate([[0], np.cumsum(blocked[order])])[np.searchsorted(start[order], work.launch_start)]

    @cached_property
    def segment(self) -> Integers:
        """For each event, how many of the host's `waits` had ended when the event was launched.

        After each wait of the host the device has no work left, so events of different segments do not delay each
        other.
        """
        at = np.where(self.work.linked, self.work.launch_start, self.work.start)
        return np.searchsorted(self.waits[1], at, side="right")

    @cached_property
    def streams(self) -> list[Integers]:
        """For each stream, the indices of its events in `work`, in order of their start."""
        lanes = self.work.trace.columns["lane"][self.work.rows]
        return [rows[np.lexsort((self.work.start[rows], self.segment[rows]))] for _, rows in rows_by_value(lanes)]

    def saved_ns(self, shorter: Integers) -> int:
        """Return by how many ns the recording would be shorter if each event were shorter by the ns in `shorter`."""
        if self.work.device is None:
            return int(shorter.sum())
        saved = sum(self.saved_in_stream(order, shorter[order]) for order in self.streams if shorter[order].any())
        # Streams beside each other may save the same time; all of it is the most.
        return min(saved, int(shorter.sum()))

    def saved_in_stream(self, order: Integers, shorter: Integers) -> int:
        """Return the ns saved in one stream, summed over its segments (a segment lies between two waits of the host).

        `order` has the indices of the stream's events in `work`; `shorter` has, for each of them, by how many ns it is
        shorter.
        """
        segment = self.segment[order]
        recorded, played = self.ends(order, np.zeros_like(shorter)), self.ends(order, shorter)
        last = np.flatnonzero(np.append(np.diff(segment) != 0, True))
        saved = (recorded - played)[last]
        # A host that waited for 1 ms cannot go on more than 1 ms earlier; at the end of the recording nothing waits.
        waited = np.append(self.waits[1] - self.waits[0], np.iinfo(np.int64).max >> 1)[segment[last]]
        blocked = self.blocked[order][last]
        blocked -= np.append(0, blocked[:-1])
        return int(np.minimum(saved, waited + blocked).clip(min=0).sum())

    def ends(self, order: Integers, shorter: Integers) -> Integers:
        """Return when each event of a stream would end (ns of the trace's clock) if it began as early as possible.

        `order` has the indices of the stream's events in `work`; `shorter` has, for each of them, by how many ns it is
        shorter. If a recorded delay is explained neither by the launch nor by the event before, the delay is kept.
        """
        work, segment = self.work, self.segment[order]
        start, end = work.start[order].astype(np.int64), work.end[order].astype(np.int64)
        before = np.append(start[:1], np.maximum.accumulate(end)[:-1])
        launched = self.launched[order]
        ready = np.maximum(launched, np.minimum(before, start))
        length = (start - ready) + (end - start - shorter)
        total = np.cumsum(length)
        base = int(launched.min(initial=0))
        stretch = int(end.max(initial=0)) - base + int(total[-1] if len(total) else 0) + 1
        # One running maximum serves for all segments, as each gets a stretch of time of its own.
        begin = launched - base - (total - length) + segment * np.int64(2 * stretch)
        ends: Integers = np.maximum.accumulate(begin) - segment * np.int64(2 * stretch) + total + base
        return ends
