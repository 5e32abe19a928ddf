"""Hide functions from PyTorch's profiler: otherwise hooks would cause most events of a session.

With Python stacks, the profiler records each call of a Python or built-in function. A hook that writes a note makes a
dozen calls. To record and read such a call costs several times as much as the call itself.
"""

import ctypes
import sys
from collections.abc import Callable
from functools import wraps
from typing import ParamSpec, TypeVar

Params = ParamSpec("Params")
Result = TypeVar("Result")

# Public functions of CPython from 3.11 on. `pythonapi` keeps the GIL, which they need.
suspend = getattr(ctypes.pythonapi, "PyThreadState_EnterTracing", None)
resume = getattr(ctypes.pythonapi, "PyThreadState_LeaveTracing", None)
this_thread = ctypes.pythonapi.PyThreadState_Get
this_thread.restype = ctypes.c_void_p
for switch in (suspend, resume):
    if switch is not None:
        switch.argtypes, switch.restype = (ctypes.c_void_p,), None


def untraced(function: Callable[Params, Result]) -> Callable[Params, Result]:
    """Return a function that does the same as `function`, but hides the calls inside from the profiler.

    The profiler still records the call of the function itself.
    """

    @wraps(function)
    def run(*args: Params.args, **kwargs: Params.kwargs) -> Result:
        if suspend is None or resume is None or sys.getprofile() is None:
            return function(*args, **kwargs)
        thread = this_thread()
        suspend(thread)
        try:
            return function(*args, **kwargs)
        finally:
            resume(thread)

    return run
