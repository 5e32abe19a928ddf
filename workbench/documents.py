"""The data of a proof report (`workbench.proof/1`), which `workbench inspect RUN --prove` prints.

A proof is a second run: after a failed allocation, the job runs again with the advice applied.
"""

from enum import StrEnum

import msgspec

from analyzers.parity.report import Jumps

_ROOM_LEFT = 0.2
"""The share of the room that the tensors of a failed run left free if their size is not the reason of the failure."""
Settings = dict[str, bool | int | str]


class Basis(StrEnum):
    """The method by which the peak memory with changed settings was predicted.

    `rehearsal`: one step with the changed settings was run on tensors without values, which shows its whole peak.
    `failed_request`: the memory at the failed request was scaled down with the batch; the peak may come after it, so
    that the prediction is a lower bound.
    """

    REHEARSAL = "rehearsal"
    """A step with the changed settings was run on tensors without values, which shows its whole peak."""
    FAILED_REQUEST = "failed_request"
    """The memory in use when the request failed, with the part that grows with the batch scaled down.

    The step may need still more memory after this request.
    """


class Considered(msgspec.Struct, frozen=True, kw_only=True):
    """A change of settings that was considered, with the memory that was predicted for it.

    `changes` maps each changed setting to its new value. `predicted_bytes` is the predicted peak memory of the rank
    with the highest peak, in bytes. `fits` says whether that much memory is available; a part of the available memory
    is kept free, because predictions have errors.
    """

    changes: Settings
    predicted_bytes: int
    fits: bool


class Rerun(msgspec.Struct, frozen=True, kw_only=True):
    """A second run of the job with changed settings, under the memory limits of the first run.

    `command` is the command line that started it, and `folder` is the folder with its files. `passed` is true if no
    allocation failed and the run ended without an error. `steps` is the number of steps that every rank finished.
    `peak_bytes` is the highest peak memory of any rank's tensors (None: not recorded).
    """

    folder: str
    command: list[str]
    passed: bool
    steps: int
    peak_bytes: int | None


class ProofData(msgspec.Struct, frozen=True, kw_only=True):
    """The field `data` of `workbench.proof/1`: changes against a failed allocation, and whether a run with them passed.

    `finding` is the id of the finding on the first run, such as `memory.oom`. `limits` has the memory limits of its
    processes, as {name: bytes}. `room_bytes` is the memory that tensors could use: the allocated and the free bytes at
    the failure. `needed_bytes` is the predicted peak with unchanged settings (None: not predicted).

    `considered` has the changes of settings in the order in which they were tried, and `basis` is the method that
    predicted their memory (None: nothing was predicted). `margin` is the relative error that the last of these
    predictions may have, such as 0.05; None if there was no prediction, or if it is a lower bound.

    The job was run with each change that fits until one run passed. `reruns` is the number of these runs, and `rerun`
    is the last one. If there was none, `rerun` is None, `not_applied` says why, and `instead` says what to do.
    """

    finding: str
    limits: dict[str, int]
    room_bytes: int
    needed_bytes: int | None
    basis: Basis | None
    considered: list[Considered]
    rerun: Rerun | None
    not_applied: str
    instead: str = ""
    reruns: int = 0
    margin: float | None = None

    @property
    def applied(self) -> Considered | None:
        fitting = [one for one in self.considered if one.fits]
        return fitting[-1] if self.rerun and fitting else None

    @property
    def error(self) -> float | None:
        """The relative error of the predicted peak: 0.1 if it is 10 % above the measured peak, negative if below.

        The result is None if no change was run, or if the peak was not measured.
        """
        measured = self.rerun.peak_bytes if self.rerun else None
        return self.applied.predicted_bytes / measured - 1 if self.applied and measured else None

    @property
    def excess(self) -> float | None:
        """The measured peak relative to the predicted one: 0.1 if it is 10 % above the prediction, negative if below.

        A margin limits this number. It is None if a change was not run or its peak was not measured.
        """
        measured = self.rerun.peak_bytes if self.rerun else None
        return measured / self.applied.predicted_bytes - 1 if self.applied and measured else None

    @property
    def is_proved(self) -> bool:
        return self.rerun is not None and self.rerun.passed and not self.is_unmeasured

    @property
    def is_unmeasured(self) -> bool:
        run = self.rerun
        return run is not None and (run.peak_bytes is None or (run.passed and run.steps == 0))

    @property
    def had_room(self) -> bool:
        """Whether the last second run failed although its tensors took far less than what was there for them."""
        if self.rerun is None or self.rerun.passed or self.rerun.peak_bytes is None:
            return False
        return self.rerun.peak_bytes <= (1 - _ROOM_LEFT) * self.room_bytes

    @property
    def is_within_margin(self) -> bool | None:
        if self.margin is None or self.excess is None:
            return None
        return abs(self.excess) <= self.margin


# The data of a report on a second run around a NaN or a spike of the loss (`workbench.rerun/1`).
#
# `workbench inspect RUN --prove` prints this report. The job runs again from the last checkpoint before the NaN or the
# spike. In this second run, recorders are on that would be too slow for every run.

SPIKE = "steps.loss_spike"
"""The id of the finding that the loss jumped up for a short time."""


class RerunData(msgspec.Struct, frozen=True, kw_only=True):
    """The field `data` of `workbench.rerun/1`: what a second run shows about the step in which the loss broke.

    `event` is the id of the finding on the first run: `steps.nonfinite_loss` if the loss became NaN or infinite,
    `steps.loss_spike` if it jumped up. `step` is the step of this finding. If there was no second run, `not_run` says
    why, and the fields below have their default values.

    The second run began after step `checkpoint_step` (0: at the first step of the training) and ended with `step`.
    `command` is the command line that started it, and `folder` is the folder with its files. `recorded_loss` and
    `repeated_loss` are the losses of `step` in the first and in the second run, as means over the ranks (None: not
    logged or not finite). `reproduced` says whether the two are the same.

    `jumps` has the tensors whose norm jumped first; None if no tensors were recorded or no gradient jumped. The norms
    were compared with those of the `steps_compared` steps before `step`, of which `first_compared` is the first.

    The batch of `step` has the sequences `first_sequence` to `last_sequence` of the training data, counted from 0.
    `losses` maps each rank to the loss of its part of this batch in the second run.
    """

    event: str
    step: int
    checkpoint_step: int | None = None
    folder: str = ""
    command: list[str] = []
    recorded_loss: float | None = None
    repeated_loss: float | None = None
    reproduced: bool = False
    jumps: Jumps | None = None
    steps_compared: int = 0
    first_compared: int | None = None
    first_sequence: int | None = None
    last_sequence: int | None = None
    losses: dict[int, float] = {}
    not_run: str = ""


class RankMemory(msgspec.Struct, frozen=True):
    """The estimated peak memory of `count` ranks that all need the same memory; `first_rank` is the first of them.

    All sizes are in bytes. `peak_bytes` is the highest memory in a step. `categories` has the bytes of each category of
    memory at this peak. `modules` divides the same bytes by module, as {module: {category: bytes}}. Equal layers share
    one name, such as `layers.*.attention`; memory that belongs to no module has a name in parentheses.

    A window is a part of the step, such as the forward pass of the first layer. `windows` has the peak of each window,
    and `peak_window` is the window with the peak of the step. `peak_line` is the line of the script that runs at the
    peak; it is empty if the estimate is for a configuration of the trainer.
    """

    first_rank: int
    count: int
    peak_bytes: int
    peak_window: str
    categories: dict[str, int]
    windows: dict[str, int]
    peak_line: str = ""
    modules: dict[str, dict[str, int]] = {}


class Alternative(msgspec.Struct, frozen=True):
    """A setting that may need less memory, such as another parallelism or batch size.

    `setting` has the flags of the trainer, and `peak_bytes` is the highest peak memory of any rank with them, in bytes.
    """

    setting: str
    peak_bytes: int


class TrainerEstimate(msgspec.Struct, frozen=True, kw_only=True):
    """The JSON that `python -m trainer.estimate` prints: the estimated memory of a training job.

    `world_size` is the number of ranks, and `mesh` maps each mesh dimension to its degree. `parameters` is the number
    of the model's parameters, and `layers` the number of its layers. `assumptions` are sentences on how a real run may
    differ. `ranks` has the memory of each group of ranks that need the same memory. For a script, `device` is the
    device whose memory is counted, and `steps` is the number of steps that were run on tensors without values; for a
    configuration they are empty and 0.
    """

    world_size: int
    mesh: dict[str, int]
    model: str
    parameters: int
    layers: int
    assumptions: list[str]
    ranks: list[RankMemory]
    device: str = ""
    steps: int = 0

    @property
    def peak_bytes(self) -> int:
        return max(rank.peak_bytes for rank in self.ranks)


class Refusal(msgspec.Struct, frozen=True):
    """Why the memory of a script cannot be estimated, and what to do instead."""

    error: str
    hint: str


class EstimateData(TrainerEstimate, frozen=True, kw_only=True):
    """The field `data` of `workbench.estimate/1`: the estimated memory of a training job, compared with a limit.

    `world_size` is the number of ranks, and `mesh` maps each mesh dimension to its degree. `parameters` is the number
    of the model's parameters, and `layers` the number of its layers. `assumptions` are sentences on how a real run may
    differ. `ranks` has the memory of each group of ranks that need the same memory. For a script, `device` is the
    device whose memory is counted, and `steps` is the number of steps that were run on tensors without values.

    `limit_bytes` is the memory of a device (None: the user gave no limit). If the peak exceeds it or comes near it,
    `options` has settings that may need less memory, the one with the lowest peak first.
    """

    limit_bytes: int | None
    options: list[Alternative]


class PlannedSettings(msgspec.Struct, frozen=True):
    """Settings that `workbench plan` proposes, with the memory and the speed to expect of them.

    `settings` maps each key of the configuration to its value. `peak_bytes` is the highest peak memory of a rank, in
    bytes; it was measured in a rehearsal, which is a step on tensors without values. A cost model estimates the other
    numbers: `step_s` is the duration of a step, and `tokens_per_s` the speed of the whole job with its
    `tokens_per_step`. `time` divides the step into parts, such as `compute`, in seconds.

    `rank` is the position of the plan by speed: 1 more than the number of plans that are surely faster. The cost model
    cannot tell which of two plans with the same rank is faster. `rank` is None if the plan was not compared with
    others.
    """

    settings: dict[str, bool | int | str]
    peak_bytes: int
    step_s: float
    tokens_per_s: float
    tokens_per_step: int
    time: dict[str, float]
    rank: int | None = None


class PlanData(msgspec.Struct, frozen=True):
    """The field `data` of `workbench.plan/1`: settings with which a training job fits into memory.

    The job has `world_size` ranks on devices of the type `device`, with `limit_bytes` of memory each, of which the
    fraction `margin` must stay free. `parameters` is the number of the model's parameters. `plans` are the settings
    that fit, the fastest first. `next_larger` is the first plan with the next larger batch, which may not fit (None:
    there is none). If the speeds of two plans differ by less than the fraction `speed_margin`, either of them may be
    faster.

    `candidates` is the number of settings that were compared. `rehearsed` of them were run on tensors without values to
    measure their peak memory; `smallest_bytes` is the smallest of these peaks (None: none was measured), and
    `validation_bytes` the smallest peak of the validation alone (None: there is no validation). `seconds` is how long
    the search took; `complete` is false if its time was up before its end.
    """

    world_size: int
    model: str
    parameters: int
    limit_bytes: int
    margin: float
    device: str
    candidates: int
    rehearsed: int
    complete: bool
    seconds: float
    plans: list[PlannedSettings]
    next_larger: PlannedSettings | None
    smallest_bytes: int | None
    speed_margin: float = 0.0
    validation_bytes: int | None = None

    @property
    def first_rank(self) -> int:
        """The number of plans that may be the fastest, because the cost model cannot tell their speeds apart."""
        return sum(one.rank == 1 for one in self.plans)

    @property
    def usable_bytes(self) -> int:
        return int(self.limit_bytes * (1 - self.margin))
