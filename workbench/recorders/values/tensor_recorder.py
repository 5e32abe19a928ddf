"""Record sums over the inputs and outputs of each module; `workbench bisect A B` finds where two runs first differ.

In any training script:

    from workbench import recorders

    recorders.record_tensors(model)

Call it on every rank before the first step. The values of a tensor are not stored, only four sums: a line of about 250
bytes for each tensor and step in `values/rank_R.jsonl`. The recording ends by itself after 100 steps.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any
from weakref import ref

import torch
from torch import Tensor, nn
from torch.optim.optimizer import Optimizer, register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from workbench.recorders.files import RankInfo
from workbench.recorders.memory.tensor_hooks import Removable, without_wrappers
from workbench.recorders.module_hooks import ModuleHook
from workbench.recorders.startup.settings import run_folder
from workbench.recorders.values.operation_log import tensors_in
from workbench.recorders.values.recorder import ACTIVATION, Place, Sums, ValueRecorder, sums_of

INPUT, _INPUT_GRADIENT, BUFFER, OPTIMIZER = "input", "input_gradient", "buffer", "optimizer"
STEPS = 100
"""The default number of steps that are recorded; with a thousand tensors, they take 25 MB."""
_TENSORS_AT_MOST = 16
"""The most tensors that are recorded of one call of a module; a cache of keys and values may have many."""
_CALLS_AT_MOST = 64
"""The most calls of a module in one forward pass that get different names; all later calls share the last one."""


class TensorRecorder(ValueRecorder):
    """Records sums of each tensor: modules' inputs, outputs, gradients, parameters; the optimizer's settings and state.

    The first STEPS steps are recorded. In addition to the sums that `ValueRecorder` writes, a line has the dtype and a
    projection: the scalar product of the values with a fixed random vector. Two different tensors may have equal sums,
    but their projections differ.
    """

    def __init__(self, folder: str | Path, models: Sequence[nn.Module], place: Place | None = None) -> None:
        self._calls: dict[str, int] = {}
        self._types: dict[str, str] = {}
        self._seen: dict[int, tuple[ref[Tensor], int, Sums]] = {}
        self._world_size = RankInfo.here().world_size
        self._steps_left = STEPS
        super().__init__(folder, models, place)

    @contextmanager
    def step(self, step: int) -> Iterator[None]:
        """Record the step inside this context; the context does nothing once `STEPS` steps are recorded."""
        self._steps_left -= 1
        with super().step(step) if self._steps_left >= 0 else nullcontext():
            yield

    def _begin(self) -> None:
        self._seen.clear()
        self._calls.clear()
        super()._begin()

    def optimizer(self, optimizer: Optimizer) -> None:
        """Record an optimizer's numeric settings, such as `lr`, and sums over its state, before its step."""
        if not self._recording:
            return
        groups = optimizer.param_groups
        for number, group in enumerate(groups):
            prefix = f"group_{number}." if len(groups) > 1 else ""
            for key, value in _settings_of(group):
                self._add(OPTIMIZER, prefix + key, self._sums(torch.tensor(value), copies=self._world_size))
        for state in optimizer.state.values():
            for key, value in state.items():
                if isinstance(value, Tensor):
                    self._add(OPTIMIZER, f"state.{key}", self._sums(value, copies=self._place.copies))

    def _sums(self, tensor: Tensor, factor: float = 1.0, copies: int = 1) -> Sums:
        return sums_of(tensor, factor=factor, copies=copies, projected=True)

    def _hook(self, model: nn.Module) -> Iterator[Removable]:
        yield model.register_forward_pre_hook(ModuleHook(self._start_forward))
        for name, module in self._observed(model):
            self._types[name] = type(module).__name__
            yield module.register_forward_pre_hook(ModuleHook(self._before_forward(name)), with_kwargs=True)
        yield from super()._hook(model)

    def _start_forward(self, *_: object) -> None:
        """Restart the count of each module's calls when a forward pass of the whole model begins (a forward pre-hook).

        So a module has the same name in each microbatch. Only a second call within one forward pass has a different
        name, such as `norm#2`.
        """
        if self._is_forward:
            self._calls.clear()
            self._seen.clear()

    def _before_forward(self, name: str) -> Callable[..., None]:
        def record(_: nn.Module, arguments: object, keywords: object) -> None:
            if not self._is_forward:
                return
            self._calls[name] = min(self._calls.get(name, 0) + 1, _CALLS_AT_MOST)
            for label, tensor in named(self._label(name), (arguments, keywords)):
                is_known = self._is_known(tensor)
                self._add(INPUT, label, self._sums_once(tensor))
                # The gradient of what another module returned is recorded there.
                if not is_known and tensor.is_floating_point():
                    self._record_gradient(_INPUT_GRADIENT, label, tensor)

        return record

    def _after_forward(self, name: str) -> Callable[[nn.Module, object, object], None]:
        def record(_: nn.Module, __: object, output: object) -> None:
            if self._is_forward:
                for label, tensor in named(self._label(name), output):
                    if tensor.is_floating_point():
                        self._record_output(label, tensor)

        return record

    def _record_output(self, name: str, output: Tensor) -> None:
        is_known = self._is_known(output)
        self._add(ACTIVATION, name, self._sums_once(output))
        if not is_known:
            self._record_gradient("activation_gradient", name, output)

    def _label(self, name: str) -> str:
        """Return the module's name for its first call; for the second call with `#2` at the end, and so on."""
        number = self._calls.get(name, 1)
        return name if number == 1 else f"{name}#{number}"

    def _is_known(self, tensor: Tensor) -> bool:
        known = self._seen.get(id(tensor))
        # A freed tensor may leave its id to another one, and an operation in place changes the values.
        return known is not None and known[0]() is tensor and known[1] == tensor._version  # noqa: SLF001  # no public name

    def _sums_once(self, tensor: Tensor) -> Sums:
        """Return the sums over a tensor; if several modules get the same tensor, they are computed only once."""
        if not self._is_known(tensor):
            self._seen[id(tensor)] = ref(tensor), tensor._version, self._sums(tensor)  # noqa: SLF001
        return self._seen[id(tensor)][2]

    @property
    def _is_forward(self) -> bool:
        return super()._is_forward and torch.is_grad_enabled()

    def _extra(self, _kind: str, _name: str, _sums: Sums) -> dict[str, object]:
        extra: dict[str, object] = {"dtype": _sums.dtype, "elements": _sums.elements, "calls": _sums.calls}
        module = _name.partition("#")[0].partition("[")[0]
        if _kind in (INPUT, ACTIVATION):
            extra |= {"length": _sums.length, "type": self._types.get(module, "")}
        return extra


class ScriptRecorder(TensorRecorder):
    """Records the steps of a training script that does not mark them: a step ends with each optimizer step.

    `current_step` is the number of the step that is being recorded.
    """

    def __init__(self, models: Sequence[nn.Module], folder: str | Path, first_step: int, steps: int) -> None:
        world_size = RankInfo.here().world_size
        super().__init__(folder, models, Place(copies=world_size, loss_share=1 / world_size))
        self.current_step, self._steps_left, self._is_open = first_step, steps, True
        self._handles += [
            register_optimizer_step_pre_hook(self._before_update),
            register_optimizer_step_post_hook(self._after_update),
        ]
        self._begin()

    def close(self) -> None:
        """End the recording and remove all hooks."""
        if self._is_open:
            self._is_open = False
            self._end(self.current_step)
            super().close()

    def _begin(self) -> None:
        super()._begin()
        for model in self._models:
            for name, buffer in model.named_buffers():
                if buffer.is_floating_point():
                    self._add(BUFFER, without_wrappers(name), self._sums(buffer, copies=self._place.copies))
        # What a last update has changed is in the file even if nothing closes the recorder.
        self._write(self.current_step)
        self._rows.clear()

    def _before_update(self, optimizer: Optimizer, *_: Any) -> None:
        self.gradients()
        self.optimizer(optimizer)

    def _after_update(self, *_: Any) -> None:
        self._end(self.current_step)
        self.current_step += 1
        self._steps_left -= 1
        self._begin()
        if self._steps_left <= 0:
            self.close()


def named(label: str, value: object) -> list[tuple[str, Tensor]]:
    """Return (name, tensor) of the tensors in `value`, the arguments or the result of a module.

    The first tensor is named `label`, the others `label[1]`, `label[2]` and so on. At most `_TENSORS_AT_MOST` tensors
    are returned. Tensors for which no sums can be computed are left out.
    """
    tensors = [tensor for tensor in tensors_in(value) if _has_values(tensor)][:_TENSORS_AT_MOST]
    return [(f"{label}[{number}]" if number else label, tensor) for number, tensor in enumerate(tensors)]


def _has_values(tensor: Tensor) -> bool:
    """Return whether sums over a tensor can be computed: it is dense, not on the meta device, and not complex."""
    return tensor.layout is torch.strided and tensor.device.type != "meta" and not tensor.is_complex()


def _settings_of(group: dict[str, Any]) -> Iterator[tuple[str, float]]:
    """Yield (name, value) of each number in an optimizer's parameter group, such as `lr` and `betas[0]`."""
    for key, value in group.items():
        if isinstance(value, int | float) or (isinstance(value, Tensor) and value.numel() == 1):
            yield key, float(value)
        elif isinstance(value, tuple) and all(isinstance(each, int | float) for each in value):
            yield from ((f"{key}[{number}]", float(each)) for number, each in enumerate(value))


def record_tensors(
    model: nn.Module, folder: str | Path | None = None, *, first_step: int = 1, steps: int = STEPS
) -> ScriptRecorder:
    """Record checksums of the model's tensors, so that `workbench bisect A B` finds where two runs first differ.

    On this rank, the next `steps` steps are recorded: sums over the inputs, outputs, parameters and gradients of all
    modules of `model`, and over the optimizer's state. They are written to the folder `values` in `folder`; without
    `folder`, in that of the run under `workbench launch`, else in `outputs`. A step ends when the optimizer has
    stepped. Steps are numbered from `first_step`: if a run resumes from a checkpoint, pass the number of its next step.
    Close the returned recorder to end the recording early.
    """
    return ScriptRecorder([model], run_folder(folder), first_step, steps)
