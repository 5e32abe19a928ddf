"""What the growing logs of one rank have told so far."""

import math
from collections.abc import Iterator
from pathlib import Path

import msgspec

from analyzers.steps.pulse import Beat, beat_of, is_running, read_beat
from analyzers.steps.records import Own, Row, Structured, is_structured
from analyzers.steps.scalars import events, scalars
from analyzers.steps.tail import LATEST, Growing, lines

KEPT = 400
"""Steps of each rank that are remembered."""
FROM_SCALARS = {
    "loss_metrics/global_avg_loss": ("loss", 1.0),
    "grad_norm": ("grad_norm", 1.0),
    "throughput(tps)": ("tokens_per_s", 1.0),
    "wps": ("tokens_per_s", 1.0),
    "mfu(%)": ("utilisation", 0.01),
    "memory/max_active(GiB)": ("memory_bytes", float(1 << 30)),
    "memory/max_active(%)": ("memory_share", 0.01),
    "time_metrics/end_to_end(s)": ("dur_ns", 1e9),
}
"""torchtitan's tags in TensorBoard: our names, and what turns them into our units."""


class RankLog:
    """The last steps of one rank, by number. A rank that was started again repeats some: the later ones count."""

    def __init__(self, rank: int) -> None:
        self.rank = rank
        self.header: Row = {}
        self.steps: dict[int, Row] = {}
        self.seen = 0
        self.last_record: Row = {}
        self._restarted = False

    def begin(self, header: Row) -> None:
        """A process began to write."""
        self.header, self._restarted = header, True

    def add(self, row: Row) -> None:
        """Take a step, or more about one."""
        step = row["step"]
        if self._restarted:
            self.steps = {known: kept for known, kept in self.steps.items() if known < step}
            self._restarted = False
        self.steps.setdefault(step, {}).update(row)
        self.seen += 1
        while len(self.steps) > KEPT:
            del self.steps[next(iter(self.steps))]

    @property
    def last(self) -> Row:
        """The step finished last."""
        return self.steps[next(reversed(self.steps))] if self.steps else {}

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
        self._reader: Own | Structured = Own()
        self._generation = 0

    def look(self) -> None:
        """Feed what is new."""
        rows = decoded(read := self._file.fresh())
        if self._generation != self._file.generation:
            self._generation = self._file.generation
            self._reader = Structured() if is_structured(read.splitlines()[:3]) else Own()
        for row in rows:
            self._feed(row)

    def _feed(self, row: Row) -> None:
        header, step = self._reader.header, self._reader.feed(row)
        if self._reader.header is not header:
            self._rank.begin(self._reader.header)
        if isinstance(self._reader, Structured):
            self._rank.last_record = row
        if step:
            self._rank.add(step)


class Scalars:
    """A growing event file of TensorBoard's, which knows what torchtitan's structured logs do not."""

    def __init__(self, path: Path, rank: RankLog) -> None:
        self._file, self._rank = Growing(path, events), rank

    def look(self) -> None:
        """Feed what is new."""
        found: dict[int, Row] = {}
        for step, tag, value in scalars(self._file.fresh()):
            if tag in FROM_SCALARS and step > 0:
                name, factor = FROM_SCALARS[tag]
                found.setdefault(step, {"step": step})[name] = value * factor
        for row in found.values():
            self._rank.add(completed(row))


def completed(row: Row) -> Row:
    """Bytes and nanoseconds as whole numbers, without those that are none; what the memory may rise to."""
    row = {name: value for name, value in row.items() if math.isfinite(value)}
    row |= {name: int(row[name]) for name in ("memory_bytes", "dur_ns") if name in row}
    if share := row.pop("memory_share", 0):
        row["limit_bytes"] = int(row.get("memory_bytes", 0) / share)
    return row


def decoded(read: bytes) -> Iterator[Row]:
    """The objects in these lines; what is none is passed by."""
    decoder = msgspec.json.Decoder()
    for line in read.splitlines():
        try:
            content = decoder.decode(line)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            continue
        if isinstance(content, dict):
            yield content
