"""Track the memory of a step on fake tensors; the hooks that record real runs report the categories."""

import sys
import weakref
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Self

import torch
from torch import nn
from torch.autograd.graph import Node
from torch.distributed.tensor import DTensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter

from workbench.recorders.memory.block_categories import category_of_function
from workbench.recorders.memory.tensor_hooks import (
    ACTIVATIONS,
    COMMUNICATION,
    GRADIENTS,
    INPUTS,
    MODULE,
    OPTIMIZER_STATE,
    PARAMETERS,
    PRIORITY,
    TEMPORARY,
    TensorHooks,
    local_tensor,
    without_wrappers,
)

ROOT, LOSS, NO_MODULE = "(model)", "(loss)", "(no module)"
"""The names for memory that belongs to no part of the model.

They are for what the model itself allocates outside of its parts, for the loss, and for all else, such as an update.
"""
_OWN_ROWS = {INPUTS: "(inputs)", COMMUNICATION: "(communication)"}
"""{category that belongs to no module: the name under which its memory is listed}."""
_LABEL_ENDS = {PARAMETERS: 1, GRADIENTS: 1, OPTIMIZER_STATE: 2}
"""{category: number of parts of a label after the module's name}: 1 in `wq.weight`, 2 in `wq.weight.exp_avg`."""


class ModuleNames:
    """The names of a model's modules, in which `*` replaces the number of a layer.

    For example, the modules `layers.0.wq` and `layers.1.wq` share the name `layers.*.wq`.
    """

    def __init__(self) -> None:
        self._stacks: set[str] = set()
        self._folded: dict[str, str] = {}

    def learn(self, model: nn.Module) -> None:
        self._stacks |= {without_wrappers(name) for name, module in model.named_modules() if _is_stack(module)}
        # Names that were folded before may contain one of the new stacks.
        self._folded.clear()

    def folded(self, name: str) -> str:
        """Return the name of a module with `*` in place of the number of each layer; `ROOT` for an empty name."""
        if name not in self._folded:
            parts = name.split(".")
            stars = ["*" if ".".join(parts[:at]) in self._stacks else part for at, part in enumerate(parts)]
            self._folded[name] = ".".join(stars) or ROOT
        return self._folded[name]

    def owner(self, category: str, label: str) -> str:
        """Return the module to which a tensor belongs, by its category (such as parameters) and its label.

        A parameter with the label `layers.0.wq.weight` belongs to `layers.*.wq`. Inputs and communication belong to no
        module; their result is a name in parentheses, such as `(inputs)`. For all other categories the result is empty.
        """
        if category in _LABEL_ENDS:
            return self.folded(".".join(label.split(".")[: -_LABEL_ENDS[category]]))
        return _OWN_ROWS.get(category, "")


def _is_stack(module: nn.Module) -> bool:
    children = dict(module.named_children())
    if not children or not all(name.isdigit() for name in children):
        return False
    kinds = {type(child) for child in children.values()}
    return isinstance(module, (nn.ModuleList, nn.ModuleDict)) or (len(children) > 1 and len(kinds) == 1)


class RunningModule:
    """Knows the name of the module that is running now.

    In the backward pass, the running module is the one whose forward pass created the autograd node that is running.
    Autograd numbers nodes in the order of their creation. `mark` stores the number at which each module's forward pass
    begins or continues.
    """

    def __init__(self) -> None:
        self.names = ModuleNames()
        self._numbers: list[int] = []
        self._names: list[str] = []

    def mark(self, name: str) -> None:
        self._numbers.append(torch._C._autograd._get_sequence_nr())  # noqa: SLF001
        self._names.append(name)

    @property
    def name(self) -> str:
        """The name of the module that is running now.

        If no module is running, this is `LOSS` in the forward or backward pass, and `NO_MODULE` outside of both.
        """
        if self._names and self._names[-1]:
            return self._names[-1]
        # The stub of torch says that there always is one.
        node: Node | None = torch._C._current_autograd_node()  # noqa: SLF001
        if node is None:
            # An update runs without gradients.
            return LOSS if torch.is_grad_enabled() else NO_MODULE
        at = bisect_right(self._numbers, node._sequence_nr()) - 1  # noqa: SLF001
        return (self._names[at] if at >= 0 else "") or LOSS


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
            owner = module or _OWN_ROWS.get(category) or sharded or self.running.name
            reference = weakref.ref(storage, self._forget(key))
            block = self._blocks[key] = Block(storage.nbytes(), category, owner, reference)
            self._change(block, block.size)
        elif category and PRIORITY.get(category, 0) >= PRIORITY.get(block.category, 0):
            self._move(block, category, module or _OWN_ROWS.get(category) or block.module)

    def keep_for_backward(self) -> None:
        """Count all live storages without a category as activations, after the forward pass.

        Selective recomputation keeps such storages without saved-tensor hooks. So no hook could report their category.
        """
        self.move(TEMPORARY, ACTIVATIONS)

    def move(self, old: str, new: str) -> None:
        for block in self._blocks.values():
            if block.category == old:
                self._move(block, new, _OWN_ROWS.get(new) or block.module)

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
