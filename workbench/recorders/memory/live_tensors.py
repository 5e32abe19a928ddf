"""Find the tensors of this process that are alive: those that Python knows, and those that their autograd graphs saved.

Nothing of the script runs on the way: no property or operator of a subclass of `Tensor`, and no hook that unpacks what
a graph has saved. No reference remains after the call.
"""

import gc
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import torch

_NODES_AT_MOST = 100_000
_base: Any = torch._C.TensorBase  # noqa: SLF001  # not in torch's type stubs
_RAW_SAVED = "_raw_saved_"
_names: dict[type, tuple[str, ...]] = {}


class LiveStorage(NamedTuple):
    """The memory of a live tensor: its address, its size in bytes, and a name such as `float32 [512, 1024]`."""

    address: int
    size: int
    name: str


def live_storages(device_type: str, *, own_only: bool = True) -> Iterator[LiveStorage]:
    """Yield each storage on a type of device (cpu or cuda) that some tensor refers to.

    Storages of more than one tensor are yielded once. With `own_only`, memory that PyTorch did not allocate is left
    out: that of arrays of NumPy, of mapped files, and that which processes share.
    """
    seen: set[int] = set()
    tensors = live_tensors()
    for tensor in (*tensors, *_saved_for_backward(tensors)):
        storage = storage_of(tensor, device_type, own_only=own_only)
        if storage is not None and storage.address not in seen:
            seen.add(storage.address)
            yield storage


def live_tensors() -> list[torch.Tensor]:
    """Return the tensors that Python's garbage collector knows: also those that only C++ and Python together hold."""
    kinds = _tensor_types(torch.Tensor)
    # Each object of a class made by `class` refers to it, so one pass in C finds them all.
    return [found for found in gc.get_referrers(*kinds) if type(found) in kinds]


def _tensor_types(kind: type) -> set[type]:
    # Not by an attribute of the class, which a script's metaclass may have changed.
    children: list[type] = type.__subclasses__(kind)
    return {kind}.union(*map(_tensor_types, children))


def storage_of(tensor: torch.Tensor, device_type: str, *, own_only: bool = True) -> LiveStorage | None:
    """Return the memory of a tensor on this type of device, with `own_only` if PyTorch allocated it; None otherwise."""
    with torch._C.DisableTorchFunction():  # noqa: SLF001
        try:
            # To ask for the address of a lazy copy would make a real one.
            if torch._C._is_cow_tensor(tensor):  # type: ignore[attr-defined]  # noqa: SLF001
                return None
            storage = _base.untyped_storage(tensor)
            if storage.device.type != device_type or (own_only and not storage.resizable()):
                return None
            address, size = storage.data_ptr(), storage.nbytes()
        except (RuntimeError, NotImplementedError, AttributeError):  # subclasses without a storage
            return None
        if not address or not size:
            return None
        return LiveStorage(address, size, described(tensor))


def described(tensor: torch.Tensor) -> str:
    """Return the type and shape of a tensor, such as `float32 [512, 1024]`."""
    with torch._C.DisableTorchFunction():  # noqa: SLF001
        kind = str(_base.dtype.__get__(tensor)).removeprefix("torch.")
        return f"{kind} {list(_base.shape.__get__(tensor))}"


def _saved_for_backward(tensors: Iterable[torch.Tensor]) -> Iterator[torch.Tensor]:
    """Yield the tensors that the graphs of some tensors keep for a backward pass.

    Of a tensor that a hook has packed, what the hook returned is yielded if it is a tensor.
    """
    for node in graph_of(tensors, _NODES_AT_MOST):
        yield from saved_by(node)


def graph_of(tensors: Iterable[torch.Tensor], nodes_at_most: int) -> Iterator[Any]:
    """Yield the nodes of the autograd graphs of some tensors, each once, and at most so many."""
    # It keeps the nodes: Python's objects for them are made on the way, and an id may be another's afterwards.
    seen: dict[int, object] = {}
    waiting = [grad_fn_of(tensor) for tensor in tensors]
    while waiting and len(seen) < nodes_at_most:
        node = waiting.pop()
        if node is None or id(node) in seen:
            continue
        seen[id(node)] = node
        yield node
        waiting += [following for following, _ in node.next_functions]


def grad_fn_of(tensor: torch.Tensor) -> Any:
    """Return the node of the autograd graph that computed a tensor; None if it has none."""
    with torch._C.DisableTorchFunction():  # noqa: SLF001
        return _base.grad_fn.__get__(tensor)


def saved_by(node: Any) -> Iterator[torch.Tensor]:
    """Yield the tensors that one node of an autograd graph has saved, as `_saved_for_backward` does."""
    for name in _names_of_saved(node):
        try:
            saved = getattr(node, name)
        except RuntimeError:  # freed by a backward pass
            return
        for one in saved if isinstance(saved, (tuple, list)) else (saved,):
            content: Any = getattr(one, "data", None)
            if issubclass(type(content), torch.Tensor):
                yield content


def _names_of_saved(node: Any) -> tuple[str, ...]:
    """Return the attributes of a node with which it shows what it saved, without unpacking it."""
    kind = type(node)
    if kind not in _names:
        _names[kind] = tuple(name for name in dir(kind) if name.startswith(_RAW_SAVED))
    return _names[kind]


def size_of(tensor: torch.Tensor) -> int:
    """Return the bytes of a tensor's memory on any device; 0 if it has none of its own."""
    with torch._C.DisableTorchFunction():  # noqa: SLF001
        try:
            return int(_base.untyped_storage(tensor).nbytes())
        except (RuntimeError, NotImplementedError, AttributeError):
            return 0
