"""Answers -> `Report[StepsData]`."""

from collections.abc import Sequence

from analyzers import run, store
from analyzers.report import Finding, Report, Severity, Status, Verdict, ranked, status_of, tool_version
from analyzers.steps.answers.goodput import goodput
from analyzers.steps.answers.lateness import Lateness, lateness
from analyzers.steps.answers.losses import events, first_nonfinite
from analyzers.steps.answers.memory_growth import fewer_collectives, memory_growth
from analyzers.steps.answers.stalls import stalls
from analyzers.steps.answers.step_time_changes import apart, changes
from analyzers.steps.answers.stragglers import stragglers
from analyzers.steps.findings import findings as told
from analyzers.steps.loading import load
from analyzers.steps.model import Steps, StepsData, summary
from analyzers.words import agree, duration

SCHEMA = "workbench.steps/1"
CLASSES = (
    "nonfinite_loss", "collective_count", "straggler", "memory_growth", "global_stall", "slowdown", "loss_rise",
    "loss_spike", "restart_time", "checkpoint_time", "data_time",
)  # fmt: skip
"""Of several findings the one that explains the others names the verdict."""


def analyze(artefacts: Sequence[run.Artefact], options: store.Options | None = None) -> Report[StepsData]:
    """How long steps take, where the time goes, who is late, and what became of the loss. A rank or a step that the
    options name only narrows `data.ranks`: who is late shows against the others.

    Raises:
        InputError: None of the artefacts holds a step, or not the one that is asked for.
    """
    options = options or store.Options()
    steps = load(artefacts, options)
    late = lateness(steps)
    data = examined(steps, late, options)
    remarks = told.remarks(steps)
    missing = [remark.title for remark in remarks] + steps.problems + told.blind_spots(steps, late)
    findings = ranked([*grave(steps, data), *told.asides(data), *remarks])
    return Report(
        schema=SCHEMA,
        version=tool_version(),
        inputs=steps.inputs,
        verdict=verdict(findings, missing) or healthy(steps, data, late, missing),
        findings=findings,
        data=data,
    )


def examined(steps: Steps, late: Lateness, options: store.Options | None = None) -> StepsData:
    """The answer to each question."""
    options = options or store.Options()
    nonfinite = first_nonfinite(steps)
    return StepsData(
        world_size=steps.world_size,
        ranks=summary(steps, options.rank, options.step),
        stragglers=stragglers(steps, late),
        apart=apart(steps),
        stalls=stalls(steps),
        changes=changes(steps),
        events=events(steps),
        goodput=goodput(steps, late),
        first_nonfinite_step=nonfinite.step if nonfinite else None,
    )


def grave(steps: Steps, data: StepsData) -> list[Finding]:
    """The findings that a verdict may rest on."""
    nonfinite = first_nonfinite(steps)
    found = told.verdicts(steps, data)
    found += [told.broken_loss(nonfinite)] if nonfinite else []
    found += [told.fewer(moment) for moment in fewer_collectives(steps)]
    found += [told.leak(moment) for moment in memory_growth(steps)]
    return found


def verdict(findings: Sequence[Finding], missing: list[str]) -> Verdict | None:
    """The one that the gravest finding gives."""
    weighty = [f for f in findings if f.severity is not Severity.INFO]
    if not weighty:
        return None
    first = min(weighty, key=lambda f: CLASSES.index(f.id.removeprefix("steps.")))
    return Verdict(
        status=status_of(weighty),
        kind=first.id.removeprefix("steps."),
        ranks=sorted({rank for f in weighty if f.id == first.id for rank in f.ranks}),
        sentence=first.title,
        confidence=first.confidence,
        missing=missing,
    )


def healthy(steps: Steps, data: StepsData, late: Lateness, missing: list[str]) -> Verdict:
    """`4 ranks, 103 ms a step, nobody is late`, as far as the logs tell."""
    median = max((rank.median_step_s for rank in data.ranks if rank.median_step_s is not None), default=None)
    text = f"{len(data.ranks)} {agree(steps.ranks, 'rank', 'ranks')}, "
    text += "no step is timed" if median is None else f"{duration(median)} a step"
    text += ", nobody is late" if late.told else ""
    text += " as far as these logs tell" if late.told and not late.measured else ""
    return Verdict(status=Status.OK, kind="healthy", sentence=text, confidence=told.confidence(steps), missing=missing)
