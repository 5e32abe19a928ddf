"""Track the memory of a step on fake tensors; the hooks that record real runs report the categories."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Self

import torch
from torch import nn
from torch.distributed.tensor import DTensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter

from trainer.estimate.storage_counter import StorageCounter
from workbench.recorders.memory.tensor_hooks import MODULE, TensorHooks, local_tensor


class MemoryTracker(StorageCounter, TorchDispatchMode):
    """Counts the bytes of live tensor storages in a `with` block.

    `peaks` is {part of the step, such as "backward": its peak}.
    """

    def __init__(self) -> None:
        StorageCounter.__init__(self)
        TorchDispatchMode.__init__(self)  # type: ignore[no-untyped-call]

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

    def _resized(self) -> Callable[[torch.UntypedStorage, int], torch.UntypedStorage]:
        def resize(storage: torch.UntypedStorage, size: int) -> torch.UntypedStorage:
            self._resize(storage, size)
            self.resize(storage, size)
            return storage

        return resize


class TrackingHooks(TensorHooks):
    """Hooks on a model and its optimizer that report the category of each tensor storage to a `MemoryTracker`.

    The memory recorder uses the same hooks to record real runs.
    """

    def __init__(self, model: nn.Module, optimizer: torch.optim.Optimizer, tracker: MemoryTracker) -> None:
        super().__init__(model, optimizer, keep=0)
        self._tracker = tracker
        tracker.running.names.learn(model)

    def note_tensor(self, tensor: torch.Tensor, category: str, label: str) -> None:
        """Report the category and the module of a tensor's storage to the tracker."""
        module = self._tracker.running.names.owner(category, label)
        self._tracker.add_storage(local_tensor(tensor).untyped_storage(), category, module)

    def _add(self, address: int, kind: str, label: str) -> None:
        if kind == MODULE:
            running = self._tracker.running
            running.mark(running.names.folded(label) if self._modules else "")
        super()._add(address, kind, label)

    @contextmanager
    def active(self) -> Iterator[None]:
        """Track memory inside this context; existing weights and optimizer state are added first."""
        self.start()
        for tensor, category, label in self.long_lived_tensors():
            self.note_tensor(tensor, category, label)
        with self.note_saved_tensors():
            yield
        self.close()
