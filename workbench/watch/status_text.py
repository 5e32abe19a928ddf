"""Write the status of a watched job as text: summary, charts over time, alerts, and a line per rank.

The launcher, `workbench watch` and the terminal app show this text.
"""

from collections.abc import Callable, Sequence

from rich.console import Group, RenderableType
from rich.text import Text

from analyzers.steps.live import JobState, RankState
from analyzers.words import duration, percent
from workbench.colours import LIVE_STATE_SIGNS, LIVE_STATES, SEVERITIES, SEVERITY_SIGNS, STATUSES, phase_colour
from workbench.console import clean
from workbench.present.bar import bar
from workbench.present.sparkline import spark
from workbench.present.text import head
from workbench.watch.job_facts import SMALLEST_SHARE, alerts, progress, rank_row, troubled_first
from workbench.watch.watched_job import WatchedJob

LABEL_WIDTH = 8
_NUMBER_WIDTH = 12
_MEMORY_BAR_WIDTH = 8
_VERDICT_LINES = 12
_SPARE_LINES = 3
"""The lines reserved for the head of the rank table, the line about hidden ranks, and a second summary line."""
RANK_HEADS = " rank state       step phase          for    memory          room left full at"
ANALYSING = "analysing the files that were recorded ..."


def status_text(job: WatchedJob, width: int, height: int) -> RenderableType:
    """Return the state of a job as text for a terminal of `width` columns and `height` lines.

    If there is no space for all ranks, only ranks with problems are shown.
    """
    upper = [summary(job.now), *charts(job.now, width), *alert_lines(job)]
    verdict = [head(job.report)] if job.report else []
    room = height - len(upper) - (_VERDICT_LINES if verdict else 0) - _SPARE_LINES
    ranks = troubled_first(job.now.ranks)[: max(2, room)]
    hidden = len(job.now.ranks) - len(ranks)
    rest = [Text(f"        and {hidden} more ranks", style="dim")] if hidden > 0 else []
    lines = [Text(RANK_HEADS[:width], style="dim"), *map(rank_line, ranks), *rest] if ranks else []
    return Group(*upper, *lines, *verdict)


def summary(now: JobState) -> Text:
    """Return a text with status, step, loss, speed and time left; it may wrap to several lines."""
    sign, colour = LIVE_STATE_SIGNS.get(now.status, "?"), LIVE_STATES.get(now.status, STATUSES["unknown"])
    return Text.assemble((f"{sign} {now.status}", f"bold {colour}"), "  ", "  ".join(progress(now)))


def charts(now: JobState, width: int) -> list[Text]:
    """Return lines with a sparkline of the loss, a sparkline of the step time, and a bar of the phases of a step."""
    if not now.recent:
        return []
    room = max(8, width - LABEL_WIDTH - 2 * _NUMBER_WIDTH)
    losses = [step.loss for step in now.recent if step.loss is not None]
    times = [step.dur_s for step in now.recent]
    lines = [sparkline("loss", losses, room, "{:.4f}".format)] if losses else []
    lines += [sparkline("step", times, room, duration)]
    return [*lines, *([_phase_bar(now.phases, width - LABEL_WIDTH)] if now.phases else [])]


def sparkline(label: str, values: Sequence[float], room: int, written: Callable[[float], str]) -> Text:
    """Return a line such as `loss  6.1243  █▇▅▃▁  4.5123`: label, first value, sparkline, last value.

    `room` is the width of the sparkline in characters; `written` converts a value to text.
    """
    first, last = written(values[0]).rjust(_NUMBER_WIDTH - 1), written(values[-1]).rjust(_NUMBER_WIDTH - 2)
    line = (spark(values, room), STATUSES["ok"])
    return Text.assemble((label.ljust(LABEL_WIDTH), "dim"), first, " ", line, " ", last)


def _phase_bar(shares: dict[str, float], width: int) -> Text:
    """Return a line such as `phases ███ fwd 31 % █████ bwd 55 %`; the length of each bar is the share of its phase.

    Small phases are left out.
    """
    labels = {f" {clean(name)} {percent(part)} ": name for name, part in shares.items() if part >= SMALLEST_SHARE}
    room = max(0, width - sum(map(len, labels)))
    line = Text("phases".ljust(LABEL_WIDTH), style="dim")
    for label, name in labels.items():
        # Rounded down: bars that are rounded up could together exceed the room, and the line would wrap.
        piece = "█" * int(shares[name] * room)
        line = Text.assemble(line, (piece, phase_colour(name)), (label, ""))
    return line


def alert_lines(job: WatchedJob) -> list[Text]:
    """Return a line of text for each alert, and one more while a verdict is being computed."""
    lines = [
        Text.assemble((f"{SEVERITY_SIGNS[severity]} ", f"bold {SEVERITIES[severity]}"), clean(text))
        for severity, text in alerts(job)
    ]
    return [*lines, *([Text(ANALYSING, style="dim")] if job.analysing else [])]


def rank_line(rank: RankState) -> Text:
    """Return the row of a rank in the table of ranks as text; `RANK_HEADS` has the headings of the columns."""
    sign, colour = LIVE_STATE_SIGNS.get(rank.state, "?"), LIVE_STATES.get(rank.state, STATUSES["unknown"])
    meter = bar(rank.memory_bytes, rank.limit_bytes, _MEMORY_BAR_WIDTH) if rank.limit_bytes else ""
    row = rank_row(rank)
    return Text.assemble(
        f"{row.rank:>5} ",
        (f"{sign} {row.state:<7}", colour),
        f"{row.step:>7} {clean(row.phase)[:9]:<10}{row.seconds:>8} {row.memory:>9} ",
        (meter.ljust(_MEMORY_BAR_WIDTH), LIVE_STATES["stalled"] if rank.oom_step else STATUSES["ok"]),
        f" {row.room:>9} ",
        (row.full_at, SEVERITIES["warning"]),
    )
