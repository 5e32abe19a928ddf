"""The charts of the home pane, called pictures: each shows the evidence of a finding, such as a memory timeline.

If the screen is too low for a chart, a sparkline in one line of text replaces it.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pandas as pd
from rich.text import Text
from textual.app import ComposeResult
from textual.containers import Vertical
from textual.widget import Widget
from textual.widgets import Static

from analyzers.compare import CompareData
from analyzers.hangs import HangData
from analyzers.hangs import views as hangs
from analyzers.memory import MemoryData
from analyzers.report import Report
from analyzers.rooms import imported
from analyzers.run import TIMED, Kind, Run
from analyzers.steps import StepsData
from analyzers.steps import views as steps
from analyzers.store import Options
from analyzers.traces import RankTrace, TraceData
from analyzers.words import duration, process_group, share, size
from workbench.colours import COLLECTIVE_SIGNS
from workbench.console import clean
from workbench.present.figure import spark
from workbench.present.table import phase_title
from workbench.present.tables.comparison import signed, step_changes, waterfall_lines
from workbench.present.tables.memory import device_name, worst_first
from workbench.rooms import FACES, EvidenceLink, data_by_room, data_of, evidence_link
from workbench.tui.panes.compare import Waterfall
from workbench.tui.panes.home import EvidenceWanted
from workbench.tui.panes.steps import losses, phases_by_step, step_timeline
from workbench.tui.panes.trace import BAR_HEADS, BARS_AT_MOST, PART_NAMES, account_name, span_parts, time_bar
from workbench.tui.panes.trace import legend as bar_legend
from workbench.tui.widgets.common import call_on_new_size
from workbench.tui.widgets.grids import CollectiveMatrix, matrix_legend
from workbench.tui.widgets.line_chart import LossChart, PhaseChart
from workbench.tui.widgets.memory_timeline import MemoryTimeline
from workbench.tui.widgets.stacked_chart import StackedChart
from workbench.tui.widgets.tables import RowList
from workbench.tui.widgets.view_switcher import ask_in_background

_COLLECTIVES = 200
"""The number of last collectives that the matrix shows; the one that hangs is among them."""
_NO_DUMP, DONE = "no dump", "done"
_SINGLE_RANKS = 6
"""The most ranks that have a row each; if there are more, ranks with equal rows share one."""
_SPARK_WIDTH, _SHORT_WIDTH = 40, 20


@dataclass(frozen=True)
class Drawing:
    """The computed content of a chart in the home pane: calling `draw` shows it.

    `line` is the text that a low screen shows instead of the chart. `rows` is the height that the chart needs, or None
    if any height is enough. `legend` follows the caption.
    """

    draw: Callable[[], None]
    line: str
    rows: int | None = None
    legend: Text | None = None


@dataclass(frozen=True)
class Picture:
    """A chart in the home pane, with its caption; `read(columns)` computes the content for a chart of that width.

    `read` runs in a thread. `evidence` links to the view that has the chart in full size. If `is_low`, the chart has
    only a few rows even on a high screen.
    """

    caption: Text
    chart: Widget
    read: Callable[[int], Drawing]
    evidence: EvidenceLink
    is_low: bool = False


class HomePicture(Vertical):
    """The widget of a chart in the home pane, with a caption; a click opens the view with the chart in full size.

    Chart number 0 belongs to the verdict and is always shown. Charts with higher numbers are shown on large screens
    only.
    """

    DEFAULT_CSS = """
    HomePicture { height: auto; }
    HomePicture > .caption { height: 1; color: $text-muted; text-wrap: nowrap; text-overflow: ellipsis; }
    """

    def __init__(self, picture: Picture, number: int = 0) -> None:
        super().__init__(id=f"picture-{number}" if number else "picture", classes="picture")
        self._picture = picture
        self._line, self._legend = "", Text()
        self._is_hidden = True
        self.set_class(number > 0, "further")
        self.set_class(picture.is_low, "low-chart")
        # The keys belong to the findings; Enter on one leads to the chart that takes keys.
        picture.chart.can_focus = False
        picture.chart.add_class("drawn")

    def compose(self) -> ComposeResult:
        yield Static(self._picture.caption, classes="caption")
        yield self._picture.chart

    def on_mount(self) -> None:
        call_on_new_size(self, self._load)
        # Whether the chart is hidden may be known only when the screen is laid out.
        self.screen.screen_layout_refresh_signal.subscribe(self, lambda _screen: self._follow_chart())

    def on_click(self) -> None:
        self.post_message(EvidenceWanted(self._picture.evidence))

    def _load(self) -> None:
        chart = self._picture.chart
        # A chart that a low screen hides has no columns, its sparkline still needs the data.
        columns = chart.columns if isinstance(chart, StackedChart) and chart.columns > 0 else _SPARK_WIDTH
        ask_in_background(self, "picture", lambda: self._picture.read(columns), self._show)

    def _show(self, drawing: Drawing) -> None:
        self._line, self._legend = drawing.line, drawing.legend or Text()
        if drawing.rows is not None:
            self._picture.chart.styles.height = drawing.rows
        drawing.draw()
        self._show_caption()

    def _follow_chart(self) -> None:
        """Change the caption if the chart was shown or hidden since the last call.

        Nothing changes while the whole widget is invisible.
        """
        if self.size and self._line and self._is_hidden != self._chart_is_hidden:
            self._show_caption()

    @property
    def _chart_is_hidden(self) -> bool:
        return not self._picture.chart.display or not self._picture.chart.size.height

    def _show_caption(self) -> None:
        self._is_hidden = self._chart_is_hidden
        for caption in self.query(".caption").results(Static):
            caption.update(Text(self._line) if self._is_hidden else Text.assemble(self._picture.caption, self._legend))


def home_pictures(report: Report[object], run: Run, options: Options) -> list[HomePicture]:
    """Return the charts of the home pane: first that of the verdict, then those of other findings, then general ones.

    The general charts show step times, losses and memory. Each chart is of another kind. At most two charts are
    returned, or three if the first one is low.
    """
    by_kind: dict[type[Widget], Picture] = {}
    for picture in pictures(report, run, options):
        by_kind.setdefault(type(picture.chart), picture)
    chosen = list(by_kind.values())
    most = 3 if chosen and chosen[0].is_low else 2
    return [HomePicture(picture, number) for number, picture in enumerate(chosen[:most])]


def pictures(report: Report[object], run: Run, options: Options) -> Iterator[Picture]:
    """Yield a `Picture` for each finding whose evidence can be drawn, beginning with the finding of the verdict.

    At the end come general charts of the steps, the losses, the memory, and of what changed between two runs.
    """
    lead = report.lead()
    links = [evidence_link(finding) for finding in [*([lead] if lead else []), *report.findings]]
    rank = next(iter(report.verdict.ranks), None)
    logged, found = data_of(report, StepsData), data_by_room(report)
    has_loss = logged is not None and any(account.last_loss is not None for account in logged.ranks)
    general = [
        EvidenceLink("steps", "", rank=rank),
        *([EvidenceLink("steps", "loss")] if has_loss else []),
        EvidenceLink("memory", ""),
        EvidenceLink("compare", ""),
    ]
    for link in [*links, *general]:
        if link and link.room in found and (place := FACES[link.room].picture):
            picture: Picture | None = imported(place)(found[link.room], run, options, link)
            yield from [picture] if picture else []


def memory_picture(data: MemoryData, run: Run, options: Options, at: EvidenceLink) -> Picture | None:
    """Return a chart of a device's memory over time, by category; None if there is no recording.

    `at` names the rank whose device is shown.
    """
    ranked = [device for device in worst_first(data.devices) if at.rank in (None, device.rank)]
    device = next((device for device in ranked if device.step == at.step), next(iter(ranked), None))
    paths = {str(artefact.path): artefact for artefact in run.of(Kind.SNAPSHOT)}
    if device is None or not device.entries or device.path not in paths:
        return None
    chart = MemoryTimeline(id="home-memory")

    def read(columns: int) -> Drawing:
        instants, starts = step_timeline(paths[device.path], options, device.device, columns)
        allocated = instants["allocated"]
        failed = "  ✗" if bool(instants["oom"].any()) else ""
        line = f"{spark(allocated.tolist(), _SPARK_WIDTH)}{failed}  peak {size(int(allocated.max()))} allocated"
        return Drawing(lambda: chart.show(instants, starts), line)

    return Picture(Text(f"Allocated memory by category, {clean(device_name(device))}"), chart, read, at)


def hang_picture(data: HangData, run: Run, options: Options, at: EvidenceLink) -> Picture | None:
    """Return a chart of the state of the last collectives on each rank; None if no process group is recorded.

    The chart shows the process group that is blocked by the rank in `at`, or else the first group.
    """
    blamed = (culprit.group for culprit in data.culprits if at.rank is None or at.rank in culprit.ranks)
    names = [group.name for group in data.groups]
    name = next((name for name in blamed if name in names), next(iter(names), None))
    if name is None:
        return None
    chart = CollectiveMatrix(id="home-matrix")
    group = data.groups[names.index(name)]

    def read(_columns: int) -> Drawing:
        frame = hangs.matrix(run, name, _COLLECTIVES, options)
        shown: pd.DataFrame = frame if len(frame) <= _SINGLE_RANKS else hangs.folded(frame)
        states = matrix_legend(set(map(str, frame.to_numpy().ravel())))
        return Drawing(lambda: chart.show(shown), _signs_of_rank(frame, at.rank), len(shown) + 1, states)

    title = f"Last collectives of {clean(process_group(group.label))}, by rank   "
    return Picture(Text(title), chart, read, at, is_low=True)


def _signs_of_rank(frame: pd.DataFrame, rank: int | None) -> str:
    """Return the states of a rank's last collectives as a line of signs, such as `●●✗`.

    `frame` is the result of `hangs.views.matrix`: a row per rank, a column per collective. If `rank` has no row or left
    no dump, the result shows a rank that waits.
    """
    rows = {str(name): list(map(str, row)) for name, row in zip(frame.index, frame.to_numpy(), strict=True)}
    dumped = [name for name, states in rows.items() if set(states) - {_NO_DUMP, ""}]
    # A rank that waits says more than one that completed all that it issued.
    dumped.sort(key=lambda name: (name != str(rank), rows[name][-1] == DONE))
    name = next(iter(dumped), next(iter(rows), ""))
    lost = f"; rank {rank} left no dump" if str(rank) in rows and name != str(rank) else ""
    states = rows.get(name, [])[-(_SHORT_WIDTH if lost else _SPARK_WIDTH) :]
    return f"{''.join(COLLECTIVE_SIGNS.get(state, '?') for state in states)}  last collectives of rank {name}{lost}"


def trace_picture(data: TraceData, _run: Run, _options: Options, at: EvidenceLink) -> Picture | None:
    if not data.ranks:
        return None
    bars = RowList[RankTrace](BAR_HEADS, lambda rank: time_bar(rank, bars.size.width), id="home-bars")
    shown = sorted(data.ranks, key=lambda rank: rank.rank != at.rank)[:BARS_AT_MOST]
    parts = {name: span_parts(shown[0])[kind] for kind, name in PART_NAMES}
    shares = ", ".join(f"{name} {share(part, shown[0].span_ns)}" for name, part in parts.items() if part)

    def read(_columns: int) -> Drawing:
        return Drawing(
            lambda: bars.show(shown), f"{account_name(shown[0])}: {shares}", len(shown) + 1, bar_legend(shown)
        )

    return Picture(Text("Time of the traced ranks   "), bars, read, at, is_low=True)


def steps_picture(data: StepsData, run: Run, options: Options, at: EvidenceLink) -> Picture | None:
    """Return a chart of a step log: the loss by step if `at.part` is `loss`, else the phases of each step.

    The phases are those of rank `at.rank`; if this rank has no step log, those of the first logged rank. Return None
    without step logs, or if they have no durations.
    """
    logs, ranks = run.of(*TIMED), [rank.rank for rank in data.ranks]
    if not ranks:
        return None
    if at.part == "loss":
        loss = LossChart(id="home-loss")

        def read_loss(_columns: int) -> Drawing:
            frame = losses(steps.series(logs, options), data.first_nonfinite_step)
            return Drawing(lambda: loss.show(frame), f"{spark(frame['loss'].tolist(), _SPARK_WIDTH)}  loss")

        return Picture(Text("Loss of each step"), loss, read_loss, at)
    rank = at.rank if at.rank in ranks else ranks[0]
    if not data.ranks[ranks.index(rank)].median_step_s:
        return None
    phases = PhaseChart(id="home-phases")

    def read(_columns: int) -> Drawing:
        frame = phases_by_step(logs, options, rank)
        times = frame["dur_s"].tolist()
        line = f"{spark(times, _SPARK_WIDTH)}  longest step of rank {rank} {duration(max(times, default=0.0))}"
        return Drawing(lambda: phases.show(frame), line)

    return Picture(Text(f"Time of each phase in the steps of rank {rank}"), phases, read, at)


def comparison_picture(data: CompareData, _run: Run, _options: Options, at: EvidenceLink) -> Picture | None:
    if not data.phases:
        return None
    changes, (before, after) = step_changes(data)
    waterfall = Waterfall(data, id="home-waterfall")
    rows = len(waterfall_lines(changes, (before, after), _SPARK_WIDTH))
    most = f", mostly {phase_title(changes[0][0])} {signed(changes[0][1], duration)}" if changes else ""
    line = f"mean step {duration(before)} -> {duration(after)}{most}"
    caption = Text("How the mean step changed, by phase")
    return Picture(caption, waterfall, lambda _: Drawing(lambda: None, line, rows), at, is_low=True)
