"""Say which objects the local variables of a function refer to, without a reference to any of them.

`frame.f_locals` copies the variables of a running function into a dict, which then keeps them alive, and which is the
one that the function's own calls of `locals()` return (Python 3.11 and 3.12). So the addresses are read where Python
keeps them; nothing is read unless the words before them show that this is the place. From Python 3.13 on, `f_locals`
copies nothing.
"""

import ctypes
import sys
from collections.abc import Iterator
from types import FrameType
from typing import NamedTuple

_WORD = ctypes.sizeof(ctypes.c_void_p)
_FRAME = 3 * _WORD
"""The offset in a frame object, behind its header and the outer frame, of the address of its variables' place."""


class _Layout(NamedTuple):
    """Offsets, in words, in the place of a frame's variables: of its code, its globals and its first variable."""

    code: int
    globals: int
    first: int


_LAYOUTS = {(3, 11): _Layout(4, 1, 9), (3, 12): _Layout(0, 3, 9)}


def variables_of(frame: FrameType) -> Iterator[tuple[str, int]]:
    """Yield the name of each local variable of a frame, and the `id` of its object, or of the cell that holds it."""
    if sys.version_info >= (3, 13):
        yield from ((name, id(value)) for name, value in frame.f_locals.items())
        return
    layout = _LAYOUTS.get(sys.version_info[:2])
    if layout is None or sys.implementation.name != "cpython" or object.__basicsize__ != 2 * _WORD:
        return
    place = _word_at(id(frame) + _FRAME)
    code = frame.f_code
    if not place or _word_at(place + layout.code * _WORD) != id(code):
        return
    if _word_at(place + layout.globals * _WORD) != id(frame.f_globals):
        return
    names = dict.fromkeys((*code.co_varnames, *code.co_cellvars, *code.co_freevars))
    for number, name in enumerate(names):
        address = _word_at(place + (layout.first + number) * _WORD)
        if address:
            yield name, address


def _word_at(address: int) -> int:
    return ctypes.c_void_p.from_address(address).value or 0
