"""The possible problems of a trace file, as an enum for reader and answers; `findings.problems` has the sentences."""

from enum import StrEnum

import msgspec


class ProblemKind(StrEnum):
    """A defect of a file, or a property of its events that limits the meaning of its numbers."""

    CUT_OFF = "cut_off"
    REPLACED_TEXT = "replaced_text"
    UNKNOWN_EVENTS = "unknown_events"
    ODD_ARGUMENTS = "odd_arguments"
    IMPOSSIBLE_TIMES = "impossible_times"
    NO_DEVICE_EVENTS = "no_device_events"
    NO_LAUNCH = "no_launch"
    EARLY_KERNELS = "early_kernels"
    OVERLAPPING_EVENTS = "overlapping_events"
    SHARED_CORRELATION = "shared_correlation"
    OUTSIDE_STEPS = "outside_steps"
    CUT_STEPS = "cut_steps"
    NO_STEPS = "no_steps"
    OVERLAPPING_STEPS = "overlapping_steps"


DAMAGE = {
    ProblemKind.CUT_OFF,
    ProblemKind.REPLACED_TEXT,
    ProblemKind.UNKNOWN_EVENTS,
    ProblemKind.ODD_ARGUMENTS,
    ProblemKind.IMPOSSIBLE_TIMES,
}
"""Problems of the file itself, which mean that a part of the recording is lost."""


class Problem(msgspec.Struct, frozen=True, kw_only=True):
    """A problem of a trace, which `count` of `total` events have.

    `most_ns` is the largest deviation, `names` are the names of the steps concerned.
    """

    kind: ProblemKind
    count: int = 0
    total: int = 0
    most_ns: int = 0
    names: list[str] = []
