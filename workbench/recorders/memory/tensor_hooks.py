"""Record with hooks what each tensor is (a weight, a gradient, ...), so that categories are exact and not guessed."""

import ctypes
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator, MutableMapping
from contextlib import contextmanager
from functools import wraps
from typing import Any, NamedTuple, ParamSpec, Protocol, TypeVar
from weakref import WeakSet, ref

import torch
from torch import nn
from torch.optim.optimizer import register_optimizer_step_post_hook
from torch.utils.weak import WeakTensorKeyDictionary

from workbench.recorders.module_hooks import ModuleHook
from workbench.recorders.own_files import harmless
from workbench.recorders.signals import ignoring

Params = ParamSpec("Params")
Result = TypeVar("Result")

# Public functions of CPython from 3.11 on. `pythonapi` keeps the GIL, which they need.
suspend = getattr(ctypes.pythonapi, "PyThreadState_EnterTracing", None)
resume = getattr(ctypes.pythonapi, "PyThreadState_LeaveTracing", None)
_this_thread = ctypes.pythonapi.PyThreadState_Get
_this_thread.restype = ctypes.c_void_p
for switch in (suspend, resume):
    if switch is not None:
        switch.argtypes, switch.restype = (ctypes.c_void_p,), None


def untraced(function: Callable[Params, Result]) -> Callable[Params, Result]:
    """Return a function that does the same as `function`, but hides the calls inside from the profiler.

    The profiler still records the call of the function itself.
    """

    @wraps(function)
    def run(*args: Params.args, **kwargs: Params.kwargs) -> Result:
        if suspend is None or resume is None or sys.getprofile() is None:
            return function(*args, **kwargs)
        thread = _this_thread()
        suspend(thread)
        try:
            return function(*args, **kwargs)
        finally:
            resume(thread)

    return run


def unseen(function: Callable[Params, Result]) -> Callable[Params, Result]:
    """Return a function that does the same as `function`, but hides the calls inside from modes and subclasses.

    Function modes of the script, and its subclasses of `Tensor`, would otherwise be called for what we ask of tensors.
    """

    @wraps(function)
    def run(*args: Params.args, **kwargs: Params.kwargs) -> Result:
        with torch._C.DisableTorchFunction():  # noqa: SLF001
            return function(*args, **kwargs)

    return run


PARAMETERS, GRADIENTS, OPTIMIZER_STATE = "parameters", "gradients", "optimizer_state"
ACTIVATIONS, INPUTS, TEMPORARY, COMMUNICATION, UNKNOWN = (
    "activations",
    "inputs",
    "temporary",
    "communication",
    "unknown",
)
PRIORITY = {PARAMETERS: 5, OPTIMIZER_STATE: 4, GRADIENTS: 3, INPUTS: 2, ACTIVATIONS: 1}
_WRAPPERS = {"module", "_orig_mod", "_checkpoint_wrapped_module"}
_MAX_NOTES = 1_000_000
_saved: Any = torch._C._autograd  # noqa: SLF001  # its type stubs lack these functions


class Removable(Protocol):
    """The interface of the handle of a registered hook; `remove` removes the hook."""

    def remove(self) -> None: ...


class Note(NamedTuple):
    """A record that a hook writes: what a tensor is, or which module or phase begins.

    In a note on a tensor, `address` is the address of its storage, `kind` its category, and `label` its name. In a note
    on a module or a phase, `kind` is `MODULE` or `PHASE`, `label` is the name, and `address` is 0. `time_ns` is Unix
    time.
    """

    time_ns: int
    address: int
    kind: str
    label: str


MODULE, PHASE = "module", "phase"


def local_tensor(tensor: torch.Tensor) -> torch.Tensor:
    """Return this rank's part of a DTensor; return any other tensor unchanged."""
    local: torch.Tensor = getattr(tensor, "_local_tensor", tensor)
    return local


def without_wrappers(name: str) -> str:
    """Return the name of a parameter or module without the parts that wrappers such as torch.compile add."""
    return ".".join(part for part in name.split(".") if part not in _WRAPPERS)


def _add_gradient_hook(parameter: torch.Tensor, hook: Callable[[torch.Tensor], None]) -> Removable:
    return parameter.register_post_accumulate_grad_hook(hook)  # type: ignore[no-untyped-call,no-any-return]


class TensorHooks:
    """Hooks on a model and all optimizers that write a `Note` on each tensor whose category they know.

    They write notes only between `start()` and `stop()`; `take_notes()` returns the notes. At most `keep` notes are
    stored; older notes are dropped and counted in `lost`.
    """

    def __init__(self, model: nn.Module, optimizer: torch.optim.Optimizer | None, keep: int = _MAX_NOTES) -> None:
        self.lost = 0
        # Weak, as a script may replace model, parameters and optimizers: what it dropped must not live on here.
        self._all_modules = [(name, ref(module)) for name, module in model.named_modules()]
        self._optimizers = WeakSet[torch.optim.Optimizer]([optimizer] if optimizer else [])
        self._names: MutableMapping[torch.Tensor, str] = WeakTensorKeyDictionary(
            {parameter: without_wrappers(name) for name, parameter in model.named_parameters()}
        )
        self._notes: deque[Note] = deque(maxlen=keep)
        self._modules: list[str] = []
        self._running = False
        # PyTorch keeps this hook to the end of the process, and with it all that it refers to.
        here = ref(self)

        def note_state(opt: torch.optim.Optimizer, *_: object) -> None:
            hooks = here()
            if hooks is not None:
                hooks._note_optimizer_state(opt)  # noqa: SLF001

        self._handles: list[Removable] = [register_optimizer_step_post_hook(untraced(note_state))]
        note_gradient = untraced(self._note_gradient)
        for parameter in model.parameters():
            if parameter.requires_grad:
                self._handles.append(_add_gradient_hook(parameter, note_gradient))
        self._on_modules: list[Removable] = []

    @contextmanager
    def note_saved_tensors(self) -> Iterator[None]:
        """Return a context in which a note is written on each tensor that autograd saves for the backward pass.

        The transforms of `torch.func` refuse to run under such hooks, so ours give way to them. Of several hooks
        PyTorch calls the last ones alone, so ours call those that the script has put around the step.
        """
        pack: Callable[[torch.Tensor], Any] = untraced(self._pack)
        unpack: Callable[[Any], torch.Tensor] = lambda tensor: tensor  # noqa: E731
        if theirs := _saved._top_saved_tensors_default_hooks(False):  # noqa: SLF001
            noted, (their_pack, unpack) = untraced(self._note_saved), theirs

            def both(tensor: torch.Tensor) -> object:
                noted(tensor)
                return their_pack(tensor)

            pack = both

        graph: Any = torch.autograd.graph
        disable = graph.disable_saved_tensors_hooks

        @contextmanager
        def disable_others(message: str) -> Iterator[None]:
            top = _saved._top_saved_tensors_default_hooks(False)  # noqa: SLF001
            is_ours = top is not None and top[0] is pack
            if is_ours:
                _saved._pop_saved_tensors_default_hooks()  # noqa: SLF001
            try:
                with disable(message):
                    yield
            finally:
                if is_ours:
                    _saved._push_saved_tensors_default_hooks(pack, unpack)  # noqa: SLF001

        graph.disable_saved_tensors_hooks = disable_others
        try:
            with graph.saved_tensors_hooks(pack, unpack):
                yield
        finally:
            graph.disable_saved_tensors_hooks = disable

    def start(self) -> None:
        """Start writing notes.

        Hooks on modules are there only until `stop`: with them a model cannot be scripted, or compiled as one graph.
        """
        self._running = True
        self._modules.clear()
        if not self._on_modules:
            for outer_name, outer in self._outermost_modules():
                for name, module in outer.named_modules(prefix=outer_name):
                    self._hook(module, without_wrappers(name))

    def stop(self) -> None:
        """Stop writing notes, and remove the hooks on modules."""
        self._running = False
        for handle in self._on_modules:
            handle.remove()
        self._on_modules.clear()

    def note_long_lived_tensors(self) -> None:
        """Write a note on each tensor that outlives a step; no hook is called if a script replaces such a tensor."""
        for tensor, category, label in self.long_lived_tensors():
            self.note_tensor(tensor, category, label)

    def take_notes(self) -> list[Note]:
        """Return the notes since the last call, in the order of time, and delete them."""
        notes = list(self._notes)
        self._notes.clear()
        return notes

    def note_phase(self, name: str) -> None:
        """Write a note that the phase `name` of the step begins; an empty name means that no phase is open."""
        self._add(0, PHASE, name)

    @harmless
    @unseen
    def note_tensor(self, tensor: torch.Tensor, kind: str, label: str) -> None:
        """Write a note that the storage of `tensor` has the category `kind` and the label `label`."""
        if self._running:
            with ignoring(RuntimeError, NotImplementedError):  # subclasses without a storage
                self._add(local_tensor(tensor).untyped_storage().data_ptr(), kind, label)

    @unseen
    def long_lived_tensors(self) -> list[tuple[torch.Tensor, str, str]]:
        """Return (tensor, category, label) of each tensor that outlives a step.

        These are parameters, buffers, gradients and optimizer state. A DTensor is represented by this rank's part.
        """
        return list(self._long_lived_tensors())

    def _long_lived_tensors(self) -> Iterator[tuple[torch.Tensor, str, str]]:
        for outer_name, module in self._outermost_modules():
            # Scripts put other tensors in the place of parameters: resized embeddings, loaded weights, new layers.
            for full_name, parameter in module.named_parameters(prefix=outer_name):
                self._names.setdefault(parameter, without_wrappers(full_name))
            for full_name, buffer in module.named_buffers(prefix=outer_name):
                yield local_tensor(buffer), PARAMETERS, without_wrappers(full_name)
        for weight, name in self._names.items():
            yield local_tensor(weight), PARAMETERS, name
            if weight.grad is not None:
                yield local_tensor(weight.grad), GRADIENTS, name
        for optimizer in self._optimizers:
            yield from self._optimizer_state(optimizer)

    def _outermost_modules(self) -> Iterator[tuple[str, nn.Module]]:
        """Yield (name, module) of the model, or, if it is gone, of those of its modules that live on their own.

        A script that trains several models may join them in a module that it makes for the recorder alone.
        """
        inside: set[int] = set()
        for name, reference in self._all_modules:
            module = reference()
            if module is not None and id(module) not in inside:
                inside.update(map(id, module.modules()))
                yield name, module

    def close(self) -> None:
        self.stop()
        for handle in self._handles:
            handle.remove()

    @harmless
    def _add(self, address: int, kind: str, label: str) -> None:
        if self._running:
            self.lost += len(self._notes) == self._notes.maxlen
            self._notes.append(Note(time.time_ns(), address, kind, label))

    def _hook(self, module: nn.Module, name: str) -> None:
        self._on_modules.append(module.register_forward_pre_hook(ModuleHook(untraced(self._before_forward(name)))))
        # Also after an exception: otherwise the stack of modules would keep the one that failed.
        hook = ModuleHook(untraced(self._after_forward))
        self._on_modules.append(module.register_forward_hook(hook, always_call=True))

    def _before_forward(self, name: str) -> Callable[[nn.Module, tuple[object, ...]], None]:
        def enter(module: nn.Module, inputs: tuple[object, ...]) -> None:
            if not self._running:
                return
            self._modules.append(name)
            self._add(0, MODULE, name)
            if not name:
                self._note_inputs(inputs)
            for key, parameter in module._parameters.items():  # noqa: SLF001 - also those FSDP has put there for now
                if parameter is not None:
                    self.note_tensor(parameter, PARAMETERS, f"{name}.{key}")

        return enter

    def _after_forward(self, *_: object) -> None:
        if not self._running:
            return
        if self._modules:
            self._modules.pop()
        self._add(0, MODULE, self._modules[-1] if self._modules else "")

    def _note_inputs(self, inputs: tuple[object, ...]) -> None:
        for position, value in enumerate(inputs):
            if isinstance(value, torch.Tensor):
                self.note_tensor(value, INPUTS, f"input {position}")

    @harmless
    @unseen
    def _note_gradient(self, parameter: torch.Tensor) -> None:
        if parameter.grad is not None:
            self.note_tensor(parameter.grad, GRADIENTS, self._names.get(parameter, ""))

    @harmless
    @unseen
    def _note_optimizer_state(self, optimizer: torch.optim.Optimizer) -> None:
        self._optimizers.add(optimizer)
        for tensor, kind, label in self._optimizer_state(optimizer):
            self.note_tensor(tensor, kind, label)

    def _optimizer_state(self, optimizer: torch.optim.Optimizer) -> Iterator[tuple[torch.Tensor, str, str]]:
        for parameter, state in optimizer.state.items():
            for key, value in state.items():
                if isinstance(value, torch.Tensor):
                    yield local_tensor(value), OPTIMIZER_STATE, f"{self._names.get(parameter, '?')}.{key}"

    def _note_saved(self, tensor: torch.Tensor) -> None:
        base = tensor if tensor._base is None else tensor._base  # noqa: SLF001
        # Autograd also saves views of the weights, such as a transpose: they take no memory of their own.
        if not isinstance(base, nn.Parameter):
            self.note_tensor(tensor, ACTIVATIONS, self._modules[-1] if self._modules else "loss")

    def _pack(self, tensor: torch.Tensor) -> torch.Tensor:
        self._note_saved(tensor)
        # Detached, as a node that saves its own output would keep itself alive.
        return tensor.detach() if tensor.grad_fn is not None else tensor
