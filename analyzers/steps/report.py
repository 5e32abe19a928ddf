"""How long do steps take, which rank is late, what became of the loss? The room's door: logs in, report out."""

from collections.abc import Sequence
from os import PathLike

from analyzers import run, store
from analyzers.report import Report, ranked, tool_version
from analyzers.steps.answers.all_answers import answer_all
from analyzers.steps.answers.lateness import lateness
from analyzers.steps.findings.problems import notes, problems
from analyzers.steps.findings.verdict import healthy, missing_evidence, verdict
from analyzers.steps.loading import load
from analyzers.steps.model import StepsData

SCHEMA = "workbench.steps/1"


def analyze(
    logs: Sequence[run.Artefact] | str | PathLike[str], options: store.Options | None = None
) -> Report[StepsData]:
    """Return how long steps take, where the time goes, which ranks are late, and what the loss does.

    `logs` is a run folder, a log, or artefacts that `analyzers.run.discover` returns: step logs of
    `workbench.recorders`, torchtitan's structured logs, TensorBoard event files and console logs. The most detailed
    kind counts; the others add loss and memory where it has none. The rank and the step of the options narrow only
    `data.ranks`, as a rank is late compared with the others.

    Example:
        report = analyze("outputs")
        report.verdict.sentence  # "rank 3 makes the others wait from step 6 on: data loading, late by 502 ms in ..."
        report.data.stragglers[0].cause  # Cause.DATA
        report.table("ranks")[["rank", "median_step_s"]]  # a pandas table

    Raises:
        InputError: There is no such path, none of the logs has a step, or not the one that the options select.
    """
    options = options or store.Options()
    artefacts = run.as_run(logs).of(*run.TIMED) if isinstance(logs, str | PathLike) else logs
    steps = load(artefacts, options)
    late = lateness(steps)
    data = answer_all(steps, late, options)
    findings = ranked([*problems(steps, data), *notes(steps, data)])
    unreadable = [run.unreadable(log, "steps", error) for log, error in steps.unreadable]
    missing = missing_evidence(steps, late)
    return Report(
        schema=SCHEMA,
        version=tool_version(),
        inputs=steps.inputs,
        verdict=verdict(findings, missing) or healthy(steps, data, late, missing),
        findings=findings + unreadable,
        data=data,
    )
