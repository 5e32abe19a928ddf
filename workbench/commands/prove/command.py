"""Choose advice against a failed allocation, run the job with it, and compare predicted with measured memory.

There are two ways to predict the memory: a step on tensors without values (a rehearsal), or scaling the memory in use
when the request failed.
"""

import shlex
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import islice, takewhile
from pathlib import Path
from typing import Any, NamedTuple

from analyzers.memory.evidence import ranks_of
from analyzers.memory.model import OomPattern
from analyzers.report import Evidence, Finding, Report, Severity, Verdict, status_of
from analyzers.report import Status as Light
from analyzers.run import Run
from analyzers.store import Options
from analyzers.words import figures, percent, quantity, signed_percent, size
from workbench.commands.estimate import trainer_estimate
from workbench.commands.prove.permission import Permission
from workbench.commands.prove.recorded_run import (
    RecordedRun,
    batch_flag,
    changed_command,
    launch_options,
    process_options,
    recorded_run,
    script_changes,
)
from workbench.commands.prove.rerun import (
    CONFIGURATION,
    configuration,
    launch_words,
    proof_folder,
    rerun,
    written,
)
from workbench.console import note
from workbench.documents import Basis, Considered, ProofData, Rerun, Settings, TrainerEstimate
from workbench.errors import UsageProblem
from workbench.launch.plan import Request

_AT_LEAST = "the request that failed may come before the peak: the prediction is what that request would need"


def proof_report(run: RecordedRun, data: ProofData) -> Report[ProofData]:
    """Return the report on a proof, with its verdict and its only finding."""
    findings, kind = [finding(run, data)], kind_of(data)
    return Report(
        schema="workbench.proof/1",
        inputs=[],
        verdict=Verdict(
            status=status_of(findings) if kind in ("proved", "disproved") else Light.UNKNOWN,
            kind=kind,
            ranks=findings[0].ranks,
            sentence=findings[0].title,
            confidence=findings[0].confidence,
            missing=[_AT_LEAST] if data.basis is Basis.FAILED_REQUEST and data.rerun else [],
        ),
        findings=findings,
        data=data,
    )


def kind_of(data: ProofData) -> str:
    if data.rerun is None:
        return "not_applied"
    if data.is_proved:
        return "proved"
    return "inconclusive" if data.had_room or data.is_unmeasured else "disproved"


def finding(run: RecordedRun, data: ProofData) -> Finding:
    """Return the finding of a proof: the advice works, the advice does not work, or no advice was applied."""
    if data.rerun is None or data.applied is None:
        return not_applied(run, data)
    if data.is_unmeasured:
        return _unmeasured(run, data.rerun, data.applied)
    if data.had_room:
        return inconclusive(run, data, data.rerun, data.applied)
    passed, measured = data.rerun.passed, data.rerun.peak_bytes
    change = in_words(data.applied.changes)
    measured_text = "nothing" if measured is None else f"{size(measured)}{_excess_phrase(data)}"
    return Finding(
        id="proof.proved" if passed else "proof.disproved",
        severity=Severity.INFO if passed else Severity.ERROR,
        title=f"With {change} the run fits: {quantity(data.rerun.steps, 'step')} ran under the same limit"
        if passed
        else f"With {change} the run still fails",
        why=f"Predicted {at_least(data)}{size(data.applied.predicted_bytes)}, measured {measured_text}; tensors had"
        f" room for {size(data.room_bytes)}."
        + (f" The settings as they were need {size(data.needed_bytes)}." if data.needed_bytes else ""),
        next=f"Set {change} in the job."
        if passed
        else f"Look at the second run: workbench inspect {data.rerun.folder}",
        ranks=ranks_of(run.device),
        step=run.device.oom.step if run.device.oom else run.device.step,
        evidence=[Evidence(text=shlex.join(data.rerun.command), source=data.rerun.folder)],
        confidence=1.0,
    )


def _unmeasured(run: RecordedRun, rerun: Rerun, applied: Considered) -> Finding:
    """Return the finding that a second run showed nothing on the advice, because none of its memory was measured."""
    ended = "ended without an error" if rerun.passed else "failed"
    return Finding(
        id="proof.inconclusive",
        severity=Severity.WARNING,
        title=f"With {in_words(applied.changes)} the second run {ended} after {quantity(rerun.steps, 'step')}, and none"
        " of its memory was measured",
        why="A proof needs a finished step and a memory snapshot of it. The second run left neither."
        if rerun.peak_bytes is None and rerun.steps == 0
        else "A proof needs a finished step and a memory snapshot of it.",
        next=f"Look at the second run: workbench inspect {rerun.folder}. On a CPU, snapshots are written by"
        " `workbench.recorders.MemoryRecorder` in the script.",
        ranks=ranks_of(run.device),
        evidence=[Evidence(text=shlex.join(rerun.command), source=rerun.folder)],
        confidence=0.6,
    )


def inconclusive(run: RecordedRun, data: ProofData, rerun: Rerun, applied: Considered) -> Finding:
    """Return the finding that a second run failed although its tensors had room, which says nothing on the advice."""
    on_host = bool(run.limits)
    return Finding(
        id="proof.inconclusive",
        severity=Severity.WARNING,
        title=f"With {in_words(applied.changes)} the second run failed after {quantity(rerun.steps, 'step')}, but not"
        " for the size of its tensors",
        why=f"Its tensors took {size(rerun.peak_bytes or 0)} at most, and in the first run {size(data.room_bytes)} were"
        " there for them." + (" On a CPU, glibc keeps freed memory, and recording takes some." if on_host else ""),
        next=f"Look at the second run: workbench inspect {rerun.folder}."
        + (
            " If it ran out of memory, set MALLOC_MMAP_THRESHOLD_=131072, so that freed tensors leave the process, and"
            " prove again."
            if on_host
            else ""
        ),
        ranks=ranks_of(run.device),
        evidence=[Evidence(text=shlex.join(rerun.command), source=rerun.folder)],
        confidence=0.6,
    )


def at_least(data: ProofData) -> str:
    return "at least " if data.basis is Basis.FAILED_REQUEST else ""


def _excess_phrase(data: ProofData) -> str:
    """Return a phrase such as ` (+5.2 %, more than the margin of 5 %)` on how far a peak is from its prediction."""
    if data.excess is None:
        return ""
    relation = "within" if data.is_within_margin else "more than"
    margin = "" if data.margin is None else f", {relation} the margin of {percent(data.margin)}"
    return f" ({signed_percent(data.excess)}{margin})"


def not_applied(run: RecordedRun, data: ProofData) -> Finding:
    smallest = min((one.predicted_bytes for one in data.considered), default=None)
    room = size(data.room_bytes)
    needs = f" The settings as they were need {size(data.needed_bytes)} of {room}." if data.needed_bytes else ""
    compared = (
        f" Of {quantity(len(data.considered), 'change')} the smallest needs {size(smallest)} of {room}."
        if smallest is not None
        else ""
    )
    return Finding(
        id="proof.not_applied",
        severity=Severity.WARNING,
        title=f"No advice was applied: {data.not_applied}",
        why=f"{needs}{compared}".strip() or "No setting was changed, and the job was not run again.",
        next=data.instead or "Use more ranks or a smaller model.",
        ranks=ranks_of(run.device),
        evidence=[Evidence(text=f"room for tensors {room}", source=str(run.folder))],
        confidence=0.8,
    )


def in_words(change: Settings) -> str:
    """Return changed settings as a phrase: `activation_checkpoint.mode = full, training.local_batch_size = 4`."""
    return ", ".join(f"{key} = {value}" for key, value in change.items())


_DATA_PARALLEL = 0.05
"""The margin for one rank, DDP, FSDP and HSDP: in 24 jobs, estimates were 3.9 % too low to 4.6 % too high."""
_OTHER_MESHES = 0.10
"""The margin for other meshes: on 45 ranks, the peak was up to 9.2 % above the estimate, as gloo keeps copies."""
_VALIDATION_ON_OTHER_MESHES = 0.30
"""The same if the peak is in the validation, which has little other memory: up to 27 % above the estimate."""
_EXPERTS = 0.06
"""The margin for expert parallelism: peaks were up to 5.3 % above the estimate, which cannot foresee the routing."""
_LEFT_FREE = 0.20
"""The share of the room that is left free if the prediction is a lower bound, as memory still grows after it."""
_MESH_KEYS = ("tp", "cp", "pp")


class Prediction(NamedTuple):
    """A predicted peak in bytes, and the largest relative error that it may have; None if it is a lower bound."""

    peak_bytes: int
    margin: float | None

    def fits(self, room_bytes: int) -> bool:
        return self.peak_bytes <= (1 - (_LEFT_FREE if self.margin is None else self.margin)) * room_bytes


def rehearsed(estimate: TrainerEstimate, backend: str) -> Prediction:
    """Return the prediction from an estimate of a job that runs on a communication backend, such as `gloo`."""
    fullest, mesh = max(estimate.ranks, key=lambda rank: rank.peak_bytes), estimate.mesh
    if any(mesh.get(key, 1) > 1 for key in _MESH_KEYS):
        is_validation = fullest.peak_window == "eval"
        return Prediction(fullest.peak_bytes, _VALIDATION_ON_OTHER_MESHES if is_validation else _OTHER_MESHES)
    margin = _EXPERTS if mesh.get("ep", 1) > 1 else _DATA_PARALLEL
    # Gloo's thread may release the buffers of a finished collective late: as many again were live at measured peaks.
    if backend == "gloo" and mesh.get("dp_shard", 1) > 1:
        margin += fullest.categories.get("communication", 0) / fullest.peak_bytes
    return Prediction(fullest.peak_bytes, margin)


BATCH, _EVAL_BATCH = "training.local_batch_size", "validation.local_batch_size"
FULL: Settings = {"activation_checkpoint.mode": "full"}
STATE = ("parameters", "gradients", "optimizer_state")
_LARGER_INPUTS = 1.5
_HALVINGS = 10
_BATCH_TENSORS, _TOKEN_BYTES = 2, 8
"""The number of tensors in a batch (tokens and labels), and the bytes of one value of them (int64)."""


@dataclass(frozen=True)
class NoChange:
    """The reason why no change of settings is tried (`reason`, a clause), and what to do instead (`advice`)."""

    reason: str
    advice: str


def _reason_against_settings(run: RecordedRun) -> NoChange | None:
    """Return the reason why no setting can prevent the failed allocation; None if a setting may prevent it."""
    oom = run.device.oom
    if oom is None:
        return None
    if oom.pattern is OomPattern.GROWTH:
        since = f" from step {oom.since_step} on" if oom.since_step is not None else ""
        return NoChange(
            f"memory grew step by step{since}, and with smaller settings the job runs out of it later",
            "Find what keeps the tensors: `workbench inspect` names their lines.",
        )
    usual, now = oom.usual_inputs_bytes, oom.categories.get("inputs", 0)
    if oom.pattern is OomPattern.SPIKE and usual and now >= _LARGER_INPUTS * usual:
        return NoChange(
            f"the inputs of the failing step were {figures(now / usual)} times as large as before ({size(now)}, before"
            f" {size(usual)}), and no setting asks for such a batch",
            "Check the batch of the failing step.",
        )
    return None


def _reason_outside_settings(run: RecordedRun) -> NoChange:
    """Return why an allocation failed although the settings of the run should fit into memory, and what to do.

    They should fit, because the estimated peak is below the limit (`workbench estimate`). So the reason must be
    something else, such as a larger batch.
    """
    config, oom = run.manifest["config"], run.device.oom
    inputs = oom.categories.get("inputs", 0) if oom else 0
    rows = config["validation" if _is_validation(run) else "training"]["local_batch_size"]
    usual = _BATCH_TENSORS * _TOKEN_BYTES * rows * config["training"]["seq_len"]
    if inputs >= _LARGER_INPUTS * usual:
        return NoChange(
            f"the inputs were {figures(inputs / usual)} times as large as the settings say ({size(inputs)})",
            "Check the batch of the failing step.",
        )
    return NoChange(
        "one step with these settings fits, so that something else than the settings filled the memory",
        "Look at the largest categories and lines: `workbench inspect` shows them.",
    )


def _is_validation(run: RecordedRun) -> bool:
    oom = run.device.oom
    return bool(oom and any("validation.py" in frame for frame in oom.frames))


def changes(run: RecordedRun) -> Iterator[Settings]:
    """Yield the changes of settings to try, as {key: new value}; changes that the finding advises come first."""
    config = run.manifest["config"]
    if _is_validation(run):
        for batch in halved(config["validation"]["local_batch_size"]):
            yield {_EVAL_BATCH: batch}
        return
    oom = run.device.oom
    categories = oom.categories if oom else run.device.categories
    of_state = max(categories, key=lambda name: categories[name]) in STATE
    groups = [list(_against_activations(config, run)), list(_against_state(config, run))]
    # What fills most of the memory is reduced first.
    yield from (change for group in (reversed(groups) if of_state else groups) for change in group)
    smallest = [{}, *_smaller_batches(config, run)][-1] | checkpointing(config)
    for change in _against_state(config, run):
        yield smallest | change
    for length in halved(config["training"]["seq_len"]):
        yield smallest | {"training.seq_len": length}


def _against_activations(config: Mapping[str, Any], run: RecordedRun) -> Iterator[Settings]:
    recompute, batches = checkpointing(config), list(_smaller_batches(config, run))
    yield from [recompute] if recompute else []
    yield from batches
    yield from (recompute | batch for batch in batches) if recompute else ()


def _against_state(config: Mapping[str, Any], run: RecordedRun) -> Iterator[Settings]:
    """Yield changes that reduce the memory of parameters, gradients and optimizer state."""
    mesh = run.manifest.get("mesh") or {}
    copies = mesh.get("dp_replicate", 1)
    if copies > 1:
        yield {
            "parallelism.data_parallel_replicate_degree": 1,
            "parallelism.data_parallel_shard_degree": copies * mesh.get("dp_shard", 1),
        }
    if config["training"]["dtype"] == "float32":
        change: Settings = {"training.dtype": "bfloat16"}
        # Weights in bfloat16 compute in float32 only with FSDP; without it the trainer refuses them.
        if config["training"].get("mixed_precision_param") == "float32":
            change["training.mixed_precision_param"] = "bfloat16"
        yield change


def checkpointing(config: Mapping[str, Any]) -> Settings:
    return {} if config["activation_checkpoint"]["mode"] == "full" else dict(FULL)


def _smaller_batches(config: Mapping[str, Any], run: RecordedRun) -> Iterator[Settings]:
    """Yield changes to a smaller local batch, with more forward passes that accumulate gradients.

    Each change keeps the global batch (the number of sequences in a step over all ranks).
    """
    batch = config["training"]["local_batch_size"]
    for smaller in halved(batch):
        yield {BATCH: smaller, "training.global_batch_size": _sequences_a_step(config, run)}


def _sequences_a_step(config: Mapping[str, Any], run: RecordedRun) -> int:
    asked, mesh = config["training"]["global_batch_size"], run.manifest.get("mesh") or {}
    copies = mesh.get("dp_replicate", 1) * mesh.get("dp_shard", 1)
    return int(asked) if asked > 0 else int(config["training"]["local_batch_size"]) * copies


def halved(number: int) -> Iterator[int]:
    parts = (number // 2**power for power in range(1, _HALVINGS) if number % 2**power == 0)
    yield from takewhile(lambda part: part > 0, parts)


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
    return ProofData(
        finding=run.finding, limits=run.limits, room_bytes=run.room_bytes, needed_bytes=needed, basis=None,
        considered=[], rerun=None, not_applied=why.reason, instead=why.advice,
    )  # fmt: skip


def _proof_of_trainer(run: RecordedRun, permission: Permission) -> ProofData:
    hosts = set(dict(run.manifest.get("hosts") or {}).values())
    if len(hosts) > 1:
        only_here = f"the run had {len(hosts)} hosts, and a second run would have only this one"
        return _unproved(run, NoChange(only_here, _USE_ADVICE))
    if why := _reason_against_settings(run):
        return _unproved(run, why)
    folder = proof_folder(run.folder)
    # All runs have the same command line. The rehearsals, too, use what the configuration names.
    permission.require(launch_words(_trainer_options(run, folder)), run.manifest["config"])
    needed = rehearsal(run, folder, {})
    if run.device.oom and needed.fits(run.room_bytes):
        return _unproved(run, _reason_outside_settings(run), needed.peak_bytes)
    predict = partial(rehearsal, run, folder)
    return decided(run, changes(run), predict, partial(_trainer_started, run), Basis.REHEARSAL, needed.peak_bytes)


def _proof_of_command(run: RecordedRun, permission: Permission) -> ProofData:
    """Return the proof for a user's command: run the command again with a smaller batch.

    If no flag of the command sets the batch size, nothing is run, and the proof says why.
    """
    if not run.command:
        unknown = "run.json names neither settings of workbench's trainer nor a command"
        return _unproved(run, NoChange(unknown, "Give the command of the job: --prove -- COMMAND..."))
    if why := _reason_against_settings(run):
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
            note(f"{_changes_text(change)}: the trainer refuses it, {refusal}")
            continue
        # A run without a failure had enough memory: there, any change that needs less fits.
        fits = prediction.fits(run.room_bytes) if run.device.oom else peak < run.device.peak_allocated_bytes
        considered.append(Considered(changes=change, predicted_bytes=peak, fits=fits))
        note(f"{_changes_text(change)}: {peak:,} bytes predicted, {'fits' if fits else 'does not fit'}")
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
    return ("--config", str(folder / CONFIGURATION), "--nproc", str(run.ranks))


def _trainer_started(run: RecordedRun, change: Settings) -> Rerun:
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


def _changes_text(change: Settings) -> str:
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
