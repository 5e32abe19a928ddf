"""Choose the advice against a failed allocation, run it, and report predicted against measured memory."""

from collections.abc import Callable, Iterator
from functools import partial
from itertools import islice
from pathlib import Path

from analyzers.report import Report
from analyzers.run import Run
from analyzers.store import Options
from workbench.commands.estimate import trainer_estimate
from workbench.commands.prove.changes import (
    EVAL_BATCH,
    changes,
    is_validation,
    reason_against_settings,
    reason_outside_settings,
)
from workbench.commands.prove.recorded_run import RecordedRun, recorded_run
from workbench.commands.prove.report import proof_report
from workbench.commands.prove.rerun import configuration, proof_folder, rerun, written
from workbench.commands.prove.script import batch_flag, changed_command, launch_options, script_changes
from workbench.console import note
from workbench.launch.plan import Request
from workbench.proof_data import Basis, Considered, ProofData, Rerun, Settings

USABLE_SHARE = 0.95
"""Of the room for tensors: the rest is for buffers of libraries, which no tensor holds."""
USABLE_BEFORE_PEAK = 0.8
"""The same where the prediction is for the request that failed, and the peak may come later."""
COMPARED_AT_MOST, RUNS_AT_MOST = 12, 3
Predict = Callable[[Settings], int]


def prove(run: Run, options: Options) -> Report[ProofData]:
    """Return a report on the best advice against the failed allocation of a run, which is applied and run again.

    Raises:
        WorkbenchError: The run has no failed allocation, or cannot be started again.
    """
    recorded = recorded_run(run, options)
    data = proof_of_trainer(recorded) if recorded.is_own_trainer else proof_of_command(recorded)
    return proof_report(recorded, data)


def unproved(run: RecordedRun, why: str, needed: int | None = None) -> ProofData:
    """Return the data of a proof without a second run, and why there is none."""
    return ProofData(
        finding=run.finding, limits=run.limits, room_bytes=run.room_bytes, needed_bytes=needed, basis=None,
        considered=[], rerun=None, not_applied=why,
    )  # fmt: skip


def proof_of_trainer(run: RecordedRun) -> ProofData:
    """Return the proof of an advice to a run of our trainer: its settings are changed and rehearsed."""
    hosts = set(dict(run.manifest.get("hosts") or {}).values())
    if len(hosts) > 1:
        return unproved(run, f"the run had {len(hosts)} hosts, and a proof has this one")
    if why := reason_against_settings(run):
        return unproved(run, why)
    folder = proof_folder(run.folder)
    if is_validation(run):
        return decided(run, changes(run), partial(scaled, run), Basis.FAILED_REQUEST, None)
    needed = rehearsed_peak(run, folder, {})
    if run.device.oom and needed <= USABLE_SHARE * run.room_bytes:
        return unproved(run, reason_outside_settings(run), needed)
    return decided(run, changes(run), partial(rehearsed_peak, run, folder), Basis.REHEARSAL, needed)


def proof_of_command(run: RecordedRun) -> ProofData:
    """Return the proof of an advice to a user's command: a smaller batch, if a flag of the command sets the batch."""
    command = run.manifest.get("command")
    if not isinstance(command, list):
        return unproved(run, "run.json names neither settings of our trainer nor a command")
    if why := reason_against_settings(run):
        return unproved(run, why)
    if batch_flag(command) is None:
        why = "the advice changes the script, and no flag of its command, such as --batch-size, sets the batch"
        return unproved(run, why)
    return decided(run, script_changes(run), partial(scaled, run), Basis.FAILED_REQUEST, None)


def decided(
    run: RecordedRun, candidates: Iterator[Settings], predict: Predict, basis: Basis, needed: int | None
) -> ProofData:
    """Compare changes in turn, run those that fit into the room until one passes, and return the proof."""
    considered, runs = list[Considered](), list[Rerun]()
    share = USABLE_SHARE if basis is Basis.REHEARSAL else USABLE_BEFORE_PEAK
    for change in islice(candidates, COMPARED_AT_MOST):
        peak = predict(change)
        fits = peak <= share * run.room_bytes if run.device.oom else peak < run.device.peak_allocated_bytes
        considered.append(Considered(changes=change, predicted_bytes=peak, fits=fits))
        note(f"{in_words(change)}: {peak:,} bytes predicted, {'fits' if fits else 'does not fit'}")
        if fits:
            runs.append(started(run, change))
        if runs and (runs[-1].passed or len(runs) == RUNS_AT_MOST):
            break
    return ProofData(
        finding=run.finding, limits=run.limits, room_bytes=run.room_bytes, needed_bytes=needed, basis=basis,
        considered=considered, rerun=runs[-1] if runs else None, reruns=len(runs),
        not_applied="" if runs else "none of the compared changes fits",
    )  # fmt: skip


def started(run: RecordedRun, change: Settings) -> Rerun:
    """Run a few steps with the changes and return how it went."""
    folder = proof_folder(run.folder)
    if run.is_own_trainer:
        path = written(configuration(run.manifest["config"], change, folder), folder)
        return rerun(("--config", str(path), "--nproc", str(run.ranks)), folder, run.limits)
    words = changed_command(run, change, folder)
    return rerun((*launch_options(run, folder), "--", *words), folder, run.limits)


def in_words(change: Settings) -> str:
    """Return changes as a phrase: `activation_checkpoint.mode full, training.local_batch_size 4`."""
    return ", ".join(f"{key} {value}" for key, value in change.items())


def rehearsed_peak(run: RecordedRun, folder: Path, change: Settings) -> int:
    """Return the peak of a rank in bytes with changed settings, by a step on tensors without values."""
    path = written(configuration(run.manifest["config"], change, folder), folder)
    request = Request(config=str(path), nproc=run.ranks)
    return trainer_estimate(request, ("--job.config_file", str(path))).peak_bytes


def scaled(run: RecordedRun, change: Settings) -> int:
    """Return the bytes that the failed request would have led to with a smaller batch.

    What grows with the batch is scaled; the peak may come later.
    """
    [(key, value)] = change.items()
    named = batch_flag(run.manifest.get("command") or [])
    before = run.manifest["config"]["validation"]["local_batch_size"] if key == EVAL_BATCH else named[2] if named else 1
    oom = run.device.oom
    total = oom.allocated_bytes + oom.requested_bytes if oom else run.device.peak_allocated_bytes
    return total - round(run.growing_bytes() * (1 - int(value) / before))
