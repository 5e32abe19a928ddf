"""Find the sends and receives of a rank with their peers, and its computing between them, to analyse pipeline stages.

A *message* is a send or a receive; its *peer* is the rank at the other end. `torch.distributed.batch_isend_irecv`
launches one kernel for several messages. Then the kernel has no arguments, and each message is described by an operator
that ran before the launch.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import msgspec
import numpy as np

from analyzers.columns import Column, Integers, Mask, narrowed
from analyzers.traces.collectives import UNKNOWN, Labels, RankCollectives
from analyzers.traces.columns import (
    COMMUNICATION,
    COMPUTE,
    GC,
    HOST_PHASES,
    MEMORY,
    NONE,
    CoveredTime,
    Work,
    merge,
    phase_intervals,
)
from analyzers.traces.launches import standing_still, subtract, waiting_calls
from analyzers.traces.reading.trace import OPS, Trace

SEND, RECEIVE = re.compile(r"^(\w+:)?i?send$"), re.compile(r"^(\w+:)?i?recv$")
_SEND_CALL, _RECEIVE_CALL = re.compile(r"^c10d::send$"), re.compile(r"^c10d::recv_$")
PIPELINE_GROUP = re.compile(r"(^|[^a-z])(pp|pipe|pipeline)([^a-z]|$)|pipeline_(model_)?parallel", re.IGNORECASE)
_MESSAGE_KERNEL = re.compile(r"SendRecv", re.IGNORECASE)
_MESSAGE_COLUMNS = ("account", "position", "peer", "sends")
_ISSUE_COLUMNS = ("account", "launch", "after", "lane")
_BLOCK_COLUMNS = ("account", "launch", "after", "start", "end", "compute_ns")


@dataclass(frozen=True)
class RankMessages:
    """The sends and receives of one device or host; `table` has a row for each of them.

    Its three columns are the index of the message's kernel among the rank's collectives, the rank of the peer
    (UNKNOWN if it was not recorded), and 1 for a send or 0 for a receive.
    """

    collectives: RankCollectives

    @cached_property
    def table(self) -> Integers:
        return np.concatenate([self.described, self.batched])

    @cached_property
    def described(self) -> Integers:
        """The rows of `table` for messages whose own kernel or annotation is named `send`, `isend`, `recv` or `irecv`.

        A prefix such as `gloo:` is ignored.
        """
        name, entry = self.collectives.name, np.asarray(self.collectives.entry)
        sends, receives = (matching(pattern, name.texts)[name.code] for pattern in (SEND, RECEIVE))
        position = np.flatnonzero(sends | receives)
        peer, sends = self.peers(entry[position], sends[position])
        bare = np.flatnonzero((peer < 0) & (entry[position] < 0))
        peer[bare] = self.peers_of_calls(position[bare], sends[bare])
        return np.column_stack([position, peer, sends])

    def peers_of_calls(self, position: Integers, sends: Mask) -> Integers:
        """Return the peers of messages without recorded arguments, from the operators `c10d::send` and `c10d::recv_`.

        `position` has the index of each message's kernel among the collectives, `sends` whether it is a send. These
        operators record the peer's rank within a process group, but not which group. So the group must be the only one,
        or the only one described as a pipeline. The peer is UNKNOWN if it cannot be found.
        """
        trace = self.collectives.work.trace
        peer = np.full(len(position), UNKNOWN)
        for pattern, mine in ((_SEND_CALL, sends), (_RECEIVE_CALL, ~sends)):
            calls = trace.rows_named(matching(pattern, trace.names), OPS)
            peer[mine] = _peers_in_calls(trace, calls, self.collectives.rows[position[mine]])
        return peer

    @cached_property
    def batched(self) -> Integers:
        """The rows of `table` for messages that share one kernel (`...SendRecv...`).

        Such a kernel does not record its messages. They are found from the `send` and `recv` operators that the host
        called before it launched the kernel.
        """
        work, c = self.collectives.work, self.collectives.work.trace.columns
        names = matching(_MESSAGE_KERNEL, self.collectives.name.texts)[self.collectives.name.code]
        launch = work.launch[self.collectives.indices]
        kernel = np.flatnonzero(names & (self.collectives.entry < 0) & (launch != NONE))
        operators = self.operators
        if not len(kernel) or not len(operators):
            return np.zeros((0, 3), np.int64)
        launched = np.flatnonzero(launch != NONE)
        launched = launched[np.argsort(c["start"][launch[launched]], kind="stable")]
        # A message belongs to the first kernel that is launched after its operator began.
        following = np.searchsorted(c["start"][launch[launched]], c["start"][c["collective_row"][operators]])
        inside = following < len(launched)
        operators, position = operators[inside], launched[following[inside]]
        mine = np.isin(position, kernel)
        sends = matching(SEND, work.trace.names)[c["collective_name"][operators]]
        return np.column_stack([position[mine], *self.peers(operators[mine], sends[mine])])

    @property
    def operators(self) -> Integers:
        """The rows in the trace's table of collectives that describe the operator of a send or a receive."""
        trace = self.collectives.work.trace
        texts = matching(SEND, trace.names) | matching(RECEIVE, trace.names)
        rows = trace.columns["collective_row"].astype(np.int64)
        return np.flatnonzero(texts[trace.columns["collective_name"]] & trace.category_matches(OPS)[rows])

    def peers(self, entries: Integers, sends: Mask) -> tuple[Integers, Mask]:
        """Return the peer's rank for each message (UNKNOWN if not recorded), and `sends` as given.

        `entries` has each message's row in the trace's table of collectives (NONE: not recorded), `sends` whether it is
        a send. If the peer was not recorded, but the process group has only two ranks, the peer is the other rank.
        """
        trace = self.collectives.work.trace
        columns = trace.columns["collective_destination"], trace.columns["collective_source"]
        if not len(columns[0]):
            return np.full(len(entries), UNKNOWN), sends
        peer = np.where(entries >= 0, np.where(sends, *(column[entries] for column in columns)), UNKNOWN)
        pairs = {group["name"]: set(group["ranks"]) for group in trace.header.get("groups", [])}
        own = trace.header.get("rank")
        for row in np.flatnonzero((peer < 0) & (entries >= 0)).tolist():
            others = pairs.get(trace.names[int(trace.columns["collective_group"][entries[row]])], set()) - {own}
            peer[row] = others.pop() if len(others) == 1 else UNKNOWN
        return peer, sends


def _peers_in_calls(trace: Trace, calls: Integers, rows: Integers) -> Integers:
    """Return the peer's rank for the message annotation in each trace row of `rows`; UNKNOWN if not recorded.

    An annotation begins inside the call of its send or receive operator. `calls` are the trace rows of these operators:
    all sends, or all receives.
    """
    if not len(calls):
        return np.full(len(rows), UNKNOWN)
    c, ranks = trace.columns, _pipeline_ranks(trace)
    shapes = dict(zip(c["shape_row"].tolist(), c["shape_text"].tolist(), strict=True))
    calls = calls[np.argsort(c["start"][calls], kind="stable")]
    # The annotation begins inside of the call, but ends with the message, which may be long after it.
    before = np.searchsorted(c["start"][calls], c["start"][rows], side="right") - 1
    peers = []
    for row, index in zip(rows.tolist(), before.tolist(), strict=True):
        call = int(calls[index]) if index >= 0 else NONE
        inside = call in shapes and c["start"][row] <= c["end"][call]
        number = _peer_in_call(c.meta["shapes"][shapes[call]]) if inside else UNKNOWN
        peers.append(ranks[number] if 0 <= number < len(ranks) else UNKNOWN)
    return np.array(peers, np.int64)


def _peer_in_call(shapes: str) -> int:
    """Return the third argument of `c10d::send` or `c10d::recv_`: the peer's rank in the process group.

    `shapes` has the sizes, types and values of the arguments, separated by zero bytes. The result is UNKNOWN if the
    text is unreadable.
    """
    try:
        return int(msgspec.json.decode(f"{shapes}\0\0".split("\0")[2])[2])
    except (msgspec.DecodeError, IndexError, TypeError, ValueError, KeyError):
        return UNKNOWN


def _pipeline_ranks(trace: Trace) -> list[int]:
    """Return the ranks of the only process group with several ranks, or of the only one described as a pipeline."""
    groups = {tuple(group["ranks"]): group["desc"] for group in trace.header.get("groups", []) if group["ranks"][1:]}
    pipelines = [ranks for ranks, desc in groups.items() if len(groups) == 1 or PIPELINE_GROUP.search(desc)]
    return list(pipelines[0]) if len(pipelines) == 1 else []


def matching(pattern: "re.Pattern[str]", texts: Sequence[str]) -> Mask:
    return np.array([pattern.search(text) is not None for text in texts], bool)


def message_columns(accounts: Sequence[RankCollectives]) -> dict[str, Column]:
    """Return the columns of three tables: messages (`message_`), communication (`issue_`) and computing (`block_`).

    A device or host without messages has no rows in any of them; `account` is its index in the trace.
    `message_position` is the index of the message's kernel among the collectives of the device or host; `issue_` has a
    row for each of these collectives. A block is a run of computing kernels, with no communication launched or ended
    between them. `launch` is when the host launched the communication or the first kernel of the block, `after` the end
    of the host's last wait before this launch (-1: none). `start` and `end` are when the block ran, and `compute_ns` is
    the time in which any of its kernels ran. `peer`, `sends` and `lane` (the stream) are as recorded.
    """
    names = {"message": _MESSAGE_COLUMNS, "issue": _ISSUE_COLUMNS, "block": _BLOCK_COLUMNS}
    tables = {prefix: [np.zeros((0, len(columns)), np.int64)] for prefix, columns in names.items()}
    for number, collectives in enumerate(accounts):
        messages = RankMessages(collectives).table
        if len(messages):
            rows = {"message": messages, "issue": issues(collectives), "block": _compute_blocks(collectives)}
            for prefix, table in rows.items():
                tables[prefix].append(np.insert(table, 0, number, axis=1))
    return {
        f"{prefix}_{name}": narrowed(np.concatenate(tables[prefix])[:, i])
        for prefix, columns in names.items()
        for i, name in enumerate(columns)
    }


def issues(collectives: RankCollectives) -> Integers:
    work = collectives.work
    launch = launch_times(work)[collectives.indices]
    return np.column_stack([launch, _host_waits(work, launch), work.trace.columns["lane"][collectives.rows]])


def _compute_blocks(collectives: RankCollectives) -> Integers:
    """Return the rows of the table of blocks for one device or host, in the order of their launches.

    The columns are those of `_BLOCK_COLUMNS` without `account`.
    """
    work, communicates = collectives.work, collectives.indices
    kernels = np.flatnonzero(work.kind != COMMUNICATION)
    launch = launch_times(work)
    kernels = kernels[np.lexsort((work.start[kernels], launch[kernels]))]
    if not len(kernels):
        return np.zeros((0, 5), np.int64)
    ended = np.searchsorted(np.sort(work.end[communicates], kind="stable"), work.start[kernels], side="right")
    issued = np.searchsorted(np.sort(launch[communicates], kind="stable"), launch[kernels])
    changes = (np.diff(issued) != 0) | (np.diff(np.maximum.accumulate(ended)) != 0)
    first = np.append(0, np.flatnonzero(changes) + 1)
    start = np.minimum.reduceat(work.start[kernels], first)
    end = np.maximum.reduceat(work.end[kernels], first)
    computing = CoveredTime(work.start[kernels], work.end[kernels]).between(start, end)
    return np.column_stack([launch[kernels[first]], _host_waits(work, launch[kernels[first]]), start, end, computing])


def launch_times(work: Work) -> Integers:
    return np.where(work.linked, work.launch_start, work.start)


def _host_waits(work: Work, moments: Integers) -> Integers:
    rows = waiting_calls(work.trace)
    ends = np.sort(work.trace.columns["end"][rows])
    return np.append(-1, ends)[np.searchsorted(ends, moments, side="right")]


# Measure the work of a rank before each of its collectives, for a table by which ranks are compared.
#
# A rank *arrives* at a collective when the collective starts on this rank. Its work for a collective is the time
# since its previous arrival, without the time in which a collective blocked the rank. A rank with more work than the
# others keeps them waiting. The collectives are in order of time.
#
# Example: a rank arrives at 100 ms, is blocked until 130 ms, computes and arrives at the next collective at 200 ms.
# Its work for that collective is 200 - 100 - 30 = 70 ms.
#
# A send or a receive does not count as an arrival: only two ranks take part, and each stage of a pipeline sends and
# receives at other times. Nor does a copy between devices, for which no other rank has to arrive.


def collective_columns(accounts: Sequence[RankCollectives], text_ids: dict[str, int]) -> dict[str, Column]:
    """Return the columns of a table with a row for each collective of each device or host of a trace.

    The names of the columns begin with `meet_`; the docstring of `_account_columns` explains them. `text_ids` is
    {distinct text of the trace: its index}; new texts are added to it.
    """
    tables = [_account_columns(number, collectives, text_ids) for number, collectives in enumerate(accounts)]
    return {f"meet_{name}": narrowed(np.concatenate([table[name] for table in tables])) for name in tables[0]}


def _account_columns(number: int, collectives: RankCollectives, text_ids: dict[str, int]) -> dict[str, Column]:
    """Return the columns of the table of collectives for one device or host, without the prefix `meet_`.

    Times are in ns. `number` is the index of the device or host in the trace. `start` and `end` are the times of the
    collective. `since` is when the rank's work for this collective began, and `work_ns` how long that work took.
    `overlap_ns` is how long the rank went on working after the collective began, and `blocked_ns` how long the rank was
    then idle before its next arrival. `compute_ns`, `copy_ns` and `<phase>_ns` are the parts of the work: computing,
    copies and phases of the host. `name`, `group` and `dtype` are indices of texts; -1 stands for what was not
    recorded.
    """
    work, c = collectives.work, collectives.work.trace.columns
    start, end = c["start"][collectives.rows], c["end"][collectives.rows]
    meets = ~np.isin(np.arange(len(start)), RankMessages(collectives).table[:, 0]) & ~collectives.is_copy
    since = np.maximum.accumulate(_previous_arrivals(work.trace, start, meets))
    still = CoveredTime(*standing_still(work, collectives.blocking))
    # A phase of the host delays the launch, not the kernel, so phases are measured up to the launching call.
    launched = work.launch_start[collectives.indices]
    host = np.where(work.launch[collectives.indices] >= 0, launched, start)
    return {
        "account": np.full(len(start), number),
        "name": _text_numbers(collectives.name, text_ids),
        "group": _text_numbers(collectives.group, text_ids),
        "dtype": _text_numbers(collectives.dtype, text_ids),
        "members": collectives.members,
        "elements": collectives.sizes,
        "sequence": collectives.recorded("sequence"),
        "step": collectives.step(),
        "start": start,
        "end": end,
        "since": since,
        "work_ns": start - since - still.between(since, start),
        "overlap_ns": overlaps(start, following(start, meets, start.max(initial=0)), still),
        "blocked_ns": still.between(start, following(start, meets, end.max(initial=0))),
        "compute_ns": _time_of_kind(work, COMPUTE).between(since, start),
        "copy_ns": _time_of_kind(work, MEMORY).between(since, start),
        **_host_phase_columns(work.trace, _previous_arrivals(work.trace, host, meets), host),
    }


def _text_numbers(labels: Labels, text_ids: dict[str, int]) -> Integers:
    return np.array([text_ids.setdefault(text, len(text_ids)) for text in labels.texts], np.int64)[labels.code]


def following(arrival: Column, meets: Mask, last: int) -> Column:
    return np.append(arrival[meets], last)[np.cumsum(meets)]


def _previous_arrivals(trace: Trace, arrival: Column, meets: Mask) -> Column:
    """Return, for each arrival time at a collective (ns), the previous arrival selected by the mask `meets`.

    An arrival without a previous one gets the start of the step around the first arrival, or of the recording if there
    is no such step.
    """
    if not len(arrival):
        return arrival
    starts = [start for _, start, end in trace.steps if start <= arrival[0] < end]
    first = starts[-1] if starts else min(trace.origin, int(arrival[0]))
    return np.append(first, arrival[meets])[np.cumsum(meets) - meets]


def overlaps(arrival: Column, until: Column, still: CoveredTime) -> Integers:
    """Return how long (ns) the rank went on working after each arrival at a collective.

    The work ends when the rank is next idle (`still` has the idle intervals), at the latest at the rank's next arrival
    (`until`). `arrival` and `until` have a time (ns) for each collective.
    """
    index = np.searchsorted(still.end, arrival, side="right")
    stands = np.append(still.start, np.iinfo(np.int64).max)[index]
    return np.asarray(np.minimum(stands, until) - arrival).clip(min=0)


def _time_of_kind(work: Work, kind: int) -> CoveredTime:
    return CoveredTime(work.start[work.kind == kind], work.end[work.kind == kind])


def _host_phase_columns(trace: Trace, low: Column, high: Column) -> dict[str, Integers]:
    """Return, for each phase of the host such as data loading, a column of the ns spent in it from `low` to `high`.

    `low[i]` and `high[i]` are the ends of the interval for collective i (ns of the trace). The columns are named
    `<phase>_ns`.
    """
    # Garbage is collected inside other phases, too: there it counts as garbage collection alone.
    collecting = merge(*phase_intervals(trace, [GC]))
    intervals = {phase: subtract(merge(*phase_intervals(trace, [phase])), collecting) for phase in HOST_PHASES}
    intervals[GC] = collecting
    return {f"{phase}_ns": CoveredTime(*spans).between(low, high) for phase, spans in intervals.items()}
