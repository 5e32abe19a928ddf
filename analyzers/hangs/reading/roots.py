"""Add the roots of collectives from `p2p_R.bin`, a file of this project's recorders; Flight Recorder has no roots.

A row of this file describes one call of a collective with a root (broadcast, reduce, gather, scatter). It has a name
such as `gather root 2` (the root's rank within the group), the time of the call, and the number of the call among all
calls with a root that rank R has made in this group. The entry in the dump that belongs to the call was created just
after this time.
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
    """A rank's call of a collective with a root; `root` is a rank within the group, `time_ns` is before the call."""

    operation: str
    root: int
    time_ns: int


RootedCalls = Mapping[int, RootedCall]
"""{number of a call: the call}, for the calls with a root that a rank made in one group.

The n-th such call in the group has the number n.
"""


def add_roots(job: Job, side: SideFiles) -> None:
    """Set the roots of collectives in the operations of a job, if they were recorded on all ranks.

    A rank's file has only its last calls. In each group, roots are set only from the first call that is in the files of
    all ranks. The reason: a call with an unknown root would have another signature than the same call on another rank.
    """
    numbers = {signature: number for number, signature in enumerate(job.signatures)}
    known = {rank: _read_roots(path) for rank, path in side.message_files.items() if rank in job.ranks}
    if not any(known.values()):
        return
    for number, group in enumerate(job.groups):
        callers = [rank for rank in group.ranks if rank in job.ranks and _has_rooted(job, rank, number)]
        calls = {rank: known.get(rank, {}).get(group.name, {}) for rank in callers}
        if not callers or not all(calls.values()):
            continue
        first = max(min(numbers) for numbers in calls.values())
        for rank, of_rank in calls.items():
            _set_roots(
                job, numbers, job.ranks[rank], number, [call for n, call in sorted(of_rank.items()) if n >= first]
            )


def _read_roots(path: Path) -> Mapping[str, RootedCalls]:
    """Return a rank's last calls with a root, by the name of the process group, from its `p2p_R.bin` (R: the rank)."""
    calls: dict[str, dict[int, RootedCall]] = defaultdict(dict)
    for number, time_ns, name, _tag, group in read_rows(path):
        if match := NAME.fullmatch(decoded(name)):
            calls[decoded(group)][number] = RootedCall(match["operation"], int(match["root"]), time_ns)
    return calls


def _has_rooted(job: Job, rank: int, group: int) -> bool:
    """Return whether a rank's dump has, in a group, a collective of a kind that takes a root, such as broadcast.

    The root itself may be unknown. `group` is an index in `Job.groups`.
    """
    return any(job.operation(op) in OPERATIONS for op in job.ranks[rank].collectives(group))


def _set_roots(
    job: Job, numbers: dict[Signature, int], state: RankState, group: int, calls: Sequence[RootedCall]
) -> None:
    """Set the roots of a rank's collectives in one group, for the `calls` that are in its dump.

    `state` is changed in place, with copies of the operations. `group` is an index in `Job.groups`; `numbers` maps each
    signature to its index in `Job.signatures`.
    """
    # One iterator for all calls: both are in order of time, and an entry belongs to one call only.
    entries = iter([op for op in state.collectives(group) if job.operation(op) in OPERATIONS])
    for call in calls:
        # Collectives that PyTorch issues by itself have entries, but no calls.
        entry = next((op for op in entries if op.created_ns >= call.time_ns), None)
        if entry and job.operation(entry) == call.operation and call.root < len(job.groups[group].ranks):
            state.replaced[entry] = replace(entry, signature=_signature_with(job, numbers, entry, call.root))
    state.pending = [state.replaced.get(op, op) for op in state.pending]


def _signature_with(job: Job, numbers: dict[Signature, int], op: Op, root: int) -> int:
    """Return the index in `Job.signatures` of the signature of `op` with a root added; append it if it is new.

    `root` is a rank within the group of `op`; `numbers` maps each signature to its index.
    """
    signature = replace(job.signature(op), root=job.groups[op.group].ranks[root])
    if signature not in numbers:
        numbers[signature] = len(job.signatures)
        job.signatures.append(signature)
    return numbers[signature]
