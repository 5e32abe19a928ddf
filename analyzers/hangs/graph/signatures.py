"""Define what all members of a group must agree on in one operation: name, sizes and dtypes, with exceptions.

Flight Recorder records neither the root of a broadcast nor the reduce operation. The project's recorders add the root;
a difference in the reduce operation cannot be found.
"""

from collections.abc import Mapping
from math import prod

from analyzers.hangs.model import Job, Op, Signature

_ROOTED = ("gather", "scatter")
"""The operations in which only the root passes the list of all tensors.

So the recorded sizes differ between the ranks.
"""
_UNEVEN = ("all_to_all", "alltoall")
"""The prefixes of the names of operations in which each rank may send and receive different sizes."""
_BARRIERS = ("barrier",)

Comparable = tuple[str, object]
"""The name of an operation, and the other properties that all members must agree on."""


def comparable(signature: Signature) -> Comparable:
    """Return the part of a signature that must be equal on all members of a process group.

    For most operations this is the name, the shapes and dtypes of the tensors, and the root. If shapes may differ
    between ranks, it is less: name and dtypes for an uneven all_to_all, for example; name and root for a barrier or
    gather.
    """
    name = signature.operation
    if name in _ROOTED or name in _BARRIERS:
        return name, signature.root
    if name.startswith(_UNEVEN):
        return name, tuple(sorted(set(signature.input_dtypes)))
    tensors = (signature.input_sizes, signature.output_sizes, signature.input_dtypes, signature.output_dtypes)
    return name, (*tensors, signature.root)


def breaks_size_rule(signature: Signature, members: int) -> bool:
    """Return whether the input and output sizes of an operation contradict each other.

    The rules: in an all_reduce or broadcast both are equal; the output of an all_gather is as large as all members'
    inputs together; the input of a reduce_scatter is as large as all outputs together. `members` is the size of the
    group.
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
    """Return (elements sent, elements received) of an all_to_all, summed over all members; None if they are equal.

    The sizes may differ between ranks, but the two totals must be equal, or the operation cannot complete. `group` is
    an index in `Job.groups`, and `issued` maps its members to their operation. The result is also None if a member is
    missing, or if the operation is no all_to_all.
    """
    signatures = [job.signature(op) for op in issued.values()]
    if len(signatures) < len(job.groups[group].ranks) or not signatures[0].operation.startswith(_UNEVEN):
        return None
    sent, received = (
        sum(elements(sizes) for sizes in every)
        for every in ((s.input_sizes for s in signatures), (s.output_sizes for s in signatures))
    )
    return (sent, received) if sent != received else None
