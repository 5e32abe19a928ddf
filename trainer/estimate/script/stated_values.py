"""Return a fixed value when a script reads a tensor that has no values, and remember the line that read it."""

from typing import Any

import torch

from trainer.estimate.script.places import running_line

_FLOAT_VALUE, _INTEGER_VALUE = 1.0, 1
"""The values that numbers are assumed to have: neither a division nor a logarithm fails on them."""


class StatedValues:
    """Gives a script a fixed value when it reads a value that the model would compute; the tensors have no values.

    `lines` has the lines of the script that read such a value. A real run may take another branch there.
    """

    def __init__(self) -> None:
        self.lines: dict[str, None] = {}

    def of(self, tensor: torch.Tensor) -> bool | int | float | complex:
        """Return the fixed value for a tensor with one element, by its type: False, 1 or 1.0."""
        self.note()
        if tensor.dtype is torch.bool:
            return False
        if tensor.is_complex():
            return complex(_FLOAT_VALUE)
        return _FLOAT_VALUE if tensor.is_floating_point() else _INTEGER_VALUE

    def filled(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return a real tensor of the same size and type, in which each element has the fixed value of its type."""
        return torch.full(tuple(tensor.shape), self.of(tensor), dtype=tensor.dtype)

    def note(self) -> None:
        """Remember the line of the script that reads a value now."""
        if line := running_line():
            self.lines[line] = None

    def assumptions(self) -> list[str]:
        """Return a list with a sentence that names the lines that read values; empty if there were none."""
        if not self.lines:
            return []
        lines = list(self.lines)
        more = f" and {len(lines) - 3} more lines" if len(lines) > 3 else ""
        read = (
            f"values that the model computes are not known: floats read as {_FLOAT_VALUE:g}, integers as"
            f" {_INTEGER_VALUE}, comparisons as False (read at {', '.join(lines[:3])}{more})"
        )
        return [read]


def finite_gradients(_scaler: object, optimizer: Any, _state: object, *args: Any, **kwargs: Any) -> Any:
    """Step the optimizer as `GradScaler` does if all gradients are finite; the real answer would need their values."""
    return optimizer.step(*args, **kwargs)
