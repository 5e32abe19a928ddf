"""Define what all members of a group must agree on in one operation: its name, sizes and types, with exceptions.

Flight Recorder records neither the root of a broadcast nor the reduce operation. The project's recorders note the root;
a difference of the reduce operation cannot be found.
"""

from collections.abc import Mapping
from math import prod

from analyzers.hangs.model import Job, Op, Signature

ROOTED = ("gather", "scatter")
"""Operations in which only the root passes the list of all tensors, so that sizes differ between ranks."""
UNEVEN = ("all_to_all", "alltoall")
"""Operations in which each rank may send and receive different sizes."""
BARRIERS = ("barrier",)

Comparable = tuple[str, object]
"""The name of an operation, and the other properties that all members must agree on."""


def comparable(signature: Signature) -> Comparable:
    """Return the part of a signature that must be equal on all members of a group.

    It is the name with the sizes and types of the tensors, or less for operations in which these may differ between
    ranks.
    """
    name = signature.operation
    if name in ROOTED or name in BARRIERS:
        return name, signature.root
    if name.startswith(UNEVEN):
        return name, tuple(sorted(set(signature.input_dtypes)))
    tensors = (signature.input_sizes, signature.output_sizes, signature.input_dtypes, signature.output_dtypes)
    return name, (*tensors, signature.root)


def breaks_size_rule(signature: Signature, members: int) -> bool:
    """Return whether the input and output sizes of an operation contradict each other.

    An all_reduce has equal sizes; all_gather outputs the input of each member, reduce_scatter the reverse. `members` is
    the size of the group.
    """
    taken, given = elements(signature.input_sizes), elements(signature.output_sizes)
    if not signature.input_sizes or not signature.output_sizes:
        return False
    match signature.operation:
        case "all_reduce" | "broadcast":
            return taken != given
        case "_all_gather_base" | "all_gather":
            return given != taken * members
        case "_reduce_scatter_base" | "reduce_scatter":
            return taken != given * members
    return False


def is_empty(signature: Signature) -> bool:
    """Return whether the input tensors have no elements."""
    return bool(signature.input_sizes) and not any(prod(shape) for shape in signature.input_sizes)


def elements(sizes: tuple[tuple[int, ...], ...]) -> int:
    """Return the total number of elements of tensors with these shapes."""
    return sum(prod(shape) for shape in sizes)


def unbalanced(job: Job, group: int, issued: Mapping[int, Op]) -> tuple[int, int] | None:
    """Return how many elements the members of an all_to_all send and receive in total; None if these are equal.

    The ranks' sizes may differ, but the total sent must equal the total received, or the operation cannot complete.
    """
    signatures = [job.signature(op) for op in issued.values()]
    if len(signatures) < len(job.groups[group].ranks) or not signatures[0].operation.startswith(UNEVEN):
        return None
    sent, received = (
        sum(elements(sizes) for sizes in every)
        for every in ((s.input_sizes for s in signatures), (s.output_sizes for s in signatures))
    )
    return (sent, received) if sent != received else None
