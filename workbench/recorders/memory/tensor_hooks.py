"""What each storage is for, noted at the moment when it is known, so that categories are exact and not guessed."""

import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.optim.optimizer import register_optimizer_step_post_hook

PARAMETERS, GRADIENTS, OPTIMIZER_STATE = "parameters", "gradients", "optimizer_state"
ACTIVATIONS, INPUTS, TEMPORARY, COMMUNICATION, UNKNOWN = (
    "activations",
    "inputs",
    "temporary",
    "communication",
    "unknown",
)
PRIORITY = {PARAMETERS: 5, OPTIMIZER_STATE: 4, GRADIENTS: 3, INPUTS: 2, ACTIVATIONS: 1}
WRAPPERS = {"module", "_orig_mod", "_checkpoint_wrapped_module"}
MOST_NOTES = 1_000_000


class Note(NamedTuple):
    """One thing known at one time: a storage's role, or, without an address, the module or phase that runs now."""

    time_ns: int
    address: int
    kind: str
    label: str


MODULE, PHASE = "module", "phase"


def local_part(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor on this rank, of a DTensor too."""
    part: torch.Tensor = getattr(tensor, "_local_tensor", tensor)
    return part


def clean(name: str) -> str:
    """A parameter's or module's name without those of wrappers."""
    return ".".join(part for part in name.split(".") if part not in WRAPPERS)


def add_gradient_hook(parameter: torch.Tensor, hook: Callable[[torch.Tensor], None]) -> Any:
    """Call `hook` whenever a gradient has been accumulated; returns the hook's handle."""
    return parameter.register_post_accumulate_grad_hook(hook)  # type: ignore[no-untyped-call]


class Notes:
    """Hooks on a model and its optimizers that note what tensors are; `taken()` hands the notes over.

    Notes are taken between `open()` and `shut()` only; `keep` bounds how many wait to be handed over.
    """

    def __init__(self, model: nn.Module, optimizer: torch.optim.Optimizer | None, keep: int = MOST_NOTES) -> None:
        self.lost = 0
        self._model, self._optimizer = model, optimizer
        self._names: dict[torch.Tensor, str] = {parameter: clean(name) for name, parameter in model.named_parameters()}
        self._notes: deque[Note] = deque(maxlen=keep)
        self._modules: list[str] = []
        self._open = False
        self._handles: list[Any] = [register_optimizer_step_post_hook(lambda opt, *_: self._note_state(opt))]
        for parameter in self._names:
            if parameter.requires_grad:
                self._handles.append(add_gradient_hook(parameter, self._note_gradient))
        for name, module in model.named_modules():
            self._hook(module, clean(name))

    @contextmanager
    def saving(self) -> Iterator[None]:
        """Note what autograd saves for the backward pass inside."""
        with torch.autograd.graph.saved_tensors_hooks(self._pack, lambda tensor: tensor):
            yield

    def open(self) -> None:
        """Take notes from now on."""
        self._open = True
        self._modules.clear()

    def shut(self) -> None:
        """Take no more notes."""
        self._open = False

    def taken(self) -> list[Note]:
        """The notes since the last call, in order of time."""
        notes = list(self._notes)
        self._notes.clear()
        return notes

    def phase(self, name: str) -> None:
        """Note that a phase of the step begins, or ends if the name is empty."""
        self._add(0, PHASE, name)

    def role(self, tensor: torch.Tensor, kind: str, label: str) -> None:
        """Note what a tensor is."""
        if self._open:
            with suppress(RuntimeError, NotImplementedError):  # subclasses without a storage
                self._add(local_part(tensor).untyped_storage().data_ptr(), kind, label)

    def standing(self) -> Iterator[tuple[torch.Tensor, str, str]]:
        """(tensor, category, label) of all that outlives a step: weights, buffers, gradients, optimizer state."""
        for parameter, name in self._names.items():
            yield local_part(parameter), PARAMETERS, name
            if parameter.grad is not None:
                yield local_part(parameter.grad), GRADIENTS, name
        for name, buffer in self._model.named_buffers():
            yield local_part(buffer), PARAMETERS, clean(name)
        if self._optimizer:
            yield from self._state(self._optimizer)

    def close(self) -> None:
        """Remove all hooks."""
        self._open = False
        for handle in self._handles:
            handle.remove()

    def _add(self, address: int, kind: str, label: str) -> None:
        if self._open:
            self.lost += len(self._notes) == self._notes.maxlen
            self._notes.append(Note(time.time_ns(), address, kind, label))

    def _hook(self, module: nn.Module, name: str) -> None:
        self._handles.append(module.register_forward_pre_hook(self._enter(name)))
        self._handles.append(module.register_forward_hook(self._leave, always_call=True))

    def _enter(self, name: str) -> Callable[[nn.Module, Any], None]:
        def enter(module: nn.Module, inputs: Any) -> None:
            self._modules.append(name)
            self._add(0, MODULE, name)
            if not name:
                self._note_inputs(inputs)
            for key, parameter in module._parameters.items():  # noqa: SLF001 - also those FSDP has put there for now
                if parameter is not None:
                    self.role(parameter, PARAMETERS, f"{name}.{key}")

        return enter

    def _leave(self, *_: Any) -> None:
        if self._modules:
            self._modules.pop()
        self._add(0, MODULE, self._modules[-1] if self._modules else "")

    def _note_inputs(self, inputs: Any) -> None:
        for position, value in enumerate(inputs):
            if isinstance(value, torch.Tensor):
                self.role(value, INPUTS, f"input {position}")

    def _note_gradient(self, parameter: torch.Tensor) -> None:
        if parameter.grad is not None:
            self.role(parameter.grad, GRADIENTS, self._names.get(parameter, ""))

    def _note_state(self, optimizer: torch.optim.Optimizer) -> None:
        for tensor, kind, label in self._state(optimizer):
            self.role(tensor, kind, label)

    def _state(self, optimizer: torch.optim.Optimizer) -> Iterator[tuple[torch.Tensor, str, str]]:
        for parameter, state in optimizer.state.items():
            for key, value in state.items():
                if isinstance(value, torch.Tensor):
                    yield local_part(value), OPTIMIZER_STATE, f"{self._names.get(parameter, '?')}.{key}"

    def _pack(self, tensor: torch.Tensor) -> torch.Tensor:
        base = tensor if tensor._base is None else tensor._base  # noqa: SLF001
        if not isinstance(base, nn.Parameter):
            self.role(tensor, ACTIVATIONS, self._modules[-1] if self._modules else "loss")
        # Detached, as a node that saves its own output would keep itself alive.
        return tensor.detach() if tensor.grad_fn is not None else tensor
