"""Analyze the step logs of a run: `analyze` returns a `Report[StepsData]` on step times, late ranks and the loss."""

from collections.abc import Callable, Sequence
from contextlib import suppress
from os import PathLike

from analyzers import run, store
from analyzers.errors import InputError
from analyzers.report import Report, ranked, tool_version
from analyzers.steps.lateness import lateness
from analyzers.steps.loading import load
from analyzers.steps.model import StepsData
from analyzers.steps.summary import answer_all
from analyzers.steps.table import Steps
from analyzers.steps.verdict import healthy, missing_evidence, notes, problems, verdict

_SCHEMA = "workbench.steps/1"


def analyze(
    logs: Sequence[run.Artefact] | str | PathLike[str], options: store.Options | None = None
) -> Report[StepsData]:
    """Return how long steps take, where the time goes, which ranks are late, and what the loss does.

    `logs` is a run folder, a log, or the artefacts that `analyzers.run.discover` returns: step logs of
    `workbench.recorders`, torchtitan's structured logs, TensorBoard event files, console logs and logs of other
    trainers. The most detailed kind is used; the others add loss and memory if it has none. The rank and step of the
    options restrict only `data.ranks`, because lateness is a comparison with all other ranks.

    Example:
        report = analyze("outputs")
        report.verdict.sentence  # "Rank 3 makes the others wait from step 6 on: data loading, late by 502 ms in ..."
        report.data.stragglers[0].cause  # Cause.DATA
        report.table("ranks")[["rank", "median_step_s"]]  # a pandas table

    Raises:
        InputError: There is no such path, no log has a step, or none has the step that the options select.
    """
    options = options or store.Options()
    artefacts = run.as_run(logs).of(*run.TIMED) if isinstance(logs, str | PathLike) else logs
    return _report_of(load(artefacts, options, _teller(options)), options)


def _teller(options: store.Options) -> Callable[[int, Steps], None] | None:
    """Return a function that shows the user what the first logs say, while others are read; None without a display.

    The function takes the number of logs read so far, and their steps. The display is `options.progress`.
    """
    progress = options.progress

    def tell(files: int, steps: Steps) -> None:
        # The step that the options select may be in another log.
        with suppress(InputError):
            if progress:
                progress.answer(files, _report_of(steps, options).verdict.sentence)

    return tell if progress else None


def _report_of(steps: Steps, options: store.Options) -> Report[StepsData]:
    """Return the report on steps that were loaded.

    Raises:
        InputError: None is the step that the options select.
    """
    late = lateness(steps)
    data = answer_all(steps, late, options)
    findings = ranked([*problems(steps, data), *notes(steps, data)])
    unreadable = [run.unreadable(log, "steps", error) for log, error in steps.unreadable]
    missing = missing_evidence(steps, late)
    return Report(
        schema=_SCHEMA,
        version=tool_version(),
        inputs=steps.inputs,
        verdict=verdict(findings, missing) or healthy(steps, data, late, missing),
        findings=findings + unreadable,
        data=data,
    )
