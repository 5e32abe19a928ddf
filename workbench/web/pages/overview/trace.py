"""The chart on the first page for a finding about traces: the parts of the time of each rank or each step."""

from analyzers.words import quantity
from workbench.evidence_link import EvidenceLink
from workbench.web.components.figure import Drawing
from workbench.web.components.rank_charts import named_first, step_parts, time_shares
from workbench.web.served_run import ServedRun

BARS = 10


def trace_drawing(served: ServedRun, at: EvidenceLink) -> Drawing | None:
    """Return a chart of the parts of each rank's time; if a single rank was traced, of each step's time.

    The finding's rank comes first. Return None if nothing was recorded.
    """
    data = served.rooms.trace
    if data is None or not data.ranks:
        return None
    first = data.ranks[0]
    if len(data.ranks) == 1 and len(first.step_times) > 1:
        whose = "" if first.rank is None else f" of rank {first.rank}"
        return f"Kinds of work in each step{whose}", step_parts(first)
    shown = named_first(data.ranks, [at.rank])[:BARS]
    rest = f" ({len(shown)} of {quantity(len(data.ranks), 'rank')})" if len(shown) < len(data.ranks) else ""
    return f"Kinds of work in the recorded time of each rank{rest}", time_shares(shown)
