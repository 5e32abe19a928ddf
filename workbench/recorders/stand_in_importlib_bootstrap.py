"""Stand-ins for functions of torch, which neither the lines of warnings nor torch.compile show.

A warning names the line of a caller some calls above, and a stand-in is a call more: the warnings of a library in the
middle of the backward pass would name a line of torch in place of the script's. Python counts no frame whose file has
`importlib` and `_bootstrap` in its name, which is why this file has such a name.
"""

import functools
import sys
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

Function = TypeVar("Function", bound=Callable[..., Any])

_NEEDED = ("_FrameAction", "_FrameExecStrategy", "set_code_exec_strategy")


def not_compiled(function: Function, *, with_callees: bool = True) -> Function:
    """Keep torch.compile from compiling a function of ours, which compiled code of the script calls, and return it.

    It would count frames, graphs and breaks of ours, and warn of them on stderr. The functions that this one calls are
    not compiled either, unless `with_callees` is False, as they are the script's. Call it when torch is imported.
    """
    compiler: Any = getattr(getattr(sys.modules.get("torch._C"), "_dynamo", None), "eval_frame", None)
    if not all(hasattr(compiler, name) for name in _NEEDED):  # another version of torch, which then counts our frames
        return function
    action = compiler._FrameAction  # noqa: SLF001
    callees = action.SKIP if with_callees else action.DEFAULT
    strategy = compiler._FrameExecStrategy(action.SKIP, callees)  # noqa: SLF001
    compiler.set_code_exec_strategy(function.__code__, strategy)
    return function


def stand_in(
    function: Callable[..., Any],
    before: Callable[[Sequence[Any], dict[str, Any]], Any],
    after: Callable[[Any, Sequence[Any]], object],
) -> Callable[..., Any]:
    """Return a function that does the same as `function`, and calls `before` and `after` around it.

    `before` gets the positional and the named arguments, of which it may change the latter. `after` gets what `before`
    has returned, and the positional arguments, also if `function` has raised an exception. Neither may raise an error
    of our own.
    """

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        noted = before(args, kwargs)
        try:
            return function(*args, **kwargs)
        finally:
            after(noted, args)

    return not_compiled(call, with_callees=False)
