"""Replace what an estimate of a script cannot or must not do: compile, save, start processes and communicate."""

import gc
import os
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any
from weakref import WeakSet

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.distributions import Distribution
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.nn.parameter import UninitializedBuffer, UninitializedParameter
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils.data import DataLoader

from trainer.estimate.script.tensors import Counters, StatedValues, finite_gradients
from workbench.recorders.memory.tensor_hooks import (
    COMMUNICATION,
    GRADIENTS,
    INPUTS,
    MODULE,
    PARAMETERS,
    TEMPORARY,
    TensorHooks,
)


class ScriptHooks(TensorHooks):
    """Hooks on a module of a script, as for recording memory; they report categories to `counters`."""

    def __init__(self, model: nn.Module, counters: Counters) -> None:
        self._counters = counters
        counters.running.names.learn(model)
        super().__init__(model, None, keep=0)
        self.start()

    def note_tensor(self, tensor: Tensor, kind: str, label: str) -> None:
        with suppress(NotImplementedError):  # a lazy module has no tensors yet
            self._counters.add(tensor, kind, self._counters.running.names.owner(kind, label))

    def _add(self, address: int, kind: str, label: str) -> None:
        if kind == MODULE:
            running = self._counters.running
            running.mark(running.names.folded(label) if self._modules else "")
        super()._add(address, kind, label)

    def _note_inputs(self, inputs: tuple[object, ...]) -> None:
        """Count the module's inputs in the category of inputs.

        Inputs that require a gradient are left out, because another network has computed them.
        """
        super()._note_inputs(tuple(value for value in inputs if not getattr(value, "requires_grad", False)))


def _without_values(fake: FakeTensorMode, tensor: Tensor) -> Tensor:
    if isinstance(tensor, FakeTensor) or type(tensor) not in (Tensor, nn.Parameter, nn.Buffer):
        return tensor
    if tensor.is_meta:
        return tensor
    plain = tensor.detach()
    # Otherwise `ScriptTensors` would make it on the CPU, as it makes the script's own data.
    with _disable_current_modes(), fake:
        return torch.empty_strided(plain.size(), plain.stride(), dtype=plain.dtype, device=plain.device)


def _taken_over(fake: FakeTensorMode, tensor: Tensor, counters: Counters) -> Tensor:
    """Return the fake tensor for a tensor that becomes a parameter or buffer, whose memory is not counted again."""
    empty = _without_values(fake, tensor)
    if empty is not tensor:
        counters.hand_over(tensor)
    return empty


def _parameter_maker(make: Callable[..., Any], fake: FakeTensorMode, counters: Counters) -> Callable[..., Any]:
    """Return `nn.Parameter.__new__`, changed to make parameters without values; `make` is the original function.

    The parameters are fake tensors of the mode `fake`, and are counted as parameters in `counters`.
    """

    def made(cls: type, data: Tensor | None = None, requires_grad: bool = True, **rest: Any) -> Any:
        if data is None or issubclass(cls, (UninitializedParameter, UninitializedBuffer)):
            return make(cls, data, requires_grad, **rest)
        empty = _taken_over(fake, data, counters)
        parameter = make(cls, empty, requires_grad, **rest)
        if not parameter.is_meta:
            counters.add(parameter, PARAMETERS)
        return parameter

    return made


def _buffer_maker(register: Callable[..., None], fake: FakeTensorMode, counters: Counters) -> Callable[..., None]:
    """Return `Module.register_buffer`, changed to make buffers without values; `register` is the original function.

    The buffers are fake tensors of the mode `fake`, and are counted like parameters in `counters`.
    """

    def registered(module: nn.Module, name: str, tensor: Tensor | None, *args: Any, **kwargs: Any) -> None:
        empty = None if tensor is None else _taken_over(fake, tensor, counters)
        register(module, name, empty, *args, **kwargs)
        if empty is not None and not empty.is_meta:
            counters.add(empty, PARAMETERS)

    return registered


def _apply_to_all(apply: Callable[..., nn.Module]) -> Callable[..., nn.Module]:
    """Return `Module._apply`, changed to replace the data of fake parameters in place; `apply` is the original.

    For real parameters, PyTorch itself replaces the data in place.
    """

    def applied(module: nn.Module, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> nn.Module:
        own = [parameter for parameter in module._parameters.values() if parameter is not None]  # noqa: SLF001
        if not all(isinstance(parameter, FakeTensor) for parameter in own):
            return apply(module, fn, recurse)
        for child in module.children() if recurse else ():
            child._apply(fn)  # type: ignore[no-untyped-call]  # noqa: SLF001
        with torch.no_grad():
            for parameter in own:
                _replace_data(parameter, fn)
            for name, buffer in module._buffers.items():  # noqa: SLF001
                module._buffers[name] = None if buffer is None else fn(buffer)  # noqa: SLF001
        return module

    return applied


def _replace_data(parameter: Any, fn: Callable[[Tensor], Tensor]) -> None:
    gradient, parameter.grad = parameter.grad, None
    parameter.data = fn(parameter.detach())
    parameter.grad = None if gradient is None else fn(gradient)


def _replaceable_data(data: Any) -> property:
    """Return the property `Tensor.data`, changed so that a fake tensor takes over the device of assigned data.

    `data` is the original property.
    """

    def put(tensor: Any, value: Any) -> None:
        data.__set__(tensor, value)
        if isinstance(value, FakeTensor):
            # A fake tensor keeps its device in an attribute of its own, which setting the data leaves unchanged.
            tensor.fake_device = value.fake_device

    return property(data.__get__, put)


def _copyable(copy_tensor: Callable[..., Any]) -> Callable[..., Any]:
    """Return `Tensor.__deepcopy__`, changed to copy a fake tensor without its fake mode.

    `copy_tensor` is the original function.
    """

    def copied(tensor: Tensor, memo: dict[int, Any]) -> Any:
        if not isinstance(tensor, FakeTensor) or not tensor.is_leaf:
            return copy_tensor(tensor, memo)
        if id(tensor) not in memo:
            data = tensor.detach().clone()
            is_parameter = isinstance(tensor, nn.Parameter)
            copy = (
                nn.Parameter(data, tensor.requires_grad) if is_parameter else data.requires_grad_(tensor.requires_grad)
            )
            copy.grad = None if tensor.grad is None else tensor.grad.clone()
            memo[id(tensor)] = copy
        return memo[id(tensor)]

    return copied


def modules() -> Iterator[nn.Module]:
    """Yield all live modules of this process."""
    for value in gc.get_objects():
        with suppress(ReferenceError):
            # `isinstance` would ask proxies for their class, and so run their code.
            if issubclass(type(value), nn.Module):
                yield value


def _note_parameters(counters: Counters) -> None:
    """Count the parameters and buffers of all live modules as parameters, even if no step runs the module."""
    for module in modules():
        for tensor in (*module.parameters(recurse=False), *module.buffers(recurse=False)):
            if not tensor.is_meta:
                counters.add(tensor, PARAMETERS)


COMPILED = "no compilation; compiled code keeps fewer activations"
_NOT_SAVED = "torch.save writes nothing"
_RECURRENT = "recurrent layers one operation at a time; what cuDNN reserves for them differs, by up to tens of per cent"


class Notes:
    """Collects sentences on how a real run may differ from one on tensors without values, each sentence once."""

    def __init__(self) -> None:
        self.sentences: dict[str, None] = {}

    def add(self, sentence: str) -> None:
        self.sentences[sentence] = None


def _not_compiled(notes: Notes) -> Callable[..., Any]:
    """Return a replacement for `torch.compile` (also as a decorator) that compiles nothing and adds a note about it."""

    def compile_nothing(model: Any = None, **_: Any) -> Any:
        notes.add(COMPILED)
        return (lambda function: function) if model is None else model

    return compile_nothing


def _not_saved(notes: Notes) -> Callable[..., None]:
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
        (nn.Parameter, "__new__"): staticmethod(_parameter_maker(make, fake, counters)),
        (nn.Module, "register_buffer"): _buffer_maker(nn.Module.register_buffer, fake, counters),
        (nn.Module, "_apply"): _apply_to_all(nn.Module._apply),  # noqa: SLF001
        (nn.Module, "compile"): lambda *_, **__: notes.add(COMPILED),
        (torch, "compile"): _not_compiled(notes),
        (torch, "save"): _not_saved(notes),
        (FakeTensor, "data"): _replaceable_data(Tensor.data),
        (torch.UntypedStorage, "resize_"): counters.resizing(torch.UntypedStorage.resize_),
        (Tensor, "__deepcopy__"): _copyable(Tensor.__deepcopy__),
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


STEPS = 2
"""The number of steps that are run: the first creates the optimizer's state, the second is like all later ones."""


class ScriptSteps:
    """Follows the steps of a script, and tells `counters`, which count memory, which part of a step is running.

    A step ends when the script's first optimizer has stepped. `end` is called after the last step.
    """

    def __init__(self, counters: Counters, notes: Notes, end: Callable[[], object]) -> None:
        self.finished = 0
        self.parameters = 0
        self._counters, self._notes, self._end = counters, notes, end
        self._hooks: list[ScriptHooks] = []
        self._known: WeakSet[nn.Module] = WeakSet()
        self._running: list[nn.Module] = []
        self._first: object = None
        self._has_others = False

    def start(self) -> None:
        register_module_forward_pre_hook(self._before_forward)
        register_module_forward_hook(self._after_forward, always_call=True)
        register_optimizer_step_pre_hook(self._before_step)
        register_optimizer_step_post_hook(self._after_step)

    def backward(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return `function`, which runs a backward pass, wrapped so that the counters have a separate window for it."""

        def timed(*args: Any, **kwargs: Any) -> Any:
            for counter in self._counters.by_device.values():
                counter.keep_for_backward()
            self._counters.window("backward")
            try:
                return function(*args, **kwargs)
            finally:
                self._counters.window("forward")

        return timed

    def _before_forward(self, module: nn.Module, _args: object) -> None:
        if not self._running and next(module.parameters(), None) is not None:
            if not self._hooks:
                self._begin()
            if module not in self._known:
                self._known.update(module.modules())  # a layer that is recomputed runs alone
                self._hooks.append(ScriptHooks(module, self._counters))
                self.parameters += sum(parameter.numel() for parameter in module.parameters())
        self._running.append(module)
        if isinstance(module, nn.RNNBase) and any(parameter.is_cuda for parameter in module.parameters()):
            self._notes.add(_RECURRENT)

    def _after_forward(self, module: nn.Module, *_: object) -> None:
        # After an error in a forward pass, the modules that it left are still noted as running.
        while self._running and self._running.pop() is not module:
            pass

    def _begin(self) -> None:
        """Begin the first step: data that are already on a device count as inputs; data on the CPU are not counted."""
        _note_parameters(self._counters)
        for name, counter in self._counters.by_device.items():
            if name == "cpu":
                counter.leave_out(TEMPORARY)
            counter.move(TEMPORARY, INPUTS)
        self._counters.window("forward")

    def _before_step(self, optimizer: torch.optim.Optimizer, *_: object) -> None:
        # With several optimizers, a step is known to be over only when the first of them steps again.
        if optimizer is self._first and self.finished >= STEPS:
            self._end()
        if self._first is None:
            self._first = optimizer
        self._has_others |= optimizer is not self._first
        for parameter in (each for group in optimizer.param_groups for each in group["params"]):
            self._counters.add(parameter, PARAMETERS)  # a script may train tensors that are in no module
            if parameter.grad is not None:
                self._counters.add(parameter.grad, GRADIENTS)
        self._counters.window("optimizer")

    def _after_step(self, optimizer: torch.optim.Optimizer, *_: object) -> None:
        self._counters.window("forward")
        if optimizer is not self._first:
            return
        self.finished += 1
        if self.finished == 1:
            _note_parameters(self._counters)
            self._counters.end_first_step()
        # The other optimizers of a step come after the first one.
        if self.finished >= STEPS and not self._has_others:
            self._end()
