"""Decide for each operation of a script whether it runs on tensors without values, and count what it allocates.

The script's own data on the CPU stay real, because their sizes and values determine what the script does. Parameters,
buffers and all tensors on a device have no values and no memory, and so has everything that is computed from them.
"""

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import FrameType
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode, unset_fake_temporarily
from torch.distributed.tensor import DTensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter, tree_map_only

from trainer.estimate.module_names import RunningModule
from trainer.estimate.script import recurrent
from trainer.estimate.script.places import running_line
from trainer.estimate.script.routing import Choices
from trainer.estimate.script.stated_values import StatedValues
from trainer.estimate.storage_counter import Peak, StorageCounter
from workbench.recorders.memory.tensor_hooks import INPUTS, local_tensor

HOST = "cpu"
_WRAPPERS = ("torch/_compile.py", "torch/_dynamo/eval_frame.py")
"""The files of torch whose frames lie between a dispatch mode and its caller on the call stack."""
aten = torch.ops.aten


class Counters:
    """Counts the bytes of live tensor storages, with one `StorageCounter` for each device."""

    def __init__(self) -> None:
        self.by_device: dict[str, StorageCounter] = {}
        self.running = RunningModule()
        self._window = "set-up"
        self._first: dict[str, dict[str, Peak]] = {}

    def of(self, tensor: torch.Tensor) -> StorageCounter:
        """Return the counter of the tensor's device; it is created on first use."""
        name = str(tensor.device)
        if name not in self.by_device:
            self.by_device[name] = StorageCounter(running_line, self.running)
            self.by_device[name].window(self._window)
        return self.by_device[name]

    def add(self, tensor: torch.Tensor, category: str | None = None, module: str = "") -> None:
        """Count the storage of a tensor; `category` and `module` say what it is for, if known."""
        part = local_tensor(tensor)
        self.of(part).add_storage(part.untyped_storage(), category, module)

    def hand_over(self, tensor: torch.Tensor) -> None:
        """Stop counting a tensor that becomes a parameter or a buffer, which takes the tensor's memory over."""
        part = local_tensor(tensor)
        # The storage of a view stays with its base.
        if part.untyped_storage().nbytes() == part.nbytes:
            self.of(part).resize(part.untyped_storage(), 0)

    def resizing(self, resize: Callable[..., torch.UntypedStorage]) -> Callable[..., torch.UntypedStorage]:
        """Return `UntypedStorage.resize_`, wrapped to count the new size; FSDP frees gathered weights by resizing."""

        def resized(storage: torch.UntypedStorage, size: int) -> torch.UntypedStorage:
            resize(storage, size)
            for counter in self.by_device.values():
                counter.resize(storage, size)
            return storage

        return resized

    def window(self, name: str) -> None:
        """Start or continue the window `name` (a part of the step) on all devices."""
        self._window = name
        for counter in self.by_device.values():
            counter.window(name)

    def end_first_step(self) -> None:
        """Store the peaks of the first step, and begin new ones, because in later steps more categories are known."""
        for name, counter in self.by_device.items():
            self._first[name], counter.peaks = counter.peaks, {}
        self.window(self._window)

    def peaks(self) -> dict[str, dict[str, Peak]]:
        """Return {device: {window: peak}}, with the higher peak of the first and the later steps.

        If both are equal, the peak of the later steps is returned.
        """
        return {
            name: {
                window: max(
                    (step[window] for step in (counter.peaks, self._first.get(name, {})) if window in step),
                    key=lambda peak: peak.total,
                )
                for window in {**self._first.get(name, {}), **counter.peaks}
            }
            for name, counter in self.by_device.items()
        }


class ScriptTensors(TorchDispatchMode):
    """Runs each operation of a script, on real or on fake tensors, and counts the memory of its results."""

    def __init__(self, fake: FakeTensorMode, counters: Counters, values: StatedValues, *, on_cuda: bool) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._on_cuda = on_cuda
        self._fake, self._counters, self._values, self.choices = fake, counters, values, Choices()

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: Any = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if any(issubclass(kind, DTensor) for kind in types):
            return NotImplemented  # it comes again, as operations on the local parts
        if func is torch.ops.prim.device.default:
            return device_for_autograd(args[0])
        inputs = list(tensors_in((args, kwargs)))
        # C++ code of the backward pass asks for the device that it saw, as in a cast back to the type of a parameter.
        asks_for_host = not inputs or kwargs.get("device") == torch.device(HOST)
        if self._on_cuda and asks_for_host and _is_called_by_autograd(sys._getframe(1)):  # noqa: SLF001
            kwargs = {**kwargs, "device": torch.device("cuda:0")}
        if not any(isinstance(tensor, FakeTensor) for tensor in inputs) and not _is_on_device(kwargs.get("device")):
            with unset_fake_temporarily():
                return self._counted(func, func(*args, **kwargs), inputs)
        if func is aten._local_scalar_dense.default:  # noqa: SLF001
            return self.choices.is_true(inputs[0]) or self._values.of(inputs[0])
        # This returns a bool of Python and no tensor, so that no read of a value follows.
        if func is aten.equal.default:
            self._values.note()
            return False
        return self._counted(func, self._rehearsed(func, args, kwargs), inputs)

    def _rehearsed(self, func: Any, args: Any, kwargs: Mapping[str, Any]) -> Any:
        """Return the result of an operation on tensors without values."""
        if func is recurrent.PACK and not isinstance(args[1], FakeTensor):
            return recurrent.packed(self._without_values(args[0]), args[1], batch_first=args[2])
        args, kwargs = tree_map_only(torch.Tensor, self._without_values, (args, kwargs))
        if func is aten.nonzero.default and (rows := self.choices.rows(args[0])) is not None:
            return rows
        result = func(*self.choices.without_masks(func, args), **kwargs)
        self.choices.note(func, args, result)
        return recurrent.with_workspace(args, result) if func is recurrent.LSTM else result

    def _without_values(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return the fake tensor that replaces a real tensor; the real tensor is counted as an input of the model."""
        if isinstance(tensor, (FakeTensor, DTensor)):
            return tensor
        self._counters.add(tensor, INPUTS)
        return self._fake.from_tensor(tensor)

    def _counted(self, func: Any, result: Any, inputs: list[torch.Tensor]) -> Any:
        """Count the storages of an operation's result, and return the result.

        If `func` copied one of `inputs` from the CPU to a device, the result is counted as an input of the model.
        """
        # In place of a real tensor the operation returns a copy without values, which takes no memory of its own.
        if func._schema.is_mutable and inputs and not isinstance(inputs[0], FakeTensor):  # noqa: SLF001
            return result
        category = INPUTS if func is aten._to_copy.default and _is_upload(inputs, result) else None  # noqa: SLF001
        for tensor in tensors_in(result):
            self._counters.add(tensor, category)
        return result


def tensors_in(tree: object) -> Iterator[torch.Tensor]:
    """Yield the tensors in nested arguments or results, except DTensors."""
    for leaf in tree_iter(tree):
        if isinstance(leaf, torch.Tensor) and not isinstance(leaf, DTensor):
            yield leaf


def device_for_autograd(tensor: Any) -> torch.device:
    """Return the device of a fake tensor for C++ code: the CPU, or `meta` while a kernel runs.

    The backward pass asks a device for its streams, and PyTorch without CUDA has none. Python code reads the simulated
    device from an attribute of the tensor.
    """
    return torch.device("meta" if tensor.fake_mode.in_kernel_invocation else HOST)


def _is_called_by_autograd(frame: FrameType | None) -> bool:
    """Return whether C++ code of the backward pass called an operation; `frame` is the operation's caller in Python."""
    while frame is not None and frame.f_code.co_filename.endswith(_WRAPPERS):
        frame = frame.f_back
    return frame is not None and frame.f_code.co_name == "_engine_run_backward"


def _is_on_device(device: Any) -> bool:
    """Return whether `device`, on which an operation shall allocate, is neither the CPU nor meta; False for None."""
    return device is not None and torch.device(device).type not in (HOST, "meta")


def _is_upload(inputs: list[torch.Tensor], result: torch.Tensor) -> bool:
    """Return whether an operation with these inputs copied a tensor from the CPU to a device."""
    return bool(inputs) and inputs[0].device.type == HOST and result.device.type != HOST
