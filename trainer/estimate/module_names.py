"""Find the module to which an allocation belongs, in the forward and in the backward pass.

Layers of the same kind count as one module.
"""

from bisect import bisect_right

import torch
from torch import nn
from torch.autograd.graph import Node

from workbench.recorders.memory.tensor_hooks import (
    COMMUNICATION,
    GRADIENTS,
    INPUTS,
    OPTIMIZER_STATE,
    PARAMETERS,
    without_wrappers,
)

ROOT, LOSS, NO_MODULE = "(model)", "(loss)", "(no module)"
"""The names for memory that belongs to no part of the model.

They are for what the model itself allocates outside of its parts, for the loss, and for all else, such as an update.
"""
OWN_ROWS = {INPUTS: "(inputs)", COMMUNICATION: "(communication)"}
"""{category that belongs to no module: the name under which its memory is listed}."""
_LABEL_ENDS = {PARAMETERS: 1, GRADIENTS: 1, OPTIMIZER_STATE: 2}
"""{category: number of parts of a label after the module's name}: 1 in `wq.weight`, 2 in `wq.weight.exp_avg`."""


class ModuleNames:
    """The names of a model's modules, in which `*` replaces the number of a layer.

    For example, the modules `layers.0.wq` and `layers.1.wq` share the name `layers.*.wq`.
    """

    def __init__(self) -> None:
        self._stacks: set[str] = set()
        self._folded: dict[str, str] = {}

    def learn(self, model: nn.Module) -> None:
        self._stacks |= {without_wrappers(name) for name, module in model.named_modules() if _is_stack(module)}
        # Names that were folded before may contain one of the new stacks.
        self._folded.clear()

    def folded(self, name: str) -> str:
        """Return the name of a module with `*` in place of the number of each layer; `ROOT` for an empty name."""
        if name not in self._folded:
            parts = name.split(".")
            stars = ["*" if ".".join(parts[:at]) in self._stacks else part for at, part in enumerate(parts)]
            self._folded[name] = ".".join(stars) or ROOT
        return self._folded[name]

    def owner(self, category: str, label: str) -> str:
        """Return the module to which a tensor belongs, by its category (such as parameters) and its label.

        A parameter with the label `layers.0.wq.weight` belongs to `layers.*.wq`. Inputs and communication belong to no
        module; their result is a name in parentheses, such as `(inputs)`. For all other categories the result is empty.
        """
        if category in _LABEL_ENDS:
            return self.folded(".".join(label.split(".")[: -_LABEL_ENDS[category]]))
        return OWN_ROWS.get(category, "")


def _is_stack(module: nn.Module) -> bool:
    children = dict(module.named_children())
    if not children or not all(name.isdigit() for name in children):
        return False
    kinds = {type(child) for child in children.values()}
    return isinstance(module, (nn.ModuleList, nn.ModuleDict)) or (len(children) > 1 and len(kinds) == 1)


class RunningModule:
    """Knows the name of the module that is running now.

    In the backward pass, the running module is the one whose forward pass created the autograd node that is running.
    Autograd numbers nodes in the order of their creation. `mark` stores the number at which each module's forward pass
    begins or continues.
    """

    def __init__(self) -> None:
        self.names = ModuleNames()
        self._numbers: list[int] = []
        self._names: list[str] = []

    def mark(self, name: str) -> None:
        self._numbers.append(torch._C._autograd._get_sequence_nr())  # noqa: SLF001
        self._names.append(name)

    @property
    def name(self) -> str:
        """The name of the module that is running now.

        If no module is running, this is `LOSS` in the forward or backward pass, and `NO_MODULE` outside of both.
        """
        if self._names and self._names[-1]:
            return self._names[-1]
        # The stub of torch says that there always is one.
        node: Node | None = torch._C._current_autograd_node()  # noqa: SLF001
        if node is None:
            # An update runs without gradients.
            return LOSS if torch.is_grad_enabled() else NO_MODULE
        at = bisect_right(self._numbers, node._sequence_nr()) - 1  # noqa: SLF001
        return (self._names[at] if at >= 0 else "") or LOSS
