"""Run recurrent layers on tensors without values: the workspace of oneDNN's LSTM, and packed sequences."""

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import unset_fake_temporarily

aten = torch.ops.aten
LSTM, PACK = aten.mkldnn_rnn_layer.default, aten._pack_padded_sequence.default  # noqa: SLF001
_WORKSPACE = 3
"""The index of the workspace in the results of `LSTM`: bytes that the forward pass keeps for the backward pass."""
_TENSORS = 7
"""Number of leading arguments of `LSTM` that are tensors: input, two weights, two biases, and two states."""
LONGEST = 64
"""The most time steps that are run to measure a workspace, which grows linearly with their number."""


def with_workspace(arguments: Sequence[Any], result: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """Return the results of an LSTM with the workspace that oneDNN would allocate; on fake tensors it is empty.

    `arguments` are the arguments of the operation `LSTM`, `result` its results.
    """
    tensors = tuple((tuple(tensor.shape), tensor.dtype) for tensor in arguments[:_TENSORS])
    numbers = tuple(tuple(one) if isinstance(one, list) else one for one in arguments[_TENSORS:])
    workspace = result[_WORKSPACE].new_empty(workspace_bytes(tensors, numbers))
    return (*result[:_WORKSPACE], workspace)


def workspace_bytes(tensors: tuple[tuple[tuple[int, ...], torch.dtype], ...], numbers: tuple[Any, ...]) -> int:
    """Return the bytes of the workspace of an LSTM.

    `tensors` has (shape, dtype) of the LSTM's tensor arguments, and `numbers` its other arguments. oneDNN allocates the
    workspace only when the LSTM runs. So the LSTM is run on zeros. For a long sequence, two short sequences are run
    instead, and the size is extrapolated.
    """
    (length, *rest), dtype = tensors[0]
    if length <= LONGEST:
        return _measured_workspace(tensors, numbers)
    short = [_measured_workspace((((part, *rest), dtype), *tensors[1:]), numbers) for part in (LONGEST // 2, LONGEST)]
    return short[1] + round((short[1] - short[0]) / (LONGEST - LONGEST // 2) * (length - LONGEST))


@lru_cache
def _measured_workspace(tensors: tuple[tuple[tuple[int, ...], torch.dtype], ...], numbers: tuple[Any, ...]) -> int:
    """Run an LSTM on zeros, and return the bytes of its workspace; see `workspace_bytes` for the arguments."""
    # Without gradients the library keeps nothing for a backward pass.
    with unset_fake_temporarily(), torch.enable_grad():
        values = [torch.zeros(shape, dtype=dtype) for shape, dtype in tensors]
        return LSTM(*values, *numbers)[_WORKSPACE].numel()  # type: ignore[no-any-return]


def packed(sequences: Tensor, lengths: Tensor, *, batch_first: bool) -> tuple[Tensor, Tensor]:
    """Return (rows without values, batch sizes) of padded sequences, packed by their real lengths.

    The batch sizes are real values, because operations on packed sequences read them.
    """
    with unset_fake_temporarily():
        template = torch.empty(*sequences.shape[:2], 1)
        rows, batch_sizes = PACK(template, lengths, batch_first)
    return sequences.new_empty(rows.shape[0], *sequences.shape[2:]), batch_sizes
