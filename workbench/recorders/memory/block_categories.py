"""What each live block is for: by where and when it was made, and by what is noted about it while it lives."""

from dataclasses import dataclass

from workbench.recorders.memory.library_functions import purpose_of
from workbench.recorders.memory.profiler_events import Frame
from workbench.recorders.memory.tensor_hooks import ACTIVATIONS, INPUTS, MODULE, PHASE, PRIORITY, TEMPORARY, Note

LOADING = ("data_wait", "h2d")
FORWARD, BACKWARD = "fwd", "bwd"


@dataclass(slots=True, eq=False)
class Block:
    """A piece of memory in use: where, how large, what for."""

    address: int
    size: int
    frames: list[Frame]
    category: str
    label: str

    def take(self, note: Note) -> None:
        """Let a note decide what this is, unless a weightier one has."""
        if PRIORITY[note.kind] >= PRIORITY.get(self.category, 0):
            self.category, self.label = note.kind, note.label


class Roles:
    """Told of allocations, ends and notes in order of time."""

    def __init__(self) -> None:
        self.live: dict[int, Block] = {}
        self._forward: list[Block] = []
        self.start()

    def start(self) -> None:
        """A session begins: no module and no phase runs."""
        self._module = self._phase = ""

    def allocated(self, address: int, size: int, frames: list[Frame]) -> Block:
        """A block of what its surroundings say."""
        block = self.live[address] = Block(address, size, frames, self._purpose(frames), self._module)
        if self._phase == FORWARD:
            self._forward.append(block)
        return block

    def heed(self, note: Note) -> bool:
        """Take in a note; false if the block that it is about does not live."""
        if note.kind == MODULE:
            self._module = note.label
        elif note.kind == PHASE:
            self._enter(note.label)
        elif block := self.live.get(note.address):
            block.take(note)
        else:
            return not note.address
        return True

    def _enter(self, phase: str) -> None:
        """What the forward pass made and left serves the backward pass, also where no hook saw it being saved.

        Selective checkpointing keeps outputs in a store of its own, which no saved-tensor hook passes through.
        """
        self._phase = phase
        if phase == BACKWARD:
            for block in self._forward:
                if block.category == TEMPORARY and self.live.get(block.address) is block:
                    block.category = ACTIVATIONS
        if phase in (FORWARD, BACKWARD):
            self._forward = []

    def _purpose(self, frames: list[Frame]) -> str:
        """What new memory is for as long as nothing was noted about it."""
        if self._phase in LOADING:
            return INPUTS
        known = (purpose_of(frame["filename"], frame["name"]) for frame in frames)
        return next(filter(None, known), TEMPORARY)
