"""Find the tensor of a recorded run whose norm jumped first: where a spike of the loss began.

`debug.record_values` and `recorders.record_tensors` record the tensors that are read here. A tensor jumps in a step
if its norm is above `FACTOR` times its largest norm in all recorded steps before, of which there are at least
`STEPS_BEFORE`.
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
    """A recorded tensor whose norm jumped in a step.

    `norm` is its norm in `step` (infinite, null in JSON, if the tensor is not finite). `before` is its largest norm in
    the earlier recorded steps. A norm jumps if it is more than twice as large as `before`.
    """

    step: int
    kind: ValueKind
    tensor: str
    norm: float
    before: float

    @property
    def factor(self) -> float:
        """How many times larger the norm is than the largest norm before; infinite if the largest norm before was 0."""
        return self.norm / self.before if self.before else math.inf


class Jumps(msgspec.Struct, frozen=True, kw_only=True):
    """The tensors that jumped first, in the first step in which the gradient of a parameter jumped.

    `forward` is the first output of a module that jumped in this step, and `backward` is the first gradient of a
    module's output that jumped (None: none did). `gradient` is the first gradient of a parameter that jumped. The order
    is the order of computation. `largest` is the gradient of a parameter that grew by the largest factor. `share` is
    the fraction of the parameters' gradients that jumped, from 0 to 1.
    """

    step: int
    forward: Jump | None
    backward: Jump | None
    gradient: Jump
    largest: Jump
    share: float


def first_jumps(files: Sequence[Artefact], last_step: int, options: store.Options | None = None) -> Jumps | None:
    """Return the first jumps up to the step `last_step`; None if no gradient jumped, or too few steps are recorded.

    `files` are the files with recorded tensors of all ranks.
    """
    columns = store.load([file.path for file in files], READER, options or store.Options())
    return _jumps_in(value_table(columns), last_step)


def _jumps_in(table: pd.DataFrame, last_step: int) -> Jumps | None:
    """Return the first jumps in a table of recorded tensors (see `value_table`); None if no gradient jumped.

    Only the steps up to `last_step` count.
    """
    table = _with_norms(table[table["step"] <= last_step])
    gradients = table[table["phase"] == Phase.GRADIENT]
    jumped = gradients[_is_jump(gradients)]
    if jumped.empty:
        return None
    step = int(jumped["step"].min())
    at = table[table["step"] == step].sort_values(["phase", "file", "row"], kind="stable")
    first = {name: _first_of(at[at["phase"] == phase]) for name, phase in PHASES.items()}
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
        largest=_jump_of(largest),
        share=float(_is_jump(own).mean()),
    )


def _with_norms(table: pd.DataFrame) -> pd.DataFrame:
    """Return the table with three columns added, which compare a tensor with earlier steps.

    `norm` is the norm of the tensor (infinite if it is not finite), `before` its largest norm in the earlier recorded
    steps, and `steps_before` the number of these steps.
    """
    square = table["square"].to_numpy(np.float64)
    table = table.assign(norm=np.where(np.isfinite(square), np.sqrt(np.abs(square)), np.inf))
    grouped = table.sort_values("step", kind="stable").groupby(["kind", "name"], sort=False)["norm"]
    # Shifted by one, because a norm is compared with those of earlier steps only.
    before = grouped.transform(lambda norms: norms.cummax().shift())
    # These are in the order of steps; pandas aligns them with the rows by their index.
    return table.assign(before=before, steps_before=grouped.cumcount())


def _is_jump(rows: pd.DataFrame) -> "pd.Series[bool]":
    """Return, for each row of `_with_norms`, whether the norm of its tensor jumps in this step.

    It jumps if it is more than `FACTOR` times the largest norm in the earlier recorded steps, and there are at least
    `STEPS_BEFORE` of these.
    """
    return (rows["steps_before"] >= STEPS_BEFORE) & (rows["norm"] > FACTOR * rows["before"])


def _first_of(rows: pd.DataFrame) -> Jump | None:
    """Return the first tensor whose norm jumps (see `_is_jump`), as a `Jump`; None if there is none.

    `rows` are rows of `_with_norms`, in the order in which the tensors are computed.
    """
    jumped = rows[_is_jump(rows)]
    return None if jumped.empty else _jump_of(jumped.iloc[0])


def _jump_of(row: "pd.Series[float]") -> Jump:
    """Return a row of `_with_norms` as a `Jump`."""
    return Jump(
        step=int(row["step"]),
        kind=KINDS[int(row["kind"])],
        tensor=str(row["name"]),
        norm=float(row["norm"]),
        before=float(row["before"]),
    )
