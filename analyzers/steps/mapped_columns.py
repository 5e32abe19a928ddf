"""Write the findings on how logs of other trainers were read: the quantity of each column, and gaps in the rows."""

import msgspec

from analyzers.report import EVIDENCE_AT_MOST, Evidence, Finding
from analyzers.steps.columns import NumberedBy, Quantity
from analyzers.steps.common import note
from analyzers.steps.mapping import UNKNOWN_UNIT
from analyzers.steps.model import MappedColumn, MappedLog
from analyzers.steps.table import Steps
from analyzers.words import quantity

_LOGS_AT_MOST = 4
NAMES_AT_MOST = 8
LARGE = 1e6
"""The value from which on digits after the point are not shown, as in times since the epoch and sizes in bytes."""
_QUANTITY_NAMES = {
    Quantity.STEP: "step",
    Quantity.LOSS: "loss",
    Quantity.LEARNING_RATE: "learning rate",
    Quantity.GRAD_NORM: "gradient norm",
    Quantity.STEP_TIME: "step time",
    Quantity.STEP_RATE: "steps per second",
    Quantity.TOKENS_PER_S: "tokens per second",
    Quantity.MEMORY: "memory",
    Quantity.RESERVED: "reserved memory",
    Quantity.DATA_TIME: "data loading",
    Quantity.EPOCH: "epoch",
    Quantity.RANK: "rank",
    Quantity.CLOCK: "time of the row",
}


SIZES = (Quantity.MEMORY, Quantity.RESERVED)
_DECIMAL = ("kb", "mb", "gb", "tb")
"""Units of memory that mean powers of 1000, but that training code prints after dividing by 1024."""


def column_notes(steps: Steps) -> list[Finding]:
    """Return a note for each log of another trainer that lists which columns were read as which quantities.

    A second note follows for a log whose steps are numbered by line or epoch.
    """
    notes = []
    for log in steps.logs[:_LOGS_AT_MOST]:
        notes.append(_columns_note(log))
        if log.numbered_by is not NumberedBy.COLUMN:
            notes.append(_numbering_note(log))
    return notes


def _columns_note(log: MappedLog) -> Finding:
    read = [column for column in log.columns if column.quantity]
    others = [column.name for column in log.columns if not column.quantity]
    title = ", ".join(f"'{column.name}' as {_quantity_name(column)}{_unit_text(column)}" for column in read)
    values = ", ".join(f"{column.name} = {number(column.last)}" for column in read if column.last is not None)
    facts = [f"last values: {values}"] if values else []
    facts += [f"columns that were not used: {listed(others)}"] if others else []
    return msgspec.structs.replace(
        note("steps.columns", f"columns read from {log.path}: {title}", why(log), ADVICE if values else _OF_NAMES),
        evidence=[Evidence(text=fact, source=log.path) for fact in [*facts, *_row_facts(log)][:EVIDENCE_AT_MOST]],
    )


def number(value: float) -> str:
    return f"{value:.0f}" if value.is_integer() or abs(value) >= LARGE else f"{value:.6g}"


def _quantity_name(column: MappedColumn) -> str:
    return _QUANTITY_NAMES[column.quantity] if column.quantity else ""


def why(log: MappedLog) -> str:
    """Return the reason why the report lists the columns that it read: another program chose their names."""
    chosen = [column.name for column in log.columns if column.chosen]
    how = f", except for {listed(chosen)}, which --map names" if chosen else ""
    return (
        "another program wrote this log, so what a column holds was recognised by its name"
        f"{how}. A column that is taken for the wrong quantity makes numbers of this report wrong"
    )


_OF_NAMES = (
    "check that each column holds what its name says; if not, name the right one: `workbench steps PATH --map"
    " loss=COLUMN` (--map may be repeated)"
)
ADVICE = (
    "compare the last values in the evidence with what you know of the run. If they fit, there is nothing to do;"
    " otherwise name the right column: `workbench steps PATH --map loss=COLUMN` (--map may be repeated)"
)


def _unit_text(column: MappedColumn) -> str:
    """Return the unit of a column as a suffix, such as ` (in ms)`; empty for a quantity without a unit.

    If a size is logged in GB, the suffix says that it is read as GiB, because training code divides by 1024.
    """
    if column.unit == UNKNOWN_UNIT:
        return " (unit unknown)"
    if column.quantity in SIZES and column.unit in _DECIMAL:
        return f" (in {column.unit.upper()}, taken as {column.unit[0].upper()}iB)"
    return f" (in {column.unit})" if column.unit else ""


def listed(names: list[str]) -> str:
    more = f" and {len(names) - NAMES_AT_MOST} more" if len(names) > NAMES_AT_MOST else ""
    return ", ".join(names[:NAMES_AT_MOST]) + more


def _row_facts(log: MappedLog) -> list[str]:
    """Return a sentence for each unusual property of the rows of a log, such as repeated steps."""
    facts = []
    if log.timed_by_clock:
        facts.append("no column has the duration of a step, so step times are the intervals between rows")
    if log.duplicates:
        facts.append(
            f"{quantity(log.duplicates, 'row')} ignored, because a later row has the same step, as where several ranks"
            " write to one log: the last row of a step counts"
        )
    if log.restarts:
        facts.append(f"the step goes back {quantity(log.restarts, 'time')}: the job was resumed, the later rows count")
    if log.dropped:
        facts.append(f"{quantity(log.dropped, 'row')} without a step not read")
    if log.texts:
        facts.append(f"columns that hold text are not read: {listed(log.texts)}")
    if log.omitted:
        facts.append(f"{quantity(log.omitted, 'value')} of further columns not read")
    return facts


def _numbering_note(log: MappedLog) -> Finding:
    if log.numbered_by is NumberedBy.EPOCH:
        title = f"{log.path} has a row per epoch: epochs are shown as steps"
        return note("steps.numbered_by_epoch", title, "the log has no column of steps", "log the step beside the epoch")
    title = f"{log.path} does not say to which step a row belongs: the rows are counted from 1"
    why = "step 5 in this report is the fifth row of the log, which need not be step 5 of the training"
    return note(
        "steps.numbered_by_line",
        title,
        why,
        "if one of the log's fields has the step, name it: `workbench steps PATH --map step=FIELD`. Otherwise print the"
        " step in each row",
    )


def unknown_units(steps: Steps) -> list[str]:
    """Return a sentence for each column whose values cannot be used because its unit is unknown."""
    return [
        f"{_QUANTITY_NAMES[column.quantity]}: the unit of column {column.name} is unknown; give it, such as"
        f" --map {column.quantity}_{'ms' if column.quantity in _TIMES else 'gib'}={column.name}"
        for log in steps.logs
        for column in log.columns
        if column.quantity and column.unit == UNKNOWN_UNIT
    ][:_LOGS_AT_MOST]


_TIMES = (Quantity.STEP_TIME, Quantity.DATA_TIME)
