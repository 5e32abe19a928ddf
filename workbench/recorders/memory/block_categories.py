"""Assign a category, such as parameters or activations, to each live memory block.

At first, the category follows from the call stack that allocated the block and from the current phase. Later, a hook
may find out which tensor is in the block: its `Note` can change the category.
"""

from dataclasses import dataclass

from workbench.recorders.memory.snapshot import Frame
from workbench.recorders.memory.tensor_hooks import (
    ACTIVATIONS,
    COMMUNICATION,
    INPUTS,
    MODULE,
    PARAMETERS,
    PHASE,
    PRIORITY,
    TEMPORARY,
    Note,
)

CATEGORIES = {
    ("_fsdp_param.py", "alloc_all_gather_outputs"): PARAMETERS,
    ("_fsdp_collectives.py", "foreach_all_gather"): COMMUNICATION,
    ("_fsdp_collectives.py", "foreach_reduce"): COMMUNICATION,
    ("distributed_c10d.py", "all_gather_object"): COMMUNICATION,
    ("", "aten::flatten_dense_tensors"): COMMUNICATION,  # DDP sends the weights at the start
    ("distributed.py", "_pre_forward"): COMMUNICATION,  # where DDP makes its buckets anew
}


_GATHER_SPAN = "FSDP::all_gather_copy_out"
_FSDP_SPANS = ("FSDP::all_gather", "FSDP::post_backward_reduce")
"""The prefixes of the names of profiler spans that FSDP records around its collectives; the module's name follows.

They show the category of an allocation even if its call stack has no Python frames.
"""
_COLLECTIVE_PREFIXES = ("gloo:", "nccl:", "c10d::")
"""The prefixes of the names of profiler operations that gloo, NCCL and c10d run."""


def category_of_function(filename: str, function: str) -> str | None:
    """Return the category of the memory that a function of torch allocates; None if it is not known.

    `filename` is empty if `function` is not a Python function, but the name of a profiler operation or span.
    """
    if not filename and function.startswith(_COLLECTIVE_PREFIXES):
        return COMMUNICATION
    if not filename and function.startswith(_FSDP_SPANS):
        return PARAMETERS if function.startswith(_GATHER_SPAN) else COMMUNICATION
    return CATEGORIES.get((filename.rpartition("/")[2], function))


_LOADING = ("data_wait", "h2d")
FORWARD, BACKWARD = "fwd", "bwd"


@dataclass(slots=True, eq=False)
class Block:
    """A live block of memory: its address, size in bytes, call stack of the allocation, category and label.

    The label is the name of the tensor in the block, or of the module that allocated it.
    """

    address: int
    size: int
    frames: list[Frame]
    category: str
    label: str

    def apply_note(self, note: Note) -> None:
        """Set category and label to those of `note`, unless the block's present category has a higher `PRIORITY`."""
        if PRIORITY[note.kind] >= PRIORITY.get(self.category, 0):
            self.category, self.label = note.kind, note.label


class BlockCategories:
    """Assigns a category to each live block, from allocations and notes that the caller passes in the order of time.

    A note is what a hook recorded: which category a tensor has, or which module or phase begins.
    """

    def __init__(self) -> None:
        self.live: dict[int, Block] = {}
        self.begin_session()

    def begin_session(self) -> None:
        """Prepare for a new profiler session, at whose start no module is running and no phase of the step is open."""
        self._forward_blocks: list[Block] = []
        self._module = self._phase = ""
        self._of_stacks: dict[int, tuple[list[Frame], str]] = {}

    def allocate(self, address: int, size: int, frames: list[Frame]) -> Block:
        """Add a new live block and return it; its call stack and the current phase decide its category.

        `frames` is the call stack, innermost frame first; `size` is in bytes.
        """
        block = self.live[address] = Block(address, size, frames, self._initial_category(frames), self._module)
        if self._phase == FORWARD:
            self._forward_blocks.append(block)
        return block

    def apply(self, note: Note) -> bool:
        """Apply a note: change the category of a block, or enter a module or phase.

        Return False if the note describes a block but no live block has its address.
        """
        if note.kind == MODULE:
            self._module = note.label
        elif note.kind == PHASE:
            self._enter_phase(note.label)
        elif block := self.live.get(note.address):
            block.apply_note(note)
        else:
            return not note.address
        return True

    def _enter_phase(self, phase: str) -> None:
        """Enter a phase; when the backward pass begins, temporary blocks of the forward pass become activations.

        This concerns only blocks that are still live. Selective checkpointing stores such tensors itself, so no
        saved-tensor hook reports them as activations.
        """
        self._phase = phase
        if phase == BACKWARD:
            for block in self._forward_blocks:
                # By identity: after a free, a newer block may have the same address.
                if block.category == TEMPORARY and self.live.get(block.address) is block:
                    block.category = ACTIVATIONS
        if phase in (FORWARD, BACKWARD):
            self._forward_blocks = []

    def _initial_category(self, frames: list[Frame]) -> str:
        """Return the category of a new block, which stays unless a note about the block changes it.

        A block that is allocated while data is loaded is an input. Otherwise the innermost function in `frames` with a
        known category decides; if there is none, the block is temporary.
        """
        if self._phase in _LOADING:
            return INPUTS
        # Allocations with the same stack share one list, which is kept here so that its identity stays its own.
        known = self._of_stacks.get(id(frames))
        if known is None:
            categories = (category_of_function(frame["filename"], frame["name"]) for frame in frames)
            known = self._of_stacks[id(frames)] = frames, next(filter(None, categories), TEMPORARY)
        return known[1]
