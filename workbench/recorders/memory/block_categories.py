"""What is each live block for? Its place in the code and its time say it first, and notes about it while it lives."""

from dataclasses import dataclass

from workbench.recorders.memory.library_functions import category_of_function
from workbench.recorders.memory.snapshot import Frame
from workbench.recorders.memory.tensor_hooks import ACTIVATIONS, INPUTS, MODULE, PHASE, PRIORITY, TEMPORARY, Note

LOADING = ("data_wait", "h2d")
FORWARD, BACKWARD = "fwd", "bwd"


@dataclass(slots=True, eq=False)
class Block:
    """A live block of memory: address, size, stack, category and label."""

    address: int
    size: int
    frames: list[Frame]
    category: str
    label: str

    def apply_note(self, note: Note) -> None:
        """Set category and label from a note, unless those the block already has have a higher priority."""
        if PRIORITY[note.kind] >= PRIORITY.get(self.category, 0):
            self.category, self.label = note.kind, note.label


class BlockCategories:
    """Assigns a category to each live block; allocations, frees and notes must be given in order of time."""

    def __init__(self) -> None:
        self.live: dict[int, Block] = {}
        self.begin_session()

    def begin_session(self) -> None:
        """Begin a profiler session: no module and no phase is active."""
        self._forward_blocks: list[Block] = []
        self._module = self._phase = ""

    def allocate(self, address: int, size: int, frames: list[Frame]) -> Block:
        """Return a new live block, with the category that its stack and the current phase suggest."""
        block = self.live[address] = Block(address, size, frames, self._initial_category(frames), self._module)
        if self._phase == FORWARD:
            self._forward_blocks.append(block)
        return block

    def apply(self, note: Note) -> bool:
        """Apply a note about a block, module or phase; returns False if no live block has the note's address."""
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
        """Enter a phase; entering the backward pass makes uncategorised blocks of the forward pass activations.

        Selective checkpointing keeps outputs in a store of its own, which no saved-tensor hook sees.
        """
        self._phase = phase
        if phase == BACKWARD:
            for block in self._forward_blocks:
                if block.category == TEMPORARY and self.live.get(block.address) is block:
                    block.category = ACTIVATIONS
        if phase in (FORWARD, BACKWARD):
            self._forward_blocks = []

    def _initial_category(self, frames: list[Frame]) -> str:
        """Return the category of a new block, valid until a note about the block is applied."""
        if self._phase in LOADING:
            return INPUTS
        categories = (category_of_function(frame["filename"], frame["name"]) for frame in frames)
        return next(filter(None, categories), TEMPORARY)
