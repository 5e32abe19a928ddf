"""Define the quantities that columns of other trainers' logs stand for, and the sources of step numbers."""

from enum import StrEnum


class Quantity(StrEnum):
    """A quantity that a column in a log of another trainer can stand for.

    `memory` and `reserved_memory` are the memory that PyTorch allocated and reserved. `data_time` is the time spent
    waiting for data. `time` is the clock time at which a row was written.
    """

    STEP = "step"
    LOSS = "loss"
    LEARNING_RATE = "learning_rate"
    GRAD_NORM = "grad_norm"
    STEP_TIME = "step_time"
    STEP_RATE = "steps_per_s"
    TOKENS_PER_S = "tokens_per_s"
    MEMORY = "memory"
    RESERVED = "reserved_memory"
    DATA_TIME = "data_time"
    EPOCH = "epoch"
    RANK = "rank"
    CLOCK = "time"


class NumberedBy(StrEnum):
    """The source of the step numbers of a log's rows.

    `column`: a column of the log has them. `epoch`: the number of the epoch is used. `line`: the rows are counted.
    """

    COLUMN = "column"
    EPOCH = "epoch"
    LINE = "line"
