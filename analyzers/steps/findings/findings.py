"""What the answers mean, in words."""

from collections.abc import Sequence

from analyzers.report import EVIDENCE_AT_MOST, Evidence, Finding, Severity
from analyzers.steps.answers.lateness import Lateness
from analyzers.steps.answers.losses import Broken
from analyzers.steps.answers.memory_growth import Moment
from analyzers.steps.answers.overhead import Bad, badput
from analyzers.steps.model import Change, Event, Stall, Steps, StepsData, Straggler
from analyzers.words import agree, duration, rank_names

SURE_AFTER = 20
"""Steps that a firm verdict on timing needs."""
CLOSE = 3
"""Steps between two things that are taken for one."""


def verdicts(steps: Steps, data: StepsData) -> list[Finding]:
    """What was answered about time and loss that a verdict may rest on."""
    found = late_ranks(steps, data.stragglers)
    found += [stalled(steps, stall) for stall in data.stalls]
    slower = [c for c in data.changes if c.after_s > c.before_s and not explained(c, data.stragglers)]
    found += [slowed(steps, max(slower, key=lambda c: c.after_s - c.before_s))] if slower else []
    found += [costly(steps, bad) for bad in badput(data)]
    jumps = [event for event in data.events if event.kind == "grad_norm_jump"]
    spikes = [event for event in data.events if event.kind == "loss_spike"]
    found += [spiked(steps, worst(spikes), jumps)] if spikes else []
    return found + [risen(steps, event) for event in data.events if event.kind == "loss_rise"]


def asides(data: StepsData) -> list[Finding]:
    """What is worth knowing and no fault by itself."""
    jumps = [event for event in data.events if event.kind == "grad_norm_jump"]
    found = [jumped(worst(jumps), len(jumps))] if jumps else []
    return found + [flat(event) for event in data.events if event.kind == "plateau"]


def worst(events: Sequence[Event]) -> Event:
    return max(events, key=height)


def height(event: Event) -> float:
    return (event.value or 0.0) - (event.before or 0.0)


def explained(change: Change, late: Sequence[Straggler]) -> bool:
    """Whether a straggler began where the steps slowed down."""
    return any(s.pattern != "recurring" and abs(s.first_step - change.step) <= CLOSE for s in late)


def late_ranks(steps: Steps, late: Sequence[Straggler]) -> list[Finding]:
    """One finding for ranks that are late together or in turns, else one for each."""
    groups: dict[str, list[Straggler]] = {}
    for one in late:
        groups.setdefault(one.pattern if one.pattern in TOGETHER else f"rank {one.rank}", []).append(one)
    return [straggler(steps, group) for group in groups.values()]


TOGETHER = ("rotating", "host")
"""Patterns of which several ranks make one finding."""


def straggler(steps: Steps, late: Sequence[Straggler]) -> Finding:
    """The finding on ranks of one pattern, the costliest first."""
    ranks, first = sorted(s.rank for s in late), late[0]
    its = agree(ranks, "this one does more of its", "these do more of their")
    lost = f"{duration(sum(s.lost_s for s in late))} a step, {sum(s.share for s in late):.0%} of all time"
    begun = min(s.first_step for s in late)
    often = f"{duration(first.lateness_s)} a step in {first.recurrence:.0%} of the steps"
    causes = " and ".join(sorted({s.cause for s in late}))
    return Finding(
        id="steps.straggler",
        severity=Severity.WARNING,
        title=f"{rank_names(ranks)} {manner(steps, first, ranks)} from step {begun} on: {causes}, {often}",
        why=f"a synchronised step lasts as long as its slowest rank; what {its} own work costs {lost}",
        next=PATTERN_NEXT.get(first.pattern) or STRAGGLER_NEXT[first.cause],
        ranks=ranks,
        step=begun,
        evidence=[fact(steps, one) for one in late[:EVIDENCE_AT_MOST]],
        confidence=confidence(steps),
    )


def manner(steps: Steps, late: Straggler, ranks: Sequence[int]) -> str:
    """`makes the others wait`, with how."""
    host = next((start.host for start in steps.starts if start.rank == late.rank), "")
    before = f"of {host} " if late.pattern == "host" else ""
    after = {"recurring": " now and then", "rotating": " in turns"}.get(late.pattern, "")
    return f"{before}{agree(ranks, 'makes', 'make')} the others wait{after}"


def fact(steps: Steps, late: Straggler) -> Evidence:
    text = f"rank {late.rank} is late by {duration(late.lateness_s)} in {late.steps_late} steps: {late.cause}"
    return Evidence(text=text, source=source(steps, late.rank))


PATTERN_NEXT = {
    "rotating": "make all ranks do this at the same step, or give each of them less of it at a time",
    "host": "look at this machine: other processes, clock, temperature, its network and storage",
}
STRAGGLER_NEXT = {
    "compute": "compare the traces of this rank and another: more work, or a slower device?",
    "data": "give the loader of this rank more workers, or look at its storage",
    "gc": "collect garbage at the same step on all ranks: gc.disable() and a periodic gc.collect()",
    "checkpoint": "save asynchronously, or look at the storage of this rank",
    "eval": "evaluate at the same step on all ranks",
    "logging": "log less often on this rank",
    "mixed": "look at this rank's machine: other processes, clock, temperature",
}


def stalled(steps: Steps, stall: Stall) -> Finding:
    return Finding(
        id="steps.global_stall",
        severity=Severity.WARNING,
        title=f"all ranks stall together in {stall.steps} steps between {stall.first_step} and {stall.last_step}:"
        f" {stall.cause}, {duration(stall.lost_s)} in all",
        why=f"even the quickest rank took far longer than usual; that cost {stall.share:.0%} of the time",
        next=STALL_NEXT.get(stall.cause, "look at what all ranks share: storage, network"),
        ranks=steps.ranks,
        step=stall.first_step,
        confidence=confidence(steps),
    )


STALL_NEXT = {
    "data": "look at the storage that the data come from; let the loader read ahead",
    "checkpoint": "save asynchronously, or to faster storage",
    "gc": "collect less often, or only the young generations: gc.collect(1)",
}


def slowed(steps: Steps, change: Change) -> Finding:
    """The finding on the change for the worse that is largest."""
    grown = sorted(change.phases.items(), key=lambda item: -item[1])[:3]
    how = "little by little" if change.kind == "drift" else f"from step {change.step} on"
    return Finding(
        id="steps.slowdown",
        severity=Severity.WARNING,
        title=f"steps slow down {how}, from {duration(change.before_s)} to {duration(change.after_s)}",
        why=f"plain steps take {change.after_s / change.before_s:.2f} times as long, which is no noise",
        next="see what changed then: other jobs on the machine, data, clock of the device; compare traces of two steps",
        ranks=steps.ranks,
        step=change.step,
        evidence=[Evidence(text=f"{name} takes {duration(more)} more") for name, more in grown if more > 0],
        confidence=0.8,
    )


def costly(steps: Steps, bad: Bad) -> Finding:
    """The finding on a part of the wall time that takes too much."""
    title, why, advice = COSTLY[bad.part]
    return Finding(
        id=f"steps.{bad.part}_time",
        severity=Severity.WARNING,
        title=f"{title} {bad.share:.0%} of the time: {duration(bad.seconds)} {why}",
        why="it is time in which no rank trains",
        next=advice,
        ranks=steps.ranks,
        confidence=0.9,
    )


COSTLY = {
    "data": (
        "waiting for data takes",
        "in a usual step of most ranks",
        "give the loader more workers and let it read ahead; look at what it does to a sample",
    ),
    "checkpoint": (
        "saving checkpoints takes",
        "in all",
        "save asynchronously (checkpoint.async_mode), less often, or to faster storage",
    ),
    "restart": (
        "restarts and the steps they lost take",
        "in all",
        "see what ended the attempts; save checkpoints more often than the job dies",
    ),
}


def broken_loss(broken: Broken) -> Finding:
    return Finding(
        id="steps.nonfinite_loss",
        severity=Severity.ERROR,
        title=f"the {broken.what} of {rank_names(broken.ranks)} is not finite from step {broken.step} on",
        why=f"step {broken.step} is the first whose {broken.what} is NaN or infinite; everything after it is lost",
        next="go back to the checkpoint before it; look at the learning rate and the data of that step",
        ranks=broken.ranks,
        step=broken.step,
        confidence=0.99,
    )


def spiked(steps: Steps, spike: Event, jumps: Sequence[Event]) -> Finding:
    """The finding on the highest spike of the loss, with a jump of the gradient norm that led to it."""
    led = [jump for jump in jumps if 0 <= spike.step - jump.step <= CLOSE]
    return Finding(
        id="steps.loss_spike",
        severity=Severity.WARNING,
        title=f"the loss jumps from {spike.before:.4g} to {spike.value:.4g} at step {spike.step}",
        why="far above what the steps before it vary"
        + (f"; it is back at step {spike.until}" if spike.until else "; it does not come back"),
        next="look at the data and the gradient norm of that step",
        ranks=steps.ranks,
        step=spike.step,
        evidence=[Evidence(text=jump_text(jump)) for jump in led],
        confidence=0.8,
    )


def risen(steps: Steps, rise: Event) -> Finding:
    return Finding(
        id="steps.loss_rise",
        severity=Severity.WARNING,
        title=f"the loss rises from {rise.before:.4g} to {rise.value:.4g}, from about step {rise.step} on",
        why="it was clearly lower before and stays up",
        next="go back to a checkpoint before it; lower the learning rate, clip gradients, look at the data",
        ranks=steps.ranks,
        step=rise.step,
        confidence=0.7,
    )


def jumped(jump: Event, count: int) -> Finding:
    more = f", the highest of {count} jumps" if count > 1 else ""
    return aside(
        "steps.grad_norm_jump",
        jump_text(jump) + more,
        "look at the data of that step; clip gradients if the loss follows",
        jump.step,
    )


def jump_text(jump: Event) -> str:
    return f"the gradient norm jumps from {jump.before:.4g} to {jump.value:.4g} at step {jump.step}"


def flat(event: Event) -> Finding:
    title = f"the loss stays at {event.value:.4g} from step {event.step} on"
    return aside("steps.plateau", title, "train on with another learning rate, or stop", event.step)


def aside(name: str, title: str, advice: str, step: int | None = None, ranks: Sequence[int] = ()) -> Finding:
    """A finding that is no fault."""
    return Finding(
        id=name,
        severity=Severity.INFO,
        title=title,
        why=title,
        next=advice,
        ranks=list(ranks),
        step=step,
        confidence=1.0,
    )


def fewer(moment: Moment) -> Finding:
    count = abs(int(moment.value))
    less, noun = "fewer" if moment.value < 0 else "more", "collective" if count == 1 else "collectives"
    return Finding(
        id="steps.collective_count",
        severity=Severity.ERROR,
        title=f"{rank_names(moment.ranks)} issued {count} {less} {noun} than the others in step {moment.step}",
        why=f"the last sequence number in group {moment.what} differs at the end of step {moment.step}",
        next="look for a condition that differs between ranks around a collective",
        ranks=moment.ranks,
        step=moment.step,
        confidence=0.9,
    )


def leak(moment: Moment) -> Finding:
    return Finding(
        id="steps.memory_growth",
        severity=Severity.WARNING,
        title=f"the memory of {rank_names(moment.ranks)} grows by {moment.value / (1 << 20):.1f} MiB a step",
        why="it rises in nearly every step, which training does not do once it has warmed up",
        next="compare memory snapshots of two steps: what is new and stays?",
        ranks=moment.ranks,
        step=moment.step,
        confidence=0.7,
    )


def remarks(steps: Steps) -> list[Finding]:
    """What is odd about the logs themselves."""
    found = []
    if absent := sorted(set(range(steps.world_size)) - set(steps.ranks)):
        title = f"no step log of {rank_names(absent)}"
        found.append(aside("steps.missing_ranks", title, "look for them in another folder", ranks=absent))
    if steps.torn:
        title, advice = f"the end of the log of {rank_names(steps.torn)} is cut", "the job died while it wrote"
        found.append(aside("steps.torn_line", title, advice, ranks=steps.torn))
    last = steps.table.groupby("rank")["step"].max()
    if behind := [int(str(rank)) for rank in last[last < last.max()].index]:
        stop = f"{agree(behind, 'stops', 'stop')} at step {int(last.min())} of {int(last.max())}"
        title = f"{rank_names(behind)} finished fewer steps and {stop}"
        found.append(aside("steps.unequal_steps", title, "see how these ranks ended", int(last.min()), behind))
    return found


def blind_spots(steps: Steps, late: Lateness) -> list[str]:
    """What logs of this kind cannot tell."""
    if len(steps.ranks) < 2:
        return []
    if not late.told:
        return ["who is late: these logs do not tell what each rank did before the others met it"]
    slow = "a rank whose backward, or sharded forward, is slow: only traces, or processor times, show when it arrives"
    return [] if late.measured else [slow]


def confidence(steps: Steps) -> float:
    """Grows with the number of steps that were timed."""
    counted = int(steps.table.groupby("rank")["step"].count().min())
    return round(min(0.95, 0.55 + 0.4 * counted / SURE_AFTER), 2)


def source(steps: Steps, rank: int) -> str:
    return next((given.path for given in steps.inputs if given.rank == rank), "")
