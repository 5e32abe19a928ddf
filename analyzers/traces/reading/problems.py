"""Define the possible problems of a trace file as data; `findings.problems` writes the sentence for each."""

from enum import StrEnum

import msgspec


class ProblemKind(StrEnum):
    """A kind of problem of a trace: a defect of its file, or a property of its events that limits what they mean."""

    CUT_OFF = "cut_off"
    REPLACED_TEXT = "replaced_text"
    UNKNOWN_EVENTS = "unknown_events"
    ODD_ARGUMENTS = "odd_arguments"
    IMPOSSIBLE_TIMES = "impossible_times"
    NO_DEVICE_EVENTS = "no_device_events"
    NO_LAUNCH = "no_launch"
    LOST_KERNELS = "lost_kernels"
    EARLY_KERNELS = "early_kernels"
    OVERLAPPING_EVENTS = "overlapping_events"
    SHARED_CORRELATION = "shared_correlation"
    OUTSIDE_STEPS = "outside_steps"
    CUT_STEPS = "cut_steps"
    NO_STEPS = "no_steps"
    OVERLAPPING_STEPS = "overlapping_steps"
    FORWARD_ONLY_STEPS = "forward_only_steps"


DAMAGE = {
    ProblemKind.CUT_OFF,
    ProblemKind.REPLACED_TEXT,
    ProblemKind.UNKNOWN_EVENTS,
    ProblemKind.ODD_ARGUMENTS,
    ProblemKind.IMPOSSIBLE_TIMES,
}
"""The kinds of problem in which a part of the file is damaged, so that a part of the recording is lost."""


class Problem(msgspec.Struct, frozen=True, kw_only=True):
    """A problem of a trace: it concerns `count` events or steps (0: not counted), of `total` if that is not 0.

    `most_ns` is the longest time by which a kernel began before its launch (`EARLY_KERNELS` only). `names` are the
    names of the steps that were still running when the recording ended (`CUT_STEPS` only).
    """

    kind: ProblemKind
    count: int = 0
    total: int = 0
    most_ns: int = 0
    names: list[str] = []
