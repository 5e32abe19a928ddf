"""Simulate the computing, messages and collectives of all ranks again, with some ranks computing faster.

The work of a rank is a list of tasks: each is a *block* of computing between two communications, or a communication. A
block begins when the previous block and the receives that it needs have ended. A communication begins when the
computing launched before it and the previous communication on its stream have ended. It ends once all participating
ranks have begun it and the data is transferred.

Example: stage 1 computes 10 ms for each of 4 microbatches and stage 0 only 5 ms. Stage 0 then waits 5 ms for each
receive. If stage 1 took 5 ms as well, the saving would be less than 4 * 5 ms, because filling the pipeline takes as
long as before.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from analyzers.traces.across.stages import Kernel, Message, UnknownStages
from analyzers.traces.answers.idle import LATENCY_NS
from analyzers.traces.loading import Recording


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
        """The recorded time in which the rank computes, in ns."""
        return sum(task.compute for task in self.tasks)


def program_of(recording: Recording, messages: Sequence[Message], ahead: int) -> RankProgram:
    """Return the program of a rank for the simulation: its tasks, and for each one the earlier tasks that it waits for.

    `messages` are the rank's sends and receives; `ahead` is by how many ns its clock is ahead of the common one. Times
    of the tasks are on the common clock.
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
        """The recorded time from the start of the first task to the end of the last one, in ns."""
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
