"""Count the bytes of live tensor storages by category, and keep the peak of each window (part) of a step."""

import sys
import weakref
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

import torch

from workbench.recorders.memory.library_functions import category_of_function
from workbench.recorders.memory.tensor_hooks import ACTIVATIONS, PRIORITY, TEMPORARY

MAX_CALLERS = 30
"""Number of callers on the call stack that are searched for the purpose of an allocation."""
NOT_ALLOCATED, PROPAGATION = "pretended", "_sharding_prop.py"
"""The category of allocations that no real run makes, and the file of DTensor that makes them.

DTensor computes the shapes of results on whole tensors, which have no memory.
"""


@dataclass(slots=True)
class Block:
    """A live tensor storage, with its size in bytes and its category."""

    size: int
    category: str
    reference: "weakref.ref[torch.UntypedStorage]"


@dataclass
class Peak:
    """The highest memory in a window of a step, in bytes: the total, and its categories at that moment.

    `where` says at which place in the program that is; it is empty if the counter has no way to tell.
    """

    total: int = 0
    categories: dict[str, int] = field(default_factory=dict)
    where: str = ""


class StorageCounter:
    """Counts the bytes of live tensor storages; `peaks` holds the peak of each named window.

    `locate` is called at each new peak and returns where in the program that is, such as a source line.
    """

    def __init__(self, locate: Callable[[], str] = str) -> None:
        self.peaks: dict[str, Peak] = {}
        self.live_bytes: Counter[str] = Counter()
        self._blocks: dict[int, Block] = {}
        self._total = 0
        self._window = ""
        self._locate = locate

    def window(self, name: str) -> None:
        """Start window `name`, or continue it if it was started before; the peak is tracked separately for each window.

        Memory that is already live counts towards the peak of the window. With an empty name no peak is tracked.
        """
        self._window = name
        self._check_peak()

    def add_storage(self, storage: torch.UntypedStorage, category: str | None = None) -> None:
        """Count a storage in `category`; without `category`, in the one that the call stack suggests.

        A storage that is already counted moves to the new category, unless that has a lower priority than its current
        one.
        """
        key = storage._cdata  # noqa: SLF001 - the only identity that a storage has
        block = self._blocks.get(key)
        if block is None:
            category = category or category_of_caller()
            if category == NOT_ALLOCATED:
                return
            block = self._blocks[key] = Block(storage.nbytes(), category, weakref.ref(storage, self._forget(key)))
            self._change(category, block.size)
        elif category and PRIORITY.get(category, 0) >= PRIORITY.get(block.category, 0):
            self.live_bytes[block.category] -= block.size
            self.live_bytes[category] += block.size
            block.category = category

    def keep_for_backward(self) -> None:
        """Count all live storages without a category as activations; call it after the forward pass.

        Selective recomputation keeps them without saved-tensor hooks, so no hook could categorise them.
        """
        self.move(TEMPORARY, ACTIVATIONS)

    def move(self, old: str, new: str) -> None:
        """Count all live storages of category `old` in category `new`."""
        for block in self._blocks.values():
            if block.category == old:
                block.category = new
        self.live_bytes[new] += self.live_bytes.pop(old, 0)

    def leave_out(self, category: str) -> None:
        """Count the storages that are live now and have this category as empty, whatever they are used for later."""
        for block in self._blocks.values():
            if block.category == category:
                self._change(category, -block.size)
                block.size = 0

    def _forget(self, key: int) -> Callable[[object], None]:
        def forget(reference: object) -> None:
            block = self._blocks.get(key)
            # A storage that is no longer counted may have left its address to another one.
            if block is not None and block.reference is reference:
                del self._blocks[key]
                self._change(block.category, -block.size)

        return forget

    def resize(self, storage: torch.UntypedStorage, size: int) -> None:
        """Count that a storage now has `size` bytes; one that is not counted is ignored."""
        if block := self._blocks.get(storage._cdata):  # noqa: SLF001
            change, block.size = size - block.size, size
            self._change(block.category, change)

    def _change(self, category: str, size: int) -> None:
        self.live_bytes[category] += size
        self._total += size
        if size > 0:
            self._check_peak()

    def _check_peak(self) -> None:
        if not self._window:
            return
        highest = self.peaks.setdefault(self._window, Peak())
        if self._total > highest.total:
            highest.total, highest.categories = self._total, dict(self.live_bytes)
            highest.where = self._locate()


def category_of_caller() -> str:
    """Return the category of a storage that is being allocated, from the functions on the call stack."""
    frame = sys._getframe(2)  # noqa: SLF001  # `inspect` costs a hundred times as much
    for _ in range(MAX_CALLERS):
        if frame.f_code.co_filename.endswith(PROPAGATION):
            return NOT_ALLOCATED
        if known := category_of_function(frame.f_code.co_filename, frame.f_code.co_name):
            return known
        if frame.f_back is None:
            break
        frame = frame.f_back
    return TEMPORARY
