"""Compute sums over a distributed tensor: each rank sums its part, and the total does not depend on the mesh."""

from functools import lru_cache
from typing import NamedTuple

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor, Replicate

_SIGNATURE = 4096
"""The length of the fixed random vector from which projections are computed."""


class Sums(NamedTuple):
    """Sums over this rank's part of a tensor, and the number of ranks that have the same part (`copies`)."""

    values: Tensor
    """The sum of the values, of their absolute values and of their squares, and the projection if it was asked for.

    It is a float64 tensor of shape (3,) or (4,).
    """
    copies: int = 1
    elements: int = 0
    length: int = 0
    """The number of terms in the longest sum over the tensor: its features or its tokens.

    The rounding error that is expected between two runs follows from it.
    """
    dtype: str = ""
    calls: int = 1


@torch.no_grad()
def sums_of(tensor: Tensor, *, factor: float = 1.0, copies: int = 1, projected: bool = False) -> Sums:
    """Return the sums over this rank's part of `tensor` after multiplying its values by `factor`.

    `projected` adds the scalar product with a fixed random vector (see `projection`). `copies` is the number of ranks
    that have the tensor. For a DTensor, `copies` may be a multiple of the number of ranks in its mesh: then other
    meshes have an equal DTensor.
    """
    if isinstance(tensor, DTensor):
        meshes = max(copies // tensor.device_mesh.size(), 1)
        tensor, copies = _own_part(tensor)
        copies *= meshes
    # In float64, the order of the sum, which depends on the mesh, does not reach the digits that are compared.
    values = tensor.detach().double() * factor
    sums = [values.sum(), values.abs().sum(), values.square().sum()]
    if projected:
        sums.append(projection(values))
    size, features = tensor.numel(), tensor.shape[-1] if tensor.dim() else 1
    length = max(features, size // max(features, 1))
    return Sums(torch.stack(sums), copies, size, length, str(tensor.dtype).removeprefix("torch."))


def projection(values: Tensor) -> Tensor:
    """Return the scalar product of all values with a fixed pseudo-random vector of the same length: () float64.

    Unlike a sum, the result depends on the order of the values. If the values change by a vector `d`, the result
    changes by about the norm of `d` (random projections of Johnson and Lindenstrauss, 1984). The long random vector is
    the outer product of two short ones.
    """
    flat = values.flatten()
    rows = len(flat) // _SIGNATURE
    columns = signature(_SIGNATURE, str(flat.device))
    rest = flat[rows * _SIGNATURE :]
    last = (rest * columns[: len(rest)]).sum()
    if not rows:
        return last
    return (flat[: rows * _SIGNATURE].view(rows, _SIGNATURE) @ columns) @ signature(rows, str(flat.device)) - last


@lru_cache(maxsize=64)
def signature(length: int, device: str) -> Tensor:
    """Return a vector of `length` normal random numbers, which is the same in every run and on every device.

    `projection` combines two such vectors into its long random vector.
    """
    generator = torch.Generator().manual_seed(length)
    return torch.randn(length, dtype=torch.float64, generator=generator).to(device)


def _own_part(tensor: DTensor) -> tuple[Tensor, int]:
    """Return (this rank's part of a DTensor, number of ranks in its mesh with the same part).

    A DTensor with partial sums is first reduced. This is a collective, so all ranks of the mesh must call this
    function.
    """
    if any(placement.is_partial() for placement in tensor.placements):
        placements = [Replicate() if placement.is_partial() else placement for placement in tensor.placements]
        tensor = tensor.redistribute(placements=placements)
    copies = 1
    for dimension, placement in enumerate(tensor.placements):
        copies *= tensor.device_mesh.size(dimension) if placement.is_replicate() else 1
    return tensor.to_local(), copies
