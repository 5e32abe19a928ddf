"""Define `JobState`, the state of a running job at one moment, and its parts."""

from dataclasses import dataclass, field
from enum import StrEnum
from statistics import fmean, median

from analyzers.report import Finding

SPEED_STEPS = 20
"""The number of last steps from which the present speed is computed."""


class RankStatus(StrEnum):
    """The status of one rank of a job."""

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
    """The status of a job: whether it runs, or how it ended."""

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
        """How many more bytes the rank can use before its memory reaches the limit; None without a limit."""
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
        """The median duration of the last steps in seconds; None if no duration is known."""
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
        """Whether the job has ended."""
        return self.status in ENDED
