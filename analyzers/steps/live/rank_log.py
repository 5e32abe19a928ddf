"""Collect the steps of one rank while its logs grow."""

import contextlib
import struct
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path

from analyzers.steps.live.growing_file import LATEST_BYTES, GrowingFile, whole_lines
from analyzers.steps.live.heartbeat import Heartbeat, heartbeat_from_record, is_running, read_heartbeat
from analyzers.steps.reading import jsonl, tensorboard
from analyzers.steps.reading.log_lines import UNKNOWN, Header, Line, Log
from analyzers.steps.reading.torchtitan_metrics import lines_of

_STEPS_KEPT = 400
"""The number of last steps of each rank that are kept."""
_OPEN_RECORDS = 10_000
"""The most records that are kept of a step that is not finished yet."""
_UTILISATION_TAG = "mfu(%)"


class RankLog:
    """The last steps of one rank, {step number: its line in the log}.

    If a step was done again after a restart, the later line is kept.
    """

    def __init__(self, rank: int) -> None:
        self.rank = rank
        self.header: Header = {}
        self.steps: dict[int, Line] = {}
        self.steps_seen = 0
        self.last_record: jsonl.Row = {}
        self.utilisation: float | None = None
        self._restarted = False

    def begin(self, header: Header) -> None:
        """Store the header that a process writes when it begins a log.

        The next step added is the first after a restart.
        """
        self.header, self._restarted = header, True

    def add(self, line: Line) -> None:
        """Add a finished step.

        The first step after a restart replaces all known steps with the same or a higher number.
        """
        if self._restarted:
            # The restart went back to a checkpoint; what the earlier attempt did after it is lost.
            self.steps = {step: known for step, known in self.steps.items() if step < line.step}
            self._restarted = False
        self.steps[line.step] = line
        self.steps_seen += 1
        while len(self.steps) > _STEPS_KEPT:
            del self.steps[next(iter(self.steps))]

    def add_coarse(self, line: Line) -> None:
        """Add a step from a TensorBoard file, which has loss and memory but only an estimate of the duration.

        If the step is known already, only its loss, gradient norm and memory are replaced.
        """
        known = self.steps.get(line.step)
        if known is None or known.covers > 1 or known.dur_ns == UNKNOWN:
            self.add(line)
            return
        known.loss, known.grad_norm = line.loss, line.grad_norm
        known.memory_bytes, known.limit_bytes = line.memory_bytes, line.limit_bytes
        self.steps_seen += 1

    @property
    def last(self) -> Line:
        """The `Line` of the step that was finished last; an empty one with step 0 if there is none."""
        return self.steps[next(reversed(self.steps))] if self.steps else Line(0)

    def latest(self, count: int) -> list[Line]:
        """Return the last `count` steps of the log, or fewer."""
        return list(self.steps.values())[-count:]

    def heartbeat(self, folder: Path) -> Heartbeat | None:
        """Return the present step and phase of the rank, from its heartbeat file, else from the last record of its log.

        `folder` is the folder of the job. The result is None if neither has them.
        """
        path = folder / "steps" / f"heartbeat_{self.rank}.bin"
        return read_heartbeat(path) or heartbeat_from_record(self.last_record)

    def running(self) -> bool | None:
        """Return whether the rank's process still runs; None if this is unknown, for example on another machine."""
        return is_running(self.header)


class StepLog:
    """A growing JSONL log of this project or of torchtitan; its steps are added to the `RankLog` of its rank."""

    def __init__(self, path: Path, rank: RankLog) -> None:
        self._file, self._rank = GrowingFile(path, whole_lines, LATEST_BYTES), rank
        self._generation = 0
        self._structured = False
        self._open_records: list[bytes] = []

    def look(self) -> None:
        """Read the content that was added to the log since the last call, and add its steps to the rank."""
        texts = self._file.fresh().splitlines()
        if self._generation != self._file.generation:
            self._generation = self._file.generation
            # torchtitan marks its records in the first lines; a new file may be of the other kind.
            self._structured = any(b'"log_type_name"' in text for text in texts[:3])
            if self._structured:
                self._rank.begin(jsonl.header_of(jsonl.decoded(texts[0], Log([], []), last=True)))
        if texts and self._structured:
            self._add_structured(texts)
        elif texts:
            self._add_own(texts)

    def _add_own(self, texts: Sequence[bytes]) -> None:
        """Add the steps in lines of this project's format; each header line among them marks a restart."""
        for part in _split_at_headers(texts):
            log = jsonl.read_own(part)
            for header in log.headers:
                self._rank.begin(header)
            for line in log.lines:
                self._rank.add(line)

    def _add_structured(self, texts: list[bytes]) -> None:
        """Add the finished steps in lines of torchtitan's log.

        Lines of an unfinished step are kept for the next call.
        """
        self._rank.last_record = jsonl.decoded(texts[-1], Log([], []), last=True)
        records = self._open_records + texts
        ended = max((number for number, text in enumerate(records, 1) if b'"step_end"' in text), default=0)
        self._open_records = records[ended:][-_OPEN_RECORDS:]
        for line in jsonl.read_structured(records[:ended]).lines:
            self._rank.add(line)


class EventFile:
    """A growing TensorBoard event file; its loss, memory and speed are missing in torchtitan's structured logs."""

    def __init__(self, path: Path, rank: RankLog) -> None:
        self._file, self._rank = GrowingFile(path, _whole_events), rank
        self._last: list[tensorboard.Scalar] = []

    def look(self) -> None:
        """Read the content that was added to the file since the last call, and add its steps to the rank.

        The duration of a step is the time since the step before it, so the last step of the previous call is read
        again.
        """
        fresh = list(_scalars_in(self._file.fresh()))
        if not fresh:
            return
        known = {scalar.step for scalar in self._last}
        for line in lines_of([*self._last, *fresh]):
            if line.step not in known:
                self._rank.add_coarse(line)
        newest = max(scalar.step for scalar in fresh)
        # The scalars of one step may arrive in two looks.
        self._last = [scalar for scalar in [*self._last, *fresh] if scalar.step == newest]
        percents = [scalar.value for scalar in self._last if scalar.tag == _UTILISATION_TAG]
        self._rank.utilisation = percents[-1] / 100 if percents else None


def _split_at_headers(texts: Sequence[bytes]) -> Iterator[list[bytes]]:
    """Yield the lines of a log in parts; a new part begins at each header, which a new process writes."""
    begins = [number for number, text in enumerate(texts) if b'"schema"' in text]
    edges = sorted({0, *begins, len(texts)})
    return (list(texts[a:b]) for a, b in pairwise(edges))


def _whole_events(content: bytes) -> int:
    """Return the number of bytes up to the end of the last complete record of an event file."""
    end = 0
    while end + tensorboard.HEAD.size <= len(content):
        length = tensorboard.HEAD.unpack_from(content, end)[0]
        following = end + tensorboard.HEAD.size + length + tensorboard.FOOT.size
        if following > len(content):
            break
        end = following
    return end


def _scalars_in(content: bytes) -> Iterator[tensorboard.Scalar]:
    """Yield the scalars in complete records of an event file; a damaged record is skipped."""
    for record, _ in tensorboard.framed(content, tensorboard.Events()):
        with contextlib.suppress(ValueError, IndexError, struct.error):
            yield from tensorboard.scalars(record)
