"""Answer a script that reads the value of a tensor without values, with a stated value, and remember where it did."""

from typing import Any

import torch

from trainer.estimate.script.places import running_line

FLOAT_VALUE, INTEGER_VALUE = 1.0, 1
"""The stated values of numbers: neither a division nor a logarithm fails on them."""


class StatedValues:
    """Answers reads of values that depend on the model, which a rehearsal does not compute.

    `lines` are the lines of the script that read one. A real run may take another branch there.
    """

    def __init__(self) -> None:
        self.lines: dict[str, None] = {}

    def of(self, tensor: torch.Tensor) -> bool | int | float | complex:
        """Return the stated value of a tensor with one element, by its type."""
        self.note()
        if tensor.dtype is torch.bool:
            return False
        if tensor.is_complex():
            return complex(FLOAT_VALUE)
        return FLOAT_VALUE if tensor.is_floating_point() else INTEGER_VALUE

    def filled(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return a tensor with values, of the same size and type, in which each element has the stated value."""
        return torch.full(tuple(tensor.shape), self.of(tensor), dtype=tensor.dtype)

    def note(self) -> None:
        """Remember the line of the script that reads a value."""
        if line := running_line():
            self.lines[line] = None

    def assumptions(self) -> list[str]:
        """Return a sentence that names the lines that read values; an empty list if there was none."""
        if not self.lines:
            return []
        lines = list(self.lines)
        more = f" and {len(lines) - 3} more lines" if len(lines) > 3 else ""
        read = (
            f"values that the model computes are not known: floats read as {FLOAT_VALUE:g}, integers as"
            f" {INTEGER_VALUE}, comparisons as False (read at {', '.join(lines[:3])}{more})"
        )
        return [read]


def finite_gradients(_scaler: object, optimizer: Any, _state: object, *args: Any, **kwargs: Any) -> Any:
    """Step the optimizer as `GradScaler` does when all gradients are finite, which it would read from a tensor."""
    return optimizer.step(*args, **kwargs)
