"""Add the roots of collectives, which Flight Recorder leaves out; the project's recorders note them in `p2p_R.bin`.

Such a row has the number of the call among the rank's calls with a root in its group, the time of the call, and a name
such as `gather root 2`, with the root's rank within the group. A dump's entry of the call begins just after that time.
"""

import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from analyzers.hangs.model import Job, Op, RankState, Signature
from analyzers.hangs.reading.gloo_messages import decoded, read_rows
from analyzers.hangs.reading.side_files import SideFiles

NAME = re.compile(r"(?P<operation>\w+) root (?P<root>\d+)")
OPERATIONS = ("broadcast", "reduce", "gather", "scatter")


class RootedCall(NamedTuple):
    """A rank's call of a collective with a root, which is a rank within the group; `time_ns` is before the call."""

    operation: str
    root: int
    time_ns: int


RootedCalls = Mapping[int, RootedCall]
"""The calls of a rank in a group, by their number among its calls with a root."""


def add_roots(job: Job, side: SideFiles) -> None:
    """Set the roots of collectives in the dumps of a job, where all ranks of a group that have such calls know them.

    Only the last calls of a rank are known. What some rank does not know is left out for all, because an unknown root
    would look like another one.
    """
    numbers = {signature: number for number, signature in enumerate(job.signatures)}
    known = {rank: read_roots(path) for rank, path in side.message_files.items() if rank in job.ranks}
    for number, group in enumerate(job.groups):
        callers = [rank for rank in group.ranks if rank in job.ranks and has_rooted(job, rank, number)]
        calls = {rank: known.get(rank, {}).get(group.name, {}) for rank in callers}
        if not callers or not all(calls.values()):
            continue
        first = max(min(numbers) for numbers in calls.values())
        for rank, of_rank in calls.items():
            set_roots(
                job, numbers, job.ranks[rank], number, [call for n, call in sorted(of_rank.items()) if n >= first]
            )


def read_roots(path: Path) -> Mapping[str, RootedCalls]:
    """Return a rank's last calls with a root by the name of their group, from its `p2p_R.bin`."""
    calls: dict[str, dict[int, RootedCall]] = defaultdict(dict)
    for number, time_ns, name, _tag, group in read_rows(path):
        if match := NAME.fullmatch(decoded(name)):
            calls[decoded(group)][number] = RootedCall(match["operation"], int(match["root"]), time_ns)
    return calls


def has_rooted(job: Job, rank: int, group: int) -> bool:
    """Return whether a rank's dump has a collective with a root in a group, which is given by its index."""
    return any(job.operation(op) in OPERATIONS for op in job.ranks[rank].collectives(group))


def set_roots(
    job: Job, numbers: dict[Signature, int], state: RankState, group: int, calls: Sequence[RootedCall]
) -> None:
    """Set the roots of a rank's collectives in a group, for those of the `calls` that its dump has.

    `numbers` has the index of each signature in the job's list.
    """
    with_root: dict[Op, Op] = {}
    entries = iter([op for op in state.collectives(group) if job.operation(op) in OPERATIONS])
    for call in calls:
        # Collectives that PyTorch issues by itself have entries, but no calls.
        entry = next((op for op in entries if op.created_ns >= call.time_ns), None)
        if entry and job.operation(entry) == call.operation and call.root < len(job.groups[group].ranks):
            with_root[entry] = replace(entry, signature=signature_with(job, numbers, entry, call.root))
    state.ops = [with_root.get(op, op) for op in state.ops]
    state.pending = [op for op in state.ops if not op.done]


def signature_with(job: Job, numbers: dict[Signature, int], op: Op, root: int) -> int:
    """Return the index of the signature of `op` with this root, a rank within its group; a new one is added."""
    signature = replace(job.signature(op), root=job.groups[op.group].ranks[root])
    if signature not in numbers:
        numbers[signature] = len(job.signatures)
        job.signatures.append(signature)
    return numbers[signature]
