"""Decide whether enough operations were counted to compute utilisation, and which peak rate of the device applies."""

from collections import defaultdict
from collections.abc import Callable
from enum import StrEnum
from typing import NamedTuple

import numpy as np

from analyzers.columns import Mask
from analyzers.traces.answers.flops import Formulas, decoded_list, device_of
from analyzers.traces.columns.nesting import NONE
from analyzers.traces.columns.work import Work
from analyzers.traces.opportunities.kernel_kinds import multiplies, runs_in_float32


class Arithmetic(StrEnum):
    """The number format, such as 16 bit or TF32, in which most floating-point operations are done."""

    SIXTEEN_BIT = "16 bit"
    TF32 = "TF32"
    FLOAT32 = "float32"
    FLOAT8 = "float8"
    UNKNOWN = ""


_TO_16_BIT = {Arithmetic.SIXTEEN_BIT: 1.0, Arithmetic.TF32: 0.5, Arithmetic.FLOAT8: 2.0, Arithmetic.UNKNOWN: 1.0}
"""{number format: peak rate of tensor cores in it, divided by that in 16 bits}, which is the same for all devices."""
_FLOAT32_PEAKS = {
    "B200": 75e12, "GB200": 80e12, "H200": 67e12, "H100 PCIe": 51e12, "H100 NVL": 60e12, "H100": 67e12, "H20": 44e12,
    "A100": 19.5e12, "A10": 31.2e12, "V100": 15.7e12, "T4": 8.1e12, "L40S": 91.6e12, "L4": 30.3e12, "MI325X": 163e12,
    "MI300X": 163e12, "MI250X": 24e12,
}  # fmt: skip
"""{part of a device's name: FLOP/s in float32 without tensor cores}, from the same data sheets as `flops.PEAKS`."""
TYPES = {"float": Arithmetic.TF32, "c10::Half": Arithmetic.SIXTEEN_BIT, "c10::BFloat16": Arithmetic.SIXTEEN_BIT}


_BEFORE_TF32 = ("V100", "T4")


class Coverage(NamedTuple):
    """Whether enough floating-point operations of a device were counted to be compared with its peak.

    `share` is the share of the time of matrix products that was launched by counted operators (None: there are no
    products). `arithmetic` is the number format of most operations, and `peak_flops_per_s` the device's peak in this
    format.
    """

    share: float | None
    arithmetic: Arithmetic
    peak_flops_per_s: float | None


def coverage(work: Work, formulas: Formulas) -> Coverage:
    """Return how much of a device's matrix products is counted, and the peak rate for comparison with the counts."""
    if work.device is None:
        return Coverage(None, Arithmetic.UNKNOWN, formulas.peaks[0] if formulas.peaks else None)
    products = named(work, multiplies)
    total = int(work.own[products].sum())
    share = int(work.own[products & _is_counted(work, formulas)].sum()) / total if total else None
    arithmetic = _most_common(work, formulas)
    return Coverage(share, arithmetic, peak(formulas, arithmetic))


def named(work: Work, matches: Callable[[str], bool]) -> Mask:
    """Return a mask of the events in `work` whose name the function `matches` accepts."""
    texts = np.array([matches(name) for name in work.trace.names] or [False])
    return np.asarray(texts[work.trace.columns["name"][work.rows]])


def _is_counted(work: Work, formulas: Formulas) -> Mask:
    """Return a mask of the events in `work` that were launched inside an operator whose operations are counted."""
    if not len(formulas.rows[0]):
        return np.zeros(len(work.rows), bool)
    return np.asarray(work.linked & (formulas.around[work.launch] != NONE))


def _most_common(work: Work, formulas: Formulas) -> Arithmetic:
    """Return the number format in which most of the counted operations are done.

    For float32 inputs the names of the kernels show whether tensor cores did them in TF32.
    """
    operations = defaultdict[Arithmetic, int](int)
    for text, count in formulas.by_shape.items():
        types = decoded_list(f"{text}\0".split("\0")[1])
        operations[_arithmetic_of([str(kind) for kind in types])] += count
    most = max(operations, key=lambda kind: operations[kind], default=Arithmetic.UNKNOWN)
    if most is not Arithmetic.TF32:
        return most
    products, plain = named(work, multiplies), named(work, runs_in_float32)
    on_cores = int(work.own[products & ~plain].sum()) >= int(work.own[plain].sum())
    return Arithmetic.TF32 if on_cores else Arithmetic.FLOAT32


def _arithmetic_of(types: list[str]) -> Arithmetic:
    """Return the number format in which an operator with inputs of these types multiplies; TF32 for float32."""
    if any("Float8" in kind for kind in types):
        return Arithmetic.FLOAT8
    return next((TYPES[kind] for kind in types if kind in TYPES), Arithmetic.UNKNOWN)


def peak(formulas: Formulas, arithmetic: Arithmetic) -> float | None:
    """Return the device's peak FLOP/s in this number format; None if the device is not known."""
    if not formulas.peaks:
        return None
    device = device_of(formulas.trace)
    without_cores = arithmetic is Arithmetic.FLOAT32 or (arithmetic is Arithmetic.TF32 and device in _BEFORE_TF32)
    return _FLOAT32_PEAKS[device] if without_cores else formulas.peaks[0] * _TO_16_BIT[arithmetic]
