"""How long do steps take, which rank is late, what became of the loss? The room's door: logs in, report out."""

from collections.abc import Sequence

from analyzers import run, store
from analyzers.report import Report, ranked, tool_version
from analyzers.steps.answers.all_answers import answer_all
from analyzers.steps.answers.lateness import lateness
from analyzers.steps.findings.problems import notes, problems
from analyzers.steps.findings.verdict import healthy, missing_evidence, verdict
from analyzers.steps.loading import load
from analyzers.steps.model import StepsData

SCHEMA = "workbench.steps/1"


def analyze(artefacts: Sequence[run.Artefact], options: store.Options | None = None) -> Report[StepsData]:
    """Report how long steps take, where the time goes, which ranks are late, and what the loss does.

    The rank and the step of the options narrow `data.ranks` only: a rank is late compared with the others.

        from pathlib import Path
        from analyzers import run, steps

        report = steps.analyze(run.discover(Path("outputs")).of(*run.TIMED))
        print(report.verdict.sentence)
        print(report.table("ranks")[["rank", "median_step_s"]])

    Raises:
        InputError: None of the artefacts holds a step, or not the one that is asked for.
    """
    options = options or store.Options()
    steps = load(artefacts, options)
    late = lateness(steps)
    data = answer_all(steps, late, options)
    findings = ranked([*problems(steps, data), *notes(steps, data)])
    missing = missing_evidence(steps, late)
    return Report(
        schema=SCHEMA,
        version=tool_version(),
        inputs=steps.inputs,
        verdict=verdict(findings, missing) or healthy(steps, data, late, missing),
        findings=findings,
        data=data,
    )
