"""Build the optimizer, and compute the learning rate of each step."""

import math

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh

from trainer.config.sections import LRScheduler, Optimizer


def build_optimizer(model: nn.Module, config: Optimizer) -> torch.optim.Optimizer:
    optimizer_class = torch.optim.AdamW if config.name == "AdamW" else torch.optim.Adam
    return optimizer_class(
        [{"params": parameters} for parameters in parameters_by_mesh(model)],
        lr=config.lr,
        betas=(config.beta1, config.beta2),
        eps=config.eps,
        weight_decay=config.weight_decay,
        # Both are False rather than None: if both are None, torch chooses an implementation itself.
        fused=config.implementation == "fused",
        foreach=config.implementation == "foreach",
    )


def parameters_by_mesh(model: nn.Module) -> list[list[nn.Parameter]]:
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
