"""Follow a running job by reading the files that it writes."""

from analyzers.steps.live.follower import Follower
from analyzers.steps.live.job_state import (
    FinishedStep,
    JobState,
    JobStatus,
    RankState,
    RankStatus,
    StalledRanks,
    is_running,
    launcher_is_lost,
)

__all__ = [
    "FinishedStep",
    "Follower",
    "JobState",
    "JobStatus",
    "RankState",
    "RankStatus",
    "StalledRanks",
    "is_running",
    "launcher_is_lost",
]
