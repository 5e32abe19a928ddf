"""Tables of a proof (a second run with changed settings): predicted and measured memory, and the changes compared."""

from analyzers.words import percent, share, size
from workbench.documents import ProofData, RerunData, Settings
from workbench.present.table import Table, table


def proof_tables(data: ProofData) -> list[Table]:
    rows, margin = [], "at least" if data.margin is None else f"±{percent(data.margin)}"
    if data.needed_bytes:
        rows.append(("as it was", size(data.needed_bytes), "", "an allocation failed", "", ""))
    if data.rerun and data.applied:
        measured = data.rerun.peak_bytes
        rows.append(
            (
                _phrase(data.applied.changes),
                size(data.applied.predicted_bytes),
                margin,
                "not recorded" if measured is None else size(measured),
                "" if data.error is None else f"{data.error:+.1%}",
                "yes" if data.rerun.passed else "no",
            )
        )
    compared = (
        (
            _phrase(one.changes),
            size(one.predicted_bytes),
            share(one.predicted_bytes, data.room_bytes),
            "yes" if one.fits else "no",
        )
        for one in data.considered
    )
    return [
        table("Predicted against measured", "settings | predicted> | margin> | measured> | error> | fits", rows),
        table(
            f"Changes compared, with room for {size(data.room_bytes)}",
            "change | predicted> | of the room> | fits",
            compared,
        ),
    ]


def rerun_tables(data: RerunData) -> list[Table]:
    """Return the table of the tensors that jumped first in a second run around a step with a broken loss."""
    jumps = data.jumps
    if jumps is None:
        return []
    named = (
        ("first in the forward pass", jumps.forward),
        ("first in the backward pass", jumps.backward),
        ("first gradient of a parameter", jumps.gradient),
        ("largest jump of such a gradient", jumps.largest),
    )
    rows = (
        (what, one.tensor, one.kind.replace("_", " "), f"{one.before:.4g}", f"{one.norm:.4g}", f"{one.factor:.3g}")
        for what, one in named
        if one
    )
    columns = "what | tensor | kind | largest norm before> | norm> | times>"
    return [table(f"Tensors that jumped first, in step {jumps.step}", columns, rows)]


def _phrase(change: Settings) -> str:
    return ", ".join(f"{key.rpartition('.')[2]} {value}" for key, value in change.items())
