"""Write the titles of findings: what the culprit did, in one sentence with rank, step, operation and line."""

from collections.abc import Callable

from analyzers.hangs.classify.cause import Cause, RanksInOp
from analyzers.hangs.findings.wording import (
    append_line,
    at_step,
    choose_pronoun,
    format_ending,
    format_function,
    format_line,
    format_operation,
    is_message,
    list_issued,
    list_waiting,
    name_operation,
)
from analyzers.hangs.model import Frame, HangClass, Reason, operation_text, user_frame
from analyzers.hangs.reading.exits import Ending
from analyzers.node_health import named
from analyzers.words import agree, numbered, process_group, rank_names


def title(cause: Cause) -> str:
    """Return the title of a finding: what the culprit ranks did, where, and which operation they did not join.

    For example `rank 3 is stuck at step 6 in tokenize (data/text.py:41) and never joined all_reduce #412 of dp`.
    """
    if cause.culprit.out_of_memory:
        return f"{rank_names(cause.ranks)} ran out of memory{at_step(cause)}{_in_function(cause)}"
    if cause.reason is Reason.OTHER_GROUPS:
        return other_groups(cause)
    return TITLES[cause.kind](cause)


def with_victims(cause: Cause) -> str:
    """Return the title of a cause, followed by the ranks that wait for the culprit: `...; ranks 0-2 wait for it`."""
    waiting = cause.victims
    if not waiting:
        return title(cause)
    whom = agree(cause.ranks, "it", "them")
    return f"{title(cause)}; {rank_names(waiting)} {agree(waiting, 'waits', 'wait')} for {whom}"


def _in_function(cause: Cause, otherwise: str = "") -> str:
    """Return the culprit's innermost user frame as ` in tokenize (data/text.py:41)`; `otherwise` if it has no stack."""
    where = format_function(cause.culprit.frames)
    return f" in {where}" if where else otherwise


def dead(cause: Cause) -> str:
    """Return the title of a finding on a rank that ended, or that probably ended because it left no dump."""
    name, step = name_operation(cause.culprit), at_step(cause)
    when = f"{step} before {name}" if name else step
    ranks = rank_names(cause.ranks)
    if cause.end is None:
        return _without_end(cause, ranks, when)
    if cause.reason is Reason.AFTER_END:
        return f"{ranks} {agree(cause.ranks, 'was', 'were')} aborted after the training had ended"
    if cause.end.ending is Ending.NO_ERROR:
        return f"{ranks} ended normally{when}, while the other ranks went on{_in_other_line(cause)}"
    if cause.end.signal:
        return f"{ranks} died{when}: {cause.end.signal}{_in_function(cause)}"
    if cause.end.ending is Ending.PROCESS_EXITED:
        return f"{ranks} exited{when} without an error message"
    return f"{ranks} died{when}: {format_ending(cause.end)}"


def _without_end(cause: Cause, ranks: str, when: str) -> str:
    """Return the title of a finding on ranks that have no file about how they ended.

    `ranks` names them, as `rank 3`; `when` is a phrase to put after the verb, as ` at step 6 before all_reduce #412`.
    """
    if cause.node:
        return f"{named(cause.node)} was lost{when}: nothing has come from it since {cause.node.last_time}"
    if cause.reason is Reason.RAS_DEAD:
        return f"{ranks} died{when}: NCCL's RAS calls {agree(cause.ranks, 'its process', 'their processes')} dead"
    they = choose_pronoun(cause.ranks)
    if cause.reason is Reason.RAS_SILENT:
        return f"{ranks} probably died{when}: {they} left no dump and did not answer NCCL's RAS"
    where = f" in {name}" if (name := name_operation(cause.culprit)) else ""
    is_missing = f"{ranks} {agree(cause.ranks, 'is', 'are')} missing{at_step(cause)}{where}"
    return f"{is_missing}: {they} left no dump, so {they} died or could not write one"


def _in_other_line(cause: Cause) -> str:
    """Return the line at which other ranks timed out waiting for the culprit, as ` in step (train.py:12)`, or ""."""
    return _in_line(cause.expected.line) if cause.expected else ""


def _in_line(line: Frame | None) -> str:
    """Return a source line as ` in step (train.py:12)`; empty if no line is known."""
    return f" in {line.name} ({format_line(line)})" if line else ""


def other_groups(cause: Cause) -> str:
    """Return the title of a finding on ranks that created other process groups than the rest, or too few."""
    assert cause.expected
    expected = f"{format_operation(cause.expected)}, which {rank_names(cause.expected.ranks)} made"
    ranks, step = rank_names(cause.ranks), at_step(cause)
    if cause.issued is None:
        verb = "skipped" if cause.kind is HangClass.SKIPPED else "never joined"
        return f"{ranks} {verb} {expected}{step}{_in_function(cause)}"
    if cause.kind is HangClass.SKIPPED:
        return f"{ranks} skipped {expected}{step}, and went on to {format_operation(cause.issued)}"
    return f"{ranks} made {format_operation(cause.issued)}{step} instead of {expected}"


def host_stuck(cause: Cause) -> str:
    """Return the title of a finding on a rank that runs its own code."""
    if cause.reason is Reason.KEPT_ALIVE:
        ends = f"{rank_names(cause.ranks)} finished {agree(cause.ranks, 'its', 'their')} program, but"
        return f"{ends} a thread that is no daemon keeps the process alive{_in_function(cause)}"
    joined = "issued the other half of" if is_message(cause.culprit) else "joined"
    where = _in_function(cause, " outside any collective")
    ranks = cause.ranks
    if cause.reason is Reason.NAMED_ABSENT:
        return f"{rank_names(ranks)} never joined the monitored barrier{at_step(cause)}{_in_function(cause)}"
    if cause.reason is Reason.SHUT_DOWN:
        ended = f"{choose_pronoun(ranks)} left no dump, and SIGTERM ended {agree(ranks, 'it', 'them')}"
        return f"{rank_names(ranks)} never {joined} {name_operation(cause.culprit)}{at_step(cause)}: {ended} at last"
    stuck = f"{rank_names(ranks)} {agree(ranks, 'is', 'are')} stuck{at_step(cause)}{where}"
    return f"{stuck} and never {joined} {name_operation(cause.culprit)}"


def skipped(cause: Cause) -> str:
    """Return the title of a finding on a rank that skipped an operation."""
    line = user_frame(cause.culprit.frames)
    went_on = f" and went on to {format_line(line)}" if line else ""
    return f"{rank_names(cause.ranks)} skipped {name_operation(cause.culprit)}{at_step(cause)}{went_on}"


_UNKNOWN_TENSOR = "a different shape or type"
_DEEDS = {
    Reason.OTHER_MODEL: "built a model with a different number of parameters than the other ranks",
    Reason.LEFT_ALONE: "issued a collective when all other ranks had ended normally,",
}
"""{reason of a cause: verb phrase of a title that says what only the culprits did}."""


def mismatch(cause: Cause) -> str:
    """Return the title of a finding on different operations; it names each operation with its ranks and line."""
    ranks, step = rank_names(cause.ranks), at_step(cause)
    number = collective_name(cause)
    if cause.reason is Reason.UNBALANCED:
        sent, received = cause.elements
        return f"{ranks} send {sent} elements in total and receive {received} in {name_operation(cause.culprit)}{step}"
    if cause.reason is Reason.DIFFERENT_HALVES:
        return f"{ranks} issued a send and a recv that do not match{step}: {message_halves(cause)}"
    if cause.reason in (Reason.OTHER_MODEL, Reason.LEFT_ALONE):
        return f"{ranks} {_DEEDS[cause.reason]}{step}{_in_function(cause)}"
    if cause.reason is Reason.ABORTED and cause.issued is None:
        return aborted(cause)
    if cause.issued is None or cause.expected is None or not cause.expected.ranks:
        return f"{ranks} disagree{step} in {number}: {list_issued(cause.sides)}"
    same_line = cause.issued.line == cause.expected.line and not has_other_operation(cause)
    others = f"{called(cause.issued, cause)}{step} in {number}, while {called(cause.expected, cause)}"
    return passed(cause.issued, cause.expected, cause) if same_line else others


def collective_name(cause: Cause) -> str:
    """Return the collective in which the victims wait, with its number: `collective #6 of process group dp`."""
    return f"{numbered('collective', cause.culprit.seq)} of {process_group(cause.culprit.group_desc)}"


def passed(issued: RanksInOp, expected: RanksInOp, cause: Cause) -> str:
    """Return the title of a finding on ranks that passed different tensors to one operation at the same source line.

    For example `rank 1 passed an empty tensor (0 elements, float32) to all_reduce at step 6, while rank 0 passed a
    tensor of 8 float32, in collective #6 of process group dp (train.py:12)`. `issued` is the operation that the
    culprits issued, `expected` the operation of the other ranks.
    """
    mine, theirs = (_tensor_name(side.shape) if side.shape else _UNKNOWN_TENSOR for side in (issued, expected))
    where = append_line(collective_name(cause), issued.line)
    if cause.reason is Reason.SIZE_RULE and mine == theirs:
        call = f"{rank_names(issued.ranks)} called {issued.operation}{at_step(cause)}"
        return f"{call} with an input and an output whose sizes do not fit, in {where}"
    first = f"{rank_names(issued.ranks)} passed {mine} to {issued.operation}{at_step(cause)}"
    return f"{first}, while {rank_names(expected.ranks)} passed {theirs}, in {where}"


def aborted(cause: Cause) -> str:
    """Return the title of a finding on a rank that gloo aborted because tensor sizes differ.

    The title names two ranks if either of them may be wrong.
    """
    ranks, step = rank_names(cause.ranks), at_step(cause)
    if cause.sides:
        places = ", ".join(f"{rank_names(side.ranks)}{_in_line(side.line)}" for side in cause.sides)
        if called_elsewhere(cause):
            return f"{ranks} called a different collective than the other ranks{step}: {places}"
        return f"{ranks} passed tensors of different sizes to one collective{step}: {places}"
    name = name_operation(cause.culprit) or "a collective"
    return f"{ranks} passed a tensor of a different size than the other ranks to {name}{step}{_in_function(cause)}"


def called_elsewhere(cause: Cause) -> bool:
    """Return whether gloo aborted a rank, and the lines of ranks show that only the culprits were in another call."""
    in_sides = {rank for side in cause.sides for rank in side.ranks}
    return cause.reason is Reason.ABORTED and cause.issued is None and set(cause.ranks) < in_sides


def called(side: RanksInOp, cause: Cause) -> str:
    """Return a phrase on the operation that the ranks of `side` called, with its source line.

    For example `rank 3 called all_gather of 8 float32 (train.py:12)`; if the other ranks of `cause` called all_gather
    too, `rank 3 passed a tensor of 8 float32 to all_gather (train.py:12)`.
    """
    ranks = rank_names(side.ranks)
    if has_other_operation(cause):
        return f"{ranks} called {format_operation(side, with_group=_is_in_other_group(cause))}"
    tensor = _tensor_name(side.shape) if side.shape else _UNKNOWN_TENSOR
    return f"{ranks} passed {append_line(f'{tensor} to {side.operation}', side.line)}"


def _tensor_name(shape: str) -> str:
    """Return a shape with its dtype as `a tensor of 4x4 float32`; for `0 float32`, say that the tensor is empty."""
    empty = shape.removeprefix("0 ")
    return f"a tensor of {shape}" if empty == shape else f"an empty tensor (0 elements, {empty})"


def both_sides(cause: Cause) -> str:
    """Return a phrase on the issued and the expected operation.

    For example `all_gather of 8 float32 (train.py:12) instead of all_reduce of 8 float32 (train.py:10)`: the culprits
    issued the first operation, but should have issued the second.
    """
    assert cause.issued
    assert cause.expected
    return f"{format_operation(cause.issued)} instead of {format_operation(cause.expected)}"


def has_other_operation(cause: Cause) -> bool:
    """Return whether the culprit's operation has another name, root or process group than that of the other ranks."""
    issued, expected = cause.issued, cause.expected
    if _is_in_other_group(cause):
        return True
    return bool(issued and expected and (issued.operation, issued.root) != (expected.operation, expected.root))


def _is_in_other_group(cause: Cause) -> bool:
    """Return whether the culprit issued the same operation as the other ranks, but in another process group."""
    issued, expected = cause.issued, cause.expected
    return bool(issued and expected and issued.operation == expected.operation and issued.group != expected.group)


def message_halves(cause: Cause) -> str:
    """Return a phrase on a send and its recv, with the ranks that issued them.

    For example `rank 2 issued send of 4x4 float32 (train.py:1), rank 5 issued recv of ...`.
    """
    halves = ((side, side.operation.partition(" ")[0]) for side in cause.sides)
    return ", ".join(
        f"{rank_names(side.ranks)} issued {append_line(operation_text(half, side.shape), side.line)}"
        for side, half in halves
    )


def order_cycle(cause: Cause) -> str:
    """Return the title of a finding on ranks that used their process groups in different orders."""
    ranks, step = rank_names(cause.ranks), at_step(cause)
    if cause.issued and cause.expected:
        mine, theirs = (
            format_operation(cause.issued, with_group=True),
            format_operation(cause.expected, with_group=True),
        )
        sides = f"{choose_pronoun(cause.ranks)} issued {mine} before {theirs}"
    else:
        sides = list_waiting(cause.sides)
    all_in_ring = {rank for side in cause.sides for rank in side.ranks} == set(cause.ranks)
    if cause.sides and all_in_ring:
        return f"{ranks} wait for each other in a cycle{step}: {sides}"
    return (
        f"{ranks} used {agree(cause.ranks, 'its', 'their')} process groups in a different order than the other"
        f" ranks{step}: {sides}"
    )


def all_arrived(cause: Cause) -> str:
    """Return the title of a finding on an operation that all members joined but that does not complete."""
    ranks = f"{rank_names(cause.ranks)} {agree(cause.ranks, 'has', 'have')}"
    everyone = "all joined" if len(cause.ranks) > 1 else "joined, as the only member,"
    joined = (
        "issued both halves (send and recv) of the message" if cause.reason is Reason.BOTH_HALVES_ISSUED else everyone
    )
    return f"{ranks} {joined} {name_operation(cause.culprit)}{at_step(cause)}, and it does not complete"


def lagging(cause: Cause) -> str:
    """Return the title of a finding on ranks that are still in an operation that other members have completed."""
    ranks = f"{rank_names(cause.ranks)} {agree(cause.ranks, 'has', 'have')}"
    completed = f"{cause.completed} of its {cause.members} members {'has' if cause.completed == 1 else 'have'}"
    return f"{ranks} not completed {name_operation(cause.culprit)}{at_step(cause)}, but {completed}"


def slow(cause: Cause) -> str:
    """Return the title of a finding on a rank that made progress between two rounds of dumps."""
    ranks = f"{rank_names(cause.ranks)} {agree(cause.ranks, 'is', 'are')}"
    moved = "went on after the dumps" if cause.reason is Reason.MOVED_ON else "made progress between two dumps"
    progress = f"{choose_pronoun(cause.ranks)} {moved}"
    return f"{ranks} slow, not stuck{at_step(cause)}{_in_function(cause)}: {progress}"


def unmatched_p2p(cause: Cause) -> str:
    """Return the title of a finding on a send or recv whose counterpart was not issued or does not match."""
    ranks, step, name = cause.ranks, at_step(cause), name_operation(cause.culprit)
    names = rank_names(ranks)
    match cause.reason:
        case Reason.BOTH_LACK_OTHER_HALF:
            where = f"{step}: {list_waiting(cause.sides)}, and no rank has issued the other halves"
            return f"{names} wait for each other in sends and receives{where}"
        case Reason.NEVER_ISSUED_OTHER_HALF:
            return f"{names} never issued the other half of {name}{step}{_in_function(cause)}"
        case Reason.DIFFERENT_TAGS:
            return f"{names} wait for each other under different tags{step}: {message_halves(cause)}"
        case Reason.OTHER_LAUNCH:
            return f"{names} issued {name}{step} in a different batch than {agree(ranks, 'its', 'their')} peers expect"
        case Reason.DEVIATION:
            return f"{names} skipped {name}{step}: {choose_pronoun(ranks)} issued {both_sides(cause)}"
    waits = agree(ranks, "waits", "wait")
    return f"{names} {waits} in a send or recv{step}{_in_function(cause)} whose other half was never issued"


def message(cause: Cause) -> str:
    """Return the title of a finding on sends and receives that do not match."""
    return _wrong_message(cause) if cause.reason in _WRONG_MESSAGES else unmatched_p2p(cause)


_WRONG_MESSAGES = (Reason.OTHER_PEER, Reason.ONE_TOO_MANY, Reason.NEVER_EXCHANGED)


def _wrong_message(cause: Cause) -> str:
    """Return the title of a finding on a send or recv that a rank should not have issued."""
    name = cause.issued.operation if cause.issued else "a message"
    wrong = f"{name} instead of {cause.expected.operation}" if cause.expected else f"{name} once too often"
    if cause.reason is Reason.NEVER_EXCHANGED:
        wrong = f"{name}, whose other half its peer has never issued,"
    return f"{rank_names(cause.ranks)} issued {wrong}{at_step(cause)}{_in_function(cause)}"


def unknown(cause: Cause) -> str:
    """Return the title of a finding on ranks without a dump, about which nothing else is known."""
    they = agree(cause.ranks, "it is a culprit or a victim", "they are culprits or victims")
    if cause.reason is Reason.LOST_DUMP:
        return f"the dump of {rank_names(cause.ranks)} is missing or cannot be read, so nothing shows whether {they}"
    return f"{rank_names(cause.ranks)} left no dump, so nothing shows whether {they}"


TITLES: dict[HangClass, Callable[[Cause], str]] = {
    HangClass.DEAD: dead,
    HangClass.MISMATCH: mismatch,
    HangClass.SKIPPED: skipped,
    HangClass.ORDER_CYCLE: order_cycle,
    HangClass.HOST_STUCK: host_stuck,
    HangClass.UNMATCHED_P2P: message,
    HangClass.LAGGING: lagging,
    HangClass.ALL_ARRIVED: all_arrived,
    HangClass.SLOW: slow,
    HangClass.UNKNOWN: unknown,
}
