"""Write the status of a watched job as text: summary, charts over time, alerts, and a line per rank.

The launcher, `workbench watch` and the terminal app show this text.
"""

from collections.abc import Callable, Sequence

from rich.console import Group, RenderableType
from rich.text import Text

from analyzers.steps.live import JobState, RankState, StalledRanks
from analyzers.words import agree, duration, percent, quantity, rank_names, size, waiting_time
from workbench.colours import LIVE_STATE_SIGNS, LIVE_STATES, PHASES, SEVERITIES, SEVERITY_SIGNS, STATUSES
from workbench.console import clean
from workbench.present.bar import bar
from workbench.present.sparkline import spark
from workbench.present.text import head
from workbench.watch.watched_job import WatchedJob

LABEL_WIDTH = 8
NUMBER_WIDTH = 12
SMALLEST_PHASE = 0.05
MEMORY_BAR_WIDTH = 8
VERDICT_LINES = 12
SPARE_LINES = 3
"""Lines kept for the head of the table of ranks, the line about hidden ranks, and a summary that takes two lines."""
RANK_HEADS = " rank state       step phase          for    memory          room left full at"
LOST_STATES = ("gone", "failed")


def status_text(job: WatchedJob, width: int, height: int) -> RenderableType:
    """Return the state of a job in `width` columns and `height` lines; ranks with problems come first."""
    upper = [summary(job.now), *charts(job.now, width), *alerts(job)]
    verdict = [head(job.report)] if job.report else []
    room = height - len(upper) - (VERDICT_LINES if verdict else 0) - SPARE_LINES
    ranks = troubled_first(job.now.ranks)[: max(2, room)]
    hidden = len(job.now.ranks) - len(ranks)
    rest = [Text(f"        and {hidden} more ranks", style="dim")] if hidden > 0 else []
    lines = [Text(RANK_HEADS[:width], style="dim"), *map(rank_line, ranks), *rest] if ranks else []
    return Group(*upper, *lines, *verdict)


def summary(now: JobState) -> Text:
    """Return a line of text, which wraps, with status, step, loss, speed and time left."""
    sign, colour = LIVE_STATE_SIGNS.get(now.status, "?"), LIVE_STATES.get(now.status, STATUSES["unknown"])
    return Text.assemble((f"{sign} {now.status}", f"bold {colour}"), "  ", "  ".join(progress(now)))


def progress(now: JobState) -> list[str]:
    """Return the known facts about the job's progress as short texts such as `step 3/10`, most important first."""
    total = f"/{now.steps}" if now.steps else ""
    loss = now.recent[-1].loss if now.recent else None
    facts = [
        f"step {now.step}{total}",
        None if loss is None else f"loss {loss:.4f}",
        None if now.tokens_per_s is None else f"{now.tokens_per_s:,.0f} tok/s per rank",
        None if now.utilisation is None else f"MFU {percent(now.utilisation)}",
        None if now.step_s is None else f"{duration(now.step_s)} per step",
        None if now.remaining_s is None else f"{waiting_time(now.remaining_s)} left",
        quantity(now.world_size, "rank") if now.world_size else None,
        f"restarted {quantity(now.attempt, 'time')}" if now.attempt else None,
    ]
    return [fact for fact in facts if fact is not None]


def charts(now: JobState, width: int) -> list[Text]:
    """Return the lines of two sparklines, loss and step time, and of a bar with the phases of a step."""
    if not now.recent:
        return []
    room = max(8, width - LABEL_WIDTH - 2 * NUMBER_WIDTH)
    losses = [step.loss for step in now.recent if step.loss is not None]
    times = [step.dur_s for step in now.recent]
    lines = [sparkline("loss", losses, room, "{:.4f}".format)] if losses else []
    lines += [sparkline("step", times, room, duration)]
    return [*lines, *([phase_bar(now.phases, width - LABEL_WIDTH)] if now.phases else [])]


def sparkline(label: str, values: Sequence[float], room: int, written: Callable[[float], str]) -> Text:
    """Return a line such as `loss  6.1243  █▇▅▃▁  4.5123`: label, first value, sparkline, last value.

    `room` is the width of the sparkline in characters; `written` formats a value.
    """
    first, last = written(values[0]).rjust(NUMBER_WIDTH - 1), written(values[-1]).rjust(NUMBER_WIDTH - 2)
    line = (spark(values, room), STATUSES["ok"])
    return Text.assemble((label.ljust(LABEL_WIDTH), "dim"), first, " ", line, " ", last)


def phase_bar(shares: dict[str, float], width: int) -> Text:
    """Return a line such as `phases  ███ fwd 31 % █████ bwd 55 %`, in which each bar is as long as the phase's share.

    Small phases are left out.
    """
    labels = {f" {clean(name)} {percent(part)} ": name for name, part in shares.items() if part >= SMALLEST_PHASE}
    room = max(0, width - sum(map(len, labels)))
    line = Text("phases".ljust(LABEL_WIDTH), style="dim")
    for label, name in labels.items():
        # Rounded down: bars that are rounded up could together exceed the room, and the line would wrap.
        piece = "█" * int(shares[name] * room)
        line = Text.assemble(line, (piece, PHASES.get(name, PHASES["other"])), (label, ""))
    return line


def alerts(job: WatchedJob) -> list[Text]:
    """Return a line of text for each problem: a lost launcher, lost ranks, a stall, each finding, a failed analysis.

    A further line says that a verdict is being computed.
    """
    now, lost = job.now, lost_ranks(job.now)
    lines = [alert("error", LAUNCHER_LOST)] if now.launcher_lost else []
    lines += [alert("error", lost_text(lost))] if lost else []
    lines += [alert("error", stall_text(now.stall))] if now.stall else []
    lines += [alert(finding.severity, finding.title) for finding in now.findings]
    if job.analysing:
        lines.append(Text("analysing the files that were recorded ...", style="dim"))
    return lines + ([alert("warning", job.problem)] if job.problem else [])


def alert(severity: str, text: str) -> Text:
    return Text.assemble((f"{SEVERITY_SIGNS[severity]} ", f"bold {SEVERITIES[severity]}"), clean(text))


def lost_ranks(now: JobState) -> list[int]:
    """Return the ranks whose process has ended while the job continues.

    The list is empty for a job that has ended, because its verdict names these ranks.
    """
    return [] if now.ended else [rank.rank for rank in now.ranks if rank.state in LOST_STATES]


LAUNCHER_LOST = "launcher lost: it was killed, and its guard ends the ranks"


def lost_text(ranks: Sequence[int]) -> str:
    return f"{rank_names(ranks)} {agree(ranks, 'has', 'have')} ended early"


def stall_text(stall: StalledRanks) -> str:
    """Return a sentence that says which ranks stall, in which phase, for how long, and what follows.

    What follows are the dumps, if they are not written yet, and the timeout of the collectives.
    """
    ranks, phase = rank_names(stall.ranks), f"{stall.phase} of step {stall.step}"
    text = f"{ranks} {agree(stall.ranks, 'has', 'have')} been in {phase} for {waiting_time(stall.stalled_s)}"
    if stall.dumps_in_s is not None and stall.dumps_in_s > 0:
        text += f"; dumps are written in {waiting_time(stall.dumps_in_s)}"
    if stall.ends_in_s is not None:
        text += f"; collectives time out in {waiting_time(max(0.0, stall.ends_in_s))}"
    return text


def troubled_first(ranks: Sequence[RankState]) -> list[RankState]:
    """Return the ranks sorted by how bad their state is, the worst first.

    Lost ranks come first, then stalled ones, then ranks that are expected to run out of memory; among equals, the rank
    with the largest used fraction of its memory comes first.
    """
    grave = (*LOST_STATES, "stalled")
    return sorted(
        ranks,
        key=lambda rank: (
            grave.index(rank.state) if rank.state in grave else len(grave),
            rank.oom_step is None,
            -rank.memory_bytes / rank.limit_bytes if rank.limit_bytes else 0.0,
            rank.rank,
        ),
    )


def rank_line(rank: RankState) -> Text:
    """Return the row of a rank in the table of ranks, as text; `RANK_HEADS` has the heads of its columns."""
    sign, colour = LIVE_STATE_SIGNS.get(rank.state, "?"), LIVE_STATES.get(rank.state, STATUSES["unknown"])
    meter = bar(rank.memory_bytes, rank.limit_bytes, MEMORY_BAR_WIDTH) if rank.limit_bytes else ""
    room = size(rank.headroom_bytes) if rank.limit_bytes else "no limit"
    full = f"step {rank.oom_step}" if rank.oom_step else ""
    return Text.assemble(
        f"{rank.rank:>5} ",
        (f"{sign} {rank.state:<7}", colour),
        f"{rank.step:>7} {clean(rank.phase)[:9]:<10}{time_in_phase(rank):>8} {size(rank.memory_bytes):>9} ",
        (meter.ljust(MEMORY_BAR_WIDTH), LIVE_STATES["stalled"] if rank.oom_step else STATUSES["ok"]),
        f" {room:>9} ",
        (full, SEVERITIES["warning"]),
    )


def time_in_phase(rank: RankState) -> str:
    """Return as text how long a rank has been in its current phase; empty if the rank has ended."""
    return duration(rank.quiet_s) if rank.state in ("running", "stalled") else ""
