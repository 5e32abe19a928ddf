"""Analyze the step logs of a run: phases, stragglers, stalls, slowdowns, losses, and how the wall time was used.

    report = steps.analyze("outputs")

The package `reading` turns logs of all kinds into columns. `answers` has one question per module, `diff` compares two
runs, `findings` writes the sentences, and `live` follows a running job. `columns` and `mapping` read the logs of
programs that use neither this project's recorders nor torchtitan ("other trainers"). The module `views` has small
tables for the user interfaces.
"""

from analyzers.steps.model import RankSteps, StepsData, Straggler
from analyzers.steps.report import analyze

__all__ = ["RankSteps", "StepsData", "Straggler", "analyze"]
