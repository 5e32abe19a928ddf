"""Replace what an estimate of a script cannot or must not do: compile, save, start processes and communicate."""

import os
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor
from torch.distributions import Distribution
from torch.utils.data import DataLoader

from trainer.estimate.script.model import apply_to_all, buffer_maker, copyable, parameter_maker, replaceable_data
from trainer.estimate.script.stated_values import StatedValues, finite_gradients
from workbench.recorders.memory.tensor_hooks import COMMUNICATION

COMPILED = "no compilation; compiled code keeps fewer activations"
_NOT_SAVED = "torch.save writes nothing"
RECURRENT = "recurrent layers one operation at a time; what cuDNN reserves for them differs, by up to tens of per cent"


class Notes:
    """Collects sentences on how a real run may differ from one on tensors without values, each sentence once."""

    def __init__(self) -> None:
        self.sentences: dict[str, None] = {}

    def add(self, sentence: str) -> None:
        """Add a sentence."""
        self.sentences[sentence] = None


def _not_compiled(notes: Notes) -> Callable[..., Any]:
    """Return a replacement for `torch.compile` (also as a decorator) that compiles nothing and adds a note about it."""

    def compile_nothing(model: Any = None, **_: Any) -> Any:
        notes.add(COMPILED)
        return (lambda function: function) if model is None else model

    return compile_nothing


def _not_saved(notes: Notes) -> Callable[..., None]:
    """Return a replacement for `torch.save` that writes nothing and adds a note about it."""
    return lambda *_, **__: notes.add(_NOT_SAVED)


def _in_this_process(create: Callable[..., None]) -> Callable[..., None]:
    """Return `DataLoader.__init__`, changed to make a loader without worker processes; `create` is the original."""

    def created(loader: DataLoader[Any], *args: Any, **kwargs: Any) -> None:
        # The positional arguments: dataset, batch_size, shuffle, sampler, batch_sampler, num_workers.
        args = (*args[:5], 0, *args[6:]) if len(args) > 5 else args
        # DataLoader refuses the settings of workers if it has none.
        others = {"num_workers": 0, "persistent_workers": False, "prefetch_factor": None, "pin_memory": False}
        kwargs |= {name: value for name, value in others.items() if name in kwargs}
        kwargs.pop("multiprocessing_context", None)
        create(loader, *args, **kwargs)

    return created


def _as_array(values: StatedValues, numpy: Callable[..., Any]) -> Callable[..., Any]:
    """Return `Tensor.numpy`, changed to return an array of fixed values for a tensor without values.

    `numpy` is the original function. The fixed values come from `values`.
    """

    def array(tensor: Tensor, *args: Any, **kwargs: Any) -> Any:
        if isinstance(tensor, FakeTensor):
            return np.asarray(values.filled(tensor).tolist())
        return numpy(tensor, *args, **kwargs)

    return array


def _as_list(values: StatedValues, tolist: Callable[..., Any]) -> Callable[..., Any]:
    """Return `Tensor.tolist`, changed to return a list of fixed values for a tensor without values.

    `tolist` is the original function. The fixed values come from `values`.
    """
    return lambda tensor: tolist(values.filled(tensor) if isinstance(tensor, FakeTensor) else tensor)


def formatted(values: StatedValues, write: Callable[..., str]) -> Callable[..., str]:
    """Return `Tensor.__format__`, changed to format the fixed value of a tensor without values.

    `write` is the original function. The fixed values come from `values`.
    """

    def written(tensor: Tensor, specification: str) -> str:
        if isinstance(tensor, FakeTensor) and not tensor.dim():
            return format(values.of(tensor), specification)
        return write(tensor, specification)

    return written


def _with_fake_group(join: Callable[..., None]) -> Callable[..., None]:
    """Return `init_process_group`, changed to join PyTorch's fake group, which sends nothing.

    `join` is the original function.
    """

    def joined(*_: Any, **__: Any) -> None:
        join("fake", rank=int(os.environ.get("RANK", "0")), world_size=int(os.environ.get("WORLD_SIZE", "1")))

    return joined


class CopiedModel(nn.Module):
    """Replaces `DistributedDataParallel`, which needs real memory; its buckets are tensors of the same total size."""

    def __init__(self, module: nn.Module, *_: Any, gradient_as_bucket_view: bool = False, **__: Any) -> None:
        super().__init__()
        self.module = module
        trained = [parameter for parameter in module.parameters() if parameter.requires_grad]
        # With views, gradients lie in the buckets, and their bytes are counted as those of gradients.
        self.buckets = [] if gradient_as_bucket_view else [torch.empty_like(one).detach() for one in trained]

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Run the wrapped module."""
        return self.module(*args, **kwargs)

    def no_sync(self) -> Any:
        """Return a context that does nothing, because no gradients are sent anyway."""
        return torch.enable_grad()


def _copied_model(add: Callable[[Tensor, str], None]) -> type[CopiedModel]:
    """Return a replacement for `DistributedDataParallel` that passes its buckets to `add`, which counts them."""

    class Counted(CopiedModel):
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            for bucket in self.buckets:
                add(bucket, COMMUNICATION)

    return Counted


def patches(fake: Any, counters: Any, values: StatedValues, notes: Notes) -> dict[tuple[Any, str], Any]:
    """Return {(object, attribute): replacement} of everything that works differently while a script is measured."""
    ddp = _copied_model(counters.add)
    make = nn.Parameter.__new__
    return {
        # It looks at values, which are not known.
        (Distribution, "_validate_args"): False,
        (nn.Parameter, "__new__"): staticmethod(parameter_maker(make, fake, counters)),
        (nn.Module, "register_buffer"): buffer_maker(nn.Module.register_buffer, fake, counters),
        (nn.Module, "_apply"): apply_to_all(nn.Module._apply),  # noqa: SLF001
        (nn.Module, "compile"): lambda *_, **__: notes.add(COMPILED),
        (torch, "compile"): _not_compiled(notes),
        (torch, "save"): _not_saved(notes),
        (FakeTensor, "data"): replaceable_data(Tensor.data),
        (torch.UntypedStorage, "resize_"): counters.resizing(torch.UntypedStorage.resize_),
        (Tensor, "__deepcopy__"): copyable(Tensor.__deepcopy__),
        (Tensor, "__format__"): formatted(values, Tensor.__format__),
        (Tensor, "numpy"): _as_array(values, Tensor.numpy),
        (Tensor, "tolist"): _as_list(values, Tensor.tolist),
        (DataLoader, "__init__"): _in_this_process(DataLoader.__init__),
        (torch.amp.GradScaler, "_maybe_opt_step"): finite_gradients,
        (dist, "init_process_group"): _with_fake_group(dist.init_process_group),
        (dist.distributed_c10d, "init_process_group"): _with_fake_group(dist.init_process_group),
        # In both modules, because scripts import the name from either.
        (nn.parallel, "DistributedDataParallel"): ddp,
        (nn.parallel.distributed, "DistributedDataParallel"): ddp,
    }
