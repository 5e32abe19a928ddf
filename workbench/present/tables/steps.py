"""Tables of a report on step logs: step times by rank and phase, and events in the loss."""

from collections.abc import Sequence

from analyzers.steps.model import Change, Event, Goodput, RankSteps, StepsData, Straggler, TaggedSteps
from analyzers.words import duration, duration_ns, share
from workbench.present.table import Table, table

_BAR, _BROKEN_BAR = "|", "¦"
"""The separator of heads in `table`, and its replacement in names of phases, because these come from a file."""
PHASES = 6


def steps_tables(data: StepsData) -> list[Table]:
    return [
        stragglers(data.stragglers),
        medians(data.ranks),
        wall_time(data.goodput),
        _level_changes(data.changes),
        _untypical_steps(data.tagged),
        _loss_events(data.events),
    ]


def stragglers(found: Sequence[Straggler]) -> Table:
    rows = (
        (s.rank, duration(s.lateness_s), share(s.recurrence, 1), s.cause, s.pattern, duration(s.lost_s)) for s in found
    )
    heads = "rank> | late by> | share of steps> | cause | pattern | time lost per step>"
    return table("Stragglers", heads, rows)


def medians(ranks: Sequence[RankSteps]) -> Table:
    # Sorted by name first, so that phases of equal length keep their order from run to run.
    names = sorted({phase for r in ranks for phase in r.phases})
    shown = sorted(names, key=lambda n: -max(r.phases.get(n, 0.0) for r in ranks))[:PHASES]
    rows = ((r.rank, r.steps, duration(r.median_step_s), *(_phase_time(r, name) for name in shown)) for r in ranks)
    heads = " | ".join(["rank>", "steps>", "step>", *(f"{n.replace(_BAR, _BROKEN_BAR)}>" for n in shown)])
    return table("Median step time by rank", heads, rows)


def _phase_time(rank: RankSteps, name: str) -> str:
    return duration(rank.phases[name]) if name in rank.phases else ""


def wall_time(goodput: Goodput | None) -> Table:
    parts = sorted(goodput.parts.items(), key=lambda item: -item[1]) if goodput else []
    whole = goodput.wall_ns if goodput else 0
    rows = ((name, duration_ns(ns), share(ns, whole)) for name, ns in parts)
    return table("Wall time by activity", "activity | time> | share>", rows)


def _level_changes(changes: Sequence[Change]) -> Table:
    rows = ((c.step, duration(c.before_s), duration(c.after_s), c.kind, _most_changed(c)) for c in changes)
    heads = "from step> | before> | after> | kind | phase that changed most"
    return table("Changes of the step time", heads, rows)


def _most_changed(change: Change) -> str:
    """Return the phase that changed most and its change, such as `bwd +12 ms`; `not recorded` without phases."""
    if not change.phases:
        return "not recorded"
    name = max(change.phases, key=lambda phase: abs(change.phases[phase]))
    return f"{name} {'+' if change.phases[name] >= 0 else '-'}{duration(abs(change.phases[name]))}"


def _untypical_steps(by_tag: dict[str, TaggedSteps]) -> Table:
    """Return a table of the steps that are left out of the medians, grouped by tag.

    A tag names the extra work in such steps, such as compiling or saving a checkpoint.
    """
    rows = ((tag, steps.steps, duration(steps.median_step_s)) for tag, steps in by_tag.items())
    return table("Steps left out of the medians", "tag | steps> | median step>", rows)


def _loss_events(events: Sequence[Event]) -> Table:
    rows = (
        (
            e.step,
            e.kind.replace("_", " "),
            _loss_value(e.before),
            _loss_value(e.value),
            "" if e.until is None else e.until,
        )
        for e in events
    )
    return table("Loss and gradient norm", "step> | event | before> | value> | recovered at step>", rows)


def _loss_value(value: float | None) -> str:
    return "" if value is None else f"{value:.4g}"
