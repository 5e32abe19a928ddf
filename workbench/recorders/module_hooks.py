"""Hooks on modules that leave a model as it is for pickling and copying."""

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any


class ModuleHook:
    """A forward hook; in a pickled model, as of `torch.save(model)`, a function that does nothing is in its place.

    That function is of the standard library: who loads the model needs nothing of ours. A copy of the model made by
    `copy.deepcopy` has the same hook.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function

    def __call__(self, *arguments: Any) -> Any:
        return self._function(*arguments)

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[object, str]]:
        """Return how pickle makes a function that takes any arguments and returns None."""
        return getattr, (nullcontext(), "__exit__")

    def __deepcopy__(self, _memo: dict[int, object]) -> "ModuleHook":
        return self
