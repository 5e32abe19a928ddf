"""Write sums over tensors in each step to `values/rank_R.jsonl`, so that two runs of the same training can be compared.

    values = ValueRecorder("outputs", [model])
    with values.step(n):
        loss(model(batch)).backward()
        values.gradients()
        optimizer.step()

Each line has three sums over this rank's part of a tensor: of the values, of their absolute values, and of their
squares. The tensors are the parameters before the step, the outputs of the modules, the gradients of these outputs,
and the gradients of the parameters.
"""

import json
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, Replicate

from workbench.recorders.files import RankInfo
from workbench.recorders.memory.tensor_hooks import Removable, without_wrappers
from workbench.recorders.module_hooks import ModuleHook
from workbench.recorders.own_files import OwnFile, remove_file

_SIGNATURE = 4096
"""The length of the fixed random vector from which projections are computed."""


class Sums(NamedTuple):
    """Sums over this rank's part of a tensor, and the number of ranks that have the same part (`copies`)."""

    values: Tensor
    """The sum of the values, of their absolute values and of their squares, and the projection if it was asked for.

    It is a float64 tensor of shape (3,) or (4,).
    """
    copies: int = 1
    elements: int = 0
    length: int = 0
    """The number of terms in the longest sum over the tensor: its features or its tokens.

    The rounding error that is expected between two runs follows from it.
    """
    dtype: str = ""
    calls: int = 1


@torch.no_grad()
def sums_of(tensor: Tensor, *, factor: float = 1.0, copies: int = 1, projected: bool = False) -> Sums:
    """Return the sums over this rank's part of `tensor` after multiplying its values by `factor`.

    `projected` adds the scalar product with a fixed random vector (see `projection`). `copies` is the number of ranks
    that have the tensor. For a DTensor, `copies` may be a multiple of the number of ranks in its mesh: then other
    meshes have an equal DTensor.
    """
    if isinstance(tensor, DTensor):
        meshes = max(copies // tensor.device_mesh.size(), 1)
        tensor, copies = _own_part(tensor)
        copies *= meshes
    # In float64, the order of the sum, which depends on the mesh, does not reach the digits that are compared.
    values = tensor.detach().double() * factor
    sums = [values.sum(), values.abs().sum(), values.square().sum()]
    if projected:
        sums.append(projection(values))
    size, features = tensor.numel(), tensor.shape[-1] if tensor.dim() else 1
    length = max(features, size // max(features, 1))
    return Sums(torch.stack(sums), copies, size, length, str(tensor.dtype).removeprefix("torch."))


def projection(values: Tensor) -> Tensor:
    """Return the scalar product of all values with a fixed pseudo-random vector of the same length: () float64.

    Unlike a sum, the result depends on the order of the values. If the values change by a vector `d`, the result
    changes by about the norm of `d` (random projections of Johnson and Lindenstrauss, 1984). The long random vector is
    the outer product of two short ones.
    """
    flat = values.flatten()
    rows = len(flat) // _SIGNATURE
    columns = signature(_SIGNATURE, str(flat.device))
    rest = flat[rows * _SIGNATURE :]
    last = (rest * columns[: len(rest)]).sum()
    if not rows:
        return last
    return (flat[: rows * _SIGNATURE].view(rows, _SIGNATURE) @ columns) @ signature(rows, str(flat.device)) - last


@lru_cache(maxsize=64)
def signature(length: int, device: str) -> Tensor:
    """Return a vector of `length` normal random numbers, which is the same in every run and on every device.

    `projection` combines two such vectors into its long random vector.
    """
    generator = torch.Generator().manual_seed(length)
    return torch.randn(length, dtype=torch.float64, generator=generator).to(device)


def _own_part(tensor: DTensor) -> tuple[Tensor, int]:
    """Return (this rank's part of a DTensor, number of ranks in its mesh with the same part).

    A DTensor with partial sums is first reduced. This is a collective, so all ranks of the mesh must call this
    function.
    """
    if any(placement.is_partial() for placement in tensor.placements):
        placements = [Replicate() if placement.is_partial() else placement for placement in tensor.placements]
        tensor = tensor.redistribute(placements=placements)
    copies = 1
    for dimension, placement in enumerate(tensor.placements):
        copies *= tensor.device_mesh.size(dimension) if placement.is_replicate() else 1
    return tensor.to_local(), copies


_SCHEMA = "workbench.values/1"
DATA, PARAMETER, ACTIVATION = "data", "parameter", "activation"
_ACTIVATION_GRADIENT, GRADIENT = "activation_gradient", "gradient"
_SUMS = ("sum", "absolute", "square", "projection")
_WHOLE = "model"
"""The name under which the outermost module is recorded; `named_modules` gives it an empty name."""
_OUTSIDE_BACKWARD = -1
"""The id of autograd's current graph task when no backward pass is running."""


@dataclass(frozen=True)
class Place:
    """A rank's position in the mesh, as far as it matters for sums that can be compared between meshes.

    `copies` is the number of ranks with the same copy of each parameter that is not a DTensor. Gradients of activations
    are multiplied by `loss_share`, which makes them gradients of the mean loss over all ranks; if it is None, they are
    not recorded. `is_last_stage` says whether the rank has the last stage of the pipeline. `opaque` has the names of
    modules whose inner activations are not recorded, because each rank has a copy or a partial sum of them.
    """

    copies: int = 1
    loss_share: float | None = 1.0
    is_last_stage: bool = True
    opaque: tuple[str, ...] = ()


class ValueRecorder:
    """Records sums over this rank's tensors in each step, with hooks on the modules of `models`."""

    def __init__(self, folder: str | Path, models: Sequence[nn.Module], place: Place | None = None) -> None:
        self._models, self._place = models, place or Place()
        self._rows: dict[tuple[str, str], Sums] = {}
        self._recording = False
        self._file = _open_log(Path(folder))
        self._handles: list[Removable] = [handle for model in models for handle in self._hook(model)]

    @contextmanager
    def step(self, step: int) -> Iterator[None]:
        """Record the step inside this context; write the step's lines at the end, even if the step fails."""
        self._begin()
        try:
            yield
        finally:
            self._end(step)

    def _begin(self) -> None:
        self._rows.clear()
        self._recording = True
        for name, parameter in self._parameters():
            self._add(PARAMETER, name, self._sums(parameter, copies=self._place.copies))

    def _end(self, step: int) -> None:
        self._recording = False
        self._write(step)

    def _sums(self, tensor: Tensor, factor: float = 1.0, copies: int = 1) -> Sums:
        return sums_of(tensor, factor=factor, copies=copies)

    def data(self, inputs: Tensor, labels: Tensor, copies: int) -> None:
        """Record sums over a batch of shape (B, T): over the tokens (`inputs`), and over the tokens with their labels.

        `copies` is the number of ranks with the same batch. Each token and its label are combined in one number. So the
        sums differ if, in another run, a label belongs to a different token.
        """
        if self._recording:
            self._add(DATA, "inputs", self._sums(inputs, copies=copies))
            # Sums of the labels alone stay the same if labels belong to other tokens; the squares here do not.
            self._add(DATA, "labels", self._sums(inputs * 1000 + labels, copies=copies))

    def gradients(self) -> None:
        """Record sums over the gradients of all parameters, when the gradients are complete and not yet clipped."""
        for name, parameter in self._parameters():
            if parameter.grad is not None and self._recording:
                self._add(GRADIENT, name, self._sums(parameter.grad, copies=self._place.copies))

    def close(self) -> None:
        """Remove all hooks and close the file."""
        for handle in self._handles:
            handle.remove()
        self._file.close()

    def _parameters(self) -> Iterator[tuple[str, nn.Parameter]]:
        for model in self._models:
            for name, parameter in model.named_parameters():
                yield without_wrappers(name), parameter

    def _hook(self, model: nn.Module) -> Iterator[Removable]:
        for name, module in self._observed(model):
            yield module.register_forward_hook(ModuleHook(self._after_forward(name)))

    def _observed(self, model: nn.Module) -> Iterator[tuple[str, nn.Module]]:
        """Yield (name, module) of each module of `model` whose outputs are recorded."""
        whole = f"({_WHOLE})" if hasattr(model, _WHOLE) else _WHOLE
        for name, module in model.named_modules():
            is_wrapper = hasattr(module, "_checkpoint_wrapped_module")
            is_whole = bool(name) or self._place.is_last_stage
            if any(part in self._place.opaque for part in name.split(".")[:-1]):
                continue
            # In a pipeline the parts that a rank lacks are identities.
            if is_whole and not is_wrapper and not isinstance(module, nn.Identity | nn.ModuleDict):
                yield without_wrappers(name) or whole, module

    def _after_forward(self, name: str) -> Callable[[nn.Module, object, object], None]:
        def record(_: nn.Module, __: object, output: object) -> None:
            if not self._is_forward:
                return
            outputs = output if isinstance(output, tuple) else (output,)
            for number, tensor in enumerate(outputs):
                if isinstance(tensor, Tensor) and tensor.is_floating_point():
                    self._record_output(f"{name}[{number}]" if len(outputs) > 1 else name, tensor)

        return record

    @property
    def _is_forward(self) -> bool:
        """Whether a forward pass is running in a recorded step; recomputation in the backward pass does not count."""
        return self._recording and torch._C._current_graph_task_id() == _OUTSIDE_BACKWARD  # noqa: SLF001  # no public name

    def _record_output(self, name: str, output: Tensor) -> None:
        self._add(ACTIVATION, name, self._sums(output))
        self._record_gradient(_ACTIVATION_GRADIENT, name, output)

    def _record_gradient(self, kind: str, name: str, tensor: Tensor) -> None:
        """Register a hook on `tensor` that records sums over the tensor's gradient, when the backward pass computes it.

        `kind` and `name` identify the tensor in the file.
        """
        share = self._place.loss_share
        if share is not None and tensor.requires_grad:

            def add_gradient(gradient: Tensor) -> None:
                self._add(kind, name, self._sums(gradient, factor=share))

            tensor.register_hook(add_gradient)  # type: ignore[no-untyped-call]

    def _add(self, kind: str, name: str, sums: Sums) -> None:
        """Add `sums` to the sums of the tensor (kind, name) that earlier microbatches of this step have stored."""
        if before := self._rows.get((kind, name)):
            values, elements = before.values + sums.values.to(before.values.device), before.elements + sums.elements
            sums = sums._replace(values=values, elements=elements, calls=before.calls + 1)
        self._rows[kind, name] = sums

    def _write(self, step: int) -> None:
        if not self._rows:
            return
        first = next(iter(self._rows.values())).values
        # All values are copied from the device in a single transfer.
        values = torch.stack([sums.values.to(first.device) for sums in self._rows.values()]).tolist()
        lines = []
        for ((kind, name), sums), row in zip(self._rows.items(), values, strict=True):
            line = {"step": step, "kind": kind, "name": name, "copies": sums.copies, **self._extra(kind, name, sums)}
            # JSON has no NaN.
            finite = [value if math.isfinite(value) else None for value in row]
            # Not strict: without a projection, there are only three sums.
            lines.append(json.dumps(line | dict(zip(_SUMS, finite, strict=False))) + "\n")
        self._file.append("".join(lines).encode())

    def _extra(self, _kind: str, _name: str, _sums: Sums) -> dict[str, object]:
        """Return additional fields for a line, which a subclass writes besides step, kind, name, copies and sums."""
        return {}


def _open_log(folder: Path) -> OwnFile:
    """Create `values/rank_R.jsonl` of this rank (R) below `folder`, write its header line, and return the open file."""
    info = RankInfo.here()
    path = folder / "values" / f"rank_{info.rank}.jsonl"
    remove_file(path)
    file = OwnFile(path, append=True)
    file.append(json.dumps({"schema": _SCHEMA, "rank": info.rank, "world_size": info.world_size}).encode() + b"\n")
    return file
