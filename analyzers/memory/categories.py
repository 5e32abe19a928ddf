"""What each block is: as the recorder noted it, else by rules, each with the confidence it deserves."""

import re
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from analyzers.memory.model import DeviceTrace, Snapshot
from analyzers.memory.phases import Windows, windows
from analyzers.memory.read import CATEGORIES, UNTAGGED
from analyzers.memory.replay import BEFORE, Lifetimes, Replay
from analyzers.memory.tables import Column

PARAMETERS, GRADIENTS, OPTIMIZER_STATE, ACTIVATIONS, INPUTS, TEMPORARY, COMMUNICATION, WORKSPACE, UNKNOWN = range(9)

# What a frame, written "file name", tells about the allocations below it.
SIGNS = {
    "workspace": r"getCurrentCUDABlasHandle|[cC]ublas\w*Workspace|CUDABlasLtWorkspace",
    "accumulate": r"AccumulateGrad",
    "unsharded": r"fsdp_param\.py (alloc_all_gather_outputs|init_all_gather_outputs|init_unsharded_param)$"
    r"|_flat_param\.py _alloc_padded_unsharded_flat_param$",
    "reduced": r" foreach_reduce$",
    "communication": r"ProcessGroup(NCCL|Gloo)|c10d::|(^| )(nccl|gloo):"
    r"|_fsdp_collectives|distributed/_functional_collectives",
    "optimizer_init": r" _init_group$",
    "optimizer": r"torch/optim/",
    "zero_grad": r" zero_grad$",
    "parameters": r"module\.py (_apply|convert|load_state_dict)$| (reset_parameters|init_weights|from_pretrained)$"
    r"|torch/nn/modules/\w+\.py __init__$",
    "engine": r"autograd::(python::Python)?[Ee]ngine|run_backward$",
    "forward": r" (forward|fwd|_call_impl)$",
    "input": r"dataloader\.py| (get_batch|collate\w*|pin_memory|next_batch)$",
}
Rule = tuple[Column, int, float]


@dataclass(frozen=True)
class Guess:
    """A category and the confidence in it for every row of `Lifetimes`; `exact` where all were noted."""

    category: Column
    confidence: Column
    exact: bool

    def sums(self, lives: Lifetimes, rows: Column) -> dict[str, int]:
        """Bytes of `rows` by category."""
        totals = np.zeros(len(CATEGORIES), np.int64)
        np.add.at(totals, self.category[rows], lives.size[rows])
        return {name: int(total) for name, total in zip(CATEGORIES, totals, strict=True)}

    def certainty(self, lives: Lifetimes, rows: Column) -> float:
        """Mean confidence over the bytes of `rows`."""
        weights = lives.size[rows].astype(np.float64)
        return round(float(weights @ self.confidence[rows] / weights.sum()), 3) if weights.sum() else 1.0


def categorise(replay: Replay) -> Guess:
    """The category of every block that ever lived in the trace."""
    lives, trace = replay.lifetimes, replay.trace
    noted = lives.category != UNTAGGED
    exact = bool(trace.snapshot.columns.meta["ours"].get("exact")) or (bool(len(noted)) and bool(noted.all()))
    if trace.digested:
        return Guess(trace.life("kind"), trace.life("confidence"), exact)
    category, confidence = np.full(len(noted), UNKNOWN, np.int8), np.full(len(noted), float(exact))
    if not exact:
        for mask, kind, belief in reversed(list(rules(trace, lives))):
            category[mask], confidence[mask] = kind, belief
        match_sizes(lives, category, confidence)
    category[noted], confidence[noted] = lives.category[noted], 1.0
    return Guess(category, confidence, exact)


def rules(trace: DeviceTrace, lives: Lifetimes) -> Iterator[Rule]:
    """(rows, category, confidence); for each row the first rule that holds wins."""
    signs = stack_signs(trace.snapshot)
    made = {name: flags[lives.stack] & ~lives.freed_stack for name, flags in signs.items()}
    freed = {name: flags[lives.stack] & lives.freed_stack for name, flags in signs.items()}
    optimizer = windows(trace, "Optimizer.step")
    yield made["workspace"], WORKSPACE, 0.8
    yield from optimizer_rules(trace, lives, made, optimizer)
    yield freed["zero_grad"], GRADIENTS, 0.8
    yield freed["engine"], ACTIVATIONS, 0.6
    yield made["accumulate"], GRADIENTS, 0.95
    yield made["unsharded"], PARAMETERS, 0.9
    yield made["reduced"] & (lives.died >= optimizer.start_after(lives.born)), GRADIENTS, 0.8
    yield made["communication"], COMMUNICATION, 0.7
    yield made["parameters"], PARAMETERS, 0.7
    yield from pass_rules(trace, lives, signs["engine"], made, optimizer)
    yield made["input"], INPUTS, 0.5
    yield from outcome_rules(trace, lives, signs["engine"])


def optimizer_rules(
    trace: DeviceTrace, lives: Lifetimes, made: dict[str, Column], optimizer: Windows
) -> Iterator[Rule]:
    inside = optimizer.inside(lives.born)
    survives = lives.died >= optimizer.end_after(lives.born)
    yield inside & survives, OPTIMIZER_STATE, 0.9
    yield inside, TEMPORARY, 0.9
    yield lives.freed_stack & optimizer.inside(lives.died), OPTIMIZER_STATE, 0.6
    yield made["optimizer_init"], OPTIMIZER_STATE, 0.9
    yield made["optimizer"] & (lives.died == len(trace)), OPTIMIZER_STATE, 0.7
    yield made["optimizer"], TEMPORARY, 0.7


def pass_rules(
    trace: DeviceTrace, lives: Lifetimes, engine: Column, made: dict[str, Column], optimizer: Windows
) -> Iterator[Rule]:
    """Forward and backward: what is alive when the backward pass begins was saved for it."""
    stack = trace.entry("stack")
    backward = engine[stack]
    born_frameless = (lives.stack == 0) & (lives.born != BEFORE)
    if not backward.any() and stack.any():  # stacks="python": the autograd threads have no Python frames
        backward = stack == 0
        in_backward = born_frameless
    else:
        in_backward = made["engine"]
    yield in_backward & (lives.died >= optimizer.start_after(lives.born)), GRADIENTS, 0.7
    yield in_backward, TEMPORARY, 0.8
    begins = np.append(np.flatnonzero(backward), len(trace))
    next_backward = begins[np.searchsorted(begins[:-1], lives.born)]
    saved = lives.died >= next_backward
    yield made["forward"] & saved, ACTIVATIONS, 0.85 if backward.any() else 0.4
    yield made["forward"], TEMPORARY, 0.8


def outcome_rules(trace: DeviceTrace, lives: Lifetimes, engine: Column) -> Iterator[Rule]:
    """What no frame tells: the backward pass frees what was kept for it."""
    known = (lives.born != BEFORE) & (lives.died < len(trace)) & ~lives.freed_stack
    freed = np.zeros(len(known), bool)
    freed[known] = engine[trace.entry("stack")[lives.died[known]]]
    yield freed & ~engine[lives.stack], ACTIVATIONS, 0.6


def match_sizes(lives: Lifetimes, category: Column, confidence: Column) -> None:
    """Blocks older than the trace that have the sizes of gradients: first the parameters, then Adam's two moments."""
    gradients = (category == GRADIENTS) & (lives.born != BEFORE)
    older = np.flatnonzero((lives.born == BEFORE) & (category == UNKNOWN) & (lives.died == lives.died.max(initial=0)))
    sizes, counts = np.unique(lives.size[gradients], return_counts=True)
    if not len(sizes) or not len(older):
        return
    older = older[np.argsort(lives.size[older], kind="stable")]
    size = lives.size[older]
    place = np.minimum(np.searchsorted(sizes, size), len(sizes) - 1)
    wanted = np.where(sizes[place] == size, counts[place], 0)
    nth = np.arange(len(size)) - np.searchsorted(size, size)
    for mask, kind in ((nth < wanted, PARAMETERS), ((nth >= wanted) & (nth < 3 * wanted), OPTIMIZER_STATE)):
        category[older[mask]], confidence[older[mask]] = kind, 0.5


def stack_signs(snapshot: Snapshot) -> dict[str, Column]:
    """For each sign a flag per stack: does any of its frames show it?"""
    c = snapshot.columns
    written = [
        f"{snapshot.text(int(file))} {snapshot.text(int(name))}"
        for file, name in zip(c["frame_file"], c["frame_name"], strict=True)
    ]
    return {sign: stacks_with(snapshot, written, re.compile(pattern)) for sign, pattern in SIGNS.items()}


def stacks_with(snapshot: Snapshot, written: list[str], pattern: re.Pattern[str]) -> Column:
    shows = np.fromiter((pattern.search(text) is not None for text in written), bool, len(written))
    ends = snapshot.columns["stack_end"]
    seen = np.concatenate([[0], np.cumsum(shows[snapshot.columns["stack_frames"]])])
    found: Column = np.diff(seen[np.concatenate([[0], ends])]) > 0
    return found
