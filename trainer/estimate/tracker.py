"""Counts the bytes of tensors without memory: what lives, what for, and the highest moment of each window of a step."""

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

DEPTH = 30
"""How many callers of an allocation are looked at for its purpose."""
PRETENDED, PROPAGATION = "pretended", "_sharding_prop.py"
"""DTensor asks tensors without memory, whole ones, for the shapes of results: no run allocates these."""


@dataclass(slots=True)
class Block:
    """A storage that lives."""

    size: int
    category: str
    reference: "weakref.ref[torch.UntypedStorage]"


@dataclass
class Peak:
    """The highest moment of a window: bytes by category."""

    total: int = 0
    categories: dict[str, int] = field(default_factory=dict)


class MemoryTracker(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Active while entered. `peaks` holds the highest moment of each window that `window` has named."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.peaks: dict[str, Peak] = {}
        self.held: Counter[str] = Counter()
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
                self.see(part.untyped_storage())
        return result

    def window(self, name: str) -> None:
        """Begin a window, or go back to one; its highest moment is kept from now on. Without a name nothing is."""
        self._window = name
        self._check_peak()

    def see(self, storage: torch.UntypedStorage, category: str | None = None) -> None:
        """Enter a storage; a category replaces a less weighty one."""
        key = storage._cdata  # noqa: SLF001 - the only identity that a storage has
        block = self._blocks.get(key)
        if block is None:
            kind = category or purpose()
            if kind == PRETENDED:
                return
            block = self._blocks[key] = Block(storage.nbytes(), kind, weakref.ref(storage, self._forget(key)))
            self._change(kind, block.size)
        elif category and PRIORITY[category] >= PRIORITY.get(block.category, 0):
            self.held[block.category] -= block.size
            self.held[category] += block.size
            block.category = category

    def keep_for_backward(self) -> None:
        """What the forward pass leaves behind without a role was kept by selective recomputation."""
        for block in self._blocks.values():
            if block.category == TEMPORARY:
                self.held[TEMPORARY] -= block.size
                self.held[ACTIVATIONS] += block.size
                block.category = ACTIVATIONS

    def _forget(self, key: int) -> Callable[[Any], None]:
        def forget(_: Any) -> None:
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
        self.held[category] += size
        self._total += size
        if size > 0:
            self._check_peak()

    def _check_peak(self) -> None:
        if not self._window:
            return
        highest = self.peaks.setdefault(self._window, Peak())
        if self._total > highest.total:
            highest.total, highest.categories = self._total, dict(self.held)


def purpose() -> str:
    """What a new storage is for, by the functions it is allocated in."""
    frame = sys._getframe(2)  # noqa: SLF001
    for _ in range(DEPTH):
        if frame.f_code.co_filename.endswith(PROPAGATION):
            return PRETENDED
        if known := category_of_function(frame.f_code.co_filename, frame.f_code.co_name):
            return known
        if frame.f_back is None:
            break
        frame = frame.f_back
    return TEMPORARY


class TrackedRoles(TensorHooks):
    """The recorders' hooks on a model and its optimizer, which tell a tracker what its storages are."""

    def __init__(self, model: nn.Module, optimizer: torch.optim.Optimizer, tracker: MemoryTracker) -> None:
        super().__init__(model, optimizer, keep=0)
        self._tracker = tracker

    def note_tensor(self, tensor: torch.Tensor, kind: str, label: str) -> None:  # noqa: ARG002
        """Tell what a tensor is."""
        self._tracker.see(local_tensor(tensor).untyped_storage(), kind)

    @contextmanager
    def noting(self) -> Iterator[None]:
        """Tell roles inside; what lived before is entered first."""
        self.start()
        for tensor, kind, label in self.long_lived_tensors():
            self.note_tensor(tensor, kind, label)
        with self.note_saved_tensors():
            yield
        self.close()
