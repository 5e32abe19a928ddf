"""Define `JobState`, the state of a running job at one moment, and its parts."""

import os
import socket
import struct
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from statistics import fmean, median
from typing import NamedTuple

from analyzers.files import read_whole
from analyzers.report import Finding

SPEED_STEPS = 20
"""The number of last steps from which the present speed is computed."""


class RankStatus(StrEnum):
    RUNNING = "running"
    STALLED = "stalled"
    """The rank's process runs, but has not changed its phase for a long time."""
    DONE = "done"
    FAILED = "failed"
    """The rank wrote an error file."""
    GONE = "gone"
    """The rank's process ended without an error message."""
    UNKNOWN = "unknown"
    """The rank has not changed its phase for a long time, and its process cannot be checked, as on another machine."""


class JobStatus(StrEnum):
    WAITING = "waiting"
    """The job has not yet written a file."""
    RUNNING = "running"
    STALLED = "stalled"
    LOSING_RANKS = "losing ranks"
    UNKNOWN = "unknown"
    COMPLETED = "completed"
    FAILED = "failed"
    INTERRUPTED = "interrupted"


ENDED = (JobStatus.COMPLETED, JobStatus.FAILED, JobStatus.INTERRUPTED)


@dataclass(frozen=True, kw_only=True)
class RankState:
    """The state of one rank: its step and phase, and its memory in bytes.

    `attempt` is how often the job was restarted before, and `quiet_s` how many seconds ago the rank changed its
    phase. `oom_step` is the step in which its memory will reach its limit if it goes on growing by `growth_bytes` per
    step.
    """

    rank: int
    host: str
    attempt: int
    state: RankStatus
    step: int
    phase: str
    quiet_s: float
    memory_bytes: int
    limit_bytes: int | None
    growth_bytes: float | None
    oom_step: int | None

    @property
    def headroom_bytes(self) -> int | None:
        return None if self.limit_bytes is None else self.limit_bytes - self.memory_bytes


@dataclass(frozen=True, kw_only=True)
class StalledRanks:
    """The ranks that are stalled: they have not changed their phase for up to `stalled_s` seconds.

    `step` and `phase` are those of the rank that has been stalled longest. Its collective times out in `ends_in_s`
    seconds, and dumps are written in `dumps_in_s` seconds; both are None if the timeout is unknown.
    """

    ranks: list[int]
    step: int
    phase: str
    stalled_s: float
    dumps_in_s: float | None
    ends_in_s: float | None


@dataclass(frozen=True, kw_only=True)
class FinishedStep:
    """One finished step, summarised over all ranks.

    `dur_s` is the duration on the slowest rank without the time of this project's recorders, `tokens_per_s` the mean
    over ranks, `memory_bytes` the highest of any rank, and `loss` is None if it was not logged.
    """

    step: int
    start_ns: int
    dur_s: float
    loss: float | None
    tokens_per_s: float | None
    memory_bytes: int


@dataclass(frozen=True, kw_only=True)
class JobState:
    """The state of a running job at one moment, read from its step logs.

    `steps` is the number of steps that the job is to train, and `recent` are the last finished steps. `phases` has the
    share of each phase in the time without this project's recorders, and `recorders` is the share of these in the whole
    time. `utilisation` is the model-flops utilisation (0 to 1). `evidence` lists dumps and logs of failures as (path,
    time of last change in ns); when this list changes, there is more to analyse. `launcher_lost` says that the launcher
    was killed; its watchdog process then ends the ranks. `notes` are the trainer's messages about a checkpoint before
    the first step, for example whether training continues exactly as in the previous run.
    """

    status: JobStatus
    world_size: int
    steps: int | None
    recent: list[FinishedStep] = field(default_factory=list)
    ranks: list[RankState] = field(default_factory=list)
    utilisation: float | None = None
    phases: dict[str, float] = field(default_factory=dict)
    recorders: float = 0.0
    findings: list[Finding] = field(default_factory=list)
    stall: StalledRanks | None = None
    launcher_lost: bool = False
    evidence: tuple[tuple[str, int], ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def attempt(self) -> int:
        """How often the job has been restarted so far."""
        return max((rank.attempt for rank in self.ranks), default=0)

    @property
    def step(self) -> int:
        """The highest step number that at least one rank has finished; 0 before the first."""
        return self.recent[-1].step if self.recent else 0

    @property
    def step_s(self) -> float | None:
        timed = [step.dur_s for step in self.recent[-SPEED_STEPS:] if step.dur_s > 0]
        return median(timed) if timed else None

    @property
    def tokens_per_s(self) -> float | None:
        """The tokens per second of one rank, as the mean over the last steps; None if they are not logged."""
        rates = [step.tokens_per_s for step in self.recent[-SPEED_STEPS:] if step.tokens_per_s is not None]
        return fmean(rates) if rates else None

    @property
    def remaining_s(self) -> float | None:
        """The seconds until the job finishes its last step at the present speed.

        The value is None if this is unknown, or if the job does not run.
        """
        if self.steps is None or self.step_s is None or self.status is not JobStatus.RUNNING:
            return None
        return max(0, self.steps - self.step) * self.step_s

    @property
    def ended(self) -> bool:
        return self.status in ENDED


BEAT = struct.Struct("<qqqq32s")
"""The fields of a heartbeat file: time in ns, step, process id, number of beats, phase.

`workbench.recorders` writes it.
"""
DONE = "done"
_CLOCK_SLACK_S = 2.0
"""The largest error in seconds of a process's start time, which /proc has in clock ticks since boot."""


class Heartbeat(NamedTuple):
    """The last heartbeat of a rank: when it last changed its phase (Unix ns), and its step and phase since then."""

    time_ns: int
    step: int
    phase: str


def read_heartbeat(path: Path) -> Heartbeat | None:
    try:
        time_ns, step, _, beats, phase = BEAT.unpack(read_whole(path))
    except (OSError, struct.error):
        return None
    # A new file is all zeros until its rank writes the first heartbeat.
    return Heartbeat(time_ns, step, phase.rstrip(b"\0").decode(errors="replace")) if beats else None


def heartbeat_from_record(record: Mapping[str, object]) -> Heartbeat | None:
    """Return a `Heartbeat` from the last record of torchtitan's structured log; None if it has no time or no step.

    The phase is the span that begins with the record, or `between` if the record begins none.
    """
    time_us, step = record.get("time_us"), record.get("step", 0)
    if not isinstance(time_us, int) or not isinstance(step, int):
        return None
    name, _, end = str(record.get("log_type_name", "")).rpartition("_")
    return Heartbeat(time_us * 1000, step, name if end == "start" else "between")


def is_running(header: Mapping[str, object]) -> bool | None:
    """Return whether the process that wrote a log with this header still runs.

    The result is None if this process is on another machine, or if the system does not show it.
    """
    pid, started_ns = header.get("pid"), header.get("started_ns")
    if header.get("host") != socket.gethostname() or not isinstance(pid, int) or not Path("/proc/self/stat").exists():
        return None
    process_start = _process_start_s(pid)
    if process_start is None:
        return False
    # Numbers are reused: a process that began after the log did is another one.
    return not isinstance(started_ns, int) or process_start <= started_ns / 1e9 + _CLOCK_SLACK_S


def launcher_is_lost(manifest: Mapping[str, object]) -> bool:
    """Return whether the launcher of a job was killed: its watchdog wrote it into run.json, or its process is gone."""
    launcher = manifest.get("launcher")
    if not isinstance(launcher, dict):
        return False
    return launcher.get("lost") is True or (manifest.get("status") == "running" and is_running(launcher) is False)


def _process_start_s(pid: int) -> float | None:
    """Return when the process with this id began, in Unix seconds; None if there is none, or only a zombie."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b") ")[2].split()
        uptime = float(Path("/proc/uptime").read_bytes().split()[0])
        state, ticks = stat[0], int(stat[19])  # fields 3 and 22 of proc(5), counted after the name
    except (OSError, IndexError, ValueError):
        return None
    return None if state in (b"Z", b"X") else time.time() - uptime + ticks / os.sysconf("SC_CLK_TCK")
