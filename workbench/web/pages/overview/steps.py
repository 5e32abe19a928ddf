"""Small charts of the first page, one above the other: peak memory, step time and loss of each step of the run."""

from collections.abc import Iterator

from dash import html

from analyzers.memory import views as memory
from analyzers.steps import views as steps
from workbench.ask import ROOMS
from workbench.present.tables.memory import worst_first
from workbench.web.components.figure import byte_axis, drawn
from workbench.web.components.small_charts import SmallChart, failed_step, small_charts
from workbench.web.components.step_charts import duration_axis, thinned
from workbench.web.served_run import ServedRun

_LABEL = "Memory, step time and loss of each step"


def step_overview(served: ServedRun) -> html.Figure | None:
    """Return the small charts as HTML, with the failed step marked; None if fewer than two of them have data."""
    charts = [chart for chart in (*memory_chart(served), *_logged_charts(served)) if len(chart.by_step) > 1]
    if len(charts) < 2:
        return None
    return drawn("steps-overview", small_charts(charts, failed_step(served.report)), _LABEL, bar=False)


def memory_chart(served: ServedRun) -> Iterator[SmallChart]:
    """Yield a chart of the peak memory of each step, if there is a memory snapshot.

    The chart shows the device that ran out of memory, or else the device with the highest peak.
    """
    devices = worst_first(served.rooms.memory.devices) if served.rooms.memory else []
    if devices:
        device = devices[0]
        uses = memory.steps(served.snapshot(device.path), served.options, device.device)
        peaks = thinned(uses.set_index("step")[["peak_bytes"]])["peak_bytes"].astype(float)
        # The picture above it names the device and the snapshot; a longer title would reach the label of a failed step.
        whose = "" if device.rank is None else f" of rank {device.rank}"
        yield SmallChart(f"peak memory{whose}", peaks, byte_axis(peaks.max()))


def _logged_charts(served: ServedRun) -> Iterator[SmallChart]:
    """Yield charts of step time and loss from the step logs; each value is the largest of all ranks in that step."""
    if served.rooms.steps is None:
        return
    logged = steps.series(served.run.of(*ROOMS["steps"]), served.options)
    largest = logged.groupby("step")[["dur_s", "loss"]].max()
    times, losses = (thinned(largest[[name]].dropna())[name] for name in ("dur_s", "loss"))
    several = len(served.rooms.steps.ranks) > 1
    yield SmallChart(f"step time{' of the slowest rank' if several else ''}", times, duration_axis(times.max()))
    yield SmallChart(f"loss{' (the largest of all ranks)' if several else ''}", losses, {})
