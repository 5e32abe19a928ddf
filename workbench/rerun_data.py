"""The data of a report on a second run around a NaN or a spike of the loss (`workbench.rerun/1`).

`workbench inspect RUN --prove` prints this report. The job runs again from the last checkpoint before the NaN or the
spike. In this second run, recorders are on that would be too slow for every run.
"""

import msgspec

from analyzers.parity.report import Jumps

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
