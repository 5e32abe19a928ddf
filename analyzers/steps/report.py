"""Answers -> `Report[StepsData]`."""

from collections.abc import Sequence

from analyzers import run, store
from analyzers.report import Evidence, Finding, Report, Severity, Status, Verdict, ranked, status_of, tool_version
from analyzers.steps.load import load
from analyzers.steps.model import Steps, StepsData, Straggler, summary
from analyzers.steps.series import Moment, fewer_collectives, first_nonfinite, loss_spike, memory_growth, slowdown
from analyzers.steps.stragglers import stragglers
from analyzers.wording import seconds, verb, who

SCHEMA = "workbench.steps/1"
CLASSES = ("nonfinite_loss", "collective_count", "straggler", "memory_growth", "slowdown", "loss_spike")
"""Of several findings the one that explains the others names the verdict."""
SURE_AFTER = 20
"""Steps that a firm verdict on timing needs."""


def analyze(artefacts: Sequence[run.Artefact], options: store.Options | None = None) -> Report[StepsData]:
    """How long steps take, where the time goes, who is late, and what became of the loss.

    Raises:
        InputError: None of the artefacts holds a step.
    """
    steps = load(artefacts, options or store.Options())
    late = stragglers(steps)
    nonfinite = first_nonfinite(steps)
    findings = ranked([*verdicts(steps, late, nonfinite), *remarks(steps)])
    data = StepsData(
        world_size=steps.world_size,
        ranks=summary(steps),
        stragglers=late,
        first_nonfinite_step=nonfinite.step if nonfinite else None,
    )
    return Report(
        schema=SCHEMA,
        version=tool_version(),
        inputs=steps.inputs,
        verdict=verdict(steps, findings, data),
        findings=findings,
        data=data,
    )


def verdicts(steps: Steps, late: Sequence[Straggler], nonfinite: Moment | None) -> list[Finding]:
    """The findings that a verdict may rest on."""
    found = [straggler(steps, one) for one in late]
    found += [broken_loss(nonfinite)] if nonfinite else []
    found += [fewer(moment) for moment in fewer_collectives(steps)]
    found += [leak(moment) for moment in memory_growth(steps)]
    if spike := loss_spike(steps):
        found.append(spiked(spike))
    if slow := slowdown(steps):
        found.append(slower(slow))
    return found


def straggler(steps: Steps, late: Straggler) -> Finding:
    lost = f"{seconds(late.lateness_s)} a step in {late.recurrence:.0%} of the steps"
    return Finding(
        id="steps.straggler",
        severity=Severity.WARNING,
        title=f"rank {late.rank} makes the others wait from step {late.first_step} on: {late.cause}, {lost}",
        why=f"a synchronised step lasts as long as its slowest rank; what this one does more of its own work costs"
        f" {late.share:.0%} of all time",
        next=STRAGGLER_NEXT[late.cause],
        ranks=[late.rank],
        step=late.first_step,
        evidence=[Evidence(text=f"late by {lost}", source=source(steps, late.rank))],
        confidence=confidence(steps),
    )


STRAGGLER_NEXT = {
    "compute": "compare the traces of this rank and another: more work, or a slower device?",
    "data": "give the loader of this rank more workers, or look at its storage",
    "gc": "collect garbage at the same step on all ranks: gc.disable() and a periodic gc.collect()",
    "checkpoint": "save asynchronously, or look at the storage of this rank",
    "eval": "evaluate at the same step on all ranks",
    "logging": "log less often on this rank",
    "mixed": "look at this rank's machine: other processes, clock, temperature",
}


def broken_loss(moment: Moment) -> Finding:
    return Finding(
        id="steps.nonfinite_loss",
        severity=Severity.ERROR,
        title=f"the {moment.what} of {who(moment.ranks)} is not finite from step {moment.step} on",
        why=f"step {moment.step} is the first whose {moment.what} is NaN or infinite; everything after it is lost",
        next="go back to the checkpoint before it; look at the learning rate and the data of that step",
        ranks=moment.ranks,
        step=moment.step,
        confidence=0.99,
    )


def fewer(moment: Moment) -> Finding:
    count = abs(int(moment.value))
    less, noun = "fewer" if moment.value < 0 else "more", "collective" if count == 1 else "collectives"
    return Finding(
        id="steps.collective_count",
        severity=Severity.ERROR,
        title=f"{who(moment.ranks)} issued {count} {less} {noun} than the others in step {moment.step}",
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
        title=f"the memory of {who(moment.ranks)} grows by {moment.value / (1 << 20):.1f} MiB a step",
        why="it rises in nearly every step, which training does not do once it has warmed up",
        next="compare memory snapshots of two steps: what is new and stays?",
        ranks=moment.ranks,
        step=moment.step,
        confidence=0.7,
    )


def spiked(moment: Moment) -> Finding:
    return Finding(
        id="steps.loss_spike",
        severity=Severity.WARNING,
        title=f"the loss jumps from {moment.before:.4g} to {moment.value:.4g} at step {moment.step}",
        why="far above what the steps before it vary",
        next="look at the data and the gradient norm of that step",
        ranks=moment.ranks,
        step=moment.step,
        confidence=0.8,
    )


def slower(moment: Moment) -> Finding:
    return Finding(
        id="steps.slowdown",
        severity=Severity.WARNING,
        title=f"steps slow down from {seconds(moment.before)} to {seconds(moment.value)} from step {moment.step} on",
        why=f"the last third of the plain steps takes {moment.value / moment.before:.2f} times as long as the first",
        next="see which phase grew: `workbench steps` shows them over time",
        ranks=moment.ranks,
        step=moment.step,
        confidence=0.8,
    )


def remarks(steps: Steps) -> list[Finding]:
    """What is odd about the logs themselves."""
    found = []
    absent = sorted(set(range(steps.world_size)) - set(steps.ranks))
    if absent:
        found.append(
            remark("steps.missing_ranks", f"no step log of {who(absent)}", absent, "look for them in another folder")
        )
    if steps.torn:
        title = f"the last line of {who(steps.torn)} is cut"
        found.append(remark("steps.torn_line", title, steps.torn, "the job died while it wrote; the line is left out"))
    last = steps.table.groupby("rank")["step"].max()
    behind = [int(str(rank)) for rank in last[last < last.max()].index]
    if behind:
        stop = f"{verb(behind, 'stops', 'stop')} at step {int(last.min())} of {int(last.max())}"
        title = f"{who(behind)} finished fewer steps and {stop}"
        found.append(remark("steps.unequal_steps", title, behind, "see how these ranks ended", step=int(last.min())))
    return found


def remark(name: str, title: str, ranks: list[int], advice: str, step: int | None = None) -> Finding:
    return Finding(
        id=name, severity=Severity.INFO, title=title, why=title, next=advice, ranks=ranks, step=step, confidence=1.0
    )


def verdict(steps: Steps, findings: Sequence[Finding], data: StepsData) -> Verdict:
    grave = [f for f in findings if f.severity is not Severity.INFO]
    lacking = [f.title for f in findings if f.severity is Severity.INFO] + steps.problems
    if not grave:
        median = max((rank.median_step_s for rank in data.ranks if rank.median_step_s is not None), default=None)
        pace = "no step is timed" if median is None else f"{seconds(median)} a step, nobody is late"
        text = f"{len(data.ranks)} {verb(steps.ranks, 'rank', 'ranks')}, {pace}"
        return Verdict(status=Status.OK, kind="healthy", sentence=text, confidence=confidence(steps), missing=lacking)
    first = min(grave, key=lambda f: CLASSES.index(f.id.removeprefix("steps.")))
    return Verdict(
        status=status_of(grave),
        kind=first.id.removeprefix("steps."),
        ranks=sorted({rank for f in grave if f.id == first.id for rank in f.ranks}),
        sentence=first.title,
        confidence=first.confidence,
        missing=lacking,
    )


def confidence(steps: Steps) -> float:
    """Grows with the number of steps that were timed."""
    counted = int(steps.table.groupby("rank")["step"].count().min())
    return round(min(0.95, 0.55 + 0.4 * counted / SURE_AFTER), 2)


def source(steps: Steps, rank: int) -> str:
    return next((given.path for given in steps.inputs if given.rank == rank), "")
