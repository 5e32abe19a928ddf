"""The data of a report on a second run around a NaN or a spike of the loss (`workbench.rerun/1`).

`workbench inspect RUN --prove` prints this report. The job runs again from the last checkpoint before the NaN or the
spike. In this second run, recorders are on that would be too slow for every run.
"""

import msgspec

from analyzers.parity.jumps import Jumps

SPIKE = "steps.loss_spike"
"""The id of the finding on a spike of the loss."""


class RerunData(msgspec.Struct, frozen=True, kw_only=True):
    """What a second run around a broken step found.

    `event` is the id of the finding on the first run, and `step` its step. The second run began after
    `checkpoint_step` (0: at the first step) and wrote to `folder`. `recorded_loss` and `repeated_loss` are the loss
    of the step in the first and in the second run (None: not logged or not finite); `reproduced` says whether they
    are the same. `jumps` are the tensors that jumped first, compared with the `steps_compared` recorded steps before
    `step`, of which `first_compared` is the first. The batch of the step has the sequences `first_sequence` to
    `last_sequence` of the data, counted from 0, and `losses` has the loss of each rank's part of it. `not_run` says
    why there was no second run.
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
