"""The optimizer and its learning rate."""

import math

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh

from trainer.config.sections import LRScheduler, Optimizer


def build_optimizer(model: nn.Module, config: Optimizer) -> torch.optim.Optimizer:
    """Adam or AdamW over all parameters."""
    chosen = torch.optim.AdamW if config.name == "AdamW" else torch.optim.Adam
    return chosen(
        [{"params": alike} for alike in by_mesh(model)],
        lr=config.lr,
        betas=(config.beta1, config.beta2),
        eps=config.eps,
        weight_decay=config.weight_decay,
        fused=config.implementation == "fused",
        foreach=config.implementation == "foreach",
    )


def by_mesh(model: nn.Module) -> list[list[nn.Parameter]]:
    """The parameters, those of each device mesh apart: no one operation takes tensors of several meshes."""
    found: dict[DeviceMesh | None, list[nn.Parameter]] = {}
    for parameter in model.parameters():
        found.setdefault(getattr(parameter, "device_mesh", None), []).append(parameter)
    return list(found.values())


def lr_factor(step: int, steps: int, config: LRScheduler) -> float:
    """The learning rate of `step`, from 1, as a fraction of its highest: linear warmup, plateau, decay.

    The decay is laid out to end one step after the last, so that no step is wasted on a rate of zero.
    """
    total = config.total_steps or steps
    warmup = min(config.warmup_steps, total)
    decay = total - warmup
    if config.decay_ratio is not None:
        decay = min(round(total * config.decay_ratio), decay)
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
    """Set the learning rate of all parameters."""
    for group in optimizer.param_groups:
        group["lr"] = lr
