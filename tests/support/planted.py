"""Run the trainer with a mistake in one module, on the ranks that have it; `job.description` names the mistake."""

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
    """Make a module return values that are 1 % too large."""
    for module in find(models, "layers.2.feed_forward"):
        module.register_forward_hook(lambda _, __, output: output * 1.01)


def double_gradient(models: Sequence[Decoder]) -> None:
    """Add the gradient of a weight twice."""
    for module in find(models, "layers.1.attention.wk"):
        module.weight.register_hook(lambda gradient: gradient * 2)


def lose_gradient(models: Sequence[Decoder]) -> None:
    """Drop a tenth of the gradient that flows back into a norm."""

    def hook(_: nn.Module, __: object, output: Tensor) -> None:
        output.register_hook(lambda gradient: gradient * 0.9)

    for module in find(models, "layers.1.ffn_norm"):
        module.register_forward_hook(hook)


def shift_positions(models: Sequence[Decoder]) -> None:
    """Give each position the rotation of the previous one, except for the first position of a rank."""
    for model in models:
        model.rope = torch.cat((model.rope[:, :1], model.rope[:, :-1]), dim=1)


PLANTED: dict[str, Callable[[Sequence[Decoder]], None]] = {
    function.__name__: function for function in (scale_output, double_gradient, lose_gradient, shift_positions)
}


def find(models: Sequence[Decoder], name: str) -> list[nn.Module]:
    """Return the modules with this name; empty on ranks that do not have it."""
    return [module for model in models for path, module in model.named_modules() if is_named(path, name, module)]


def is_named(path: str, name: str, module: nn.Module) -> bool:
    """Return whether a module has this name, ignoring names of wrappers, and is not a wrapper itself."""
    return without_wrappers(path) == name and not hasattr(module, "_checkpoint_wrapped_module")


def planted(*arguments: object) -> list[Decoder]:
    """Parallelise the model, then insert the mistake that the description names."""
    models = original(*arguments)
    description = sys.argv[sys.argv.index("--job.description") + 1] if "--job.description" in sys.argv else ""
    if description in PLANTED:
        PLANTED[description](models)
    return models


if __name__ == "__main__":
    trainer.train.parallelize = planted
    runpy.run_module("trainer", run_name="__main__", alter_sys=True)
