"""Shorten the names of kernels and operators so that they remain distinguishable."""

import re

_LONG, MEDIUM, SHORT = 70, 44, 36
SHARED = re.compile(r"\(anonymous namespace\)::|\b[a-z]\w*::|, (?:\w+::)*[Aa]rray<char *\*, \w+>")
"""Matches the parts that all kernel names of a library have in common: namespaces, and a type of pointer arrays."""


def shortened(name: str, length: int = _LONG) -> str:
    name = name.removeprefix("void ")
    return name if len(name) <= length else f"{name[: length - 1]}…"


def kernel_name(name: str, length: int = _LONG) -> str:
    """Return a kernel's name without namespaces and parameters, cut in the middle to at most `length` characters.

    `void at::native::elementwise_kernel<4, CUDAFunctor_add<float>>(int, ...)` becomes
    `elementwise_kernel<4,CUDAFunctor_add<float>>`.
    """
    if ("<" in name or "(" in name) and not name.startswith("Memcpy"):  # whose parentheses say from where to where
        name = SHARED.sub("", _without_parameters(name.removeprefix("void ")))
        name = name.replace(", ", ",").replace(" >", ">")
    return without_middle(name, length)


def _without_parameters(name: str) -> str:
    depth = 0
    # From the end: parentheses inside template arguments come first in the name.
    for position in range(len(name) - 1, 0, -1):
        depth += (name[position] == ")") - (name[position] == "(")
        if not depth:
            return name[:position] if name.endswith(")") else name
    return name


def without_middle(text: str, length: int) -> str:
    """Return `text` if it has at most `length` characters; else cut out its middle.

    The names of kernels differ at their beginnings and ends.
    """
    # The beginning says which kernel, the end which template arguments; the beginning needs more room.
    end = length // 3
    return text if len(text) <= length else f"{text[: length - end - 1]}…{text[-end:]}"


def user_function(text: str, length: int = SHORT) -> str:
    """Return the name of an operator, module or Python function, cut to at most `length` characters.

    The path in a Python function's name is shortened to the file and its folder.
    """
    return shortened("/".join(text.split("/")[-2:]), length)
