"""Decide for each operation of a script whether it runs on tensors without values, and count what it allocates.

The script's own data on the CPU stay real, because their sizes and values determine what the script does. Parameters,
buffers and all tensors on a device have no values and no memory, and so has everything that is computed from them.
"""

import sys
import sysconfig
import traceback
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode, unset_fake_temporarily
from torch.distributed.tensor import DTensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter, tree_map_only

from trainer.estimate.tracker import Peak, RunningModule, StorageCounter
from workbench.recorders.memory.tensor_hooks import INPUTS, local_tensor

aten = torch.ops.aten

PACKAGE_ROOT = Path(__file__).resolve().parents[3]
_LIBRARY_FOLDERS = tuple(
    f"{folder}/"
    for folder in {
        *(sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")),
        *(str(PACKAGE_ROOT / name) for name in ("trainer", "workbench", "analyzers")),
    }
)
"""The folders of Python's library, of installed packages and of this project's packages."""


def _is_user_file(path: str) -> bool:
    return not path.startswith(("<", *_LIBRARY_FOLDERS)) and "/site-packages/" not in path


def shown(path: str, line: int) -> str:
    """Return a source line as text, such as `train.py:41`; paths below the working folder are relative to it."""
    file = Path(path)
    try:
        return f"{file.resolve().relative_to(Path.cwd())}:{line}"
    # The file is elsewhere, or the working folder has been deleted.
    except (ValueError, OSError):
        return f"{file}:{line}"


def _running_line() -> str:
    frame: FrameType | None = sys._getframe(1)  # noqa: SLF001
    while frame is not None:
        if _is_user_file(frame.f_code.co_filename):
            return shown(frame.f_code.co_filename, frame.f_lineno)
        frame = frame.f_back
    return ""


def failed_line(error: BaseException) -> str:
    own = [frame for frame in traceback.extract_tb(error.__traceback__) if _is_user_file(frame.filename)]
    return shown(own[-1].filename, own[-1].lineno or 0) if own else ""


_FLOAT_VALUE, _INTEGER_VALUE = 1.0, 1
"""The values that numbers are assumed to have: neither a division nor a logarithm fails on them."""


class StatedValues:
    """Gives a script a fixed value when it reads a value that the model would compute; the tensors have no values.

    `lines` has the lines of the script that read such a value. A real run may take another branch there.
    """

    def __init__(self) -> None:
        self.lines: dict[str, None] = {}

    def of(self, tensor: torch.Tensor) -> bool | int | float | complex:
        """Return the fixed value for a tensor with one element, by its type: False, 1 or 1.0."""
        self.note()
        if tensor.dtype is torch.bool:
            return False
        if tensor.is_complex():
            return complex(_FLOAT_VALUE)
        return _FLOAT_VALUE if tensor.is_floating_point() else _INTEGER_VALUE

    def filled(self, tensor: torch.Tensor) -> torch.Tensor:
        return torch.full(tuple(tensor.shape), self.of(tensor), dtype=tensor.dtype)

    def note(self) -> None:
        if line := _running_line():
            self.lines[line] = None

    def assumptions(self) -> list[str]:
        if not self.lines:
            return []
        lines = list(self.lines)
        more = f" and {len(lines) - 3} more lines" if len(lines) > 3 else ""
        read = (
            f"values that the model computes are not known: floats read as {_FLOAT_VALUE:g}, integers as"
            f" {_INTEGER_VALUE}, comparisons as False (read at {', '.join(lines[:3])}{more})"
        )
        return [read]


def finite_gradients(_scaler: object, optimizer: Any, _state: object, *args: Any, **kwargs: Any) -> Any:
    """Step the optimizer as `GradScaler` does if all gradients are finite; the real answer would need their values."""
    return optimizer.step(*args, **kwargs)


LSTM, PACK = aten.mkldnn_rnn_layer.default, aten._pack_padded_sequence.default  # noqa: SLF001
_WORKSPACE = 3
"""The index of the workspace in the results of `LSTM`: bytes that the forward pass keeps for the backward pass."""
_TENSORS = 7
"""Number of leading arguments of `LSTM` that are tensors: input, two weights, two biases, and two states."""
LONGEST = 64
"""The most time steps that are run to measure a workspace, which grows linearly with their number."""


def _with_workspace(arguments: Sequence[Any], result: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """Return the results of an LSTM with the workspace that oneDNN would allocate; on fake tensors it is empty."""
    tensors = tuple((tuple(tensor.shape), tensor.dtype) for tensor in arguments[:_TENSORS])
    numbers = tuple(tuple(one) if isinstance(one, list) else one for one in arguments[_TENSORS:])
    workspace = result[_WORKSPACE].new_empty(workspace_bytes(tensors, numbers))
    return (*result[:_WORKSPACE], workspace)


def workspace_bytes(tensors: tuple[tuple[tuple[int, ...], torch.dtype], ...], numbers: tuple[Any, ...]) -> int:
    """Return the bytes of the workspace of an LSTM.

    `tensors` has (shape, dtype) of the LSTM's tensor arguments, and `numbers` its other arguments. oneDNN allocates the
    workspace only when the LSTM runs. So the LSTM is run on zeros. For a long sequence, two short sequences are run
    instead, and the size is extrapolated.
    """
    (length, *rest), dtype = tensors[0]
    if length <= LONGEST:
        return _measured_workspace(tensors, numbers)
    short = [_measured_workspace((((part, *rest), dtype), *tensors[1:]), numbers) for part in (LONGEST // 2, LONGEST)]
    return short[1] + round((short[1] - short[0]) / (LONGEST - LONGEST // 2) * (length - LONGEST))


@lru_cache
def _measured_workspace(tensors: tuple[tuple[tuple[int, ...], torch.dtype], ...], numbers: tuple[Any, ...]) -> int:
    """Run an LSTM on zeros, and return the bytes of its workspace; see `workspace_bytes` for the arguments."""
    # Without gradients the library keeps nothing for a backward pass.
    with unset_fake_temporarily(), torch.enable_grad():
        values = [torch.zeros(shape, dtype=dtype) for shape, dtype in tensors]
        return LSTM(*values, *numbers)[_WORKSPACE].numel()  # type: ignore[no-any-return]


def packed(sequences: Tensor, lengths: Tensor, *, batch_first: bool) -> tuple[Tensor, Tensor]:
    """Return (rows without values, batch sizes) of padded sequences, packed by their real lengths.

    The batch sizes are real values, because operations on packed sequences read them.
    """
    with unset_fake_temporarily():
        template = torch.empty(*sequences.shape[:2], 1)
        rows, batch_sizes = PACK(template, lengths, batch_first)
    return sequences.new_empty(rows.shape[0], *sequences.shape[2:]), batch_sizes


# Give sizes to what a router picks: which tokens an expert gets depends on values that are not known.
#
# What is known is among how many experts a token chooses. Example: `topk` of [1024, 8] scores picks 2 of 8 experts for
# each token. `picked == 3` then has 1024 x 2 elements, of which an eighth is true if all experts are chosen evenly, so
# `torch.where(picked == 3)` has 256 rows. Without a known number of experts such an operation is refused, as before.

_CHOOSING: Mapping[Any, Callable[[Sequence[Any]], int]] = {
    aten.topk.default: lambda args: int(args[2]) if len(args) > 2 else -1,
    aten.max.dim: lambda args: int(args[1]),
    aten.argmax.default: lambda args: -1 if len(args) < 2 or args[1] is None else int(args[1]),
}
"""{operation that chooses among the elements of a dimension: function of its arguments that returns the dimension}."""
_KEEPING = {
    aten.eq.Scalar, aten.eq.Tensor, aten.gt.Scalar, aten.any.default, aten.sum.default,
    aten._to_copy.default, aten.clone.default,  # noqa: SLF001
}  # fmt: skip
"""Operations whose result depends on choices if their first argument does."""
_INDEXING = {aten.index.Tensor, aten.index_put.default, aten.index_put_.default}


class Choices:
    """Remembers for tensors without values among how many experts they choose; views share what their base knows."""

    def __init__(self) -> None:
        self._experts: dict[int, tuple[weakref.ref[torch.UntypedStorage], int]] = {}
        self.lines: dict[str, int] = {}

    def of(self, tensor: Tensor) -> int:
        """Return among how many experts the elements of a tensor choose; 0 if that is not known."""
        storage = tensor.untyped_storage()
        reference, experts = self._experts.get(storage._cdata, (None, 0))  # noqa: SLF001
        # A storage that is gone may have left its address to another one.
        return experts if reference is not None and reference() is storage else 0

    def note(self, func: Any, args: Sequence[Any], result: Any) -> None:
        if func in _CHOOSING and args[0].dim():
            chosen = result[1] if isinstance(result, (tuple, list)) else result
            self._remember(chosen, int(args[0].shape[_CHOOSING[func](args)]))
        elif func is aten.scatter_.value and self.of(args[2]):
            # The way in which `one_hot` marks what was chosen.
            self._remember(args[0], int(args[0].shape[args[1]]))
        elif func in _KEEPING and (experts := self.of(args[0])):
            self._remember(result, experts)

    def _remember(self, tensor: Tensor, experts: int) -> None:
        storage = tensor.untyped_storage()
        self._experts[storage._cdata] = weakref.ref(storage), experts  # noqa: SLF001

    def is_true(self, tensor: Tensor) -> bool:
        return tensor.dtype is torch.bool and self.of(tensor) > 0

    def rows(self, mask: Tensor) -> Tensor | None:
        """Return the indexes of the true elements of a mask, without values; None if their number is not known."""
        experts = self.of(mask)
        if not experts:
            return None
        self.lines[_running_line()] = experts
        count = -(-mask.numel() // experts)
        return mask.new_empty((count, mask.dim()), dtype=torch.int64)

    def without_masks(self, func: Any, args: Sequence[Any]) -> Sequence[Any]:
        if func not in _INDEXING:
            return args
        indices: list[Tensor | None] = []
        for index in args[1]:
            is_mask = index is not None and index.dtype is torch.bool
            rows = self.rows(index) if is_mask else None
            indices += [index] if rows is None else list(rows.unbind(1))
        return [args[0], indices, *args[2:]]

    def assumptions(self) -> list[str]:
        if not self.lines:
            return []
        lines = [line for line in self.lines if line]
        where = f" ({', '.join(lines[:3])})" if lines else ""
        most = max(self.lines.values())
        return [f"tokens are distributed evenly over {most} experts{where}; the expert that gets most needs more"]


HOST = "cpu"
_WRAPPERS = ("torch/_compile.py", "torch/_dynamo/eval_frame.py")
"""The files of torch whose frames lie between a dispatch mode and its caller on the call stack."""


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
            self.by_device[name] = StorageCounter(_running_line, self.running)
            self.by_device[name].window(self._window)
        return self.by_device[name]

    def add(self, tensor: torch.Tensor, category: str | None = None, module: str = "") -> None:
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
        if func is PACK and not isinstance(args[1], FakeTensor):
            return packed(self._without_values(args[0]), args[1], batch_first=args[2])
        args, kwargs = tree_map_only(torch.Tensor, self._without_values, (args, kwargs))
        if func is aten.nonzero.default and (rows := self.choices.rows(args[0])) is not None:
            return rows
        result = func(*self.choices.without_masks(func, args), **kwargs)
        self.choices.note(func, args, result)
        return _with_workspace(args, result) if func is LSTM else result

    def _without_values(self, tensor: torch.Tensor) -> torch.Tensor:
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
    while frame is not None and frame.f_code.co_filename.endswith(_WRAPPERS):
        frame = frame.f_back
    return frame is not None and frame.f_code.co_name == "_engine_run_backward"


def _is_on_device(device: Any) -> bool:
    return device is not None and torch.device(device).type not in (HOST, "meta")


def _is_upload(inputs: list[torch.Tensor], result: torch.Tensor) -> bool:
    return bool(inputs) and inputs[0].device.type == HOST and result.device.type != HOST
