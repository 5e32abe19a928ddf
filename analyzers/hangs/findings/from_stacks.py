"""Write the sentences about a hang for which only stacks are available."""

import re
from collections.abc import Sequence
from typing import NamedTuple

from analyzers.hangs.classify.cause import ChildProcess, Process
from analyzers.hangs.classify.from_stacks import Activity, Place, StackCause
from analyzers.hangs.findings.wording import format_function, format_line
from analyzers.hangs.model import Culprit, Frame, HangClass, user_frame
from analyzers.report import Evidence, Finding, Severity, Status, Verdict
from analyzers.words import agree, rank_names


class LibraryWait(NamedTuple):
    """A known way to wait inside a library: `file` and `function` match its frame; `advice` says what to look at.

    In the advice, {code} is replaced by the user's function and line that called the library.
    """

    file: re.Pattern[str]
    function: re.Pattern[str]
    advice: str
    options: str = ""


def _library_wait(file: str, function: str, advice: str, options: str = "") -> LibraryWait:
    """Return a `LibraryWait`; `file` matches the end of a path, `function` a whole name."""
    return LibraryWait(re.compile(rf"(^|/)(?:{file})$"), re.compile(rf"^(?:{function})$"), advice, options)


_CHILDREN = "--subprocesses"
"""The option of py-spy that also prints the stacks of the processes that a rank has started."""
# Sorted from special to general: a data loader, for example, waits for its workers in `queue.get`.
WAITS = (
    _library_wait(
        r"torch/utils/data/dataloader\.py",
        ".*",
        "find the data-loader worker that gives {code} no batch; with num_workers=0 the rank itself shows the line",
        _CHILDREN,
    ),
    _library_wait(
        r"multiprocessing/pool\.py",
        ".*",
        "find out what the workers of the pool do for which {code} waits. Where all of them are idle, one was killed"
        " with its task, for which multiprocessing.Pool waits for ever; concurrent.futures.ProcessPoolExecutor raises"
        " BrokenProcessPool then",
        _CHILDREN,
    ),
    _library_wait(
        r"multiprocessing/synchronize\.py",
        ".*",
        "find the process that holds the lock, or should set the event, for which {code} waits",
        _CHILDREN,
    ),
    _library_wait(
        r"queue\.py",
        "get",
        "find what should put items into the queue that {code} reads: a thread that ended, or more reads than items",
    ),
    _library_wait(
        r"queue\.py", "put", "find what should read the full queue that {code} fills: a thread that ended, or is stuck"
    ),
    _library_wait(
        r"queue\.py", "join", "call task_done() for every item of the queue for which {code} waits, also after an error"
    ),
    _library_wait(
        r"threading\.py",
        "join|_wait_for_tstate_lock",
        "find out why the thread does not end for which {code} waits: its stack is among those of the rank",
    ),
    _library_wait(
        r"threading\.py",
        "wait|wait_for|acquire|__enter__",
        "find the thread that should release the lock, or set the event, for which {code} waits, and where it is",
    ),
    _library_wait(
        r"concurrent/futures/\w+\.py",
        ".*",
        "find out what the tasks do for which {code} waits: a task that waits for its own pool never ends",
    ),
    _library_wait(
        r"subprocess\.py",
        ".*",
        "find out why the command does not end that {code} starts: it may wait for input, or for its output to be read",
        _CHILDREN,
    ),
    _library_wait(
        r"multiprocessing/(?:\w+/)?\w+\.py",
        ".*",
        "find out what the process does for which {code} waits: it ended, or waits for its output to be read",
        _CHILDREN,
    ),
    _library_wait(
        r"(?:socket|ssl)\.py|http/client\.py|urllib/request\.py|(?:requests|urllib3|httpx|aiohttp|botocore)/.*\.py",
        ".*",
        "find out which server does not answer {code}, and give the call a timeout",
    ),
    _library_wait(r"(?:pdb|bdb|cmd|code)\.py", ".*", "remove the breakpoint or prompt in {code}: it waits for input"),
    _library_wait(
        r"(?:re|re/__init__)\.py",
        ".*",
        "look at the pattern that {code} uses and at the text it searches: nested repetitions may take for ever",
    ),
)
"""The waits in library code that are recognised; if several match a frame, the first one counts."""


def py_spy(process: Process, options: str = "") -> str:
    """Return the py-spy command that prints the stacks of a process, and the host on which to run the command."""
    return f"`py-spy dump{f' {options}' if options else ''} --pid {process.number}`{on_host(process)}"


def on_host(process: Process) -> str:
    """Return the end of a command's description, which names the process's host; empty if only the host is unknown."""
    if process.host:
        return f" on host {process.host}"
    return "" if process.pid else " on its host"


def for_stuck_code(frames: list[Frame], process: Process, number: int = 1, child: ChildProcess | None = None) -> str:
    """Return what to look at if ranks do not return from their own code; `frames` has the innermost frame first.

    `number` is how many ranks are stuck there; `process` is the process of the first of them, and `child` a process
    that it has started and that does not return from the user's code either.
    """
    line = user_frame(frames)
    # Native frames, which have no line in a Python file, say less than the Python code that called them.
    calls = [call for call in (frames[: frames.index(line)] if line else []) if call.filename.endswith(".py")]
    code = format_function(frames)
    known = (wait for call in reversed(calls) for wait in WAITS if matches(wait, call))
    wait = min(known, key=WAITS.index, default=None)
    there, first = (" of the first of these ranks", "of the first of these ranks") if number > 1 else ("", "there")
    its = f"child process {child.pid} {{}} {format_function(list(child.frames))}" if child else ""
    if its and wait and wait.options:
        return f"find out why {its.format('does not return from')}: {code} waits for it, or for a lock that it holds"
    if wait:
        shows = "shows its stacks and those of its processes" if wait.options else "shows all its threads"
        return f"{wait.advice.format(code=code)}; while it hangs, {py_spy(process, wait.options)} {shows}{there}"
    called = f"what {calls[-1].name} ({format_line(calls[-1])}) waits for in {code}" if calls else ""
    where = called or _in_own_code(line, code) + (f" (its {its.format('is in')})" if its else "")
    return f"find out {where}; while it hangs, {py_spy(process, '--locals')} shows the variables {first}"


def matches(wait: LibraryWait, frame: Frame) -> bool:
    """Return whether a frame of a library shows this known way to wait."""
    return bool(wait.file.search(frame.filename.replace("\\", "/")) and wait.function.search(frame.name))


def _in_own_code(line: Frame | None, code: str) -> str:
    """Return what to find out about the user's code at `line`, if its stack shows no call of a library."""
    if line and line.name == "<lambda>":  # it has no loop
        return f"what the call in {code} waits for"
    return f"which condition ends the loop in {code}, or what the call on this line waits for"


_MOST_SIDES = 4
_CONFIDENCES = {
    HangClass.HOST_STUCK: 0.75,
    HangClass.MISMATCH: 0.7,
    HangClass.UNMATCHED_P2P: 0.5,
    HangClass.ALL_ARRIVED: 0.5,
    HangClass.HEALTHY: 0.6,
    HangClass.UNKNOWN: 0.3,
}
OPERATIONS = {"backward": "the backward pass", "its device": "a wait for its device"}
_BEGINNINGS = {
    HangClass.MISMATCH: "ranks wait in different operations: ",
    HangClass.UNMATCHED_P2P: "ranks wait in sends and receives that do not match: ",
    HangClass.ALL_ARRIVED: "all ranks wait at the same line: ",
}
"""{class of a hang: the beginning of a title that then says where all ranks are}."""
_WHY = {
    HangClass.HOST_STUCK: "the other ranks wait in operations that need {them}",
    HangClass.MISMATCH: "all ranks wait, but not in the same operation: a branch that only some of them took, or a loop"
    " that ended earlier there",
    HangClass.UNMATCHED_P2P: "all ranks wait, some of them in a send or recv whose other half no rank issues",
    HangClass.ALL_ARRIVED: "every rank is in the same operation at the same line, so the network or a device is"
    " stuck, or one rank passed a different shape, which stacks do not show",
}
_UNMOVED = ". No rank moved between the samples of its stack"
_ONE_SAMPLE = ". Only one stack was taken of each rank, which cannot show whether the rank is stuck or slow"
_ONE_SAMPLE_FACTOR = 0.7
_NO_FLIGHT_RECORDER = (
    "Flight Recorder, which would number the collectives: start the job with `workbench launch -- ...`"
)
_OTHER_MACHINES = "the ranks of the other machines: run the same command there"


def verdict_from_stacks(cause: StackCause, world_size: int) -> Verdict:
    """Return the verdict on a hang for which only stacks are available; it mentions if some ranks have no stack.

    `world_size` is the number of ranks of the job.
    """
    seen = sum(map(len, cause.places))
    statuses = {HangClass.HEALTHY: Status.OK, HangClass.UNKNOWN: Status.UNKNOWN}
    return Verdict(
        status=statuses.get(cause.kind, Status.ERROR),
        kind=cause.kind,
        ranks=cause.ranks,
        sentence=sentence(cause),
        confidence=confidence(cause),
        missing=[_NO_FLIGHT_RECORDER, *([_OTHER_MACHINES] if seen < world_size else [])],
    )


def _is_one_sample(cause: StackCause) -> bool:
    """Return whether each rank has only one stack sample, so that nothing shows whether a rank moves."""
    return all(place.moved is None for side in cause.places for place in side)


def confidence(cause: StackCause) -> float:
    """Return the confidence in a cause, from 0 to 1; it is lower if each rank has only one stack sample."""
    return round(_CONFIDENCES[cause.kind] * (_ONE_SAMPLE_FACTOR if _is_one_sample(cause) else 1.0), 2)


def why(cause: StackCause) -> str:
    """Return how the culprits stop the other ranks, as far as stacks show it."""
    return _WHY[cause.kind].format(them=agree(cause.ranks, "it", "them")) + (
        _ONE_SAMPLE if _is_one_sample(cause) else _UNMOVED
    )


def sentence(cause: StackCause) -> str:
    """Return the sentence of the verdict: which ranks are in which operation at which line."""
    if cause.kind is HangClass.HEALTHY:
        return f"no rank hangs: ranks moved between the samples of their stacks; {sides(cause)}"
    return f"{title(cause)}{'; ' + waiting(cause) if cause.kind is HangClass.HOST_STUCK else ''}"


def title(cause: StackCause) -> str:
    """Return the title of the finding: `rank 1 is stuck in load (train.py:13) and in no collective`.

    If no rank runs its own code, the title is the result of `sides`: the operation and line of all ranks.
    """
    if cause.kind is not HangClass.HOST_STUCK:
        return _BEGINNINGS.get(cause.kind, "") + sides(cause)
    working = [side for side in cause.places if not side[0].waits]
    return ", ".join(f"{_is_at(side, 'is stuck in', 'are stuck in')} and in no collective" for side in working)


def waiting(cause: StackCause) -> str:
    """Return a phrase on where the victims wait, such as `ranks 0, 2-3 wait in the backward pass (train.py:34)`."""
    groups = [side for side in cause.places if side[0].waits]
    return ", ".join(_is_at(side, "waits in", "wait in") for side in groups[:_MOST_SIDES])


def sides(cause: StackCause) -> str:
    """Return where all ranks are: `rank 0 is in barrier (train.py:98), ranks 1-3 are in all_reduce (train.py:22)`."""
    # The smaller side first: it is the one that differs.
    return ", ".join(_is_at(side, "is in", "are in") for side in reversed(cause.places[:_MOST_SIDES]))


def _is_at(side: list[Place], singular: str, plural: str) -> str:
    """Return the ranks of `side` with a verb and their location, such as `ranks 1-3 wait in backward (train.py:22)`.

    All items of `side` have the same operation and line. `singular` and `plural` are forms of the verb (`waits`,
    `wait`).
    """
    ranks = sorted(place.rank for place in side)
    return f"{rank_names(ranks)} {agree(ranks, singular, plural)} {_place_name(side[0])}"


def _place_name(place: Place) -> str:
    """Return the operation and line of a rank, or its function and line if it runs its own code."""
    if place.activity is Activity.OWN_CODE:
        return format_function(list(place.frames)) or "code of libraries"
    line = format_line(place.line)
    return OPERATIONS.get(place.operation, place.operation) + (f" ({line})" if line else "")


def culprits_from_stacks(cause: StackCause) -> list[Culprit]:
    """Return the culprit of a cause in a list, for the JSON document; the list is empty if there is no culprit."""
    if not cause.ranks:
        return []
    first = next(place for side in cause.places for place in side if place.rank in cause.ranks)
    return [
        Culprit(
            ranks=cause.ranks,
            kind=cause.kind,
            operation=first.operation or None,
            frames=list(first.frames),
            victims=cause.victims,
            title=title(cause),
            detail=why(cause),
            confidence=confidence(cause),
        )
    ]


def findings_from_stacks(cause: StackCause) -> list[Finding]:
    """Return, in a list, the finding on the culprits; its evidence names the line of each group of ranks."""
    return [
        Finding(
            id=f"hang.{culprit.kind}",
            severity=Severity.ERROR,
            title=culprit.title,
            why=culprit.detail,
            next=next_step(cause),
            ranks=culprit.ranks,
            evidence=[evidence(side) for side in cause.places[:_MOST_SIDES]],
            confidence=culprit.confidence,
        )
        for culprit in culprits_from_stacks(cause)
    ]


def evidence(side: list[Place]) -> Evidence:
    """Return evidence that names the line that some ranks are at.

    All items of `side` have the same operation and line.
    """
    line = side[0].line
    return Evidence(text=_is_at(side, "is in", "are in"), line=f"{line.filename}:{line.line}" if line else "")


def next_step(cause: StackCause) -> str:
    """Return the next thing to try, as an imperative sentence without a full stop."""
    lines = [format_line(side[0].line) for side in cause.places if side[0].line]
    if cause.kind is HangClass.HOST_STUCK:
        return _for_stuck_ranks([side for side in cause.places if not side[0].waits])
    if cause.kind is HangClass.MISMATCH and len(lines) > 1:
        return f"compare {lines[-1]} with {lines[0]}, and make every rank take the same branch"
    if cause.kind is HangClass.UNMATCHED_P2P:
        return "give each send a recv on its peer, and issue both in the same order on both ranks"
    return "check the network and the devices of these ranks, and print the shape that each rank passes at this line"


def _for_stuck_ranks(sides: Sequence[list[Place]]) -> str:
    """Return what to look at if ranks run their own code; each item of `sides` has the ranks that are at one line."""
    first, *others = sides
    text = for_stuck_code(list(first[0].frames), Process(first[0].pid), len(first))
    lines = [format_line(side[0].line) for side in others if side[0].line]
    return f"{text}. Then look at {', '.join(lines[:_MOST_SIDES])}" if lines else text
