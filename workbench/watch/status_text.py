"""A scene as text: summary, lines over time, alerts, and a line a rank. The launcher and `watch` show the same."""

from collections.abc import Callable, Sequence

from rich.console import Group, RenderableType
from rich.text import Text

from analyzers.steps.live import Now, RankNow, Stall
from analyzers.words import agree, duration, rank_names, size, waiting_time
from workbench.colours import PHASES, SEVERITIES, SEVERITY_SIGNS, STANDING_SIGNS, STANDINGS, STATUSES
from workbench.console import clean
from workbench.present.bar import bar
from workbench.present.sparkline import spark
from workbench.present.text import head
from workbench.watch.job_state import Scene

LABEL = 8
NUMBER = 12
SMALLEST_PHASE = 0.05
MEMORY_BAR = 8
RANK_HEADS = " rank state       step phase          for    memory          room left full at"


def board(scene: Scene, width: int, height: int) -> RenderableType:
    """All of a scene in so many columns and lines; of many ranks those in trouble first."""
    upper = [summary(scene.now), *charts(scene.now, width), *alerts(scene)]
    verdict = [head(scene.report)] if scene.report else []
    left = height - len(upper) - (12 if verdict else 0) - 3
    ranks = troubled_first(scene.now.ranks)[: max(2, left)]
    hidden = len(scene.now.ranks) - len(ranks)
    more = [Text(f"        and {hidden} more ranks", style="dim")] if hidden > 0 else []
    lines = [Text(RANK_HEADS[:width], style="dim"), *map(rank_line, ranks), *more] if ranks else []
    return Group(*upper, *lines, *verdict)


def summary(now: Now) -> Text:
    """Status, step, loss, speed and what is left, in one line that wraps."""
    sign, colour = STANDING_SIGNS.get(now.status, "?"), STANDINGS.get(now.status, STATUSES["unknown"])
    return Text.assemble((f"{sign} {now.status}", f"bold {colour}"), "  ", "  ".join(facts(now)))


def facts(now: Now) -> list[str]:
    """What is known of the job's progress, most wanted first."""
    of = f"/{now.steps}" if now.steps else ""
    loss = now.recent[-1].loss if now.recent else None
    told = [
        (f"step {now.step}{of}", True),
        (f"loss {loss if loss is None else f'{loss:.4f}'}", loss is not None),
        (f"{now.tokens_per_s or 0:,.0f} tok/s a rank", now.tokens_per_s is not None),
        (f"MFU {now.utilisation or 0:.1%}", now.utilisation is not None),
        (f"{duration(now.step_s)} a step", now.step_s is not None),
        (f"{waiting_time(now.left_s)} left", now.left_s is not None),
        (f"{now.world_size} ranks", now.world_size > 0),
        (f"restarted {now.attempt} times", now.attempt > 0),
    ]
    return [text for text, known in told if known]


def charts(now: Now, width: int) -> list[Text]:
    """Loss and step time as lines, phases as a bar."""
    if not now.recent:
        return []
    room = max(8, width - LABEL - 2 * NUMBER)
    losses = [one.loss for one in now.recent if one.loss is not None]
    times = [one.dur_s for one in now.recent]
    drawn = [series("loss", losses, room, "{:.4f}".format)] if losses else []
    drawn += [series("step", times, room, duration)]
    return [*drawn, *([phase_bar(now.phases, width - LABEL)] if now.phases else [])]


def series(label: str, values: Sequence[float], room: int, told: Callable[[float], str]) -> Text:
    """`loss  6.1243  █▇▅▃▁  4.5`: the first value shown, the line, the last value."""
    ends = (told(values[0]).rjust(NUMBER - 1), told(values[-1]).rjust(NUMBER - 2))
    return Text.assemble((label.ljust(LABEL), "dim"), ends[0], " ", (spark(values, room), STATUSES["ok"]), " ", ends[1])


def phase_bar(shares: dict[str, float], width: int) -> Text:
    """`phases  fwd 31 %  bwd 55 %`, each behind a piece of bar as long as its share; small ones are left out."""
    shown = {f" {clean(name)} {part:.0%} ": (name, part) for name, part in shares.items() if part >= SMALLEST_PHASE}
    left = max(0, width - sum(map(len, shown)))
    line = Text("phases".ljust(LABEL), style="dim")
    for told, (name, part) in shown.items():
        line = Text.assemble(line, ("█" * int(part * left), PHASES.get(name, PHASES["other"])), (told, ""))
    return line


def alerts(scene: Scene) -> list[Text]:
    """What stands still, who is late, what is being worked out."""
    now = scene.now
    lost = [one.rank for one in now.ranks if one.state in ("failed", "gone")]
    told = [alert("error", lost_ranks(lost))] if lost and not now.ended else []
    told += [alert("error", stalled(now.stall))] if now.stall else []
    told += [alert(finding.severity, finding.title) for finding in now.findings]
    if scene.asking:
        told.append(Text("reading what was recorded ...", style="dim"))
    return told + ([alert("warning", scene.problem)] if scene.problem else [])


def alert(severity: str, text: str) -> Text:
    return Text.assemble((f"{SEVERITY_SIGNS[severity]} ", f"bold {SEVERITIES[severity]}"), clean(text))


def lost_ranks(ranks: Sequence[int]) -> str:
    return f"{rank_names(ranks)} {agree(ranks, 'has', 'have')} ended early"


def stalled(stall: Stall) -> str:
    """Who stands where for how long, and what will happen when."""
    text = f"{rank_names(stall.ranks)} {agree(stall.ranks, 'stands', 'stand')} in {stall.phase} of step {stall.step}"
    text += f" for {stall.for_s:.0f} s"
    if stall.dumps_in_s is not None and stall.dumps_in_s > 0:
        text += f"; dumps are asked for in {stall.dumps_in_s:.0f} s"
    if stall.ends_in_s is not None:
        text += f"; collectives give up in {max(0.0, stall.ends_in_s):.0f} s"
    return text


def troubled_first(ranks: Sequence[RankNow]) -> list[RankNow]:
    """Lost and stalled ranks, then those that will run out of memory, then the fullest."""
    grave = ("gone", "failed", "stalled")
    return sorted(
        ranks,
        key=lambda one: (
            grave.index(one.state) if one.state in grave else len(grave),
            one.oom_step is None,
            -one.memory_bytes / one.limit_bytes if one.limit_bytes else 0.0,
            one.rank,
        ),
    )


def rank_line(one: RankNow) -> Text:
    """A line of the table of ranks."""
    sign, colour = STANDING_SIGNS.get(one.state, "?"), STANDINGS.get(one.state, STATUSES["unknown"])
    meter = bar(one.memory_bytes, one.limit_bytes, MEMORY_BAR) if one.limit_bytes else ""
    room = f"{size(one.headroom_bytes)}" if one.limit_bytes else "no limit"
    full = f"step {one.oom_step}" if one.oom_step else ""
    return Text.assemble(
        f"{one.rank:>5} ",
        (f"{sign} {one.state:<7}", colour),
        f"{one.step:>7} {clean(one.phase)[:9]:<10}{waited(one):>8} {size(one.memory_bytes):>9} ",
        (meter.ljust(MEMORY_BAR), STANDINGS["stalled"] if one.oom_step else STATUSES["ok"]),
        f" {room:>9} ",
        (full, SEVERITIES["warning"]),
    )


def waited(one: RankNow) -> str:
    """How long a rank has been in its phase; of one that has ended nobody wants to know."""
    return duration(one.quiet_s) if one.state in ("running", "stalled") else ""
