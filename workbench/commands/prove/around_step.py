"""Run a job again from the last checkpoint before a NaN or a spike of the loss, and find where it began."""

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from analyzers.errors import InputError, NothingRecorded
from analyzers.files import read_json, read_whole
from analyzers.incident.not_finite import not_finite_findings
from analyzers.parity.jumps import first_jumps
from analyzers.report import Finding, Report
from analyzers.run import TIMED, Kind, Run, discover
from analyzers.store import Options
from workbench.ask import steps_report
from workbench.commands.prove.permission import Permission
from workbench.commands.prove.rerun import configuration, launch_words, proof_folder, run_limited, written
from workbench.commands.prove.rerun_report import rerun_report
from workbench.console import note
from workbench.errors import UsageProblem
from workbench.proof_data import Settings
from workbench.rerun_data import SPIKE, RerunData

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
        findings = steps_report(run, options).findings
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
    """Return the number of sequences in one step over all ranks."""
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
    """Return the mean of the losses of all ranks; None if it is not finite or no loss is logged."""
    value = sum(losses.values()) / len(losses) if losses else float("nan")
    return value if abs(value) < float("inf") else None
