"""Find the pipeline stage of each rank, from the process groups of its messages or from the ranks it exchanges with.

Example: rank 0 sends to 2 and rank 2 to 4, and gradients come back; 1, 3 and 5 do the same. The ranks 0, 2, 4 and 1, 3,
5 form two chains of three stages. Rank 0 is the first of its chain, because it sends before it receives anything.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np

from analyzers.columns import Integers
from analyzers.traces.collectives import UNKNOWN
from analyzers.traces.lateness import Lateness
from analyzers.traces.launches import LATENCY_NS
from analyzers.traces.loading import Recording
from analyzers.traces.messages import PIPELINE_GROUP
from analyzers.traces.rank_waits import WORTH, Change, RankComparison, WhatIf
from analyzers.traces.reading.trace import NO_STEP


class UnknownStages(Exception):
    """Raised if a job sends messages, but its stages cannot be found or simulated; the text says why."""


@dataclass(frozen=True)
class Message:
    """One send or receive of a rank: the index of its kernel among the rank's collectives, and the other rank (`peer`).

    `sends` is true for a send. A kernel may carry several messages.
    """

    kernel: int
    peer: int
    sends: bool


def messages_of(recording: Recording) -> list[Message]:
    rows = recording.table("message", ["position", "peer", "sends"]).tolist()
    return [Message(kernel, peer, bool(sends)) for kernel, peer, sends in sorted(rows, key=lambda row: row[0])]


def _find_stages(recordings: Mapping[int, Recording], messages: Mapping[int, Sequence[Message]]) -> list[list[int]]:
    """Return the ranks of each pipeline stage, the first stage first.

    Args:
        recordings: {rank: its recording}, for each rank of the job.
        messages: {rank: its sends and receives in order of time}.

    Raises:
        UnknownStages: The traces do not show the stages; the text says why.
    """
    senders = {rank: own for rank, own in messages.items() if own}
    peers = {rank: {one.peer for one in own} for rank, own in senders.items()}
    if any(UNKNOWN in named for named in peers.values()):
        raise UnknownStages("the peers of its sends and receives are not recorded")
    missing = sorted({peer for named in peers.values() for peer in named} - set(recordings))
    if missing:
        raise UnknownStages(f"there is no trace of rank {missing[0]}, which sends or receives")
    chains = _described_chains(recordings, peers) or chains_of_peers(senders, peers)
    if len({len(chain) for chain in chains}) != 1:
        raise UnknownStages("the chains of its sends and receives differ in length")
    return [sorted(ranks) for ranks in zip(*sorted(chains), strict=True)]


def _described_chains(recordings: Mapping[int, Recording], peers: Mapping[int, set[int]]) -> list[tuple[int, ...]]:
    """Return the ranks of each process group that is described as a pipeline and contains all peers of its ranks.

    `peers` has, for each rank with messages, the ranks that it exchanges them with. The list is empty unless each of
    these ranks is in exactly one such group.
    """
    chains = {
        tuple(group["ranks"])
        for rank in peers
        for group in recordings[rank].trace.header.get("groups", [])
        if PIPELINE_GROUP.search(group["desc"]) and rank in group["ranks"] and peers[rank] <= set(group["ranks"])
    }
    members = sorted(rank for chain in chains for rank in chain)
    return sorted(chains) if members == sorted(peers) else []


def chains_of_peers(messages: Mapping[int, Sequence[Message]], peers: Mapping[int, set[int]]) -> list[tuple[int, ...]]:
    """Return the ranks of each pipeline, in the order of its stages, by following messages from rank to rank.

    `peers` has, for each rank with messages, the ranks that it exchanges them with; a rank with one peer is an end of
    a chain. The chain begins at the end whose first message is a send.

    Raises:
        UnknownStages: Some ranks are joined in another form, such as a ring, or both ends of a chain begin with a send,
            or both with a receive.
    """
    chains, placed = [], set[int]()
    for rank in sorted(peers):
        if len(peers[rank]) != 1 or rank in placed:
            continue
        chain = _walk(rank, peers)
        placed.update(chain)
        begins, ends = (messages[end][0].sends for end in (chain[0], chain[-1]))
        if begins == ends:
            raise UnknownStages(f"ranks {chain[0]} and {chain[-1]} both begin with a {'send' if begins else 'receive'}")
        chains.append(tuple(chain if begins else chain[::-1]))
    if placed != set(peers):
        raise UnknownStages("its sends and receives join the ranks to no chains, and no process group is called pp")
    return chains


def _walk(rank: int, peers: Mapping[int, set[int]]) -> list[int]:
    """Return the ranks of the chain that begins at `rank`, followed from peer to peer to its other end.

    `peers` has, for each rank, the ranks that it exchanges messages with.

    Raises:
        UnknownStages: The chain branches.
    """
    chain = [rank]
    while following := peers[chain[-1]] - set(chain):
        if len(following) > 1:
            raise UnknownStages(f"rank {chain[-1]} sends to or receives from {len(peers[chain[-1]])} ranks")
        chain.append(following.pop())
    return chain


Kernel = tuple[int, int]
"""A communicating kernel: (rank, index among the rank's collectives)."""


def partners(messages: Mapping[int, Sequence[Message]], steps: Mapping[int, Integers]) -> dict[Kernel, list[Kernel]]:
    """Return, for each kernel that carries messages, the kernels at the other ends of these messages.

    In each step the n-th send from one rank to another is matched with the n-th receive there. `steps` has, for each
    rank, the step of each of its collectives.

    Raises:
        UnknownStages: Two ranks recorded different numbers of sends and receives.
    """
    ends = defaultdict[tuple[int, int, int, bool], list[Kernel]](list)
    for rank, own in messages.items():
        for one in own:
            path = (rank, one.peer) if one.sends else (one.peer, rank)
            ends[*path, int(steps[rank][one.kernel]), one.sends].append((rank, one.kernel))
    pairs = defaultdict[Kernel, list[Kernel]](list)
    for (source, destination, step, sends), kernels in ends.items():
        others = ends.get((source, destination, step, not sends), [])
        if len(others) != len(kernels):
            sent, received = (kernels, others) if sends else (others, kernels)
            raise UnknownStages(
                f"rank {source} recorded {len(sent)} sends to rank {destination} in a step, which recorded"
                f" {len(received)} receives"
            )
        for kernel, other in zip(kernels, others, strict=True):
            pairs[kernel].append(other)
    return dict(pairs)


# Simulate the computing, messages and collectives of all ranks again, with some ranks computing faster.
#
# The work of a rank is a list of tasks: each is a *block* of computing between two communications, or a
# communication. A block begins when the previous block and the receives that it needs have ended. A communication
# begins when the computing launched before it and the previous communication on its stream have ended. It ends once
# all participating ranks have begun it and the data is transferred.
#
# Example: stage 1 computes 10 ms for each of 4 microbatches and stage 0 only 5 ms. Stage 0 then waits 5 ms for each
# receive. If stage 1 took 5 ms as well, the saving would be less than 4 * 5 ms, because filling the pipeline takes as
# long as before.


@dataclass(frozen=True)
class Task:
    """A block of computing, or a communication (then `kernel` is the index of its kernel among the rank's collectives).

    `start` and `end` are the recorded times on the common clock (ns). `needs` are indices of earlier tasks of the same
    rank: in the simulation the task begins `lag` ns after all of them have ended. `compute` is how many ns of its
    duration are computing; only these become shorter if the rank computes faster.
    """

    start: int
    end: int
    compute: int
    kernel: int | None
    needs: list[int]
    lag: int


@dataclass
class RankProgram:
    """The tasks of a rank in order of their launches.

    `index` is {index of a communicating kernel among the rank's collectives: index of its task}.
    """

    tasks: list[Task]
    index: dict[int, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.index = {task.kernel: i for i, task in enumerate(self.tasks) if task.kernel is not None}

    @property
    def compute(self) -> int:
        return sum(task.compute for task in self.tasks)


def program_of(recording: Recording, messages: Sequence[Message], ahead: int) -> RankProgram:
    """Return the program of a rank for the simulation: its tasks, and for each one the earlier tasks that it waits for.

    `messages` are the rank's sends and receives; `ahead` is by how many ns its clock is ahead of the common one. Times
    of the tasks are on the common clock.
    """
    shift = recording.trace.base - ahead
    start, end = recording.column("start") - ahead, recording.column("end") - ahead
    issues = recording.table("issue", ["launch", "after", "lane"]) + np.array([shift, shift, 0])
    blocks = recording.table("block", ["launch", "after", "start", "end", "compute_ns"])
    blocks[:, :4] += shift
    on_host = recording.account.device is None
    receives = {one.kernel for one in messages if not one.sends}
    if on_host:
        receives = set(range(len(start))) - {one.kernel for one in messages if one.sends}
    launches = [(int(row[0]), 0, i) for i, row in enumerate(issues)]
    launches += [(int(row[0]), 1, i) for i, row in enumerate(blocks)]
    builder = ProgramBuilder(receives, on_host)
    for _, is_block, i in sorted(launches):
        if is_block:
            _, after, begun, ended, compute = blocks[i].tolist()
            builder.add_block(begun, ended, compute, after)
        else:
            builder.add_communication(i, int(start[i]), int(end[i]), lane=int(issues[i, 2]), after=int(issues[i, 1]))
    return RankProgram(builder.tasks)


@dataclass
class ProgramBuilder:
    """Collects the tasks of one rank in the order of their launches: blocks of computing, and communications.

    `receives` are the communications whose result the computing after them needs, as indices among the rank's
    collectives. A rank that computes on its host (`on_host`) needs the result of all communications but sends, also
    before its next communication. `pending` is {index of a communication's task: its recorded end}, for the
    communications that no block of computing waits for yet.
    """

    receives: set[int]
    on_host: bool
    tasks: list[Task] = field(default_factory=list)
    pending: dict[int, int] = field(default_factory=dict)
    last_block: int | None = None
    last_of_lane: dict[int, int] = field(default_factory=dict)

    def add_block(self, start: int, end: int, compute: int, after: int) -> None:
        """Add a block of computing that ran from `start` to `end`; for `compute` ns of this time a kernel ran.

        Before its launch the host waited for the device until `after` (-1: never). The recording does not show which
        block needs a receive, so every receive that ended before the block began counts as needed. Other communication
        counts as needed only if the block began right after its end, or if the host waited for it.
        """
        needs = [] if self.last_block is None else [self.last_block]
        for task, ended in list(self.pending.items()):
            if ended > start:
                continue
            kernel = self.tasks[task].kernel
            if kernel in self.receives or start - ended <= LATENCY_NS or ended <= after:
                needs.append(task)
                del self.pending[task]
        self.last_block = len(self.tasks)
        self.add(start, end, compute, None, needs)

    def add_communication(self, kernel: int, start: int, end: int, lane: int, after: int) -> None:
        """Add a communicating kernel that ran on the stream `lane` from `start` to `end`.

        Before its launch the host waited for the device until the time `after` (-1: never).
        """
        needs = [] if self.last_block is None else [self.last_block]
        before = self.last_of_lane.get(lane)
        # Messages of the host run beside each other on one thread.
        needs += [before] if before is not None and self.tasks[before].end <= start else []
        needs += [
            task
            for task, ended in self.pending.items()
            if ended <= after or (self.on_host and ended <= start and self.tasks[task].kernel in self.receives)
        ]
        self.last_of_lane[lane] = len(self.tasks)
        self.pending[len(self.tasks)] = end
        self.add(start, end, 0, kernel, needs)

    def add(self, start: int, end: int, compute: int, kernel: int | None, needs: list[int]) -> None:
        lag = start - max((self.tasks[task].end for task in needs), default=start)
        self.tasks.append(Task(start, end, compute, kernel, needs, lag))


@dataclass(frozen=True)
class Meeting:
    """The tasks that must have begun before a communication goes on: `others`, tasks of other ranks as (rank, index).

    Once they have begun, the communication takes `transfer` ns more.
    """

    others: list[tuple[int, int]]
    transfer: int


@dataclass(frozen=True)
class StageReplay:
    """A simulation of all ranks: the program of each rank, and the `Meeting` of each of their communicating kernels."""

    programs: Mapping[int, RankProgram]
    meetings: Mapping[Kernel, Meeting]

    @property
    def recorded(self) -> int:
        tasks = [task for program in self.programs.values() for task in program.tasks]
        return max(task.end for task in tasks) - min(task.start for task in tasks)

    def duration(self, left: Mapping[int, float]) -> int:
        """Simulate all ranks; return the ns from the start of the first task to the end of the last one.

        `left` is {rank: factor on its recorded computing time}: 0.8 means that the rank computes in 80 % of the time.
        Ranks that are missing compute as recorded.

        Raises:
            UnknownStages: The recorded dependencies have a cycle, so that the ranks would wait for each other for ever.
        """
        runs = {rank: Run(rank, program, left.get(rank, 1.0)) for rank, program in self.programs.items()}
        while waiting := [run for run in runs.values() if not run.done]:
            # All have to try, as one that advances may be what another waits for.
            if not sum(self.advance(run, runs) for run in waiting):
                raise UnknownStages("its messages and collectives have no order in which all of them can end")
        first = min(program.tasks[0].start for program in self.programs.values())
        return max(max(run.end.values()) for run in runs.values()) - first

    def advance(self, run: "Run", runs: Mapping[int, "Run"]) -> int:
        """Simulate a rank until it waits for another one; return how many starts and ends of tasks became known.

        `run` is the simulation of this rank so far, `runs` has those of all ranks.
        """
        before = len(run.start) + len(run.end)
        run.open = [task for task in run.open if not self.settle(run, task, runs)]
        while run.next < len(run.program.tasks):
            settled = self.settle(run, run.next, runs)
            # All that was launched after a block needs the block, but not what communicates beside it.
            if not settled and run.program.tasks[run.next].kernel is None:
                break
            run.open += [] if settled else [run.next]
            run.next += 1
        return len(run.start) + len(run.end) - before

    def settle(self, run: "Run", index: int, runs: Mapping[int, "Run"]) -> bool:
        """Compute the simulated start and end of a task, and return whether its end is known now.

        The end is known once the ends of all tasks that it waits for are known. `index` is the task's index in the
        program of its rank; `run` is the simulation of this rank, `runs` has the simulations of all ranks.
        """
        task = run.program.tasks[index]
        if index not in run.start:
            if any(need not in run.end for need in task.needs):
                return False
            run.start[index] = max((run.end[need] for need in task.needs), default=task.start) + task.lag
        if task.kernel is None:
            run.end[index] = run.start[index] + task.end - task.start - round(task.compute * (1 - run.left))
            return True
        meeting = self.meetings[run.rank, task.kernel]
        if any(other not in runs[rank].start for rank, other in meeting.others):
            return False
        arrivals = [runs[rank].start[other] for rank, other in meeting.others]
        run.end[index] = max([run.start[index], *arrivals]) + meeting.transfer
        return True


@dataclass
class Run:
    """The state of the simulation of one rank: {task: simulated start} and {task: simulated end}, in ns.

    `next` is the first task that was not tried yet. `open` are communications before it that have not ended. `left` is
    the share of the recorded computing time that the rank still needs.
    """

    rank: int
    program: RankProgram
    left: float
    start: dict[int, int] = field(default_factory=dict)
    end: dict[int, int] = field(default_factory=dict)
    open: list[int] = field(default_factory=list)
    next: int = 0

    @property
    def done(self) -> bool:
        return len(self.end) == len(self.program.tasks)


def meetings(
    programs: Mapping[int, RankProgram], partners: Mapping[Kernel, Sequence[Kernel]], receives: set[Kernel]
) -> dict[Kernel, Meeting]:
    """Return the `Meeting` of each communicating kernel of the ranks in `programs`.

    `partners` has the kernels of other ranks in the same communication; a kernel without partners takes as long as
    recorded. `receives` are the kernels that receive. A send that ended before its receive began did not wait for the
    receive, because small messages are buffered.
    """
    made = {}
    for rank, program in programs.items():
        for kernel, index in program.index.items():
            task, others, begins = program.tasks[index], [], [program.tasks[index].start]
            for other_rank, other_kernel in partners.get((rank, kernel), ()):
                other = programs[other_rank].index[other_kernel]
                begun = programs[other_rank].tasks[other].start
                if begun <= task.end or (rank, kernel) in receives:
                    others.append((other_rank, other))
                    begins.append(begun)
            made[rank, kernel] = Meeting(others, max(0, task.end - max(begins)))
    return made


_OFF_AT_MOST = 0.05
"""The largest accepted error of the simulation, relative to the recorded time of the job.

If the job, simulated as recorded, is off by more, no answer is given.
"""


def job_what_ifs(recordings: Sequence[Recording], comparison: RankComparison | None) -> tuple[list[WhatIf], str]:
    """Return the possible savings of a job, and a text on why the savings of its pipeline stages are unknown.

    The text is empty if they are known. `recordings` are of the same part of the run, `comparison` compares their
    collectives. If the job sends messages between pipeline stages, only the savings by stage are returned, because a
    simulation of the collectives alone ignores that ranks wait for messages. If the stages are unknown, the savings
    from this simulation are returned nevertheless.
    """
    answers = comparison.what_ifs if comparison else []
    try:
        of_stages = _stage_what_ifs(recordings, comparison.lateness if comparison else None)
    except UnknownStages as error:
        return answers, str(error)
    return (answers if of_stages is None else of_stages), ""


def _stage_what_ifs(recordings: Sequence[Recording], lateness: Lateness | None) -> list[WhatIf] | None:
    """Return what the job would save if each of its pipeline stages computed only as long as the others.

    Answers that save more than 1 % are returned, the largest saving first. `recordings` are of the same part of the
    run, `lateness` has their matched collectives (None: there are none). The result is None if the job sends no
    messages between ranks.

    Raises:
        UnknownStages: The job sends messages, but its stages cannot be found or simulated; the text says why.
    """
    messages = {one.rank: messages_of(one) for one in recordings if one.rank is not None}
    if not any(messages.values()):
        return None
    by_rank = {one.rank: one for one in recordings if one.rank is not None}
    if len(by_rank) < len(recordings):
        raise UnknownStages("several recordings are of one rank, or of none")
    stages = _find_stages(by_rank, messages)
    replay = _replay_of(by_rank, messages, lateness)
    before = replay.duration({})
    if abs(before - replay.recorded) > _OFF_AT_MOST * replay.recorded:
        raise UnknownStages(f"simulated as recorded, the job is off by {abs(before / replay.recorded - 1):.0%}")
    compute = [[replay.programs[rank].compute for rank in ranks] for ranks in stages]
    steps = {step for one in recordings for step in one.column("step").tolist() if step != NO_STEP}
    answers = [
        WhatIf(
            change=Change.STAGE_AS_OTHERS,
            name="",
            rank=None,
            stage=stage,
            ranks=ranks,
            steps=max(1, len(steps)),
            window_ns=before,
            saved_ns=max(0, before - replay.duration(dict(zip(ranks, _shares_left(compute, stage), strict=True)))),
        )
        for stage, ranks in enumerate(stages)
    ]
    return sorted((row for row in answers if row.saved_ns > WORTH * before), key=lambda row: -row.saved_ns)


def _shares_left(compute: Sequence[Sequence[int]], stage: int) -> list[float]:
    """Return, for each rank of a stage, the factor on its computing time if the stage computed as long as the others.

    `compute[stage]` has the computing time (ns) of each rank of a stage. The time of a stage is the median of its
    ranks; the target is the lower median over the other stages. A rank that already takes less keeps its time (factor
    1).
    """
    others = sorted(int(np.median(ranks)) for number, ranks in enumerate(compute) if number != stage)
    typical = others[(len(others) - 1) // 2]
    return [min(1.0, typical / max(own, 1)) for own in compute[stage]]


def _replay_of(
    recordings: dict[int, Recording], messages: dict[int, list[Message]], lateness: Lateness | None
) -> StageReplay:
    """Return a simulation of all ranks of a job that send messages.

    `recordings` and `messages` are {rank: its recording, or its sends and receives}. `lateness` has the matched
    collectives and the clocks of the ranks; it is None if there are no matched collectives.

    Raises:
        UnknownStages: The clocks of the ranks cannot be compared, or the sends of some ranks do not match the receives.
    """
    ahead = _clocks_ahead(recordings, lateness)
    steps = {rank: one.column("step") for rank, one in recordings.items()}
    pairs = partners(messages, steps) | (_collective_partners(lateness, messages) if lateness else {})
    programs = {
        rank: program_of(one, messages[rank], ahead[rank]) for rank, one in recordings.items() if messages[rank]
    }
    receives = {(rank, one.kernel) for rank, own in messages.items() for one in own if not one.sends}
    return StageReplay(programs, meetings(programs, pairs, receives))


def _clocks_ahead(recordings: dict[int, Recording], lateness: Lateness | None) -> dict[int, int]:
    """Return {rank: by how many ns its clock is ahead of the first rank's, in the middle of its recording}.

    Raises:
        UnknownStages: The offset of some rank's clock is unknown, because no collective shows it.
    """
    hosts = {one.trace.header.get("host") for one in recordings.values()}
    if len(hosts) == 1 and None not in hosts:
        return dict.fromkeys(recordings, 0)
    clocks = {clock.rank: clock for clock in lateness.clocks} if lateness else {}
    unknown = [rank for rank in recordings if rank not in clocks or clocks[rank].low_ns is None]
    if unknown:
        raise UnknownStages(f"no collective shows how far the clock of rank {unknown[0]} is from the others'")
    middle = {rank: np.array([int(np.median(one.column("start")))]) for rank, one in recordings.items()}
    return {rank: int(clocks[rank].ahead(middle[rank])[0]) for rank in recordings}


def _collective_partners(lateness: Lateness, messages: Mapping[int, Sequence[Message]]) -> dict[Kernel, list[Kernel]]:
    """Return, for each kernel of a matched collective, the kernels of the same collective on the other ranks.

    Only ranks with messages count. `lateness` has the matched collectives, `messages` the sends and receives of each
    rank.
    """
    matched = lateness.matched
    ranks = [matched.ranks[i] for i in matched.rank_index.tolist()]
    members = list(zip(ranks, matched.position.tolist(), strict=True))
    bounds = [*matched.first_row.tolist(), len(members)]
    return {
        kernel: [other for other in members[low:high] if other != kernel and messages[other[0]]]
        for low, high in pairwise(bounds)
        for kernel in members[low:high]
    }
