"""Find jumps of the loss among its first values, which are too few, and fall too fast, to estimate their noise."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

import numpy as np
import pandas as pd

from analyzers.columns import Floats, Mask
from analyzers.report import EVIDENCE_AT_MOST, Evidence, Finding, Severity
from analyzers.steps.model import Event, EventKind, Problem
from analyzers.steps.reading.log_lines import BROKEN, FINITE
from analyzers.steps.table import MAD_TO_STD, SAME_MOMENT, Steps, log_of_rank, note, robust_deviation
from analyzers.words import quantity, rank_names

_EARLY = 30
"""The number of first values that are searched. After them there are enough values to estimate the noise."""
_FIRST = 4
"""The smallest index of a jump: at least three changes precede it."""
_NEIGHBOURS, _NEIGHBOURS_AT_LEAST = 6, 6
"""How many changes before a jump, and as many after it, it is compared with, and the fewest of both together."""
_TIMES = 3.0
"""How many times as large as the largest of these changes a jump is. In simulated healthy runs none is that large."""
_BACK = 1 / 3
"""A jump is over once the loss is back within this share of the rise."""


@np.errstate(over="ignore", invalid="ignore")  # a logged value may be close to the largest that there is
def early_jumps(numbers: Floats, share: float) -> dict[int, float]:
    """Return the level before each jump among the first values of a loss, by the index at which the jump begins.

    A jump exceeds both values before it by the fraction `share` of the level, and by TIMES the largest change between
    neighbours around it. For example, 5.9, 4.4, 3.5, 3.0, 2.6, 2.4, 2.3, 5.1, 2.3 has one, of 2.7 from a level of 2.4:
    the largest of the other `changes` is 0.6.
    """
    smallest = 0.1 * float(np.median(np.abs(numbers)))
    numbers = numbers[: _EARLY + 2 * _NEIGHBOURS]
    sizes, levels, over = changes(numbers), dict[int, float](), 0
    for at in range(_FIRST, min(len(numbers), _EARLY)):
        level = float(numbers[at - 2 : at].max())
        rise = float(numbers[at]) - level
        if at < over or rise <= share * max(abs(level), smallest):
            continue
        back = np.flatnonzero(numbers[at:] <= level + _BACK * rise)
        end = at + int(back[0]) if len(back) else len(numbers)
        around = np.concatenate([sizes[max(0, at - 1 - _NEIGHBOURS) : at - 1], sizes[end : end + _NEIGHBOURS]])
        if len(around) >= _NEIGHBOURS_AT_LEAST and rise >= _TIMES * float(around.max()):
            levels[at], over = level, end
    return levels


def changes(numbers: Floats) -> Floats:
    """Return how much each value differs from the next, in which a fall counts only as far as it deviates from the fall
    before it: a loss that falls fast and steadily has little noise.
    """
    differences = np.diff(numbers)
    sizes: Floats = np.abs(differences)
    deviations = np.abs(np.diff(differences))
    from_neighbour = np.append(deviations[:1], deviations)  # the first fall has none before it: from the one after it
    return np.where(differences < 0, np.minimum(sizes, from_neighbour), sizes)


_RECENT = 7
"""The number of values before a value whose median is taken as its expected value."""
WINDOW = 20
_BEFORE_AT_LEAST = 8
"""The smallest number of earlier values from which the noise of a value is estimated; the largest is WINDOW."""
_FINITE_AT_LEAST = 3
"""The number of steps with a finite loss after which training counts as recovered from NaN or infinity."""
CHUNK = 1 << 16
"""The number of values that are processed at a time, because the values before each of them are copied into memory."""
_TAIL_SHARE, _TAIL_DEVIATIONS = 0.015, 2.2
"""In noise with a normal distribution, 1.5 % of the values lie more than 2.2 standard deviations above the mean.

If more values do, the noise has heavy tails, and its deviation is estimated from how far the tails reach.
"""
SPIKE, _SPIKE_SHARE = 8.0, 0.2
"""The limits for a spike of the loss, which is 8 robust standard deviations and 20 % above the expected loss."""
_JUMP, _JUMP_SHARE = 12.0, 3.0
"""The same limits for a jump of the gradient norm, which varies more than the loss."""
_FLOOR_WINDOW, _MOST, _FLOOR_SHARE = 50, 0.9, 0.1
_EVENTS_AT_MOST = 20
_PLATEAU_FROM, _PLATEAU_VALUES, _PLATEAU_FALL = 0.6, 60, 0.01
"""The limits for a plateau, which is searched for in the last part of a run.

This part begins after the share PLATEAU_FROM of the steps, and must have at least PLATEAU_VALUES values. On a plateau
the loss falls by less than the share PLATEAU_FALL of its whole fall, even by the upper bound of its slope.
"""
_RISE_VALUES, _RISE_SHARE = 20, 0.05


class Quantity(StrEnum):
    """The logged quantity that became NaN or infinite."""

    LOSS = "loss"
    GRAD_NORM = "gradient norm"


@dataclass(frozen=True)
class NonFinite:
    """The first step whose loss or gradient norm is NaN or infinite, and the ranks whose logs show this in the step.

    `quantity` says whether it is the loss or the gradient norm. `finite_from` is the step from which on all values are
    finite again, for example after a loss scaler skipped some steps; None if there is no such step.
    """

    step: int
    quantity: Quantity
    ranks: list[int]
    finite_from: int | None = None
    is_passing: bool = False
    """Whether a later step has a finite value of the same quantity."""


def events(steps: Steps) -> list[Event]:
    """Return all spikes, jumps, rises and plateaus of the loss and the gradient norm, in order of steps."""
    loss, norm = mean_by_step(steps, "loss"), mean_by_step(steps, "grad_norm")
    all_events = spikes(EventKind.LOSS_SPIKE, loss, SPIKE, _SPIKE_SHARE)
    all_events += spikes(EventKind.GRAD_NORM_JUMP, norm, _JUMP, _JUMP_SHARE)
    all_events += [event for event in (rise(loss), plateau(loss)) if event]
    return sorted(all_events, key=lambda event: event.step)


def mean_by_step(steps: Steps, name: str) -> "pd.Series[float]":
    """Return the mean over ranks of the finite values of column `name` (`loss` or `grad_norm`), indexed by step."""
    finite = steps.table[steps.table[f"{name}_state"] == FINITE]
    return finite.groupby("step")[name].mean()


def first_nonfinite(steps: Steps) -> NonFinite | None:
    """Return a `NonFinite` for the first step whose loss or gradient norm is NaN or infinite; None if there is none."""
    table = steps.table
    broken = table[(table["loss_state"] == BROKEN) | (table["grad_norm_state"] == BROKEN)]
    if broken.empty:
        return None
    step = int(broken["step"].min())
    first = broken[broken["step"] == step]
    quantity = Quantity.LOSS if (first["loss_state"] == BROKEN).any() else Quantity.GRAD_NORM
    # The averaged loss is NaN on all ranks at once; the local one, if it is logged, shows where that began.
    columns = ("local_loss_state", "loss_state", "grad_norm_state")
    ranks = next(ranks for column in columns if len(ranks := first[first[column] == BROKEN]["rank"]))
    column = "loss_state" if quantity is Quantity.LOSS else "grad_norm_state"
    is_passing = bool(((table["step"] > step) & (table[column] == FINITE)).any())
    return NonFinite(
        step, quantity, sorted(ranks.tolist()), _finite_again(table, int(broken["step"].max())), is_passing
    )


def _finite_again(table: pd.DataFrame, last_broken: int) -> int | None:
    after = table[(table["step"] > last_broken) & (table["loss_state"] == FINITE)]["step"]
    return int(after.min()) if after.nunique() >= _FINITE_AT_LEAST else None


def spikes(kind: EventKind, values: "pd.Series[float]", deviations: float, share: float) -> list[Event]:
    """Return events of this kind for values that are far above the values before them, the highest first.

    Consecutive high values are one event. A value is far above if it exceeds its expected value by two limits: by
    `deviations` robust standard deviations, and by the fraction `share` of the expected value. The first values of a
    loss have `early_jumps` too.
    """
    if len(values) <= _BEFORE_AT_LEAST:
        return []
    numbers, index = np.asarray(values, dtype=float), values.index.to_numpy()
    expected = _expected_values(numbers)
    # Relative to the level, as the noise of a loss shrinks with it; near zero, to a tenth of the usual level.
    smallest = 0.1 * float(np.median(np.abs(numbers))) + 1e-30
    scale = np.maximum(np.abs(expected), smallest)
    with np.errstate(over="ignore"):  # a logged value may be close to the largest that there is
        excess = (numbers - expected) / scale
        high = excess > np.maximum(deviations * _usual_excess(excess), share)
        if kind is EventKind.LOSS_SPIKE:
            high &= ~_is_near_the_floor(numbers, expected)
    for at, level in early_jumps(numbers, share).items() if kind is EventKind.LOSS_SPIKE else ():
        if not high[at]:
            high[at], expected[at], scale[at] = True, level, max(abs(level), smallest)
    spiking, over = [], 0
    for at in map(int, np.flatnonzero(high)):
        # This value belongs to the spike before.
        if at < over:
            continue
        # The level before the spike decides when it is over: values of the spike would raise a moving one.
        normal = np.flatnonzero(numbers[at:] <= expected[at] + share / 2 * scale[at])
        over = at + int(normal[0]) if len(normal) else len(numbers)
        highest = float(numbers[at:over].max())
        until = int(index[over]) if over < len(numbers) else None
        spiking.append(Event(kind=kind, step=int(index[at]), value=highest, before=float(expected[at]), until=until))
    return sorted(spiking, key=lambda event: -height(event))[:_EVENTS_AT_MOST]


def height(event: Event) -> float:
    return (event.value or 0.0) - (event.before or 0.0)


def _is_near_the_floor(numbers: Floats, expected: Floats) -> Mask:
    """Return whether each value is one of those between which a loss near zero goes up and down.

    Its expected value is far below the recent ones, and it is not twice as high as most of these.
    """
    recent = pd.Series(numbers).shift().rolling(_FLOOR_WINDOW, min_periods=_RECENT).quantile(_MOST).to_numpy()
    near: Mask = (expected < _FLOOR_SHARE * recent) & (numbers <= 2 * recent)
    return near


def _expected_values(numbers: Floats) -> Floats:
    """Return, for each value, the value expected from those before it: the median of the last RECENT values.

    It is NaN for the first values. RECENT is small because a loss falls fast at first. The median of many values would
    then be far above the loss, and hide spikes.
    """
    expected = np.full(len(numbers), np.nan)
    if len(numbers) > _RECENT:
        windows = np.lib.stride_tricks.sliding_window_view(numbers[:-1], _RECENT)
        expected[_RECENT:] = np.median(windows, axis=1)
    return expected


def _usual_excess(excess: Floats) -> Floats:
    """Return, for each value, the robust standard deviation of `excess`, as a measure of the usual noise.

    `excess` is each value minus its expected value, relative to the expected value. The deviation is computed from
    differences of neighbours (hence the sqrt(2)), which a falling loss does not increase. It is computed for the WINDOW
    values before each value and for the whole series; the larger result counts, because a few values in a row may be
    close together by chance. If the noise has heavy tails, the result is larger: the tails are estimated from a value
    near the highest, such as the 30th highest of 2000.
    """
    distances = np.abs(np.diff(excess, prepend=np.nan)) / np.sqrt(2)
    overall = MAD_TO_STD * float(np.nanmedian(distances))
    share = max(_TAIL_SHARE, _EVENTS_AT_MOST / len(excess))
    tail = float(np.nanquantile(excess, 1 - share)) / _TAIL_DEVIATIONS if share < 0.5 else 0.0
    local = MAD_TO_STD * _medians_before(distances)
    # A loss that is constant over the window has no deviation: without a floor the next digit would be a spike.
    usual: Floats = np.fmax(local, max(overall, tail, 1e-3))
    return usual


def _medians_before(values: Floats) -> Floats:
    """Return, for each value, the median of the WINDOW values before it.

    It is NaN for the first values, because there are too few values before them.
    """
    medians = np.full(len(values), np.nan)
    whole = min(len(values), _RECENT + 1 + WINDOW)
    for at in range(_RECENT + _BEFORE_AT_LEAST, whole):
        medians[at] = np.nanmedian(values[max(0, at - WINDOW) : at])
    for begin in range(whole, len(values), CHUNK):
        end = min(begin + CHUNK, len(values))
        windows = np.lib.stride_tricks.sliding_window_view(values[begin - WINDOW : end - 1], WINDOW)
        medians[begin:end] = np.median(windows, axis=1)
    return medians


def rise(values: "pd.Series[float]") -> Event | None:
    """Return an event if the loss ends clearly above its lowest level and stays there, else None.

    `values` is the loss by step.
    """
    if len(values) < 3 * _RISE_VALUES:
        return None
    # A median over many values: one spike at the end is no rise.
    smooth = values.rolling(_RISE_VALUES).median().dropna()
    lowest, end = int(np.argmin(smooth)), float(smooth.iloc[-1])
    low = float(smooth.iloc[lowest])
    noise = robust_deviation((values - values.rolling(_RISE_VALUES, min_periods=1).median()).to_numpy())
    after = values.loc[smooth.index[lowest] :]
    if end - low < max(SPIKE * noise, _RISE_SHARE * abs(low)) or len(after) < _RISE_VALUES:
        return None
    # Where it passed half of the rise: the lowest value may lie long before it began.
    above = after[after > (low + end) / 2]
    return Event(kind=EventKind.LOSS_RISE, step=int(above.index[0]), value=end, before=low)


def plateau(values: "pd.Series[float]") -> Event | None:
    """Return an event if the loss fell at first and then stopped falling, else None.

    `values` is the loss by step. The loss counts as flat if even the steepest slope that still fits the noise of its
    last part is close to zero.
    """
    last = values.iloc[int(len(values) * _PLATEAU_FROM) :]
    if len(last) < _PLATEAU_VALUES:
        return None
    # A twentieth of the values at either end, as single losses vary.
    end = max(1, len(values) // 20)
    fall = float(values.iloc[:end].median() - values.iloc[-end:].median())
    slope, error = trend(np.asarray(last, dtype=float))
    largest_fall = -(slope - 2 * error) * len(last)  # two standard errors: 95 %
    if fall <= 0 or largest_fall > _PLATEAU_FALL * fall:
        return None
    return Event(
        kind=EventKind.PLATEAU, step=int(last.index[0]), value=float(last.median()), before=float(values.iloc[0])
    )


def trend(numbers: Floats) -> tuple[float, float]:
    """Return the least-squares slope of a series (per index), and the standard error of the slope.

    If neighbouring values have correlation r, they carry less information, and the squared error grows by (1 + r) /
    (1 - r).
    """
    x = np.arange(len(numbers)) - (len(numbers) - 1) / 2
    slope = float(x @ numbers / (x @ x))
    residuals = numbers - numbers.mean() - slope * x
    total = float(residuals @ residuals)
    # At most 0.9, so that the inflation stays finite.
    correlation = min(max(float(residuals[1:] @ residuals[:-1]) / total, 0.0), 0.9) if total else 0.0
    inflation = (1 + correlation) / (1 - correlation)
    error = np.sqrt(total / max(len(numbers) - 2, 1) / (x @ x) * inflation)
    return slope, float(error)


_AT_THE_START = 1
STEPS_BEFORE, _STEPS_AFTER = 4, 2
"""The numbers of steps before and after a spike of the loss that the evidence shows."""


def nonfinite_finding(steps: Steps, broken: NonFinite) -> Finding:
    """Return the finding on a loss or gradient norm that is not finite from a step on.

    A log whose first row is so begins in the middle: when that began, and before which step to resume, is not known.
    """
    if broken.step == int(steps.table["step"].min()):
        is_start = broken.step <= _AT_THE_START
        return Finding(
            id=Problem.NONFINITE_LOSS.finding_id,
            severity=Severity.ERROR,
            title=f"the {broken.quantity} of {rank_names(broken.ranks)} is NaN or infinite in the first row of the log"
            f" already{'' if is_start else f', step {broken.step}'}",
            why=("no finite row stands before it. " if is_start else "it became so before this row. ")
            + "If the optimizer used such gradients, the weights are not finite either, and the run cannot recover"
            + _in_log(steps, broken),
            next="look at the first step: a kernel, the precision (bf16 or fp32 in place of fp16), a mask, or the first"
            " batch makes such a number, hardly the learning rate"
            if is_start
            else "look in an earlier log for the first row that is not finite, and resume from a checkpoint before it",
            ranks=broken.ranks,
            step=broken.step,
            evidence=_nonfinite_facts(steps, broken),
            confidence=0.99,
        )
    return Finding(
        id=Problem.NONFINITE_LOSS.finding_id,
        severity=Severity.ERROR,
        title=f"the {broken.quantity} of {rank_names(broken.ranks)} is NaN or infinite"
        + (f" in step {broken.step}" if broken.is_passing else f" from step {broken.step} on"),
        why=f"step {broken.step} is the first one in the log whose {broken.quantity} is not finite. If the optimizer"
        " used the gradients of that step, the weights are not finite either, and the run cannot recover"
        + _in_log(steps, broken),
        next=f"find the origin: check the batch, the learning rate and the gradient norm of step {broken.step}, and"
        f" the weight update of the step before" + f". Then resume from a checkpoint before step {broken.step}",
        ranks=broken.ranks,
        step=broken.step,
        evidence=_nonfinite_facts(steps, broken),
        confidence=0.99,
    )


def _in_log(steps: Steps, broken: NonFinite) -> str:
    return f". The script's log counts from 0: it calls it step {broken.step - 1}" if steps.log_counts_from_0 else ""


def _nonfinite_facts(steps: Steps, broken: NonFinite) -> list[Evidence]:
    fact = f"{broken.quantity} not finite at step {broken.step}"
    return [
        Evidence(text=f"{fact}{_last_finite(steps, broken, rank)}", rank=rank, source=log_of_rank(steps, rank))
        for rank in broken.ranks[:EVIDENCE_AT_MOST]
    ]


def _last_finite(steps: Steps, broken: NonFinite, rank: int) -> str:
    """Return a rank's last finite value before its loss or gradient norm became NaN or infinite, after a comma.

    The text is empty if there is no such value.
    """
    table, name = steps.table, broken.quantity.name.lower()
    before = table[(table["rank"] == rank) & (table["step"] < broken.step) & (table[f"{name}_state"] == FINITE)]
    if before.empty:
        return ""
    last = before.sort_values("step").iloc[-1]
    return f", last finite value {float(last[name]):.4g} at step {int(last['step'])}"


def recovered_notes(steps: Steps) -> list[Finding]:
    """Return a list with a note if a loss or gradient norm was NaN or infinite only in some steps; else empty."""
    broken = first_nonfinite(steps)
    return [_recovered_finding(steps, broken)] if broken and broken.finite_from is not None else []


def _recovered_finding(steps: Steps, broken: NonFinite) -> Finding:
    """Return the note that a loss or gradient norm was NaN or infinite in a few steps.

    Their weight updates were probably skipped.
    """
    return Finding(
        id=f"{Problem.NONFINITE_LOSS.finding_id}_recovered",
        severity=Severity.INFO,
        title=f"the {broken.quantity} of {rank_names(broken.ranks)} was NaN or infinite in some steps from step"
        f" {broken.step} on, and is finite again from step {broken.finite_from} on",
        why="the weights stayed finite, as later values show: the optimizer skipped the update of these steps, or the"
        f" {broken.quantity} was not used for it",
        next="nothing to do if it is only a few steps: a gradient scaler skips some while it looks for its loss scale."
        " If such steps come back, check their batches, or train in bfloat16",
        ranks=broken.ranks,
        step=broken.step,
        evidence=_nonfinite_facts(steps, broken),
        confidence=0.8,
    )


def loss_findings(steps: Steps, events: Sequence[Event]) -> list[Finding]:
    spikes, jumps = _of_kind(events, EventKind.LOSS_SPIKE), _of_kind(events, EventKind.GRAD_NORM_JUMP)
    findings = [_spike_finding(steps, max(spikes, key=height), jumps)] if spikes else []
    return findings + [_rise_finding(steps, rise) for rise in _of_kind(events, EventKind.LOSS_RISE)]


def loss_notes(events: Sequence[Event]) -> list[Finding]:
    """Return notes on the highest jump of the gradient norm and on a plateau of the loss, if `events` has them.

    Neither of these is a fault by itself.
    """
    jumps = _of_kind(events, EventKind.GRAD_NORM_JUMP)
    notes = [_jump_note(max(jumps, key=height), len(jumps))] if jumps else []
    return notes + [_plateau_note(event) for event in _of_kind(events, EventKind.PLATEAU)]


def _of_kind(events: Sequence[Event], kind: EventKind) -> list[Event]:
    return [event for event in events if event.kind is kind]


def _spike_finding(steps: Steps, spike: Event, jumps: Sequence[Event]) -> Finding:
    """Return the finding on a spike of the loss.

    Its evidence includes the jumps of the gradient norm just before the spike, from `jumps`.
    """
    # A jump just before the spike points to the batch that caused it.
    led = [jump for jump in jumps if 0 <= spike.step - jump.step <= SAME_MOMENT]
    return Finding(
        id=Problem.LOSS_SPIKE.finding_id,
        severity=Severity.WARNING,
        title=f"the loss jumps from {spike.before:.4g} to {spike.value:.4g} at step {spike.step}",
        why=f"in the steps before step {spike.step} the loss varies far less, as the evidence shows."
        + (f" It is back to normal at step {spike.until}" if spike.until else " It stays high until the last step"),
        next=f"check the batch and the gradient norm of step {spike.step}. If the run was started with `workbench"
        " launch --config`, `workbench inspect RUN --prove` runs that step again from the last checkpoint, and names"
        " the layer whose gradient jumped first",
        ranks=steps.ranks,
        step=spike.step,
        evidence=[_losses_around(steps, spike), *(Evidence(text=_jump_text(jump)) for jump in led)],
        confidence=0.8,
    )


def _losses_around(steps: Steps, spike: Event) -> Evidence:
    loss = mean_by_step(steps, "loss")
    at = int((loss.index < spike.step).sum())
    around = loss.iloc[max(0, at - STEPS_BEFORE) : at + _STEPS_AFTER + 1]
    texts = ", ".join(f"{value:.4g} (step {step})" for step, value in around.items())
    return Evidence(text=f"loss: {texts}", source=log_of_rank(steps, steps.ranks[0]))


def _rise_finding(steps: Steps, rise: Event) -> Finding:
    return Finding(
        id=Problem.LOSS_RISE.finding_id,
        severity=Severity.WARNING,
        title=f"the loss rises from {rise.before:.4g} to {rise.value:.4g}, from about step {rise.step} on",
        why=f"after step {rise.step} the loss stays higher until the last step, so this is no short spike",
        next=f"check the data and the gradient norm around step {rise.step}. Then resume from a checkpoint before it,"
        " with a lower learning rate or clipped gradients",
        ranks=steps.ranks,
        step=rise.step,
        confidence=0.7,
    )


def _jump_note(jump: Event, count: int) -> Finding:
    """Return the note on the highest jump of the gradient norm; `count` is the number of all jumps."""
    highest = f", the highest of {quantity(count, 'jump')}" if count > 1 else ""
    return note(
        "steps.grad_norm_jump",
        _jump_text(jump) + highest,
        "the gradient norms of the steps before it vary far less. A single jump is harmless if the loss does not"
        " follow",
        f"check the batch of step {jump.step}, and clip gradients if the loss rises too",
        jump.step,
    )


def _jump_text(jump: Event) -> str:
    return f"the gradient norm jumps from {jump.before:.4g} to {jump.value:.4g} at step {jump.step}"


def _plateau_note(event: Event) -> Finding:
    title = f"the loss no longer falls: it stays at {event.value:.4g} from step {event.step} on"
    why = "from that step to the last one the loss only varies around this value"
    return note(
        "steps.plateau",
        title,
        why,
        "if this loss is good enough, stop the run; otherwise change the learning rate, or check the data",
        event.step,
    )
