"""Log the tensor operations of a step with the smallest and largest value of each result, to find the first NaN.

Each operation costs one more reduction, over its result. The smallest and largest value stay on the device until they
are needed.
"""

import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from workbench.recorders.memory.tensor_hooks import Removable, without_wrappers
from workbench.recorders.module_hooks import ModuleHook
from workbench.recorders.signals import ignoring

_UNWRITTEN = ("aten.empty", "aten.new_empty", "aten.empty_like", "c10d.", "c10d_functional.", "fsdp.")
"""The operations that are not logged, because their result has no values yet or gets them from another rank.

Such a tensor is logged, with the kind `input`, when another operation reads it.
"""
_NO_RANGE = (torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)
_MOST_OPERATIONS = 200_000
"""The number of operations after which the log is cleared; without an optimizer step it would grow forever."""
_LIBRARY = (str(Path(torch.__file__).parent), str(Path(__file__).resolve().parents[1]))
Given = tuple[tuple[object, ...], dict[str, object] | None]
"""The positional and the keyword arguments of an operation."""
BACKWARD, FORWARD, INPUT = "backward", "forward", "input"


@dataclass
class Operation:
    """An operation in the log, or a tensor that no logged operation wrote (then `kind` is `input`).

    `module` is the name of the module that ran the operation, and `line` the source line in the user's code. `parents`
    has the indices in the log of the operations that wrote its inputs. `range` has the smallest and largest value of
    its result, on the device. `tensor` is the name of the parameter or buffer that the operation wrote to, or empty.
    `elements` is the number of elements of the result.
    """

    kind: str
    name: str
    module: str
    line: str
    parents: list[int]
    range: Tensor
    dtype: str
    tensor: str = ""
    elements: int = 0


class OperationLog(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Logs all tensor operations of this process between `begin` and `end`, and the module that runs each of them.

    `operations` is the log. `writers` maps a storage (a number from `storage_of`) to the index in the log of the
    operation that last wrote to it. Hooks on the modules of `models` say which module is running.
    """

    def __init__(self, models: Sequence[nn.Module]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.operations: list[Operation] = []
        self.writers: dict[int, int] = {}
        self.names: dict[int, str] = {}
        self._running = [""]
        self._origins: dict[int, tuple[str, str]] = {}
        self._handles: list[Removable] = [handle for model in models for handle in self._hook(model)]

    def clear(self, named: Iterable[tuple[str, Tensor]]) -> None:
        """Empty the log; `named` has (name, tensor) of parameters and buffers, whose names then appear in the log."""
        self.operations.clear()
        self.writers.clear()
        self._origins.clear()
        self.names = {storage_of(tensor): name for name, tensor in named if storage_of(tensor)}

    def begin(self) -> None:
        self.__enter__()  # type: ignore[no-untyped-call]

    def end(self) -> None:
        self.__exit__(None, None, None)  # type: ignore[no-untyped-call]

    def close(self) -> None:
        for handle in self._handles:
            handle.remove()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        with ignoring(NotImplementedError):
            self._log(func, (args, kwargs), result)
        return result

    def _log(self, func: Any, given: Given, result: object) -> None:
        name = str(func).removesuffix(".default")
        outputs = _written_by(func, given, result)
        if len(self.operations) >= _MOST_OPERATIONS:
            self.clear([])
        if name.startswith(_UNWRITTEN):
            for tensor in outputs:
                # The memory may be that of a freed tensor, whose writer must not count as the writer of this one.
                self.writers.pop(storage_of(tensor), None)
            return
        parents = [self._writer(tensor) for tensor in tensors_in(given) if has_range(tensor)]
        ranges = [_range_of(tensor) for tensor in outputs if has_range(tensor)]
        if not ranges:
            return
        kind, module, line = self._position()
        if kind == BACKWARD:
            name = f"{name} in {torch._C._current_autograd_node().name()}"  # noqa: SLF001  # no public name
        first = next(tensor for tensor in outputs if has_range(tensor))
        written = self.names.get(storage_of(first), "")
        self.operations.append(
            Operation(kind, name, module, line, parents, joined(ranges), str(first.dtype), written, first.numel())
        )
        for tensor in outputs:
            self.writers[storage_of(tensor)] = len(self.operations) - 1

    def _writer(self, tensor: Tensor) -> int:
        """Return the index in the log of the operation that wrote a tensor.

        If no operation wrote it, the tensor is first added to the log, as an operation of kind `input`.
        """
        storage = storage_of(tensor)
        if storage not in self.writers:
            name, module, line = self.names.get(storage, ""), self._running[-1], _user_line()
            self.operations.append(
                Operation(INPUT, "", module, line, [], _range_of(tensor), str(tensor.dtype), name, tensor.numel())
            )
            self.writers[storage] = len(self.operations) - 1
        return self.writers[storage]

    def _position(self) -> tuple[str, str, str]:
        """Return (kind, module, user's source line) of the operation that has just run.

        `kind` is "forward" or "backward". A backward operation gets the module and line of the forward operation whose
        gradient it computes. Autograd gives both operations the same sequence number.
        """
        node: Any = torch._C._current_autograd_node()  # noqa: SLF001  # no public name
        if node is not None:
            return BACKWARD, *self._origins.get(node._sequence_nr(), ("", ""))  # noqa: SLF001
        position = self._running[-1], _user_line()
        if torch.is_grad_enabled():
            # The counter has the number of the next operation; the one that just ran has the number before it.
            self._origins[torch._C._autograd._get_sequence_nr() - 1] = position  # noqa: SLF001
        return FORWARD, *position

    def _hook(self, model: nn.Module) -> Iterator[Removable]:
        for name, module in model.named_modules():
            # First, so that the operations of the script's own hooks count as this module's, too.
            yield module.register_forward_pre_hook(ModuleHook(self._enters(without_wrappers(name))), prepend=True)
            # Also after an exception, which would otherwise leave the module on the stack.
            yield module.register_forward_hook(ModuleHook(self._leaves), always_call=True)

    def _enters(self, name: str) -> Any:
        def enter(_: nn.Module, __: object) -> None:
            self._running.append(name)

        return enter

    def _leaves(self, _: nn.Module, __: object, ___: object) -> None:
        self._running.pop()


def _written_by(func: Any, given: Given, result: object) -> list[Tensor]:
    """Return the tensors that an operation wrote: arguments that it changes in place, or else its results.

    `func` is the operation, `given` its (arguments, keyword arguments), and `result` what it returned. A result that is
    a view of an argument is left out, because the operation wrote nothing to it.
    """
    arguments, keywords = given
    if func._schema.is_mutable:  # noqa: SLF001  # no public name
        declared = zip(func._schema.arguments, arguments, strict=False)  # noqa: SLF001
        changed = [value for one, value in declared if one.alias_info is not None and one.alias_info.is_write]
        return [tensor for tensor in tensors_in([changed, (keywords or {}).get("out")]) if storage_of(tensor)]
    sources = {storage_of(tensor) for tensor in tensors_in(given)}
    return [tensor for tensor in tensors_in(result) if storage_of(tensor) and storage_of(tensor) not in sources]


def tensors_in(value: object) -> list[Tensor]:
    return [leaf for leaf in tree_leaves(value) if isinstance(leaf, Tensor)]


def local_part(tensor: Tensor) -> Tensor:
    """Return this rank's part of a distributed tensor; return any other tensor unchanged."""
    part = getattr(tensor, "_local_tensor", tensor)
    return part if isinstance(part, Tensor) else tensor


def storage_of(tensor: Tensor) -> int:
    """Return a number that identifies the memory (storage) of a tensor; 0 if the tensor has none."""
    try:
        return int(local_part(tensor).untyped_storage()._cdata)  # noqa: SLF001  # the public data_ptr is 0 for empty ones
    except (NotImplementedError, RuntimeError):
        return 0


def has_range(tensor: Tensor) -> bool:
    """Return whether `_range_of` works for a tensor: the tensor is floating-point or complex, dense and not empty."""
    part = local_part(tensor)
    return (
        part.dtype not in _NO_RANGE and part.numel() > 0 and part.device.type != "meta" and part.layout is torch.strided
    )


def _range_of(tensor: Tensor) -> Tensor:
    """Return the smallest and largest value of a tensor, as float32 of shape (2,) on its device.

    Both are NaN if the tensor has a NaN. Real and imaginary parts of a complex value count as two values.
    """
    part = local_part(tensor).detach()
    if part.is_complex():
        # view_as_real refuses a tensor whose conjugation is still pending.
        part = torch.view_as_real(part.resolve_conj())
    # PyTorch has no aminmax for float8.
    if part.element_size() == 1:
        part = part.to(torch.float16)
    return torch.stack(torch.aminmax(part)).to(torch.float32)


def joined(ranges: Sequence[Tensor]) -> Tensor:
    """Return the smallest and largest value over several tensors, from the `ranges` of the single tensors.

    Argument and result have the form that `_range_of` returns.
    """
    if len(ranges) == 1:
        return ranges[0]
    rows = torch.stack([each.to(ranges[0].device) for each in ranges])
    return torch.stack([rows.amin(0)[0], rows.amax(0)[1]])


def _user_line() -> str:
    """Return the line of the user's code that is running, as `file:line`; empty if there is none.

    It is the line of the innermost stack frame outside of torch and this package.
    """
    frame: FrameType | None = sys._getframe(1)  # noqa: SLF001  # the stack module would format every frame
    while frame is not None:
        if not frame.f_code.co_filename.startswith(_LIBRARY) and not frame.f_code.co_filename.startswith("<"):
            return f"{frame.f_code.co_filename}:{frame.f_lineno}"
        frame = frame.f_back
    return ""
