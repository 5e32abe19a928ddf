"""Notice full garbage collections without any Python code in the hooks of the collector.

A signal that arrives during a collection is handled where Python code runs next. In a hook of the collector that would
be our code, and what the script's handler raises there, such as the end of a time limit, is printed and lost. So the
hooks are chains of functions in C: iterators that call one another, of which each collection takes the next item.
"""

import gc
import operator
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from itertools import repeat
from threading import get_ident
from time import perf_counter_ns
from typing import Any

from torch._C import _autograd

_KEPT = 2048
"""The number of kept times, of beginnings and ends."""
_record: Any = _autograd
_ignored: Any = operator.is_


class _Reports(deque[dict[str, int]]):
    """What the collector says about a collection that begins or ends."""

    start = stop = property(None, deque.append)


class _Begins(map):  # type: ignore[type-arg]
    """Takes its next item when a collection begins."""

    start, stop = property(None, next), property(None, _ignored)


class _Ends(map):  # type: ignore[type-arg]
    """Takes its next item when a collection ends."""

    start, stop = property(None, _ignored), property(None, next)


def _hooks(begin: Callable[[], object], end: Callable[[], object]) -> list[Callable[[str, dict[str, int]], object]]:
    """Return hooks for the collector that call two functions, in C, at the beginning and the end of full collections.

    The collector calls them with "start" or "stop" and a dict; each sets the attribute of that name, a property.
    """
    reports = _Reports()

    def on_full(act: Callable[[], object]) -> Iterator[Callable[[], object]]:
        generations = map(operator.itemgetter("generation"), iter(reports.popleft, None))
        return map((int, int, act).__getitem__, generations)

    return [
        partial(setattr, each)
        for each in (reports, _Begins(operator.call, on_full(begin)), _Ends(operator.call, on_full(end)))
    ]


class Collections:
    """Keeps the times of full garbage collections, from its creation until `stop`."""

    def __init__(self) -> None:
        self.times: deque[tuple[int, int, bool]] = deque(maxlen=_KEPT)
        """(time of `perf_counter_ns`, thread, whether the collection ends there), oldest first."""
        self._hooks = _hooks(self._note(is_end=False), self._note(is_end=True))
        gc.callbacks.extend(self._hooks)

    def _note(self, *, is_end: bool) -> Callable[[], object]:
        now = zip(iter(perf_counter_ns, None), iter(get_ident, None), repeat(is_end), strict=False)
        return partial(next, map(self.times.append, now))

    def take(self, since_ns: int, thread: int) -> int:
        """Return the ns of collections in a thread that began since a time, and forget all that have ended."""
        spent = began = 0
        times = self.times
        while times:
            moment, of_thread, is_end = times.popleft()
            if is_end and of_thread == thread and began >= since_ns:
                spent += moment - began
            began = 0 if is_end else moment
        return spent

    def stop(self) -> None:
        """Take the hooks out of the collector."""
        _remove(self._hooks)


@contextmanager
def marked_collections() -> Iterator[None]:
    """Return a context in which full garbage collections appear in the profiler's trace as spans named `gc`."""
    open_marks: deque[object] = deque()
    enter, leave = _record._record_function_with_args_enter, _record._record_function_with_args_exit  # noqa: SLF001
    mark = map(open_marks.append, iter(partial(enter, "gc"), None))
    unmark = map(leave, iter(open_marks.pop, None))
    hooks = _hooks(partial(next, mark), partial(next, unmark, None))
    gc.callbacks.extend(hooks)
    try:
        yield
    finally:
        _remove(hooks)


def _remove(hooks: list[Callable[[str, dict[str, int]], object]]) -> None:
    # The script may have emptied the list.
    gc.callbacks[:] = [known for known in gc.callbacks if known not in hooks]
