"""A job while it runs, by the files that it writes."""

from analyzers.steps.live.follower import Follower
from analyzers.steps.live.job_state import Now, RankNow, Stall, StepNow

__all__ = ["Follower", "Now", "RankNow", "Stall", "StepNow"]
