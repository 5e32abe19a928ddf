"""The trainer with a mistake that `job.description` names: in one module, on the ranks of the run that has it."""

import runpy
import sys
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

import trainer.train
from trainer.models.decoder import Decoder
from workbench.recorders.memory.tensor_hooks import without_wrappers

original = trainer.train.parallelize


def scale_output(models: Sequence[Decoder]) -> None:
    """A module returns one per cent too much."""
    for module in find(models, "layers.2.feed_forward"):
        module.register_forward_hook(lambda _, __, output: output * 1.01)


def double_gradient(models: Sequence[Decoder]) -> None:
    """The gradient of one weight is added twice."""
    for module in find(models, "layers.1.attention.wk"):
        module.weight.register_hook(lambda gradient: gradient * 2)


def lose_gradient(models: Sequence[Decoder]) -> None:
    """A tenth of what flows back into one norm is lost."""

    def hook(_: nn.Module, __: object, output: Tensor) -> None:
        output.register_hook(lambda gradient: gradient * 0.9)

    for module in find(models, "layers.1.ffn_norm"):
        module.register_forward_hook(hook)


def shift_positions(models: Sequence[Decoder]) -> None:
    """Each position has the rotation of the one before it, but for a rank's first."""
    for model in models:
        model.rope = torch.cat((model.rope[:, :1], model.rope[:, :-1]), dim=1)


PLANTED: dict[str, Callable[[Sequence[Decoder]], None]] = {
    function.__name__: function for function in (scale_output, double_gradient, lose_gradient, shift_positions)
}


def find(models: Sequence[Decoder], name: str) -> list[nn.Module]:
    """The module of this name, on the ranks that have it."""
    return [module for model in models for path, module in model.named_modules() if is_named(path, name, module)]


def is_named(path: str, name: str, module: nn.Module) -> bool:
    """Whether a module has this name without the names of wrappers, and is none itself."""
    return without_wrappers(path) == name and not hasattr(module, "_checkpoint_wrapped_module")


def planted(*arguments: object) -> list[Decoder]:
    """Parallelise, then plant what the description names."""
    models = original(*arguments)
    description = sys.argv[sys.argv.index("--job.description") + 1] if "--job.description" in sys.argv else ""
    if description in PLANTED:
        PLANTED[description](models)
    return models


if __name__ == "__main__":
    trainer.train.parallelize = planted
    runpy.run_module("trainer", run_name="__main__", alter_sys=True)
