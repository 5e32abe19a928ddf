"""Run one optimizer step: forward, backward, clipping, update. Training and memory estimates use the same code."""

import contextlib
import importlib
import math
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor
from torch.linalg import vector_norm
from torch.nn.functional import cross_entropy
from torch.nn.utils import clip_grads_with_norm_, get_total_norm

from trainer.config import ConfigError, JobConfig
from trainer.config.checks import accumulation_steps, model_shape
from trainer.config.converters import FLOAT8, uses_autocast
from trainer.config.sections import Compile, LRScheduler, Optimizer
from trainer.data.loader import Loader
from trainer.models.moe import balance_experts
from trainer.parallel.mesh import World
from trainer.parallel.tensor_parallel import split_loss

_MULTIPLE = 16
"""Both sides of a weight must be multiples of this number for a product in float8."""


def convert(model: nn.Module, config: JobConfig) -> None:
    """Replace the linear layers of `model` by layers that multiply in float8, except layers in float8.filter_fqns.

    Layers whose dimensions are not multiples of 16 do not change. The names of weights do not change either.

    Raises:
        ConfigError: No layer is left to convert.
    """
    # The weight of a tied output layer is an embedding, too, which is looked up in its own type.
    tied = ["output"] * model_shape(config).enable_weight_tying
    filtered = [*config.float8.filter_fqns, *tied]
    names = [name for name, module in model.named_modules() if is_converted(module, name, filtered)]
    if not names:
        raise ConfigError(
            "model.converters float8: there is no linear layer to convert whose sides are multiples of"
            f" {_MULTIPLE} and whose name has none of float8.filter_fqns {config.float8.filter_fqns}",
            "name fewer layers in float8.filter_fqns",
        )
    package = torchao()
    package.convert_to_float8_training(
        model, config=recipe(package, config), module_filter_fn=lambda _, name: name in names
    )


def is_converted(module: nn.Module, name: str, filtered: list[str]) -> bool:
    """Return whether to convert a module: it is a linear layer that float8 supports, and is not excluded.

    A module is excluded if its `name` contains one of the texts in `filtered`.
    """
    return (
        isinstance(module, nn.Linear)
        and module.in_features % _MULTIPLE == module.out_features % _MULTIPLE == 0
        and not any(part in name for part in filtered)
    )


def recipe(package: Any, config: JobConfig) -> Any:
    settings = config.float8
    return replace(
        package.Float8LinearConfig.from_recipe_name(settings.recipe_name or "tensorwise"),
        emulate=settings.emulate,
        enable_fsdp_float8_all_gather=settings.enable_fsdp_float8_all_gather,
    )


def _precompute_scales(model: nn.Module) -> None:
    torchao().precompute_float8_dynamic_scale_for_fsdp(model)


def torchao() -> Any:
    """Return the module torchao.float8, imported only here because torchao is an optional dependency."""
    return importlib.import_module("torchao.float8")


def build_optimizer(model: nn.Module, config: Optimizer) -> torch.optim.Optimizer:
    optimizer_class = torch.optim.AdamW if config.name == "AdamW" else torch.optim.Adam
    return optimizer_class(
        [{"params": parameters} for parameters in _parameters_by_mesh(model)],
        lr=config.lr,
        betas=(config.beta1, config.beta2),
        eps=config.eps,
        weight_decay=config.weight_decay,
        # Both are False rather than None: if both are None, torch chooses an implementation itself.
        fused=config.implementation == "fused",
        foreach=config.implementation == "foreach",
    )


def _parameters_by_mesh(model: nn.Module) -> list[list[nn.Parameter]]:
    """Return one list of parameters per device mesh; a fused optimizer cannot mix tensors of several meshes."""
    groups: dict[DeviceMesh | None, list[nn.Parameter]] = {}
    for parameter in model.parameters():
        groups.setdefault(getattr(parameter, "device_mesh", None), []).append(parameter)
    return list(groups.values())


def lr_factor(step: int, steps: int, config: LRScheduler) -> float:
    """Return the learning rate of `step` (from 1) as a fraction of its maximum: linear warmup, plateau, decay.

    `steps` is the number of training steps. The decay ends one step after the last step, so that the rate is not zero
    in any step. Example: 10 steps, 2 of warmup, decay_ratio 0.4, linear: 0.5, 1, 1, 1, 1, 1, 1, 0.75, 0.5, 0.25.
    """
    total = config.total_steps or steps
    warmup = min(config.warmup_steps, total)
    decay = total - warmup
    if config.decay_ratio is not None:
        decay = min(round(total * config.decay_ratio), decay)
    # Step 1 trains at 1/warmup of the rate, not at 0: no step is wasted.
    if step <= warmup:
        return step / warmup
    progress = (step - (total + 1 - decay)) / decay if decay else 0.0
    if progress <= 0:
        return 1.0
    shape = {
        "linear": 1 - progress,
        "sqrt": 1 - math.sqrt(progress),
        "cosine": 0.5 * (1 + math.cos(math.pi * progress)),
    }
    return config.min_lr_factor + (1 - config.min_lr_factor) * shape[config.decay_type]


def set_lr(optimizer: torch.optim.Optimizer, lr: float) -> None:
    for group in optimizer.param_groups:
        group["lr"] = lr


Batch = tuple[Tensor, Tensor]
"""The inputs and the labels of a batch, on the device; each is an int64 tensor (B, T)."""


@dataclass
class OptimizerStep:
    """Runs the parts of an optimizer step: forward pass, backward pass, gradient clipping and update.

    Each part runs inside the context that `phase(name)` returns, so that the caller can measure it.
    """

    config: JobConfig
    world: World
    model: nn.Module
    optimizer: torch.optim.Optimizer
    phase: Callable[[str], AbstractContextManager[None]]

    def __post_init__(self) -> None:
        self.accumulation_steps = accumulation_steps(self.config.training, self.world.degrees)
        self.labels_per_batch: float | None = None
        self.loss_fn = _loss_function(self.config.compile)
        self.precomputes_scales = (
            FLOAT8 in self.config.model.converters and self.config.float8.precompute_float8_dynamic_scale_for_fsdp
        )

    def count_labels(self, loader: Loader) -> None:
        """Store how many labels `loader` has for the coming step, so that each label has the same weight in the loss.

        Batches of different ranks have different numbers of labels (those that are not -100). A mean over the mean
        losses of the batches would give the labels unequal weights.
        """
        ahead = loader.labels_ahead(self.accumulation_steps)
        batches = self.accumulation_steps * self.world.degrees.data_parallel
        # At least 1: a step whose rows have no labels must not divide by zero.
        self.labels_per_batch = None if ahead is None else max(ahead, 1) / batches

    @property
    def knows_loss(self) -> bool:
        """Whether this rank computes the loss; in a pipeline, only some ranks do."""
        return True

    def forward_backward(self, batch: Batch) -> Tensor:
        """Accumulate the gradients of one batch, and return the batch's share of the step's loss.

        The shares of all batches of the step add up to the mean loss.
        """
        inputs, labels = batch
        loss_fn = partial(summed_loss, count=self.labels_per_batch) if self.labels_per_batch else self.loss_fn
        # The backward pass of a loss over split logits needs the same context as its forward pass.
        with split_loss(self.world.tensor):
            with self.phase("fwd"), self.autocast():
                # Divided before the backward pass, so that accumulated gradients are those of the mean over the whole
                # batch.
                loss = loss_fn(self.model(inputs), labels) / self.accumulation_steps
            with self.phase("bwd"):
                loss.backward()  # type: ignore[no-untyped-call]
        return whole(loss.detach())

    def evaluate(self, batch: Batch) -> Tensor:
        inputs, labels = batch
        with split_loss(self.world.tensor), self.autocast():
            return whole(self.loss_fn(self.model(inputs), labels))

    def autocast(self) -> AbstractContextManager[None]:
        """Return the autocast context for mixed precision; under FSDP it does nothing, because FSDP casts weights."""
        if uses_autocast(self.config, self.world.degrees):
            return torch.autocast(self.world.device.type, dtype=torch.bfloat16)
        return contextlib.nullcontext()

    def update(self) -> Tensor:
        with self.phase("grad_clip"):
            norm = self.clip_gradients()
        with self.phase("optim"):
            # Not over the pipeline, whose stages have different layers.
            balance_experts(self.model, self.world.data, self.world.tensor)
            self.optimizer.step()
            self.optimizer.zero_grad()
            # After the update, because the next forward pass gathers the new weights with these scales.
            if self.precomputes_scales:
                _precompute_scales(self.model)
        return norm

    def clip_gradients(self) -> Tensor:
        """Scale the gradients so that their norm is at most max_norm; return the norm before the scaling."""
        # A norm of the norms: the meshes' gradients cannot go through one operation.
        groups = _parameters_by_mesh(self.model)
        norms = [gradient_norm(parameters) for parameters in groups]
        norm: Tensor = vector_norm(torch.stack(norms))
        if self.world.pipeline:
            norm = _norm_over(norm, self.world.pipeline.get_group())
        for parameters in groups:
            clip_grads_with_norm_(parameters, self.config.training.max_norm, norm)
        return norm


def gradient_norm(parameters: Sequence[nn.Parameter]) -> Tensor:
    # A converter may freeze parameters, which then have no gradient.
    norm = get_total_norm([p.grad for p in parameters if p.grad is not None])
    return whole(norm)


def _norm_over(norm: Tensor, group: dist.ProcessGroup) -> Tensor:
    """Return the norm of gradients that are distributed over `group`; `norm` is the norm of this rank's part.

    The norms of all ranks are combined as the square root of the sum of their squares.
    """
    squares = norm.square()
    dist.all_reduce(squares, group=group)
    return squares.sqrt()


def whole(tensor: Tensor) -> Tensor:
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def _loss_function(config: Compile) -> Callable[[Tensor, Tensor], Tensor]:
    if config.enable and "loss" in config.components:
        return torch.compile(mean_loss, backend=config.backend)
    return mean_loss


def summed_loss(logits: Tensor, labels: Tensor, count: float) -> Tensor:
    """Return the sum of the cross entropies at labels that are not -100, divided by `count`.

    `logits` are (B, T, V), `labels` (B, T).
    """
    return cross_entropy(logits.flatten(0, 1).float(), labels.flatten(), reduction="sum") / count


def mean_loss(logits: Tensor, labels: Tensor) -> Tensor:
    return cross_entropy(logits.flatten(0, 1).float(), labels.flatten())
