"""Names of kernels and operators, shortened to what tells them from each other."""

import re

LONG, MEDIUM, SHORT = 70, 44, 36
SHARED = re.compile(r"\(anonymous namespace\)::|\b[a-z]\w*::|, (?:\w+::)*[Aa]rray<char *\*, \w+>")
"""Namespaces and the type of the pointers, which all kernels of a library have in common."""


def shortened(name: str, length: int = LONG) -> str:
    """Return a name without its return type, cut at `length` characters."""
    name = name.removeprefix("void ")
    return name if len(name) <= length else f"{name[: length - 1]}…"


def kernel_name(name: str, length: int = LONG) -> str:
    """Return a kernel's name without namespaces and parameters, cut in the middle where it is longer than `length`.

    `void at::native::elementwise_kernel<4, CUDAFunctor_add<float>>(int, ...)` becomes
    `elementwise_kernel<4,CUDAFunctor_add<float>>`.
    """
    if "<" in name or "(" in name:
        name = SHARED.sub("", without_parameters(name.removeprefix("void ")))
        name = name.replace(", ", ",").replace(" >", ">")
    return without_middle(name, length)


def without_parameters(name: str) -> str:
    """Return a function's name without its last pair of parentheses; template arguments may contain others."""
    depth = 0
    # From the end: parentheses inside template arguments come first in the name.
    for position in range(len(name) - 1, 0, -1):
        depth += (name[position] == ")") - (name[position] == "(")
        if not depth:
            return name[:position] if name.endswith(")") else name
    return name


def without_middle(text: str, length: int) -> str:
    """Return a text of at most `length` characters, cut in the middle.

    Kernel names differ at their beginnings and ends.
    """
    # The beginning says which kernel, the end which template arguments; the beginning needs more room.
    end = length // 3
    return text if len(text) <= length else f"{text[: length - end - 1]}…{text[-end:]}"


def user_function(text: str, length: int = SHORT) -> str:
    """Return an operator, a module, or a function with its file and the folder of that file."""
    return shortened("/".join(text.split("/")[-2:]), length)
