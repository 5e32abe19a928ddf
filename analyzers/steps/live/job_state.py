"""What is known of a job at one moment while it runs."""

from dataclasses import dataclass, field
from statistics import fmean, median

from analyzers.report import Finding

TIMING_STEPS = 20
"""Speed is told of so many steps."""
ENDED = ("completed", "failed", "interrupted")


@dataclass(frozen=True, kw_only=True)
class RankNow:
    """One rank. `state`: running, stalled, done, failed (an error ended it), gone (without a word), unknown.

    `oom_step`: the step in which its memory meets its limit if it goes on growing by `growth_bytes` a step.
    """

    rank: int
    host: str
    attempt: int
    state: str
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
class Stall:
    """Nobody has moved for `for_s`. Dumps come in `dumps_in_s`, collectives give up in `ends_in_s`, where known."""

    ranks: list[int]
    step: int
    phase: str
    for_s: float
    dumps_in_s: float | None
    ends_in_s: float | None


@dataclass(frozen=True, kw_only=True)
class StepNow:
    """One finished step: seconds of the slowest rank, loss of all ranks where known, mean speed, fullest rank."""

    step: int
    start_ns: int
    dur_s: float
    loss: float | None
    tokens_per_s: float | None
    memory_bytes: int


@dataclass(frozen=True, kw_only=True)
class Now:
    """A job at one moment. `status`: waiting (no file yet), running, stalled, or how it ended.

    `phases`: their shares of a step; `evidence` changes when there is more to analyse.
    """

    status: str
    world_size: int
    steps: int | None
    recent: list[StepNow] = field(default_factory=list)
    ranks: list[RankNow] = field(default_factory=list)
    utilisation: float | None = None
    phases: dict[str, float] = field(default_factory=dict)
    findings: list[Finding] = field(default_factory=list)
    stall: Stall | None = None
    evidence: tuple[tuple[str, int], ...] = ()

    @property
    def attempt(self) -> int:
        """How often the job was started again."""
        return max((one.attempt for one in self.ranks), default=0)

    @property
    def step(self) -> int:
        """The last step that a rank has finished."""
        return self.recent[-1].step if self.recent else 0

    @property
    def step_s(self) -> float | None:
        """What a step takes, of the last ones."""
        timed = [one.dur_s for one in self.recent[-TIMING_STEPS:] if one.dur_s > 0]
        return median(timed) if timed else None

    @property
    def tokens_per_s(self) -> float | None:
        """Of one rank, over the last steps."""
        rates = [one.tokens_per_s for one in self.recent[-TIMING_STEPS:] if one.tokens_per_s is not None]
        return fmean(rates) if rates else None

    @property
    def left_s(self) -> float | None:
        """Seconds until the last step, if all goes on as it does."""
        if self.steps is None or self.step_s is None or self.status != "running":
            return None
        return max(0, self.steps - self.step) * self.step_s

    @property
    def ended(self) -> bool:
        return self.status in ENDED
