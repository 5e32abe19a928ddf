"""The whole run in one story: joins memory, hangs, steps and traces, and puts the first cause first."""

from analyzers.incident.report import IncidentData, Link, Rooms, analyze, told_by_steps

__all__ = ["IncidentData", "Link", "Rooms", "analyze", "told_by_steps"]
