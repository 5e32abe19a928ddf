"""Collect the steps of one rank while its logs grow."""

import contextlib
import os
import struct
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import IO

from analyzers import files
from analyzers.files import open_regular
from analyzers.steps.live.job_state import (
    DONE,
    ENDED,
    Heartbeat,
    JobStatus,
    RankState,
    RankStatus,
    StalledRanks,
    heartbeat_from_record,
    is_running,
    read_heartbeat,
)
from analyzers.steps.reading import log_lines, tensorboard
from analyzers.steps.reading.log_lines import UNKNOWN, Header, Line, Log
from analyzers.steps.reading.tensorboard import lines_of

_LOOK_BYTES = 1 << 24
"""The most bytes that one call reads; the rest is read by the next call."""
_LATEST_BYTES = 1 << 23
"""The number of bytes at the end of a log that are read if the log is longer than that when it is first followed.

The first line of such a log is read too, because it may be a header.
"""

WholeBytes = Callable[[bytes], int]
"""A function that returns how many of the given bytes are complete records; the rest is an unfinished one."""


class GrowingFile:
    """A file to which another process appends: each read returns the complete records added since the last read.

    `generation` counts the files that had this name so far: a new run replaces the file of the previous run.
    """

    def __init__(self, path: Path, whole_bytes: WholeBytes, latest: int | None = None) -> None:
        self.path, self.generation = path, 0
        self._whole_bytes, self._latest = whole_bytes, latest
        self._inode, self._offset = 0, 0

    def fresh(self) -> bytes:
        """Return the complete records that were added since the last call; empty if the file does not exist."""
        try:
            with open_regular(self.path) as file:
                head = self._restart_if_replaced(file)
                file.seek(self._offset)
                content = file.read(_LOOK_BYTES)
        except OSError:
            return b""
        whole = self._whole_bytes(content)
        # A record longer than a whole look comes from no known writer: skip it, or it would block the file for ever.
        self._offset += len(content) if not whole and len(content) == _LOOK_BYTES else whole
        return head + content[:whole]

    def _restart_if_replaced(self, file: IO[bytes]) -> bytes:
        """Start again from the beginning if the file was replaced or truncated.

        If the new file is long, `fresh` reads only its last part. In this case the result is the first line of the
        file, which may be a header; in all other cases the result is empty.
        """
        stat = os.fstat(file.fileno())
        # A new file may get the inode number of a deleted one, but is shorter at first.
        if stat.st_ino == self._inode and stat.st_size >= self._offset:
            return b""
        self.generation += 1
        self._inode, self._offset = stat.st_ino, 0
        if self._latest is None or stat.st_size <= self._latest:
            return b""
        self._offset = stat.st_size - self._latest
        return file.readline(self._latest)


def whole_lines(content: bytes) -> int:
    return content.rfind(b"\n") + 1


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
        self.last_record: log_lines.Row = {}
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
        return self.steps[next(reversed(self.steps))] if self.steps else Line(0)

    def latest(self, count: int) -> list[Line]:
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
        self._file, self._rank = GrowingFile(path, whole_lines, _LATEST_BYTES), rank
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
                self._rank.begin(log_lines.header_of(log_lines.decoded(texts[0], Log([], []), last=True)))
        if texts and self._structured:
            self._add_structured(texts)
        elif texts:
            self._add_own(texts)

    def _add_own(self, texts: Sequence[bytes]) -> None:
        """Add the steps in lines of this project's format; each header line among them marks a restart."""
        for part in _split_at_headers(texts):
            log = log_lines.read_own(part)
            for header in log.headers:
                self._rank.begin(header)
            for line in log.lines:
                self._rank.add(line)

    def _add_structured(self, texts: list[bytes]) -> None:
        """Add the finished steps in lines of torchtitan's log.

        Lines of an unfinished step are kept for the next call.
        """
        self._rank.last_record = log_lines.decoded(texts[-1], Log([], []), last=True)
        records = self._open_records + texts
        ended = max((number for number, text in enumerate(records, 1) if b'"step_end"' in text), default=0)
        self._open_records = records[ended:][-_OPEN_RECORDS:]
        for line in log_lines.read_structured(records[:ended]).lines:
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
    for record, _ in tensorboard.framed(content, tensorboard.Events()):
        with contextlib.suppress(ValueError, IndexError, struct.error):
            yield from tensorboard.scalars(record)


_STALLED_S, _STALLED_STEPS = 3.0, 3.0
"""A rank that has not moved for this many seconds, and for the duration of this many steps, may be stuck."""
_RESTART_S = 30.0
"""The seconds after the end of all ranks within which a job may restart before it counts as failed."""
_DUMPS_AFTER = 0.4
"""The share of a collective's timeout after which this project's recorders write dumps.

At the end of the timeout NCCL aborts, and the flags in a dump are wrong.
"""


def rank_state(folder: Path, log: RankLog, growth: float | None, step_s: float) -> RankState:
    """Return the state of a rank: its current phase, step and memory.

    `folder` is the folder of the job, `log` has the rank's last steps. `growth` is its memory growth in bytes per
    step, None without one; `step_s` is the present duration of a step (s).
    """
    beat, last = log.heartbeat(folder), log.last
    memory, limit = last.memory_bytes, last.limit_bytes
    quiet_s = max(0.0, time.time() - beat.time_ns / 1e9) if beat else 0.0
    # Long steps (large models) are quiet for seconds without being stuck.
    is_quiet = quiet_s > max(_STALLED_S, _STALLED_STEPS * step_s)
    return RankState(
        rank=log.rank,
        host=str(log.header.get("host", "")),
        attempt=int_or_zero(log.header.get("attempt")),
        state=_rank_status(folder, log, beat.phase if beat else "", is_quiet=is_quiet),
        step=beat.step if beat else last.step,
        phase=beat.phase if beat else "",
        quiet_s=quiet_s,
        memory_bytes=memory,
        limit_bytes=limit,
        growth_bytes=growth,
        oom_step=None if limit is None or not growth else last.step + int((limit - memory) / growth) + 1,
    )


def _rank_status(folder: Path, log: RankLog, phase: str, *, is_quiet: bool) -> RankStatus:
    """Return the status of a rank of the job in `folder`.

    The status is DONE if `phase`, the rank's last phase, is the final one, and FAILED if the rank wrote an error file
    since its last start. Else it depends on whether the process that wrote `log` still runs. `is_quiet` says that the
    rank has not changed its phase for unusually long.
    """
    if phase == DONE:
        return RankStatus.DONE
    error = read_json(folder / "dumps" / f"exit_{log.rank}.json")
    # The error of an earlier attempt says nothing about this one.
    if int_or_zero(error.get("time_ns")) > int_or_zero(log.header.get("started_ns")):
        return RankStatus.FAILED
    running = log.running()
    if running is False:
        return RankStatus.GONE
    if is_quiet:
        return RankStatus.STALLED if running else RankStatus.UNKNOWN
    return RankStatus.RUNNING


def ended_ranks(ranks: Sequence[RankState]) -> list[RankState]:
    spoke = (RankStatus.DONE, RankStatus.FAILED)
    return [rank if rank.state in spoke else replace(rank, state=RankStatus.GONE) for rank in ranks]


def stalled_ranks(ranks: Sequence[RankState], manifest: Mapping[str, object]) -> StalledRanks | None:
    """Return a `StalledRanks` for all ranks with the status STALLED; None if there are none.

    It has the step and phase of the rank that has been stalled longest, and the time until its collective times out.
    `manifest` is the content of run.json.
    """
    stalled = [rank for rank in ranks if rank.state is RankStatus.STALLED]
    if not stalled:
        return None
    # The others wait for the rank that stopped first.
    longest = max(stalled, key=lambda rank: rank.quiet_s)
    # torchtitan sets the shorter timeout after the first step.
    limit = int_setting(manifest, "comm", "train_timeout_seconds" if longest.step > 1 else "init_timeout_seconds")
    return StalledRanks(
        ranks=[rank.rank for rank in stalled],
        step=longest.step,
        phase=longest.phase,
        stalled_s=longest.quiet_s,
        dumps_in_s=None if limit is None else _DUMPS_AFTER * limit - longest.quiet_s,
        ends_in_s=None if limit is None else limit - longest.quiet_s,
    )


def job_status(ranks: Sequence[RankState], manifest: Mapping[str, object], stalled: StalledRanks | None) -> JobStatus:
    """Return the status of a job: the end recorded by its launcher in run.json, or else one derived from its ranks.

    `manifest` is the content of run.json; `stalled` describes the stalled ranks, None if no rank is stalled.
    """
    if manifest.get("status") in ENDED:
        return JobStatus(str(manifest["status"]))
    states = {rank.state for rank in ranks}
    if not states:
        return JobStatus.WAITING
    if states == {RankStatus.DONE}:
        return JobStatus.COMPLETED
    lost = {RankStatus.FAILED, RankStatus.GONE}
    if states <= {RankStatus.DONE, *lost} and min(rank.quiet_s for rank in ranks) > _RESTART_S:
        return JobStatus.FAILED
    if states & lost:
        return JobStatus.LOSING_RANKS
    moving = JobStatus.UNKNOWN if states == {RankStatus.UNKNOWN} else JobStatus.RUNNING
    return JobStatus.STALLED if stalled else moving


def manifest_of(folder: Path, logs: Sequence[RankLog]) -> dict[str, object]:
    """Return the content of run.json; empty if there is none.

    If ranks started after the end of the run that the file records, a new run has begun whose launcher has not yet
    rewritten the file; `status` is then set to `running`.
    """
    manifest = read_json(folder / "run.json")
    started = max((int_or_zero(log.header.get("started_ns")) for log in logs), default=0)
    return manifest | {"status": "running"} if started > int_or_zero(manifest.get("ended_ns")) > 0 else manifest


def int_setting(manifest: Mapping[str, object], section: str, key: str) -> int | None:
    """Return the integer `config[section][key]` of run.json (`manifest`); None if there is no such integer."""
    config = manifest.get("config")
    keys = config.get(section) if isinstance(config, dict) else None
    value = keys.get(key) if isinstance(keys, dict) else None
    return value if isinstance(value, int) else None


def texts(manifest: Mapping[str, object], key: str) -> tuple[str, ...]:
    values = manifest.get(key)
    return tuple(str(value) for value in values if isinstance(value, str)) if isinstance(values, list) else ()


def read_json(path: Path) -> dict[str, object]:
    try:
        content = files.read_json(path)
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}


def int_or_zero(value: object) -> int:
    return value if isinstance(value, int) else 0
