"""Count the bytes of live tensor storages by category and module, and keep the peak of each window (part) of a step."""

import sys
import weakref
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

import torch

from trainer.estimate.module_names import OWN_ROWS, RunningModule
from workbench.recorders.memory.library_functions import category_of_function
from workbench.recorders.memory.tensor_hooks import ACTIVATIONS, PARAMETERS, PRIORITY, TEMPORARY, without_wrappers

_MAX_CALLERS = 30
"""The most callers on the call stack that are searched for the purpose of an allocation."""
_SHARDED_PARAMETER = "_fsdp_param.py"
"""The file of FSDP with the objects that know the name of the parameter which they gather or reduce."""
_NOT_ALLOCATED, _PROPAGATION = "pretended", "_sharding_prop.py"
"""The category of allocations that no real run makes, and the file of DTensor that makes them.

DTensor computes the shapes of results on whole tensors, which have no memory.
"""


@dataclass(slots=True)
class Block:
    """A live tensor storage, with its size in bytes, its category, and the module to which it belongs."""

    size: int
    category: str
    module: str
    reference: "weakref.ref[torch.UntypedStorage]"


@dataclass
class Peak:
    """The highest memory in a window (part) of a step, in bytes: the total, and its parts at that instant.

    `holders` is {(category, module): bytes}; their sum is the total. `where` is the place in the program at that
    instant, such as a source line; empty if unknown.
    """

    total: int = 0
    holders: dict[tuple[str, str], int] = field(default_factory=dict)
    where: str = ""

    @property
    def categories(self) -> dict[str, int]:
        """The peak as {category: bytes}."""
        held = Counter[str]()
        for (category, _), size in self.holders.items():
            held[category] += size
        return dict(held)

    @property
    def modules(self) -> dict[str, dict[str, int]]:
        """The peak as {module: {category: bytes}}, the largest module first."""
        held: dict[str, dict[str, int]] = {}
        for (category, module), size in sorted(self.holders.items()):
            if size:
                held.setdefault(module, {})[category] = size
        return dict(sorted(held.items(), key=lambda item: -sum(item[1].values())))


class StorageCounter:
    """Counts the bytes of live tensor storages; `peaks` is {window (part) of a step, such as "backward": its peak}.

    `locate` is called at each new peak, and returns the place in the program, such as a source line. `running` knows
    which module is running. Memory belongs to the module that allocates it, unless a hook names another module.
    """

    def __init__(self, locate: Callable[[], str] = str, running: RunningModule | None = None) -> None:
        self.peaks: dict[str, Peak] = {}
        self.running = running or RunningModule()
        self._live: Counter[tuple[str, str]] = Counter()
        self._blocks: dict[int, Block] = {}
        self._total = 0
        self._window = ""
        self._locate = locate

    def window(self, name: str) -> None:
        """Start window `name`, or continue it if it was started before; each window has a separate peak.

        Memory that is already live counts for the peak of the window. If the name is empty, no peak is tracked.
        """
        self._window = name
        self._check_peak()

    def add_storage(self, storage: torch.UntypedStorage, category: str | None = None, module: str = "") -> None:
        """Count a storage in `category`, for `module`; by default, the call stack decides the category.

        If the storage is already counted, it moves to the new category, unless its present category has a higher
        priority.
        """
        key = storage._cdata  # noqa: SLF001 - the only identity that a storage has
        block = self._blocks.get(key)
        if block is None:
            parameter = ""
            if not category:
                category, parameter = _purpose_of_caller()
            if category == _NOT_ALLOCATED:
                return
            sharded = self.running.names.owner(PARAMETERS, without_wrappers(parameter)) if parameter else ""
            owner = module or OWN_ROWS.get(category) or sharded or self.running.name
            reference = weakref.ref(storage, self._forget(key))
            block = self._blocks[key] = Block(storage.nbytes(), category, owner, reference)
            self._change(block, block.size)
        elif category and PRIORITY.get(category, 0) >= PRIORITY.get(block.category, 0):
            self._move(block, category, module or OWN_ROWS.get(category) or block.module)

    def keep_for_backward(self) -> None:
        """Count all live storages without a category as activations, after the forward pass.

        Selective recomputation keeps such storages without saved-tensor hooks. So no hook could report their category.
        """
        self.move(TEMPORARY, ACTIVATIONS)

    def move(self, old: str, new: str) -> None:
        """Count all live storages of category `old` in category `new`."""
        for block in self._blocks.values():
            if block.category == old:
                self._move(block, new, OWN_ROWS.get(new) or block.module)

    def _move(self, block: Block, category: str, module: str) -> None:
        self._live[block.category, block.module] -= block.size
        self._live[category, module] += block.size
        block.category, block.module = category, module

    def leave_out(self, category: str) -> None:
        """Count the live storages of a category as empty from now on, even if they later move to another category."""
        for block in self._blocks.values():
            if block.category == category:
                self._change(block, -block.size)
                block.size = 0

    def _forget(self, key: int) -> Callable[[object], None]:
        def forget(reference: object) -> None:
            block = self._blocks.get(key)
            # A storage that is no longer counted may have left its address to another one.
            if block is not None and block.reference is reference:
                del self._blocks[key]
                self._change(block, -block.size)

        return forget

    def resize(self, storage: torch.UntypedStorage, size: int) -> None:
        """Record that a storage now has `size` bytes; a storage that is not counted is ignored."""
        if block := self._blocks.get(storage._cdata):  # noqa: SLF001
            change, block.size = size - block.size, size
            self._change(block, change)

    def _change(self, block: Block, size: int) -> None:
        self._live[block.category, block.module] += size
        self._total += size
        if size > 0:
            self._check_peak()

    def _check_peak(self) -> None:
        if not self._window:
            return
        highest = self.peaks.setdefault(self._window, Peak())
        if self._total > highest.total:
            highest.total, highest.holders = self._total, dict(self._live)
            highest.where = self._locate()


def _purpose_of_caller() -> tuple[str, str]:
    """Return (category of the storage that is being allocated, name of the parameter for which FSDP allocates it).

    Both follow from the functions on the call stack. If FSDP does not allocate the storage, the name is empty.
    """
    parameter = ""
    frame = sys._getframe(2)  # noqa: SLF001  # `inspect` costs a hundred times as much
    for _ in range(_MAX_CALLERS):
        if frame.f_code.co_filename.endswith(_PROPAGATION):
            return _NOT_ALLOCATED, ""
        if frame.f_code.co_filename.endswith(_SHARDED_PARAMETER):
            parameter = parameter or getattr(frame.f_locals.get("self"), "_param_fqn", None) or ""
        if known := category_of_function(frame.f_code.co_filename, frame.f_code.co_name):
            return known, parameter
        if frame.f_back is None:
            break
        frame = frame.f_back
    return TEMPORARY, parameter
