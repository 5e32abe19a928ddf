"""Step timing of a run: phases, stragglers, stalls, slowdowns, losses and where the wall time went.

    report = steps.analyze("outputs")

Sub-rooms: `reading` (logs of all kinds -> columns), `answers` (one question a module), `diff` (one run against
another), `findings` (sentences), `live` (a job while it runs); `views` are the small tables that faces draw.
"""

from analyzers.steps.model import RankSteps, StepsData, Straggler
from analyzers.steps.report import analyze

__all__ = ["RankSteps", "StepsData", "Straggler", "analyze"]
