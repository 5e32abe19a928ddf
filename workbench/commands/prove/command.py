"""Choose advice against a failed allocation, run the job with it, and compare predicted with measured memory.

There are two ways to predict the memory: a step on tensors without values (a rehearsal), or scaling the memory in use
when the request failed.
"""

from collections.abc import Callable, Iterator
from functools import partial
from itertools import islice
from pathlib import Path

from analyzers.report import Report
from analyzers.run import Run
from analyzers.store import Options
from workbench.commands.estimate import trainer_estimate
from workbench.commands.prove.changes import (
    NoChange,
    changes,
    reason_against_settings,
    reason_outside_settings,
)
from workbench.commands.prove.margin import Prediction, rehearsed
from workbench.commands.prove.permission import Permission
from workbench.commands.prove.recorded_run import RecordedRun, recorded_run
from workbench.commands.prove.report import proof_report
from workbench.commands.prove.rerun import (
    CONFIGURATION,
    configuration,
    launch_words,
    proof_folder,
    rerun,
    written,
)
from workbench.commands.prove.script import (
    batch_flag,
    changed_command,
    launch_options,
    process_options,
    script_changes,
)
from workbench.console import note
from workbench.errors import UsageProblem
from workbench.launch.plan import Request
from workbench.proof_data import Basis, Considered, ProofData, Rerun, Settings

_USE_ADVICE = "Follow the advice that `workbench inspect` gives on this run, and start it by hand."
_COMPARED_AT_MOST, _RUNS_AT_MOST = 12, 3
Predict = Callable[[Settings], Prediction]
Start = Callable[[Settings], Rerun]


def prove(run: Run, options: Options, permission: Permission) -> Report[ProofData]:
    """Run a job again that ran out of memory, or nearly did, with the best advice; return a report on the result.

    Raises:
        WorkbenchError: The run has no failed allocation and is not near its limit, or cannot be started again, or the
            person does not permit it.
    """
    recorded = recorded_run(run, options, permission.command)
    if recorded.is_own_trainer:
        return proof_report(recorded, _proof_of_trainer(recorded, permission))
    return proof_report(recorded, _proof_of_command(recorded, permission))


def _unproved(run: RecordedRun, why: NoChange, needed: int | None = None) -> ProofData:
    """Return the data of a proof without a second run.

    `why` is the reason for not running the job again. `needed` is the predicted peak in bytes, if it is known.
    """
    return ProofData(
        finding=run.finding, limits=run.limits, room_bytes=run.room_bytes, needed_bytes=needed, basis=None,
        considered=[], rerun=None, not_applied=why.reason, instead=why.advice,
    )  # fmt: skip


def _proof_of_trainer(run: RecordedRun, permission: Permission) -> ProofData:
    """Return the proof for a run of our trainer: predict the memory of changed settings, and run what fits."""
    hosts = set(dict(run.manifest.get("hosts") or {}).values())
    if len(hosts) > 1:
        only_here = f"the run had {len(hosts)} hosts, and a second run would have only this one"
        return _unproved(run, NoChange(only_here, _USE_ADVICE))
    if why := reason_against_settings(run):
        return _unproved(run, why)
    folder = proof_folder(run.folder)
    # All runs have the same command line. The rehearsals, too, use what the configuration names.
    permission.require(launch_words(_trainer_options(run, folder)), run.manifest["config"])
    needed = rehearsal(run, folder, {})
    if run.device.oom and needed.fits(run.room_bytes):
        return _unproved(run, reason_outside_settings(run), needed.peak_bytes)
    predict = partial(rehearsal, run, folder)
    return decided(run, changes(run), predict, partial(_trainer_started, run), Basis.REHEARSAL, needed.peak_bytes)


def _proof_of_command(run: RecordedRun, permission: Permission) -> ProofData:
    """Return the proof for a user's command: run the command again with a smaller batch.

    If no flag of the command sets the batch size, nothing is run, and the proof says why.
    """
    if not run.command:
        unknown = "run.json names neither settings of workbench's trainer nor a command"
        return _unproved(run, NoChange(unknown, "Give the command of the job: --prove -- COMMAND..."))
    if why := reason_against_settings(run):
        return _unproved(run, why)
    if batch_flag(run.command) is None:
        text = "the advice changes the script, and no flag of its command, such as --batch-size, sets the batch"
        return _unproved(run, NoChange(text, _USE_ADVICE))
    start = partial(_command_started, run, permission)
    return decided(run, script_changes(run.command), partial(scaled, run), start, Basis.FAILED_REQUEST, None)


def decided(
    run: RecordedRun,
    candidates: Iterator[Settings],
    predict: Predict,
    start: Start,
    basis: Basis,
    needed: int | None,
) -> ProofData:
    """Try changes of settings in turn, and return the proof: the first run that passes, or what was tried.

    `predict` returns the peak with a change, and `basis` names its method. `start` runs the job with each change that
    fits. `needed` is the predicted peak with unchanged settings; None if unknown. A change that the trainer refuses is
    left out.
    """
    considered, runs = list[Considered](), list[Rerun]()
    stated: float | None = None
    for change in islice(candidates, _COMPARED_AT_MOST):
        try:
            peak, stated = prediction = predict(change)
        except UsageProblem as refusal:
            note(f"{in_words(change)}: the trainer refuses it, {refusal}")
            continue
        # A run without a failure had enough memory: there, any change that needs less fits.
        fits = prediction.fits(run.room_bytes) if run.device.oom else peak < run.device.peak_allocated_bytes
        considered.append(Considered(changes=change, predicted_bytes=peak, fits=fits))
        note(f"{in_words(change)}: {peak:,} bytes predicted, {'fits' if fits else 'does not fit'}")
        if fits:
            runs.append(start(change))
        if runs and (runs[-1].passed or len(runs) == _RUNS_AT_MOST):
            break
    return ProofData(
        finding=run.finding, limits=run.limits, room_bytes=run.room_bytes, needed_bytes=needed, basis=basis,
        considered=considered, rerun=runs[-1] if runs else None, reruns=len(runs),
        not_applied="" if runs else "none of the compared changes fits", margin=stated,
    )  # fmt: skip


def _trainer_options(run: RecordedRun, folder: Path) -> tuple[str, ...]:
    """Return the options of `workbench launch` that start our trainer with the configuration written to `folder`."""
    return ("--config", str(folder / CONFIGURATION), "--nproc", str(run.ranks))


def _trainer_started(run: RecordedRun, change: Settings) -> Rerun:
    """Run a few steps of our trainer with changed settings, and return how the run ended and its peak memory."""
    folder = proof_folder(run.folder)
    written(configuration(run.manifest["config"], change, folder), folder)
    return rerun(launch_words(_trainer_options(run, folder)), folder, run.limits)


def _command_started(run: RecordedRun, permission: Permission, change: Settings) -> Rerun:
    """Run a few steps of a user's command with a smaller batch, and return how the run ended and its peak memory."""
    folder = proof_folder(run.folder)
    options = process_options(run, folder) if permission.command else launch_options(run, folder)
    words = launch_words((*options, "--", *changed_command(run, change, folder)))
    if not permission.command:
        permission.require(words)
    return rerun(words, folder, run.limits, is_command=True)


def in_words(change: Settings) -> str:
    """Return changed settings as a phrase such as `activation_checkpoint.mode full, training.local_batch_size 4`."""
    return ", ".join(f"{key} {value}" for key, value in change.items())


def rehearsal(run: RecordedRun, folder: Path, change: Settings) -> Prediction:
    """Return the highest peak memory of a rank with changed settings, from a step on tensors without values.

    The configuration with the change is written to `folder`.
    """
    path = written(configuration(run.manifest["config"], change, folder), folder)
    request = Request(config=str(path), nproc=run.ranks)
    estimate = trainer_estimate(request, ("--job.config_file", str(path)))
    return rehearsed(estimate, str(run.manifest.get("backend")))


def scaled(run: RecordedRun, change: Settings) -> Prediction:
    """Return the memory that would have been in use at the failed request of a command with a smaller batch.

    The part of the memory that grows with the batch is scaled. The peak of the step may come later than this request,
    so the result is a lower bound.
    """
    [value] = change.values()
    named = batch_flag(run.command)
    before = named[2] if named else 1
    oom = run.device.oom
    total = oom.allocated_bytes + oom.requested_bytes if oom else run.device.peak_allocated_bytes
    return Prediction(total - round(run.growing_bytes() * (1 - int(value) / before)), None)
