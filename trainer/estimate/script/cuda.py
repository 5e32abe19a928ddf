"""Simulate CUDA devices for a script: tensors on them have a device and a size, but no memory."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any, Self

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn
from torch._subclasses import fake_tensor
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.optim import optimizer as optimizers

from trainer.estimate.script.tensors import HOST, device_for_autograd, tensors_in

# The capability of an H100: scripts turn features off on older devices.
_CAPABILITY, NAME = (9, 0), "a device without memory"
_FLASH_DIM = 256
"""The largest head size that the flash kernels of attention support."""
aten = torch.ops.aten


class Stream:
    """A replacement for CUDA streams and events, whose methods do nothing."""

    def __init__(self, *_: object, **__: object) -> None:
        self.device, self.cuda_stream = torch.device("cuda:0"), 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None: ...

    def __getattr__(self, name: str) -> Callable[..., float]:
        # Not None: a script may divide by the time between two events.
        return lambda *_, **__: 1.0


def patches(devices: int, total_bytes: int) -> dict[tuple[Any, str], Any]:
    """Return {(object, attribute): replacement}, to show a script `devices` CUDA devices of `total_bytes` each."""
    properties = SimpleNamespace(
        name=NAME, major=_CAPABILITY[0], minor=_CAPABILITY[1], total_memory=total_bytes, multi_processor_count=132
    )
    nothing = dict.fromkeys(
        ("synchronize", "empty_cache", "manual_seed", "manual_seed_all", "set_device", "reset_peak_memory_stats"), None
    ) | dict.fromkeys(("_lazy_init", "init", "ipc_collect", "reset_max_memory_allocated"), None)
    constants: dict[str, Any] = {
        **nothing, "is_available": True, "is_initialized": True, "device_count": devices, "current_device": 0,
        "get_device_capability": _CAPABILITY, "get_device_name": NAME, "get_device_properties": properties,
        "is_bf16_supported": True, "memory_allocated": 0, "max_memory_allocated": 0, "memory_reserved": 0,
        "max_memory_reserved": 0, "mem_get_info": (total_bytes, total_bytes), "is_current_stream_capturing": False,
        "get_rng_state": torch.get_rng_state(), "set_rng_state": None, "memory_stats": {}, "memory_summary": "",
    }  # fmt: skip
    streams = dict.fromkeys(("Stream", "Event"), Stream) | {"stream": Stream, "current_stream": Stream}
    return {
        **{(torch.cuda, name): _returning(value) for name, value in constants.items()},
        **{(torch.cuda, name): value for name, value in streams.items()},
        (torch.cuda, "default_stream"): Stream,
        (torch.cuda, "device"): Stream,
        (torch.backends.cudnn, "is_available"): _returning(True),
        (torch, "Generator"): CpuGenerator,
        (fake_tensor, "init_gpu_context"): _returning(None),
        (FakeTensor, "__torch_dispatch__"): classmethod(_dispatch_on_cpu(FakeTensor.__torch_dispatch__.__func__)),  # type: ignore[attr-defined]
        (FakeTensorMode, "__torch_dispatch__"): _dispatch_on_cpu(FakeTensorMode.__torch_dispatch__),
        (torch, "tensor"): _copied_to_device(torch.tensor),
        (torch, "as_tensor"): _copied_to_device(torch.as_tensor),
        (Tensor, "to"): _with_index(Tensor.to),
        (Tensor, "type_as"): lambda tensor, other: tensor.to(other.device, other.dtype),
        (Tensor, "cuda"): _to_cuda,
        # Only a driver can pin memory.
        (Tensor, "pin_memory"): lambda tensor, *_, **__: tensor,
        (Tensor, "is_pinned"): _returning(False),
        (nn.Module, "cuda"): _module_to_cuda,
        (F, "dropout"): dropout,
        (F, "scaled_dot_product_attention"): attention,
        (F, "rms_norm"): rms_norm,
        # On CUDA the optimizers take all parameters at once by default, which needs temporaries of all their sizes.
        (optimizers, "_foreach_supported_types"): [*optimizers._foreach_supported_types, FakeTensor],  # noqa: SLF001
    }


def stand_in_for_kernels() -> torch.library.Library:
    """Register CUDA kernels, which never run, for operations that PyTorch without CUDA would split into others.

    An example is the backward pass of SiLU: a real device has one kernel for it, without temporary tensors. The kernels
    stay registered as long as the returned object exists.
    """
    library = torch.library.Library("aten", "IMPL")  # type: ignore[no-untyped-call]
    has_kernel = torch._C._dispatch_has_kernel_for_dispatch_key  # noqa: SLF001
    for name in torch._C._dispatch_get_all_op_names():  # noqa: SLF001
        is_composite = name.startswith("aten::") and has_kernel(name, "CompositeImplicitAutograd")
        if is_composite and has_kernel(name, "CPU") and not has_kernel(name, "CUDA"):
            library.impl(name.removeprefix("aten::"), _returning(None), "CUDA")  # type: ignore[no-untyped-call]
    return library


@contextmanager
def patched(changes: dict[tuple[Any, str], Any]) -> Iterator[None]:
    """Set attributes of objects inside this context; `changes` is {(object, attribute): value}."""
    missing = object()
    # `vars` and not getattr: an inherited attribute must be deleted afterwards, not set on the heir.
    before = {place: vars(place[0]).get(place[1], missing) for place in changes}
    for (owner, name), value in changes.items():
        setattr(owner, name, value)
    try:
        yield
    finally:
        for (owner, name), value in before.items():
            if value is missing:
                delattr(owner, name)
            else:
                setattr(owner, name, value)


def _returning(value: Any) -> Callable[..., Any]:
    return lambda *_, **__: value


class CpuGenerator(torch._C.Generator):  # noqa: SLF001
    """A random generator that is on the CPU even if a script asks for one on a device."""

    def __new__(cls, device: object = HOST) -> Self:  # noqa: ARG004
        return super().__new__(cls, device=HOST)  # type: ignore[call-arg]


def _dispatch_on_cpu(dispatch: Callable[..., Any]) -> Callable[..., Any]:
    """Return the dispatch function of fake tensors or of their mode, changed so that C++ code sees CPU tensors.

    `dispatch` is the original function. Within an operation on CUDA tensors, C++ code may therefore ask for memory on
    the CPU. This memory is counted on the CUDA device.
    """
    outer: list[bool] = []

    def changed(owner: Any, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.ops.prim.device.default:
            return device_for_autograd(args[0])
        kwargs = kwargs or {}
        if any(outer[-1:]) and kwargs.get("device") == torch.device(HOST):
            kwargs = {**kwargs, "device": torch.device("cuda:0")}
        outer.append(any(_is_on_cuda(tensor) for tensor in tensors_in((args, kwargs))))
        try:
            return dispatch(owner, func, types, args, kwargs)
        finally:
            outer.pop()

    return changed


def _indexed(device: Any) -> Any:
    """Return a device with an index: `cuda` and an int become CUDA devices with one; all other values are unchanged."""
    if type(device) is int:
        return torch.device("cuda", device)
    without_index = device in ("cuda", torch.device("cuda")) if isinstance(device, (str, torch.device)) else False
    return torch.device("cuda:0") if without_index else device


def _copied_to_device(make: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Return `torch.tensor` or `torch.as_tensor`, changed to make the tensor on the CPU and copy it to the device.

    `make` is the original function.
    """

    def made(*args: Any, device: Any = None, requires_grad: bool = False, **kwargs: Any) -> Tensor:
        tensor = make(*args, **kwargs)
        moved = tensor if device is None else tensor.to(_indexed(device))
        return moved.requires_grad_() if requires_grad else moved

    return made


def _with_index(to: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Return `Tensor.to`, changed so that a CUDA device without an index gets the index 0; `to` is the original.

    PyTorch itself would ask the driver for the index.
    """

    def changed(tensor: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        if args and isinstance(args[0], Tensor):
            args = (args[0].device, args[0].dtype, *args[1:])
        if "device" in kwargs:
            kwargs["device"] = _indexed(kwargs["device"])
        return to(tensor, *(_indexed(value) for value in args[:1]), *args[1:], **kwargs)

    return changed


def _to_cuda(tensor: Tensor, device: Any = None, *args: Any, **kwargs: Any) -> Tensor:
    return tensor.to(_indexed("cuda" if device is None else device), *args, **kwargs)


def _module_to_cuda(module: nn.Module, device: Any = None) -> nn.Module:
    module._apply(lambda tensor: _to_cuda(tensor, device))  # type: ignore[no-untyped-call]  # noqa: SLF001
    return module


def _is_on_cuda(tensor: Tensor) -> bool:
    return isinstance(tensor, FakeTensor) and tensor.device.type == "cuda"


# Kept before `patches` replaces them, because the replacements call them for tensors on the CPU.
dropout_on_cpu, attention_on_cpu, rms_norm_on_cpu = F.dropout, F.scaled_dot_product_attention, F.rms_norm


def dropout(input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:  # noqa: A002
    """Apply dropout with the memory use of CUDA: the mask is kept, with one byte for each element."""
    if not _is_on_cuda(input) or inplace or not training or not 0 < p < 1:
        return dropout_on_cpu(input, p, training, inplace)
    return torch.native_dropout(input, p, training)[0]


def rms_norm(input: Tensor, normalized_shape: Any, weight: Tensor | None = None, eps: float | None = None) -> Tensor:  # noqa: A002
    """Apply RMSNorm with the memory use of CUDA: a single kernel, which keeps only its input."""
    if not _is_on_cuda(input):
        return rms_norm_on_cpu(input, normalized_shape, weight, eps)
    result: Tensor = aten._fused_rms_norm(input, list(normalized_shape), weight, eps)[0]  # noqa: SLF001
    return result


def attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """Run the attention kernel that CUDA would choose: flash for 16 bits without a mask, else memory-efficient."""
    if not _is_on_cuda(query):
        # PyTorch takes the last two by name only.
        return attention_on_cpu(query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa)
    if enable_gqa and key.shape[-3] != query.shape[-3]:
        times = query.shape[-3] // key.shape[-3]
        key, value = key.repeat_interleave(times, -3), value.repeat_interleave(times, -3)
    if attn_mask is None and query.dtype in (torch.float16, torch.bfloat16) and query.shape[-1] <= _FLASH_DIM:
        flash: Tensor = aten._scaled_dot_product_flash_attention(  # noqa: SLF001
            query, key, value, dropout_p, is_causal, False, scale=scale
        )[0]
        return flash
    bias = _added_to_scores(attn_mask, query, key)
    keeps = query.requires_grad or key.requires_grad or value.requires_grad
    efficient: Tensor = aten._scaled_dot_product_efficient_attention(  # noqa: SLF001
        query, key, value, bias, keeps, dropout_p, is_causal, scale=scale
    )[0]
    return efficient


def _added_to_scores(mask: Tensor | None, query: Tensor, key: Tensor) -> Tensor | None:
    """Return an attention mask in the form that is added to the scores, expanded to their size; None stays None.

    False in a boolean mask becomes minus infinity.
    """
    if mask is None:
        return None
    if mask.dtype is torch.bool:
        mask = torch.zeros_like(mask, dtype=query.dtype).masked_fill_(mask.logical_not(), float("-inf"))
    return mask.expand(*query.shape[:-1], key.shape[-2])
