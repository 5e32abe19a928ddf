"""What stacks, phases and lifetimes tell about a block that nobody noted: rules, their evidence, their confidence."""

import re
from collections.abc import Iterator, Mapping
from typing import NamedTuple

import numpy as np

from analyzers.columns import Column
from analyzers.memory.model import DeviceTrace, Snapshot
from analyzers.memory.reading.reader import CATEGORY_OF
from analyzers.memory.replay.lifetimes import ALLOC, BEFORE, Lifetimes
from analyzers.memory.replay.phases import BACKWARD, FORWARD, NO_PHASE, OPTIMIZER, Phases, windows

# What a frame, written "file name", tells about the allocations below it.
SIGNS = {
    "workspace": r"getCurrentCUDABlasHandle|[cC]ublas\w*Workspace|CUDABlasLtWorkspace|cudnn\w*[wW]orkspace",
    "accumulate": r"AccumulateGrad",
    "collective": r"ProcessGroup(NCCL|Gloo|XCCL)|c10d(::|_functional::)|(^| )(nccl|gloo):",
    "unsharded": r"fsdp_param\.py (alloc_all_gather_outputs|init_all_gather_outputs|init_unsharded_param)$"
    r"|_flat_param\.py _alloc_padded_unsharded_flat_param$|^ FSDP::all_gather_copy_out( |$)",
    "reduced": r" foreach_reduce$|^ FSDP::post_backward_reduce",
    "buckets": r"parallel/distributed\.py (_pre_forward|_ddp_init_helper)$|c10d::Reducer::",
    "communication": r"_fsdp_collectives|distributed/_functional_collectives|^ aten::flatten_dense_tensors$"
    r"|^ FSDP::(all_gather \(|post_backward_reduce)",
    "optimizer": r"torch/optim/|\w*optim\w*\.py (step|_init_group|update)$|^ Optimizer\.step#",
    "optimizer_init": r" _init_group$|\w*optim\w*\.py __init__$",
    "zero_grad": r" zero_grad$",
    "parameters": r"module\.py (_apply|convert|load_state_dict)$|torch/nn/modules/\w+\.py __init__$"
    r"| (reset_parameters|from_pretrained|(init|load)_weights?\w*|load_(checkpoint|model))$",
    "built": r"(?i)(module|model|layer|block|linear|embed|norm|attention|transformer|net|lm)\w*\.py __init__$",
    "engine": r"autograd::(python::Python)?[Ee]ngine",
    "backward": r" (_?run_backward|_engine_run_backward)$|torch/utils/checkpoint\.py (recompute_fn|unpack_hook)$",
    "forward": r" (forward|fwd|_call_impl)$|torch/nn/functional\.py (\w*loss\w*|cross_entropy)$"
    # What only models call, for stacks that end in C++; below the autograd engine it belongs to the backward pass.
    r"|(^ aten|at::(_ops|native))::(linear|embedding|conv(olution|\dd)|matmul|\w+_norm|scaled_dot_product_attention"
    r"|gelu|silu|relu|dropout|cross_entropy_loss)(::|$)",
    "input": r"dataloader\.py| (get_(batch|input)\w*|collate\w*|pin_memory|next_batch)$",
}
PHASE_SIGNS = {"forward": FORWARD, "engine": BACKWARD, "backward": BACKWARD, "optimizer": OPTIMIZER}
"""A later one overrules: the backward pass and the optimizer may run below a forward frame."""


class Rule(NamedTuple):
    """What a block is if the rule holds, how far to believe it, and the evidence in words."""

    name: str
    category: str
    confidence: float
    because: str


RULES = (
    Rule("none", "unknown", 0.0, "nothing tells what these are"),
    Rule("noted", "", 1.0, "noted by the recorder"),
    Rule("workspace", "workspace", 0.8, "made by a library for its own use"),
    Rule("zeroed", "gradients", 0.8, "older than the trace, freed by zero_grad"),
    Rule("optimizer_init", "optimizer_state", 0.9, "made where the optimizer sets up its state"),
    Rule("optimizer_kept", "optimizer_state", 0.9, "made in the optimizer's step and kept after it"),
    Rule("optimizer_scratch", "temporary", 0.9, "made in the optimizer's step and freed in it"),
    Rule("optimizer_freed", "optimizer_state", 0.6, "older than the trace, freed in the optimizer's step"),
    Rule("backward_freed", "activations", 0.6, "older than the trace, freed by the backward pass"),
    Rule("accumulated", "gradients", 0.95, "made by AccumulateGrad"),
    Rule("collective", "communication", 0.8, "made inside a collective"),
    Rule("unsharded", "parameters", 0.9, "parameters that FSDP gathered"),
    Rule("reduced", "gradients", 0.8, "output of FSDP's reduction, alive at the optimizer's step"),
    Rule("buckets", "communication", 0.8, "buckets in which DDP reduces gradients"),
    Rule("communication", "communication", 0.7, "made around a collective"),
    Rule("loaded", "parameters", 0.7, "made where modules are built, moved or loaded, and kept"),
    Rule("backward_kept", "gradients", 0.7, "made in the backward pass, alive at the optimizer's step"),
    Rule("backward_left", "gradients", 0.6, "older than the trace, made in a backward pass and never freed"),
    Rule("backward_scratch", "temporary", 0.8, "made in the backward pass and gone before the optimizer's step"),
    Rule("saved", "activations", 0.85, "made in the forward pass, alive when the backward pass begins"),
    Rule("forward_kept", "activations", 0.4, "made in a forward pass and kept; no backward pass follows"),
    Rule("forward_scratch", "temporary", 0.8, "made in the forward pass and freed in it"),
    Rule("input", "inputs", 0.6, "made where data are loaded"),
    Rule("built", "parameters", 0.6, "made in the constructor of a model's part and kept until its forward pass"),
    Rule("brief", "temporary", 0.6, "freed in the phase that made it"),
    Rule("batch", "inputs", 0.5, "made between the optimizer's step and the forward pass, used by it"),
    Rule("loss", "activations", 0.6, "made after the model's forward, alive when the backward pass begins"),
    Rule("between", "temporary", 0.5, "made between the phases and gone before the next forward pass"),
    Rule("consumed", "activations", 0.6, "freed by the backward pass"),
    Rule("sized_parameters", "parameters", 0.5, "older than the trace, as many and as large as the gradients"),
    Rule("sized_state", "optimizer_state", 0.5, "older than the trace, in further sets of the sizes of gradients"),
    Rule(
        "standing",
        "parameters",
        0.4,
        "older than the trace, without a stack, and there after all passes: frozen weights",
    ),
)
NUMBER_OF = {rule.name: number for number, rule in enumerate(RULES)}
CATEGORY = np.array([CATEGORY_OF.get(rule.category, -1) for rule in RULES], np.int8)
CONFIDENCE = np.array([rule.confidence for rule in RULES])
Held = tuple[str, Column]


def ruled(trace: DeviceTrace, lives: Lifetimes) -> Column:
    """The number of the first rule that holds, for each block that ever lived; 0 where none does."""
    found = np.zeros(len(lives.born), np.int8)
    for name, mask in reversed(list(rules(trace, lives))):
        found[mask] = NUMBER_OF[name]
    match_sizes(lives, found)
    # Unless some state is known, what is left may be just that.
    if {CATEGORY_OF["gradients"], CATEGORY_OF["optimizer_state"]} <= set(CATEGORY[found].tolist()):
        there = (lives.born == BEFORE) & (lives.died == len(trace)) & (lives.stack == 0)
        found[there & (found == 0)] = NUMBER_OF["standing"]
    return found


def rules(trace: DeviceTrace, lives: Lifetimes) -> Iterator[Held]:
    """(rule, rows) in order of weight."""
    signs = stack_signs(trace.snapshot)
    made = {name: flags[lives.stack] & ~lives.freed_stack for name, flags in signs.items()}
    freed = {name: flags[lives.stack] & lives.freed_stack for name, flags in signs.items()}
    phases = Phases(phase_of_entries(trace, signs))
    yield "workspace", made["workspace"]
    yield "zeroed", freed["zero_grad"]
    yield from optimizer_rules(trace, lives, made, phases)
    yield "backward_freed", freed["engine"] | freed["backward"]
    yield "accumulated", made["accumulate"]
    yield "collective", made["collective"]
    yield "unsharded", made["unsharded"]
    yield "reduced", made["reduced"] & lasts_until(lives, phases, OPTIMIZER)
    yield "buckets", made["buckets"]
    yield "communication", made["communication"]
    yield "loaded", made["parameters"] & ~brief(lives, phases)
    yield from pass_rules(lives, made, phases)
    yield from rest_rules(lives, made, phases)


def optimizer_rules(trace: DeviceTrace, lives: Lifetimes, made: Mapping[str, Column], phases: Phases) -> Iterator[Held]:
    optimizer = windows(trace, "Optimizer.step")
    inside = optimizer.inside(lives.born)
    passes = np.minimum(phases.next(FORWARD, lives.born), phases.next(BACKWARD, lives.born))
    yield "optimizer_init", made["optimizer_init"] & ~brief(lives, phases)
    yield "optimizer_kept", inside & (lives.died >= optimizer.end_after(lives.born))
    yield "optimizer_scratch", inside
    yield "optimizer_freed", lives.freed_stack & optimizer.inside(lives.died)
    yield "optimizer_kept", made["optimizer"] & ((lives.died > passes) | (lives.died == len(trace)))
    yield "optimizer_scratch", made["optimizer"]


def pass_rules(lives: Lifetimes, made: Mapping[str, Column], phases: Phases) -> Iterator[Held]:
    """Forward and backward: what is alive when the backward pass begins was saved for it."""
    in_backward = phases.at(lives.born) == BACKWARD
    left = (lives.born == BEFORE) & (lives.died == phases.count)
    yield "backward_left", left & (made["engine"] | made["backward"])
    yield "backward_kept", in_backward & lasts_until(lives, phases, OPTIMIZER)
    yield "backward_scratch", in_backward
    yield "saved", made["forward"] & lasts_until(lives, phases, BACKWARD)
    yield "forward_kept", made["forward"] & (lives.died == phases.count)
    yield "forward_scratch", made["forward"]


def rest_rules(lives: Lifetimes, made: Mapping[str, Column], phases: Phases) -> Iterator[Held]:
    """What no frame tells: when it was made, and when it went."""
    new = lives.born != BEFORE
    after = phases.last(lives.born)
    ends = np.minimum(phases.next(FORWARD, lives.born), phases.count)
    yield "input", made["input"]
    yield "built", made["built"] & ~brief(lives, phases)
    yield "brief", brief(lives, phases)
    yield "batch", new & (after != FORWARD) & lasts_until(lives, phases, FORWARD) & (lives.died < phases.count)
    yield "loss", new & (after == FORWARD) & lasts_until(lives, phases, BACKWARD) & (lives.died < ends)
    yield "between", new & (after != NO_PHASE) & (lives.died < ends)
    yield "consumed", (lives.died < phases.count) & (phases.at(lives.died) == BACKWARD) & ~lives.freed_stack


def lasts_until(lives: Lifetimes, phases: Phases, phase: int) -> Column:
    """Whether the next entry of a phase comes while a block is alive."""
    lasts: Column = lives.died >= phases.next(phase, lives.born)
    return lasts


def brief(lives: Lifetimes, phases: Phases) -> Column:
    """Whether a block was freed before another phase began."""
    new = (lives.born != BEFORE) & (lives.died < phases.count) & (phases.last(lives.born) != NO_PHASE)
    same: Column = phases.stretch(lives.born) == phases.stretch(np.minimum(lives.died, phases.count - 1))
    found: Column = new & same
    return found


def match_sizes(lives: Lifetimes, found: Column) -> None:
    """Blocks older than the trace that have the sizes of gradients: first the parameters, then Adam's two moments.

    Where FSDP reduces many gradients in one buffer, the optimizer's state has the parameters' sizes instead.
    """
    older = np.flatnonzero((lives.born == BEFORE) & (found == 0) & (lives.died == lives.died.max(initial=0)))
    older = older[np.argsort(lives.size[older], kind="stable")]
    size = lives.size[older]
    nth = np.arange(len(size)) - np.searchsorted(size, size)
    gradients, states = (
        how_many(lives, size, CATEGORY[found] == CATEGORY_OF[kind]) for kind in ("gradients", "optimizer_state")
    )
    wanted = np.maximum(gradients, states)
    found[older[nth < wanted]] = NUMBER_OF["sized_parameters"]
    found[older[(nth >= wanted) & (nth < 3 * wanted) & (states == 0)]] = NUMBER_OF["sized_state"]


def how_many(lives: Lifetimes, sizes: Column, chosen: Column) -> Column:
    """For each of some sizes: the chosen blocks of that size that are alive when the chosen hold the most together."""
    rows = np.flatnonzero(chosen)
    change = np.zeros(int(lives.died.max(initial=0)) + 2, np.int64)
    np.add.at(change, lives.born[rows] + 1, lives.size[rows])
    np.subtract.at(change, lives.died[rows] + 1, lives.size[rows])
    fullest = int(np.cumsum(change).argmax()) - 1
    alive = rows[(lives.born[rows] <= fullest) & (lives.died[rows] > fullest)]
    known, counts = np.unique(lives.size[alive], return_counts=True)
    if not len(known):
        return np.zeros(len(sizes), np.int64)
    place = np.minimum(np.searchsorted(known, sizes), len(known) - 1)
    matching: Column = np.where(known[place] == sizes, counts[place], 0)
    return matching


def phase_of_entries(trace: DeviceTrace, signs: Mapping[str, Column]) -> Column:
    """The phase that each entry's stack shows, int8."""
    of_stack = np.full(len(signs["forward"]), NO_PHASE, np.int8)
    for sign, phase in PHASE_SIGNS.items():
        of_stack[signs[sign]] = phase
    stack = trace.entry("stack")
    found: Column = of_stack[stack]
    if signs["forward"].any() and not signs["engine"].any():
        # stacks="python": the threads of the autograd engine have no Python frames. Frees go without in other places.
        found[(stack == 0) & (trace.entry("action") == ALLOC)] = BACKWARD
    return found


def stack_signs(snapshot: Snapshot) -> dict[str, Column]:
    """For each sign a flag per stack: does any of its frames show it?"""
    written = written_frames(snapshot)
    return {sign: stacks_with(snapshot, written, re.compile(pattern)) for sign, pattern in SIGNS.items()}


def written_frames(snapshot: Snapshot) -> list[str]:
    """Each frame as `file name`, with slashes of one kind."""
    c = snapshot.columns
    return [
        f"{snapshot.text(int(file))} {snapshot.text(int(name))}".replace("\\", "/")
        for file, name in zip(c["frame_file"], c["frame_name"], strict=True)
    ]


def stacks_with(snapshot: Snapshot, written: list[str], pattern: re.Pattern[str]) -> Column:
    shows = np.fromiter((pattern.search(text) is not None for text in written), bool, len(written))
    ends = snapshot.columns["stack_end"]
    seen = np.concatenate([[0], np.cumsum(shows[snapshot.columns["stack_frames"]])])
    found: Column = np.diff(seen[np.concatenate([[0], ends])]) > 0
    return found
