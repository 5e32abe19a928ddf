"""What the growing logs of one rank have told so far."""

import contextlib
import struct
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path

from analyzers.steps.live.growing_file import LATEST, Growing, lines
from analyzers.steps.live.heartbeat import Beat, beat_of, is_running, read_beat
from analyzers.steps.reading import jsonl, tensorboard
from analyzers.steps.reading.log_lines import UNKNOWN, Header, Line, Log
from analyzers.steps.reading.torchtitan_metrics import lines_of

KEPT = 400
"""Steps of each rank that are remembered."""
OPEN_AT_MOST = 10_000
"""Records of a step that has not ended."""
UTILISATION = "mfu(%)"


class RankLog:
    """The last steps of one rank, by number. A rank that was started again repeats some: the later ones count."""

    def __init__(self, rank: int) -> None:
        self.rank = rank
        self.header: Header = {}
        self.steps: dict[int, Line] = {}
        self.seen = 0
        self.last_record: jsonl.Row = {}
        self.utilisation: float | None = None
        self._restarted = False

    def begin(self, header: Header) -> None:
        """A process began to write."""
        self.header, self._restarted = header, True

    def add(self, line: Line) -> None:
        """Take a step."""
        if self._restarted:
            self.steps = {step: kept for step, kept in self.steps.items() if step < line.step}
            self._restarted = False
        self.steps[line.step] = line
        self.seen += 1
        while len(self.steps) > KEPT:
            del self.steps[next(iter(self.steps))]

    def add_coarse(self, line: Line) -> None:
        """Take a step from a source that knows loss and memory, but not as well how long it took."""
        known = self.steps.get(line.step)
        if known is None or known.covers > 1 or known.dur_ns == UNKNOWN:
            self.add(line)
            return
        known.loss, known.grad_norm = line.loss, line.grad_norm
        known.memory_bytes, known.limit_bytes = line.memory_bytes, line.limit_bytes
        self.seen += 1

    @property
    def last(self) -> Line:
        """The step finished last."""
        return self.steps[next(reversed(self.steps))] if self.steps else Line(0)

    def latest(self, count: int) -> list[Line]:
        """The last steps."""
        return list(self.steps.values())[-count:]

    def beat(self, folder: Path) -> Beat | None:
        """Where the rank is now."""
        return read_beat(folder / "steps" / f"heartbeat_{self.rank}.bin") or beat_of(self.last_record)

    def running(self) -> bool | None:
        """Whether its process lives, if that can be known."""
        return is_running(self.header)


class StepLog:
    """A growing log of lines, ours or torchtitan's, that feeds its rank."""

    def __init__(self, path: Path, rank: RankLog) -> None:
        self._file, self._rank = Growing(path, lines, LATEST), rank
        self._generation = 0
        self._structured = False
        self._open: list[bytes] = []

    def look(self) -> None:
        """Feed what is new."""
        texts = self._file.fresh().splitlines()
        if self._generation != self._file.generation:
            self._generation = self._file.generation
            self._structured = any(b'"log_type_name"' in text for text in texts[:3])
            if self._structured:
                self._rank.begin(jsonl.header_of(jsonl.decoded(texts[0], Log([], []), last=True)))
        if texts and self._structured:
            self._feed_structured(texts)
        elif texts:
            self._feed_own(texts)

    def _feed_own(self, texts: Sequence[bytes]) -> None:
        for part in by_start(texts):
            log = jsonl.own(part)
            for header in log.headers:
                self._rank.begin(header)
            for line in log.lines:
                self._rank.add(line)

    def _feed_structured(self, texts: list[bytes]) -> None:
        """Records of a step are kept until it has ended."""
        self._rank.last_record = jsonl.decoded(texts[-1], Log([], []), last=True)
        records = self._open + texts
        whole = max((number for number, text in enumerate(records, 1) if b'"step_end"' in text), default=0)
        self._open = records[whole:][-OPEN_AT_MOST:]
        for line in jsonl.structured(records[:whole]).lines:
            self._rank.add(line)


class Board:
    """A growing event file of TensorBoard's, which knows what torchtitan's structured logs do not."""

    def __init__(self, path: Path, rank: RankLog) -> None:
        self._file, self._rank = Growing(path, whole_events), rank
        self._last: list[tensorboard.Scalar] = []

    def look(self) -> None:
        """Feed what is new. A step is timed from the one before it, so the last known one is read again."""
        fresh = list(scalars_in(self._file.fresh()))
        if not fresh:
            return
        known = {scalar.step for scalar in self._last}
        for line in lines_of([*self._last, *fresh]):
            if line.step not in known:
                self._rank.add_coarse(line)
        newest = max(scalar.step for scalar in fresh)
        self._last = [scalar for scalar in [*self._last, *fresh] if scalar.step == newest]
        told = [scalar.value for scalar in self._last if scalar.tag == UTILISATION]
        self._rank.utilisation = told[-1] / 100 if told else None


def by_start(texts: Sequence[bytes]) -> Iterator[list[bytes]]:
    """Lines of a log, parted where a process began to write."""
    begins = [number for number, text in enumerate(texts) if b'"schema"' in text]
    edges = sorted({0, *begins, len(texts)})
    return (list(texts[a:b]) for a, b in pairwise(edges))


def whole_events(read: bytes) -> int:
    """Bytes up to the end of the last whole record."""
    end = 0
    while end + tensorboard.HEAD.size <= len(read):
        beyond = end + tensorboard.HEAD.size + tensorboard.HEAD.unpack_from(read, end)[0] + tensorboard.FOOT.size
        if beyond > len(read):
            break
        end = beyond
    return end


def scalars_in(read: bytes) -> Iterator[tensorboard.Scalar]:
    """The scalars of whole records; a damaged one is passed by."""
    for content, _ in tensorboard.framed(read, tensorboard.Events()):
        with contextlib.suppress(ValueError, IndexError, struct.error):
            yield from tensorboard.scalars(content)
