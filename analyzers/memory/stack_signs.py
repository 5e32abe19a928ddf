"""Recognise from the frames of a stack which kind of code allocates there, such as the optimizer or a collective."""

import re
from collections.abc import Mapping, Sequence
from enum import StrEnum, auto
from weakref import WeakKeyDictionary

import numpy as np

from analyzers.columns import Column, Integers, Mask
from analyzers.memory.phases import Phase
from analyzers.memory.snapshot import Action, DeviceTrace, Snapshot


class Sign(StrEnum):
    """A kind of code that can be recognised from a stack frame, such as the optimizer or a collective."""

    WORKSPACE = auto()
    ACCUMULATE = auto()
    COLLECTIVE = auto()
    UNSHARDED = auto()
    REDUCED = auto()
    BUCKETS = auto()
    COMMUNICATION = auto()
    OPTIMIZER = auto()
    OPTIMIZER_INIT = auto()
    ZERO_GRAD = auto()
    PARAMETERS = auto()
    BUILT = auto()
    ENGINE = auto()
    BACKWARD = auto()
    FORWARD = auto()
    INPUT = auto()


# A frame is written "file name" here, so `^ ` is a frame without a file: native code, or a profiler's range.
PATTERN = {
    # ATen/cuda/CublasHandlePool.cpp and cudnn's: allocated once by whichever operation comes first, and kept.
    Sign.WORKSPACE: r"getCurrentCUDABlasHandle|[cC]ublas\w*Workspace|CUDABlasLtWorkspace|cudnn\w*[wW]orkspace",
    # The autograd node that stores a gradient in `parameter.grad`.
    Sign.ACCUMULATE: r"AccumulateGrad",
    Sign.COLLECTIVE: r"ProcessGroup(NCCL|Gloo|XCCL)|c10d(::|_functional::)|(^| )(nccl|gloo):",
    # FSDP2 (fsdp_param.py), FSDP1 (_flat_param.py), and the range that FSDP2 records around its copies.
    Sign.UNSHARDED: r"fsdp_param\.py (alloc_all_gather_outputs|init_all_gather_outputs|init_unsharded_param)$"
    r"|_flat_param\.py _alloc_padded_unsharded_flat_param$|^ FSDP::all_gather_copy_out( |$)",
    Sign.REDUCED: r" foreach_reduce$|^ FSDP::post_backward_reduce",
    # DDP: its Python constructor and its C++ reducer allocate the buckets.
    Sign.BUCKETS: r"parallel/distributed\.py (_pre_forward|_ddp_init_helper)$|c10d::Reducer::",
    Sign.COMMUNICATION: r"_fsdp_collectives|distributed/_functional_collectives|^ aten::flatten_dense_tensors$"
    r"|^ FSDP::(all_gather \(|post_backward_reduce)",
    # Optimizers outside torch.optim are recognised by file name; `Optimizer.step#` is PyTorch's own profiler range.
    Sign.OPTIMIZER: r"torch/optim/|\w*optim\w*\.py (step|_init_group|update)$|^ Optimizer\.step#",
    Sign.OPTIMIZER_INIT: r" _init_group$|\w*optim\w*\.py __init__$",
    Sign.ZERO_GRAD: r" zero_grad$",
    Sign.PARAMETERS: r"module\.py (_apply|convert|load_state_dict)$|torch/nn/modules/\w+\.py __init__$"
    r"| (reset_parameters|from_pretrained|(init|load)_weights?\w*|load_(checkpoint|model))$",
    # Classes of other people's models: a guess by the usual file names, so its rule has less confidence than
    # PARAMETERS.
    Sign.BUILT: r"(?i)(module|model|layer|block|linear|embed|norm|attention|transformer|net|lm)\w*\.py __init__$",
    # The C++ engine, as symbolised stacks name it and as our recorder does.
    Sign.ENGINE: r"autograd::(python::Python)?[Ee]ngine",
    Sign.BACKWARD: r" (_?run_backward|_engine_run_backward)$|torch/utils/checkpoint\.py (recompute_fn|unpack_hook)$",
    Sign.FORWARD: r" (forward|fwd|_call_impl)$|torch/nn/functional\.py (\w*loss\w*|cross_entropy)$"
    # What only models call, for stacks that end in C++; below the autograd engine it belongs to the backward pass.
    r"|(^ aten|at::(_ops|native))::(linear|embedding|conv(olution|\dd)|matmul|scaled_dot_product_attention"
    # Not linalg_vector_norm, with which gradients are clipped.
    r"|(native_|fused_)?(layer|batch|group|instance|rms)_norm|gelu|silu|relu|dropout|cross_entropy_loss)(::|$)",
    Sign.INPUT: r"dataloader\.py| (get_(batch|input)\w*|collate\w*|pin_memory|next_batch)$",
}

_PHASE_OF_SIGN = {
    Sign.FORWARD: Phase.FORWARD,
    Sign.ENGINE: Phase.BACKWARD,
    Sign.BACKWARD: Phase.BACKWARD,
    Sign.OPTIMIZER: Phase.OPTIMIZER,
}
"""{kind of code in a stack: training phase that it shows}; if a stack shows several kinds, the last one here decides.

Backward and optimizer code may run below a frame of a forward function.
"""


_STACKS_AT_ONCE = 1 << 14
"""The number of stacks that are searched at once; the frames of all stacks may take a hundred megabytes."""


_SIGNS_OF: "WeakKeyDictionary[Snapshot, dict[Sign, Mask]]" = WeakKeyDictionary()
"""The results of `stack_signs` for the snapshots that are in use, as several findings of each device ask for them."""


def stack_signs(snapshot: Snapshot) -> dict[Sign, Mask]:
    """Return, for each kind of code, a mask of the snapshot's stacks that contain a frame of this kind."""
    if snapshot not in _SIGNS_OF:
        masks = stacks_showing(snapshot, list(map(re.compile, PATTERN.values())))
        _SIGNS_OF[snapshot] = dict(zip(PATTERN, masks, strict=True))
    return _SIGNS_OF[snapshot]


def stacks_showing(
    snapshot: Snapshot, patterns: Sequence[re.Pattern[str]], among: Integers | None = None
) -> list[Mask]:
    """Return, for each pattern, a mask of the stacks in which a frame's text (`Snapshot.frame_texts`) matches it.

    With `among`, only the stacks with these numbers matter: the masks may be false for all others.
    """
    texts = snapshot.frame_texts
    # A bit for each pattern: one pass over the frames of the stacks, which may be many millions.
    bits = np.zeros(len(texts), np.uint32)
    for number, pattern in enumerate(patterns):
        bits |= _frames_matching(texts, pattern).astype(np.uint32) << np.uint32(number)
    few = among is not None and len(found := np.unique(among)) <= _STACKS_AT_ONCE
    of_stacks = _combined_bits_among(snapshot, bits, found) if few else _combined_bits(snapshot, bits)
    return [(of_stacks >> np.uint32(number) & np.uint32(1)) != 0 for number in range(len(patterns))]


def _frames_matching(texts: Sequence[str], pattern: re.Pattern[str]) -> Mask:
    return np.fromiter((pattern.search(text) is not None for text in texts), bool, len(texts))


def stacks_with_any(snapshot: Snapshot, frames: Mask) -> Mask:
    has_any: Mask = _combined_bits(snapshot, frames.astype(np.uint32)) != 0
    return has_any


def _combined_bits(snapshot: Snapshot, bits: Column) -> Column:
    """Return, for each stack, the bitwise OR of its frames' numbers; `bits` has a number for each distinct frame."""
    frames, ends = snapshot.columns["stack_frames"], np.asarray(snapshot.columns["stack_end"])
    starts = np.concatenate([[0], ends[:-1]])
    # `reduceat` goes from one start to the next, and a stack without frames has no place between them.
    filled = np.flatnonzero(ends > starts)
    combined = np.zeros(len(ends), bits.dtype)
    for first in range(0, len(filled), _STACKS_AT_ONCE):
        stacks = filled[first : first + _STACKS_AT_ONCE]
        low, high = starts[stacks[0]], ends[stacks[-1]]
        combined[stacks] = np.bitwise_or.reduceat(bits[frames[low:high]], starts[stacks] - low)
    return combined


def _combined_bits_among(snapshot: Snapshot, bits: Column, stacks: Integers) -> Column:
    """Return what `_combined_bits` does, but 0 for all but the stacks with these numbers, which are in order."""
    ends = np.asarray(snapshot.columns["stack_end"])
    sizes = np.diff(ends, prepend=0)
    stacks = stacks[sizes[stacks] > 0]
    combined = np.zeros(len(ends), bits.dtype)
    if len(stacks):
        size = sizes[stacks]
        first = np.cumsum(size) - size
        places = np.repeat(ends[stacks] - size - first, size) + np.arange(size.sum())
        combined[stacks] = np.bitwise_or.reduceat(bits[snapshot.columns["stack_frames"][places]], first)
    return combined


def phase_of_entries(trace: DeviceTrace, signs: Mapping[Sign, Mask]) -> Column:
    """Return the training phase shown by the stack of each trace entry, as int8 values of `Phase`.

    `signs` has, for each kind of code (`Sign`), a mask of the stacks with a frame of this kind.
    """
    of_stack = np.full(len(signs[Sign.FORWARD]), Phase.NONE, np.int8)
    for sign, phase in _PHASE_OF_SIGN.items():
        of_stack[signs[sign]] = phase
    stack = trace.entry("stack")
    phases: Column = of_stack[stack]
    if signs[Sign.FORWARD].any() and not signs[Sign.ENGINE].any():
        # stacks="python": the autograd engine's threads have no Python frames, so an allocation without any is theirs.
        # Frees lack frames in other places too.
        phases[(stack == 0) & (trace.entry("action") == Action.ALLOC)] = Phase.BACKWARD
    return phases
