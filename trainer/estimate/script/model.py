"""Give a script parameters and buffers without values, and report the category of each tensor of a step."""

import gc
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.nn.parameter import UninitializedBuffer, UninitializedParameter
from torch.utils._python_dispatch import _disable_current_modes

from trainer.estimate.script.tensors import Counters
from workbench.recorders.memory.tensor_hooks import MODULE, PARAMETERS, TensorHooks


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


def parameter_maker(make: Callable[..., Any], fake: FakeTensorMode, counters: Counters) -> Callable[..., Any]:
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


def buffer_maker(register: Callable[..., None], fake: FakeTensorMode, counters: Counters) -> Callable[..., None]:
    """Return `Module.register_buffer`, changed to make buffers without values; `register` is the original function.

    The buffers are fake tensors of the mode `fake`, and are counted like parameters in `counters`.
    """

    def registered(module: nn.Module, name: str, tensor: Tensor | None, *args: Any, **kwargs: Any) -> None:
        empty = None if tensor is None else _taken_over(fake, tensor, counters)
        register(module, name, empty, *args, **kwargs)
        if empty is not None and not empty.is_meta:
            counters.add(empty, PARAMETERS)

    return registered


def apply_to_all(apply: Callable[..., nn.Module]) -> Callable[..., nn.Module]:
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


def replaceable_data(data: Any) -> property:
    """Return the property `Tensor.data`, changed so that a fake tensor takes over the device of assigned data.

    `data` is the original property.
    """

    def put(tensor: Any, value: Any) -> None:
        data.__set__(tensor, value)
        if isinstance(value, FakeTensor):
            # A fake tensor keeps its device in an attribute of its own, which setting the data leaves unchanged.
            tensor.fake_device = value.fake_device

    return property(data.__get__, put)


def copyable(copy_tensor: Callable[..., Any]) -> Callable[..., Any]:
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


def note_parameters(counters: Counters) -> None:
    """Count the parameters and buffers of all live modules as parameters, even if no step runs the module."""
    for module in modules():
        for tensor in (*module.parameters(recurse=False), *module.buffers(recurse=False)):
            if not tensor.is_meta:
                counters.add(tensor, PARAMETERS)


def has_parameters(module: nn.Module) -> bool:
    """Return whether a module has parameters; for example, a loss function has none."""
    return next(module.parameters(), None) is not None
