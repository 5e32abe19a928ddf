"""Find the tensor of a recorded run whose norm jumped first: where a spike of the loss began.

`debug.record_values` and `recorders.record_tensors` write what is read here. A tensor jumps in a step if its norm is
above `FACTOR` times its largest norm in all recorded steps before, of which there are at least `STEPS_BEFORE`.
"""

import math
from collections.abc import Sequence

import msgspec
import numpy as np
import pandas as pd

from analyzers import store
from analyzers.parity.answers import value_table
from analyzers.parity.model import Phase, ValueKind
from analyzers.parity.reading import KINDS
from analyzers.parity.report import READER
from analyzers.run import Artefact

FACTOR = 2.0
STEPS_BEFORE = 2
PHASES = {"forward": Phase.FORWARD, "backward": Phase.BACKWARD, "gradient": Phase.GRADIENT}


class Jump(msgspec.Struct, frozen=True, kw_only=True):
    """A tensor whose norm jumped: `norm` in `step`, and `before`, its largest norm in the recorded steps before.

    `norm` is infinite if a value of the tensor is not finite.
    """

    step: int
    kind: ValueKind
    tensor: str
    norm: float
    before: float

    @property
    def factor(self) -> float:
        """How many times as large the norm is as its largest before; infinite if that was 0."""
        return self.norm / self.before if self.before else math.inf


class Jumps(msgspec.Struct, frozen=True, kw_only=True):
    """The first tensors that jumped in the first step in which a gradient did, each in the order of computation.

    `forward` is the first output of a module, `backward` the first gradient of such an output, `gradient` the first
    gradient of a parameter, and `largest` the gradient of a parameter that grew by the largest factor. `share` is the
    fraction of all parameters' gradients that jumped.
    """

    step: int
    forward: Jump | None
    backward: Jump | None
    gradient: Jump
    largest: Jump
    share: float


def first_jumps(files: Sequence[Artefact], last_step: int, options: store.Options | None = None) -> Jumps | None:
    """Return the first jumps up to the step `last_step`; None if no gradient jumped, or too few steps are recorded."""
    columns = store.load([file.path for file in files], READER, options or store.Options())
    return jumps_in(value_table(columns), last_step)


def jumps_in(table: pd.DataFrame, last_step: int) -> Jumps | None:
    """Return the first jumps in a table of recorded tensors, as `value_table` returns it."""
    table = with_norms(table[table["step"] <= last_step])
    gradients = table[table["phase"] == Phase.GRADIENT]
    jumped = gradients[is_jump(gradients)]
    if jumped.empty:
        return None
    step = int(jumped["step"].min())
    at = table[table["step"] == step].sort_values(["phase", "file", "row"], kind="stable")
    first = {name: first_of(at[at["phase"] == phase]) for name, phase in PHASES.items()}
    now = jumped[jumped["step"] == step]
    largest = now.iloc[int((now["norm"] / now["before"]).to_numpy().argmax())]
    own = gradients[gradients["step"] == step]
    gradient = first["gradient"]
    assert gradient is not None, "a gradient jumped in this step"
    return Jumps(
        step=step,
        forward=first["forward"],
        backward=first["backward"],
        gradient=gradient,
        largest=jump_of(largest),
        share=float(is_jump(own).mean()),
    )


def with_norms(table: pd.DataFrame) -> pd.DataFrame:
    """Return the table with the `norm` of each tensor, its largest norm in the steps `before`, and how many those are.

    A norm is infinite where a value is not finite.
    """
    square = table["square"].to_numpy(np.float64)
    table = table.assign(norm=np.where(np.isfinite(square), np.sqrt(np.abs(square)), np.inf))
    grouped = table.sort_values("step", kind="stable").groupby(["kind", "name"], sort=False)["norm"]
    # Shifted by one, because a norm is compared with those of earlier steps only.
    before = grouped.transform(lambda norms: norms.cummax().shift())
    # These are in the order of steps; pandas aligns them with the rows by their index.
    return table.assign(before=before, steps_before=grouped.cumcount())


def is_jump(rows: pd.DataFrame) -> "pd.Series[bool]":
    """Return for each row whether its tensor jumps there."""
    return (rows["steps_before"] >= STEPS_BEFORE) & (rows["norm"] > FACTOR * rows["before"])


def first_of(rows: pd.DataFrame) -> Jump | None:
    """Return the first row that jumps, as a `Jump`; None if none does."""
    jumped = rows[is_jump(rows)]
    return None if jumped.empty else jump_of(jumped.iloc[0])


def jump_of(row: "pd.Series[float]") -> Jump:
    """Return a row as a `Jump`."""
    return Jump(
        step=int(row["step"]),
        kind=KINDS[int(row["kind"])],
        tensor=str(row["name"]),
        norm=float(row["norm"]),
        before=float(row["before"]),
    )
