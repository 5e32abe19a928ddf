"""Count the bytes of live fake tensors by category, and the peak in each window (part) of a step."""

import sys
import weakref
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Self

import torch
from torch import nn
from torch.distributed.tensor import DTensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter

from workbench.recorders.memory.library_functions import category_of_function
from workbench.recorders.memory.tensor_hooks import ACTIVATIONS, PRIORITY, TEMPORARY, TensorHooks, local_tensor

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
    """The highest memory in a window of a step, in bytes: the total, and its categories at that moment."""

    total: int = 0
    categories: dict[str, int] = field(default_factory=dict)


class MemoryTracker(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts the bytes of live tensor storages while it is entered; `peaks` holds the peak of each named window."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.peaks: dict[str, Peak] = {}
        self.live_bytes: Counter[str] = Counter()
        self._blocks: dict[int, Block] = {}
        self._total = 0
        self._window = ""

    def __enter__(self) -> Self:
        # FSDP gives gathered weights back by shrinking their storage, which no dispatch mode gets to see.
        self._resize = torch.UntypedStorage.resize_
        torch.UntypedStorage.resize_ = self._resized()  # type: ignore[method-assign,assignment]
        super().__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(self, *failure: object) -> None:
        super().__exit__(*failure)  # type: ignore[no-untyped-call]
        torch.UntypedStorage.resize_ = self._resize  # type: ignore[method-assign]

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: Any = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        if any(issubclass(kind, DTensor) for kind in types):
            return NotImplemented  # it comes again, as operations on the local parts
        result = func(*args, **(kwargs or {}))
        for part in tree_iter(result):
            if isinstance(part, torch.Tensor) and not isinstance(part, DTensor):
                self.add_storage(part.untyped_storage())
        return result

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
        elif category and PRIORITY[category] >= PRIORITY.get(block.category, 0):
            self.live_bytes[block.category] -= block.size
            self.live_bytes[category] += block.size
            block.category = category

    def keep_for_backward(self) -> None:
        """Count all live storages without a category as activations; call it after the forward pass.

        Selective recomputation keeps them without saved-tensor hooks, so no hook could categorise them.
        """
        for block in self._blocks.values():
            if block.category == TEMPORARY:
                self.live_bytes[TEMPORARY] -= block.size
                self.live_bytes[ACTIVATIONS] += block.size
                block.category = ACTIVATIONS

    def _forget(self, key: int) -> Callable[[object], None]:
        def forget(_: object) -> None:
            block = self._blocks.pop(key)
            self._change(block.category, -block.size)

        return forget

    def _resized(self) -> Callable[[torch.UntypedStorage, int], torch.UntypedStorage]:
        def resize(storage: torch.UntypedStorage, size: int) -> torch.UntypedStorage:
            self._resize(storage, size)
            if block := self._blocks.get(storage._cdata):  # noqa: SLF001
                change, block.size = size - block.size, size
                self._change(block.category, change)
            return storage

        return resize

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


class TrackingHooks(TensorHooks):
    """Hooks on a model and its optimizer, which report the category of each tensor storage to a MemoryTracker.

    The hooks themselves are those of the memory recorder, which records real runs.
    """

    def __init__(self, model: nn.Module, optimizer: torch.optim.Optimizer, tracker: MemoryTracker) -> None:
        super().__init__(model, optimizer, keep=0)
        self._tracker = tracker

    def note_tensor(self, tensor: torch.Tensor, category: str, label: str) -> None:  # noqa: ARG002
        """Report the category of a tensor's storage to the tracker; `label` is not used."""
        self._tracker.add_storage(local_tensor(tensor).untyped_storage(), category)

    @contextmanager
    def active(self) -> Iterator[None]:
        """Track memory inside this context; existing weights and optimizer state are added first."""
        self.start()
        for tensor, category, label in self.long_lived_tensors():
            self.note_tensor(tensor, category, label)
        with self.note_saved_tensors():
            yield
        self.close()
