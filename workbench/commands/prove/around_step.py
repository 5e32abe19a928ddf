"""Run a job again from the last checkpoint before a NaN or a spike of the loss, and find where it began."""

import json
import math
import re
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from analyzers import steps
from analyzers.errors import InputError, NothingRecorded
from analyzers.files import read_json, read_whole
from analyzers.incident.not_finite import not_finite_findings
from analyzers.parity.report import FACTOR, STEPS_BEFORE, Jump, Jumps, first_jumps, value_name_of
from analyzers.report import Evidence, Finding, Report, Severity, Status, Verdict, status_of
from analyzers.run import TIMED, Kind, Run, discover
from analyzers.store import Options
from analyzers.words import percent, quantity
from workbench.commands.prove.permission import Permission
from workbench.commands.prove.rerun import configuration, launch_words, proof_folder, run_limited, written
from workbench.console import note
from workbench.documents import SPIKE, RerunData, Settings
from workbench.errors import UsageProblem


def rerun_report(data: RerunData, not_finite: Sequence[Finding]) -> Report[RerunData]:
    """Return the report on a second run; `not_finite` are the findings from its check for NaN and infinities."""
    findings = [*not_finite, *([_jump_finding(data, data.jumps)] if data.jumps else [])]
    if not findings and _is_batch(data):
        findings = [_batch_finding(data)]
    is_located = bool(findings)
    if not is_located:
        findings = [_nothing_finding(data)]
    kind = "located" if is_located else "not_run" if data.not_run else "not_located"
    return Report(
        schema="workbench.rerun/1",
        inputs=[],
        verdict=Verdict(
            status=status_of(findings) if is_located else Status.UNKNOWN,
            kind=kind,
            ranks=findings[0].ranks,
            sentence=findings[0].title,
            confidence=findings[0].confidence,
            missing=missing(data),
        ),
        findings=findings,
        data=data,
    )


def missing(data: RerunData) -> list[str]:
    """Return a list with a sentence on the second run's loss, if the second run did not break; else an empty list.

    The report shows this sentence as missing evidence.
    """
    if data.not_run or data.reproduced:
        return []
    return [f"the same loss in step {data.step}: the second run has {loss(data.repeated_loss)}"]


def _is_batch(data: RerunData) -> bool:
    """Return whether the batch explains a spike; the caller knows that no gradient jumped.

    The batch explains it if the loss rose again in the second run, and enough steps before it were recorded for
    comparison.
    """
    return data.event == SPIKE and data.reproduced and data.steps_compared >= STEPS_BEFORE


def _batch_finding(data: RerunData) -> Finding:
    """Return the finding that the batch of the step caused the spike, because no other cause is left."""
    late = _worst_rank(data)
    return Finding(
        id="rerun.batch",
        severity=Severity.WARNING,
        title=f"The batch of step {data.step} makes the loss spike: no gradient jumped in that step or before it",
        why=f"A second run of steps {data.first_compared} to {data.step} had the same loss in step {data.step}"
        f" ({loss(data.repeated_loss)}). In no step was the gradient of a parameter {FACTOR:g} times as large as in the"
        " steps before it.",
        next=f"Look at the batch of step {data.step} ({batch(data)}): text of another kind, padding, wrong labels."
        " If it is bad data, remove it. The training can continue as it is, because the weights are not damaged.",
        ranks=[] if late is None else [late],
        step=data.step,
        evidence=[Evidence(text=text) for text in facts(data)],
        confidence=0.8,
    )


def _jump_finding(data: RerunData, jumps: Jumps) -> Finding:
    """Return the finding on the layer whose gradient jumped first."""
    gradient = jumps.gradient
    early = data.step - jumps.step
    when = f"in step {jumps.step}" + (f", {quantity(early, 'step')} earlier" if early > 0 else "")
    late = _worst_rank(data)
    return Finding(
        id="rerun.gradient_jump",
        severity=Severity.WARNING,
        title=f"The spike of the loss in step {data.step} begins with the gradient of {gradient.tensor} {when}",
        why=reason(jumps),
        next=advice(data, jumps),
        ranks=[] if late is None else [late],
        step=jumps.step,
        evidence=[Evidence(text=text) for text in evidence(data, jumps)],
        confidence=0.9 if data.reproduced else 0.5,
    )


def reason(jumps: Jumps) -> str:
    """Return the facts about a jump of gradients: its size, the number of parameters with one, the forward pass."""
    first, largest = jumps.gradient, jumps.largest
    most = "" if largest.tensor == first.tensor else f"; that of {largest.tensor} grew most, {times(largest)} as large"
    return (
        f"The norm of this gradient is {number(first.norm)} in that step, and at most {number(first.before)} in the"
        f" recorded steps before. The gradients of {percent(jumps.share)} of the parameters became more than"
        f" {FACTOR:g} times as large as before{most}. {_forward_sentence(jumps)}"
    )


def _forward_sentence(jumps: Jumps) -> str:
    """Return a sentence on the forward pass of the step with the jump: the first output that jumped, if any."""
    if jumps.forward is None:
        return (
            f"The output of no module was more than {FACTOR:g} times as large as before in that step, so the cause is"
            " in the loss or in the backward pass."
        )
    name = value_name_of(jumps.forward.kind, jumps.forward.tensor)
    return f"In the forward pass {name} jumped first: its norm is {times(jumps.forward)} its largest before."


def advice(data: RerunData, jumps: Jumps) -> str:
    """Return what to do about a jump of gradients.

    If the jump came before the spike of the loss, clip gradients. If it came in the same step, lower the learning rate
    or look at the batch.
    """
    if jumps.step < data.step:
        return (
            f"Clip gradients (training.max_norm) or lower the learning rate before step {jumps.step}: the update of"
            f" step {jumps.step} caused the loss of step {data.step}."
        )
    if jumps.forward is not None:
        return (
            f"Lower the learning rate: the outputs jumped in the forward pass, by the update before step {data.step}."
        )
    return (
        f"Look at the batch of step {data.step} ({batch(data)}); leave it out, or clip gradients (training.max_norm)."
    )


def evidence(data: RerunData, jumps: Jumps) -> list[str]:
    """Return the facts as sentences; if a gradient of an activation jumped, the first such gradient comes first."""
    if jumps.backward is None:
        return facts(data)
    name = value_name_of(jumps.backward.kind, jumps.backward.tensor)
    first = f"first in the backward pass of step {jumps.step}: {name}, {times(jumps.backward)} as large"
    return [first, *facts(data)]


def facts(data: RerunData) -> list[str]:
    """Return sentences on the batch of the step, the losses of ranks and runs, and the second run's command."""
    texts = [f"batch of step {data.step}: {batch(data)}"]
    if len(data.losses) > 1:
        parts = (f"{number(value)} on rank {rank}" for rank, value in sorted(data.losses.items()))
        texts.append(f"loss of each rank's part of the batch: {', '.join(parts)}")
    both = f"{loss(data.recorded_loss)} in the run, {loss(data.repeated_loss)} when the step was run again"
    texts.append(f"loss of step {data.step}: {both}")
    return [*texts, shlex.join(data.command)] if data.command else texts


def batch(data: RerunData) -> str:
    return f"sequences {data.first_sequence} to {data.last_sequence} of the data"


def _worst_rank(data: RerunData) -> int | None:
    """Return the rank with the highest loss, if this loss is at least a tenth above the next highest; else None."""
    ordered = sorted(data.losses.items(), key=lambda item: -item[1])
    if len(ordered) < 2 or ordered[0][1] < 1.1 * ordered[1][1]:
        return None
    return ordered[0][0]


def _nothing_finding(data: RerunData) -> Finding:
    """Return the finding that the origin is unknown, with the reason.

    Either there was no second run, or it did not show the origin.
    """
    if data.not_run:
        title, why = f"Step {data.step} was not run again", f"{data.not_run}."
        advice_ = (
            "In a script, call recorders.check_finite(model) before the first step, and start it again. With our"
            " trainer, switch on checkpoints (checkpoint.enable), or debug.check_finite and debug.record_values from"
            " the start."
        )
    elif data.reproduced:
        title = f"Step {data.step} broke again, and the second run does not show where it began"
        earlier = f"only {quantity(data.steps_compared, 'earlier step')}" if data.steps_compared else "no earlier step"
        why = f"The second run recorded {earlier}, too few to compare with."
        advice_ = (
            "Begin the second run earlier: resume from an earlier checkpoint. Or look at how the loss is computed."
        )
    else:
        title = (
            f"The second run did not reproduce the loss of step {data.step}: it is {loss(data.repeated_loss)}, and was"
            f" {loss(data.recorded_loss)} in the first run"
        )
        why = "The same weights, data and settings gave a different result."
        advice_ = (
            "If the losses hardly differ, the order in which kernels add may be the reason: set debug.deterministic. If"
            " they differ much, suspect the machine, such as faulty memory (nvidia-smi -q -d ECC counts its errors)."
        )
    return Finding(
        id="rerun.not_run" if data.not_run else "rerun.not_located",
        severity=Severity.WARNING,
        title=title,
        why=why,
        next=advice_,
        step=data.step,
        evidence=[Evidence(text=shlex.join(data.command) or f"finding {data.event}")],
        confidence=0.6,
    )


def times(jump: Jump) -> str:
    return f"{jump.factor:.3g} times" if math.isfinite(jump.factor) else "not finite, unlike"


def number(value: float) -> str:
    return f"{value:.4g}" if math.isfinite(value) else "NaN or infinite"


def loss(value: float | None) -> str:
    """Return a loss as text; None means that it is not finite or not logged."""
    return "NaN, infinite or not logged" if value is None else f"{value:.6g}"


NOT_FINITE = "steps.nonfinite_loss"
_STEP_FOLDER = re.compile(r"step-(\d{1,12})")
_STEPS_AT_MOST = 500
"""The most steps of a second run; a step with recorders takes up to three times as long."""
_BEFORE_SPIKE = 4
"""The number of steps before a spike that are run too, if a checkpoint allows it, to compare gradients with."""
_SAME = 1e-3
"""Two losses count as equal if they differ by less than this fraction; kernels may add numbers in another order."""


def broken_step(run: Run, options: Options) -> Finding | None:
    """Return the finding on the first NaN in the loss, or else on its highest spike; None if the run has neither."""
    if not run.of(*TIMED):
        return None
    try:
        findings = steps.analyze(run.of(*TIMED), options).findings
    except NothingRecorded:  # a job that failed in its first step
        return None
    return next((one for event in (NOT_FINITE, SPIKE) for one in findings if one.id == event), None)


def run_again(run: Run, event: Finding, permission: Permission) -> Report[RerunData]:
    """Run the job again from the last checkpoint before the step of `event`; return the report on where it began.

    `event` is the finding on a NaN or on a spike of the loss.

    Raises:
        InputError: There is no run.json with the command of the job.
        UsageProblem: The person does not permit it, or gave a command, which cannot be made to stop at a step.
    """
    step = event.step or 0
    if permission.command:
        raise UsageProblem(
            "--prove: a command cannot be run from the last checkpoint before a step",
            "call recorders.check_finite(model) in the script, and resume it from its last checkpoint",
        )
    try:
        manifest = read_json(run.root / "run.json")
    except (OSError, ValueError) as error:
        raise InputError(f"--prove: no run.json in {run.root} says what was run", "give the folder of a run") from error
    start, why = starting_step(run.root, manifest, step, _BEFORE_SPIKE if event.id == SPIKE else 0)
    if start is None:
        return rerun_report(RerunData(event=event.id, step=step, not_run=why), [])
    folder = proof_folder(run.root)
    settings = settings_around(run.root, manifest["config"], start, step, is_spike=event.id == SPIKE)
    path = written(configuration(manifest["config"], settings, folder), folder)
    ranks = int(manifest.get("world_size") or 1)
    words = launch_words(("--config", str(path), "--nproc", str(ranks)))
    permission.require(words, manifest["config"])
    note(f"running steps {start + 1} to {step} again with recorders; logs in {folder / 'logs'}")
    run_limited(words, {})
    second = discover(folder)
    data = answer(run, second, event, start, words[words.index("launch") :], manifest["config"])
    return rerun_report(data, not_finite_findings(second.of(Kind.NOT_FINITE)))


def starting_step(folder: Path, manifest: Mapping[str, Any], step: int, before: int) -> tuple[int | None, str]:
    """Return (step after which the second run starts, ""), or (None, why it cannot start).

    The second run starts at the last checkpoint that is more than `before` steps before `step`. If there is none, it
    starts at the last checkpoint before `step`. 0 means the start of training. `manifest` is the content of run.json.
    """
    config = manifest.get("config")
    if not isinstance(config, dict):
        return None, (
            "the job is not our trainer's: call recorders.check_finite(model) or recorders.record_tensors(model) in the"
            " script, and resume it from its last checkpoint"
        )
    hosts = set(dict(manifest.get("hosts") or {}).values())
    if len(hosts) > 1:
        return None, f"the run had {len(hosts)} hosts, and a second run has this one"
    saved = [one for one in checkpoints(folder / config["checkpoint"]["folder"]) if one < step]
    begins = [*saved, *([] if config["debug"]["seed"] is None else [0])]
    start = max((one for one in begins if one < step - before), default=max(begins, default=None))
    if start is None:
        return None, "there is no checkpoint before it, and no debug.seed: a second run would draw other weights"
    if step - start > _STEPS_AT_MOST:
        return (
            None,
            f"the last checkpoint is {step - start} steps before it, and at most {_STEPS_AT_MOST} are run again",
        )
    return start, ""


def checkpoints(folder: Path) -> list[int]:
    """Return the steps of the complete checkpoints in a folder, without checkpoints that have only weights."""
    names = [(_STEP_FOLDER.fullmatch(path.name), path) for path in folder.glob("step-*")]
    # PyTorch writes `.metadata` last, so that a checkpoint without it is incomplete.
    return sorted(int(match[1]) for match, path in names if match and (path / ".metadata").is_file() and int(match[1]))


def settings_around(folder: Path, config: Mapping[str, Any], start: int, step: int, *, is_spike: bool) -> Settings:
    """Return the settings of the second run, with recorders on: it resumes after step `start` and ends with `step`.

    The learning rate follows the schedule of the first run. `is_spike` selects the recorder: sums over values for a
    spike, the check for NaN and infinities otherwise.
    """
    scheduled = config["lr_scheduler"]["total_steps"] or config["training"]["steps"]
    recorder = "debug.record_values" if is_spike else "debug.check_finite"
    settings: Settings = {
        "training.steps": step,
        "lr_scheduler.total_steps": scheduled,
        "metrics.log_freq": 1,
        "profiling.enable_memory_snapshot": False,
        "validation.enable": False,
        recorder: True,
    }
    if not start:
        return settings
    # Absolute, because the second run has another dump folder.
    saved = (folder / config["checkpoint"]["folder"]).resolve()
    # load_only: the second run must not change the checkpoints of the first.
    resumed: Settings = {
        "checkpoint.enable": True, "checkpoint.load_only": True, "checkpoint.folder": str(saved),
        "checkpoint.load_step": start,
    }  # fmt: skip
    return settings | resumed


def answer(
    first: Run, second: Run, event: Finding, start: int, words: list[str], config: Mapping[str, Any]
) -> RerunData:
    """Return what the second run shows: whether the step broke again, the tensor that jumped first, and the batch.

    `start` is the step after which the second run began, `words` is its command, and `config` is the configuration of
    the first run.
    """
    step = event.step or 0
    recorded, repeated = _losses_of(first, step, "loss"), _losses_of(second, step, "loss")
    before, after = mean(recorded), mean(repeated)
    values = second.of(Kind.VALUES)
    sequences = int(_sequences_of(config, first))
    return RerunData(
        event=event.id,
        step=step,
        checkpoint_step=start,
        folder=str(second.root),
        command=["workbench", *words],
        recorded_loss=before,
        repeated_loss=after,
        reproduced=_is_same(before, after) if repeated else False,
        jumps=first_jumps(values, step) if values else None,
        steps_compared=step - start - 1 if values else 0,
        first_compared=start + 1,
        first_sequence=(step - 1) * sequences,
        last_sequence=step * sequences - 1,
        losses=_losses_of(second, step, "local_loss"),
    )


def _sequences_of(config: Mapping[str, Any], run: Run) -> int:
    training, mesh = config["training"], run.manifest().get("mesh")
    sizes = mesh if isinstance(mesh, dict) else {}
    ranks = int(sizes.get("dp_replicate", 1)) * int(sizes.get("dp_shard", 1))
    return int(training["global_batch_size"]) if training["global_batch_size"] > 0 else (
        int(training["local_batch_size"]) * ranks
    )  # fmt: skip


def _is_same(before: float | None, after: float | None) -> bool:
    """Return whether two losses are equal up to rounding; None (a loss that is not finite) equals only None."""
    if before is None or after is None:
        return before is after
    return abs(after - before) <= _SAME * abs(before)


def _losses_of(run: Run, step: int, name: str) -> dict[int, float]:
    """Return {rank: loss} of a step from our step logs; `name` is the field, such as "local_loss".

    A loss that is not finite is NaN or infinite in the result.
    """
    losses = {}
    for artefact in run.of(Kind.STEPS):
        for line in read_whole(artefact.path).splitlines():
            try:
                row = json.loads(line)
            except ValueError:
                continue
            if isinstance(row, dict) and row.get("step") == step and row.get(name) is not None:
                losses[artefact.rank or 0] = float(row[name])
    return losses


def mean(losses: Mapping[int, float]) -> float | None:
    value = sum(losses.values()) / len(losses) if losses else float("nan")
    return value if abs(value) < float("inf") else None
