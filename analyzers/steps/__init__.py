"""Step timing: phases, stragglers, broken losses, drift."""

from analyzers.steps.model import RankSteps, StepsData, Straggler
from analyzers.steps.report import analyze

__all__ = ["RankSteps", "StepsData", "Straggler", "analyze"]
