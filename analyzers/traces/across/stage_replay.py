"""Simulate the computing, messages and collectives of all ranks again, with some ranks computing faster.

Each rank runs its computing in blocks between its communication. A block begins when the block before it and the
receives that it needs have ended; communication begins when the computing launched before it and the communication
before it on its stream have ended, and ends when all its partners have begun and their transfer is done.

Example: stage 1 computes 10 ms for each of 4 microbatches and stage 0 only 5 ms. Stage 0 then waits 5 ms for each
receive. If stage 1 took 5 ms as well, not all of 4 * 5 ms would be saved: filling the pipeline takes as long as before.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from analyzers.traces.across.stages import Kernel, Message, UnknownStages
from analyzers.traces.answers.idle import LATENCY_NS
from analyzers.traces.loading import Recording


@dataclass(frozen=True)
class Task:
    """A block of computing, or a kernel that communicates (`kernel` is its index among the rank's collectives).

    `start` and `end` are recorded, on the common clock. The task begins `lag` ns after the last of the tasks `needs` of
    its rank (indices in the order of launches) has ended. `compute` is the part of its ns that a faster rank shortens.
    """

    start: int
    end: int
    compute: int
    kernel: int | None
    needs: list[int]
    lag: int


@dataclass
class RankProgram:
    """The tasks of a rank in the order of their launches, and where each of its kernels that communicate is."""

    tasks: list[Task]
    index: dict[int, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.index = {task.kernel: i for i, task in enumerate(self.tasks) if task.kernel is not None}

    @property
    def compute(self) -> int:
        """The recorded time in which the rank computes, in ns."""
        return sum(task.compute for task in self.tasks)


def program_of(recording: Recording, messages: Sequence[Message], ahead: int) -> RankProgram:
    """Return the tasks of a rank, with what each of them waits for.

    `ahead` is by how many ns the rank's clock is ahead of the common one.
    """
    shift = recording.base - ahead
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
    """Collects the tasks of a rank in the order of their launches.

    `receives` are the communications whose result the next block needs; if the rank computes on its host, these are all
    but its sends, and also what it communicates next comes after them. `pending` are communications that no block has
    waited for so far, with their recorded ends.
    """

    receives: set[int]
    on_host: bool
    tasks: list[Task] = field(default_factory=list)
    pending: dict[int, int] = field(default_factory=dict)
    last_block: int | None = None
    last_of_lane: dict[int, int] = field(default_factory=dict)

    def add_block(self, start: int, end: int, compute: int, after: int) -> None:
        """Add a run of kernels that computes; the host waited until `after` before it launched them.

        A receive that ended before the block began is needed by it: in the recording nothing else shows for what
        something was received. Other communication is only needed if the block began when it ended, or the host waited.
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
        """Add a kernel that communicates on the stream `lane`; the host waited until `after` before it launched it."""
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
    """The tasks of other ranks, as (rank, index), that a communication waits for, and how long it then goes on (ns)."""

    others: list[tuple[int, int]]
    transfer: int


@dataclass(frozen=True)
class StageReplay:
    """A simulation of all ranks: their programs, and the `Meeting` of each of their kernels that communicate."""

    programs: Mapping[int, RankProgram]
    meetings: Mapping[Kernel, Meeting]

    @property
    def recorded(self) -> int:
        """The recorded ns from the first to the last task."""
        tasks = [task for program in self.programs.values() for task in program.tasks]
        return max(task.end for task in tasks) - min(task.start for task in tasks)

    def duration(self, left: Mapping[int, float]) -> int:
        """Simulate all ranks and return the ns from the first to the last task.

        `left` has, for ranks that compute faster, the share of their recorded computing time that is left.

        Raises:
            UnknownStages: The recorded dependencies have a cycle, so that the ranks would wait for each other.
        """
        runs = {rank: Run(rank, program, left.get(rank, 1.0)) for rank, program in self.programs.items()}
        while waiting := [run for run in runs.values() if not run.done]:
            # All have to try, as one that advances may be what another waits for.
            if not sum(self.advance(run, runs) for run in waiting):
                raise UnknownStages("its messages and collectives have no order in which all of them can end")
        first = min(program.tasks[0].start for program in self.programs.values())
        return max(max(run.end.values()) for run in runs.values()) - first

    def advance(self, run: "Run", runs: Mapping[int, "Run"]) -> int:
        """Let a rank go on until it waits for another one; return the number of tasks that started or ended."""
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
        """Start and end a task as far as what it waits for is known; return whether it has ended."""
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
    """A rank that is simulated: the simulated start and end (ns) of its tasks, by their index.

    `next` is the first task that was not tried, `open` are communications before it that have not ended, and `left` is
    the share of the computing time that is left.
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
    """Return the `Meeting` of each kernel that communicates; one without partners takes as long as recorded.

    `receives` are the kernels that receive. A send that ended before its partner began did not wait for it: small
    messages are buffered.
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
