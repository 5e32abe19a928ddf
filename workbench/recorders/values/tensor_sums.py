"""Sums over a distributed tensor: each rank computes its part, and the total does not depend on the mesh."""

from typing import NamedTuple

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor, Replicate


class Sums(NamedTuple):
    """Three sums over this rank's part of a tensor, and the number of ranks that have the same part."""

    values: Tensor
    """The sum, that of the absolute values, and that of the squares: (3,) float64."""
    copies: int = 1


@torch.no_grad()
def sums_of(tensor: Tensor, *, factor: float = 1.0, copies: int = 1) -> Sums:
    """Return the sums over this rank's part of `tensor`, multiplied by `factor`.

    `copies` is the number of ranks that hold the tensor. Each of them has all values of a plain tensor, but only a part
    of a DTensor. If `copies` is twice the number of ranks in the DTensor's mesh, a second mesh holds an equal DTensor.
    """
    if isinstance(tensor, DTensor):
        meshes = max(copies // tensor.device_mesh.size(), 1)
        tensor, copies = own_part(tensor)
        copies *= meshes
    # In float64, the order of the sum, which depends on the mesh, does not reach the digits that are compared.
    values = tensor.detach().double() * factor
    return Sums(torch.stack((values.sum(), values.abs().sum(), values.square().sum())), copies)


def own_part(tensor: DTensor) -> tuple[Tensor, int]:
    """Return this rank's part of a DTensor, and the number of ranks in its mesh with the same part.

    Partial sums are reduced first, which is a collective.
    """
    if any(placement.is_partial() for placement in tensor.placements):
        placements = [Replicate() if placement.is_partial() else placement for placement in tensor.placements]
        tensor = tensor.redistribute(placements=placements)
    copies = 1
    for dimension, placement in enumerate(tensor.placements):
        copies *= tensor.device_mesh.size(dimension) if placement.is_replicate() else 1
    return tensor.to_local(), copies
