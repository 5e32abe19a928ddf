"""Compare the quantities of two runs: a `Line` has a quantity's numbers in both, and its `row` the texts to show."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from analyzers.compare.model import Measures, Row
from analyzers.steps.diff.measures import Measure, MeasureChange
from analyzers.traces.diff.diff import TraceDiff
from analyzers.words import duration, duration_ns, percent_change, signed_percent, size, size_change

Format = Callable[[float], str]


@dataclass(frozen=True)
class Line:
    """One quantity with its value in each run (None if a run does not have it).

    `write` is a function that formats a value as text. `interval` has the lower and upper 95 % bound of the relative
    change (None: not known). `difference` is a function that formats b - a, for quantities for which the difference is
    more useful than the relative change.
    """

    what: str
    a: float | None
    b: float | None
    write: Format
    interval: tuple[float, float] | None = None
    difference: Format | None = None

    @property
    def change(self) -> str:
        """The relative change as text, or the difference; empty if it is not defined."""
        if self.a is None or self.b is None:
            return ""
        if self.difference:
            return self.difference(self.b - self.a)
        return percent_change(self.a, self.b) if self.a else ""

    @property
    def is_comparable(self) -> bool:
        """Whether both runs have the quantity, and its relative change or its difference is defined."""
        return self.a is not None and self.b is not None and bool(self.a or self.difference)

    def row(self) -> Row:
        """Return the line as a table row of texts."""
        a, b = ("" if value is None else self.write(value) for value in (self.a, self.b))
        return Row(self.what, a, b, self.change, interval_text(*self.interval) if self.interval else "")


def interval_text(low: float, high: float) -> str:
    """Return the bounds `low` and `high` of a relative change as text: `+83 % to +175 %` for 0.83 and 1.75."""
    return f"{signed_percent(low)} to {signed_percent(high)}"


def measure_lines(a: Measures, b: Measures, changes: Sequence[MeasureChange]) -> list[Line]:
    """Return a `Line` for each measured quantity that at least one of the runs has.

    `a` and `b` are the measures of the runs. `changes` has the values and the interval of each measure that can be
    compared; an interval from too few steps is left out.
    """
    by_measure = {change.measure: change for change in changes}

    def line(what: str, measure: Measure, write: Format, ends: tuple[float | None, float | None]) -> Line:
        change = by_measure.get(measure)
        # An interval that is too wide to judge by would read as a result.
        sure = change and change.is_sufficient and not change.is_exact
        return Line(what, *ends, write, (change.low, change.high) if change and sure else None)

    def ends(measure: Measure) -> tuple[float | None, float | None]:
        change = by_measure.get(measure)
        return (change.a, change.b) if change else (None, None)

    step_time = ends(Measure.STEP_TIME) if Measure.STEP_TIME in by_measure else (a.step_s, b.step_s)
    lines = [
        line("median step time", Measure.STEP_TIME, duration, step_time),
        line("mean step time", Measure.STEP_TIME_MEAN, duration, ends(Measure.STEP_TIME_MEAN)),
        line("95th percentile", Measure.STEP_TIME_P95, duration, ends(Measure.STEP_TIME_P95)),
        line("processor time", Measure.PROCESSOR_TIME, duration, ends(Measure.PROCESSOR_TIME)),
        Line("tokens per second", a.tokens_per_s, b.tokens_per_s, "{:.0f}".format),
        Line("last loss", a.loss, b.loss, "{:.4f}".format),
        line("loss of the last common steps", Measure.LOSS, "{:.4f}".format, ends(Measure.LOSS)),
        line("peak memory", Measure.MEMORY, size, (a.memory_bytes, b.memory_bytes)),
        *(Line(f"phase {name}", a.phases.get(name), b.phases.get(name), duration) for name in a.phases | b.phases),
    ]
    return [line for line in lines if line.a is not None or line.b is not None]


def trace_lines(traces: TraceDiff | None) -> list[Line]:
    """Return a `Line` for each quantity of the traced steps; empty if no traces were compared.

    These are the duration of a step, the parts that add up to it, and the memory of each device.
    """
    if traces is None:
        return []
    times = [("traced step", traces.step_a_ns, traces.step_b_ns), *((p.what, p.a_ns, p.b_ns) for p in traces.parts)]
    return [
        *(Line(f"trace: {what}", a, b, duration_ns, difference=_time_change) for what, a, b in times if a or b),
        *(
            Line(f"trace: {m.kind}, {m.where}", m.a_bytes, m.b_bytes, size, difference=size_change)
            for m in traces.memory
            if not m.name  # those with a name are single operators and modules
        ),
    ]


def _time_change(nanoseconds: float) -> str:
    """Return a difference of times with its sign: `+1.2 ms`."""
    return f"{'-' if nanoseconds < 0 else '+'}{duration_ns(round(abs(nanoseconds)))}"
