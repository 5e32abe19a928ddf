"""Follow the training steps of a script with hooks: forward and backward passes and optimizer steps."""

from collections.abc import Callable
from typing import Any
from weakref import WeakSet

import torch
from torch import nn
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from trainer.estimate.script.model import ScriptHooks, has_parameters, note_parameters
from trainer.estimate.script.surroundings import RECURRENT, Notes
from trainer.estimate.script.tensors import Counters
from workbench.recorders.memory.tensor_hooks import GRADIENTS, INPUTS, PARAMETERS, TEMPORARY

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
        """Register the hooks on all modules and optimizers."""
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
        if not self._running and has_parameters(module):
            if not self._hooks:
                self._begin()
            if module not in self._known:
                self._known.update(module.modules())  # a layer that is recomputed runs alone
                self._hooks.append(ScriptHooks(module, self._counters))
                self.parameters += sum(parameter.numel() for parameter in module.parameters())
        self._running.append(module)
        if isinstance(module, nn.RNNBase) and any(parameter.is_cuda for parameter in module.parameters()):
            self._notes.add(RECURRENT)

    def _after_forward(self, module: nn.Module, *_: object) -> None:
        # After an error in a forward pass, the modules that it left are still noted as running.
        while self._running and self._running.pop() is not module:
            pass

    def _begin(self) -> None:
        """Begin the first step: data that are already on a device count as inputs; data on the CPU are not counted."""
        note_parameters(self._counters)
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
            note_parameters(self._counters)
            self._counters.end_first_step()
        # The other optimizers of a step come after the first one.
        if self.finished >= STEPS and not self._has_others:
            self._end()
