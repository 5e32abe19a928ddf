"""Know the hangs in which ranks issued different operations, left some out, or all wait in the same one."""

from collections.abc import Mapping

from analyzers.hangs.classify.cause import Cause, RanksInOp
from analyzers.hangs.findings.entry import HangFailure, Text
from analyzers.hangs.findings.wording import (
    append_line,
    at_step,
    choose_pronoun,
    format_line,
    format_operation,
    in_function,
    in_line,
    list_issued,
    list_waiting,
    name_operation,
    size_rule,
)
from analyzers.hangs.model import HangClass, Reason, user_frame
from analyzers.report import Severity
from analyzers.words import agree, numbered, process_group, rank_names, size

_UNKNOWN_TENSOR = "a different shape or type"


def differing_lines(cause: Cause) -> list[str]:
    sides = cause.sides or tuple(side for side in (cause.expected, cause.issued) if side)
    return list(dict.fromkeys(format_line(side.line) for side in sides if side.line))


def _at_only_line(cause: Cause) -> str:
    lines = differing_lines(cause)
    return f" at {lines[0]}" if len(lines) == 1 else ""


# What shows which of two sides is the odd one.


def both_sides(cause: Cause) -> str:
    """Return a phrase on the issued and the expected operation.

    For example `all_gather of 8 float32 (train.py:12) instead of all_reduce of 8 float32 (train.py:10)`: the culprits
    issued the first operation, but should have issued the second.
    """
    assert cause.issued
    assert cause.expected
    return f"{format_operation(cause.issued)} instead of {format_operation(cause.expected)}"


def _in_total(cause: Cause) -> str:
    sent, received = cause.elements
    return f"together they send {sent} elements and receive {received}"


def _received_bytes(cause: Cause) -> str:
    """Return a phrase on the received and expected sizes that gloo logged; empty if no log of the rank has them."""
    received, expected = cause.elements
    return f"it received {size(received)} where it expected {size(expected)}" if received else ""


ODD_ONE: Mapping[Reason, Text] = {
    Reason.MAJORITY: lambda cause: (
        f"the other {len(cause.sides[0].ranks)} of {cause.members} ranks agree with each other"
    ),
    Reason.SIZE_RULE: lambda cause: f"the sizes of its input and output do not fit: {size_rule(cause)}",
    Reason.EMPTY_TENSOR: lambda cause: f"{agree(cause.ranks, 'its tensor is', 'their tensors are')} empty",
    Reason.EARLIER_STEPS: "in its earlier steps it called another operation at this point",
    Reason.SIMILAR_GROUPS: "other process groups of this kind issued the operation of the other ranks",
    Reason.SAME_LINE: "in other process groups this line issued the operation of the other ranks",
    Reason.LINE_OF_ABORTED: "the rank that gloo ended was at the line of the other ranks",
    Reason.SIZE_OF_ABORTED: "the rank that gloo ended expected a tensor of the other size",
    Reason.SHIFTED: "from here on it issues the same operations as the others, each with a sequence number that is"
    " lower by one",
    Reason.TIE: "equally many ranks issued each of the two, so either side may be wrong",
    Reason.ABORTED: _received_bytes,
}
"""{reason: what shows which ranks differ from the others}."""


# Different operations under one number.


def _collective(cause: Cause) -> str:
    return f"{numbered('collective', cause.culprit.seq)} of {process_group(cause.culprit.group_desc)}"


def _has_other_operation(cause: Cause) -> bool:
    """Return whether the culprit's operation has another name, root or process group than that of the other ranks."""
    issued, expected = cause.issued, cause.expected
    if _is_in_other_group(cause):
        return True
    return bool(issued and expected and (issued.operation, issued.root) != (expected.operation, expected.root))


def _is_in_other_group(cause: Cause) -> bool:
    issued, expected = cause.issued, cause.expected
    return bool(issued and expected and issued.operation == expected.operation and issued.group != expected.group)


def _called_elsewhere(cause: Cause) -> bool:
    """Return whether gloo aborted a rank, and the lines of ranks show that only the culprits were in another call."""
    in_sides = {rank for side in cause.sides for rank in side.ranks}
    return cause.reason is Reason.ABORTED and cause.issued is None and set(cause.ranks) < in_sides


def _are_unequal(cause: Cause) -> bool:
    """Return whether it is known which side is the odd one."""
    return not (cause.issued is None or cause.expected is None or not cause.expected.ranks)


def _disagree(cause: Cause) -> str:
    return f"{rank_names(cause.ranks)} disagree{at_step(cause)} in {_collective(cause)}: {list_issued(cause.sides)}"


def _called(cause: Cause) -> str:
    """Return the title on ranks that called another operation than the others, or the same one at another line."""
    if not _are_unequal(cause):
        return _disagree(cause)
    assert cause.issued
    assert cause.expected
    first, others = _call(cause.issued, cause), _call(cause.expected, cause)
    return f"{first}{at_step(cause)} in {_collective(cause)}, while {others}"


def _call(side: RanksInOp, cause: Cause) -> str:
    """Return a phrase on the operation that the ranks of `side` called, with its source line.

    For example `rank 3 called all_gather of 8 float32 (train.py:12)`; if the other ranks of `cause` called all_gather
    too, `rank 3 passed a tensor of 8 float32 to all_gather (train.py:12)`.
    """
    ranks = rank_names(side.ranks)
    if _has_other_operation(cause):
        return f"{ranks} called {format_operation(side, with_group=_is_in_other_group(cause))}"
    tensor = _tensor(side.shape) if side.shape else _UNKNOWN_TENSOR
    return f"{ranks} passed {append_line(f'{tensor} to {side.operation}', side.line)}"


def _passed(cause: Cause) -> str:
    """Return the title on ranks that passed different tensors to one operation.

    For example `rank 1 passed an empty tensor (0 elements, float32) to all_reduce at step 6, while rank 0 passed a
    tensor of 8 float32, in collective #6 of process group dp (train.py:12)`.
    """
    if not _are_unequal(cause):
        return _disagree(cause)
    issued, expected = cause.issued, cause.expected
    assert issued
    assert expected
    if issued.line != expected.line:
        return _called(cause)
    mine, theirs = (_tensor(side.shape) if side.shape else _UNKNOWN_TENSOR for side in (issued, expected))
    where = append_line(_collective(cause), issued.line)
    if cause.reason is Reason.SIZE_RULE and mine == theirs:
        call = f"{rank_names(issued.ranks)} called {issued.operation}{at_step(cause)}"
        return f"{call} with an input and an output whose sizes do not fit, in {where}"
    first = f"{rank_names(issued.ranks)} passed {mine} to {issued.operation}{at_step(cause)}"
    return f"{first}, while {rank_names(expected.ranks)} passed {theirs}, in {where}"


def _tensor(shape: str) -> str:
    """Return a shape with its dtype as `a tensor of 4x4 float32`; for `0 float32`, say that the tensor is empty."""
    empty = shape.removeprefix("0 ")
    return f"a tensor of {shape}" if empty == shape else f"an empty tensor (0 elements, {empty})"


def _aborted(cause: Cause) -> str:
    """Return the title on a rank that gloo aborted; it names two ranks if either of them may be wrong."""
    ranks, step = rank_names(cause.ranks), at_step(cause)
    if cause.sides:
        places = ", ".join(f"{rank_names(side.ranks)}{in_line(side.line)}" for side in cause.sides)
        if _called_elsewhere(cause):
            return f"{ranks} called a different collective than the other ranks{step}: {places}"
        return f"{ranks} passed tensors of different sizes to one collective{step}: {places}"
    name = name_operation(cause.culprit) or "a collective"
    return f"{ranks} passed a tensor of a different size than the other ranks to {name}{step}{in_function(cause)}"


def _same_branch(cause: Cause) -> str:
    lines = differing_lines(cause)
    if len(lines) > 1:
        return f"compare {lines[0]} with {lines[1]}, and make every rank take the same branch"
    return f"find out why ranks issue different operations{_at_only_line(cause)}: make every rank take the same branch"


def _print_shapes(cause: Cause) -> str:
    where = _at_only_line(cause)
    if cause.reason is Reason.SIZE_RULE:
        return f"print the sizes of the input and the output{where} on {rank_names(cause.ranks)}: {size_rule(cause)}"
    if _is_shorter(cause):
        return (
            f"give {rank_names(cause.ranks)} as many rows{where} as the others: drop_last=True for a smaller last"
            " batch, or pad it before the collective and cut it afterwards"
        )
    return f"print the tensor's shape and dtype{where} on every rank, and make them equal"


def _is_shorter(cause: Cause) -> bool:
    """Return whether the culprits passed a tensor with fewer rows than the others, and otherwise of the same shape."""
    mine, theirs = ((side.sizes if side else ()) for side in (cause.issued, cause.expected))
    if len(mine) != 1 or len(theirs) != 1 or len(mine[0]) < 2:
        return False
    return mine[0][1:] == theirs[0][1:] and mine[0][0] < theirs[0][0]


# Process groups.


def _other_groups(cause: Cause) -> str:
    """Return the title on ranks that created other process groups than the rest, or too few."""
    assert cause.expected
    expected = f"{format_operation(cause.expected)}, which {rank_names(cause.expected.ranks)} made"
    ranks, step = rank_names(cause.ranks), at_step(cause)
    if cause.issued is None:
        verb = "skipped" if cause.kind is HangClass.SKIPPED else "never joined"
        return f"{ranks} {verb} {expected}{step}{in_function(cause)}"
    if cause.kind is HangClass.SKIPPED:
        return f"{ranks} skipped {expected}{step}, and went on to {format_operation(cause.issued)}"
    return f"{ranks} made {format_operation(cause.issued)}{step} instead of {expected}"


def _on_all_ranks(cause: Cause) -> str:
    line = format_line(cause.expected.line) if cause.expected else ""
    where = f" at {line}" if line else ""
    return f"call new_group{where} on all ranks in the same order, or pass use_local_synchronization=True"


def _order_cycle(cause: Cause) -> str:
    """Return the title on ranks that used their process groups in different orders."""
    ranks, step = rank_names(cause.ranks), at_step(cause)
    sides = list_waiting(cause.sides)
    if cause.issued and cause.expected:
        mine, theirs = (format_operation(side, with_group=True) for side in (cause.issued, cause.expected))
        sides = f"{choose_pronoun(cause.ranks)} issued {mine} before {theirs}"
    all_in_ring = {rank for side in cause.sides for rank in side.ranks} == set(cause.ranks)
    if cause.sides and all_in_ring:
        return f"{ranks} wait for each other in a cycle{step}: {sides}"
    their = agree(cause.ranks, "its", "their")
    return f"{ranks} used {their} process groups in a different order than the other ranks{step}: {sides}"


def _in_same_order(cause: Cause) -> str:
    lines = differing_lines(cause)
    what = f"what {lines[0]} and {lines[1]} issue" if len(lines) > 1 else "the operations of these groups"
    return f"issue {what} in the same order on every rank"


# Skipped, and not completed.


def _skipped(cause: Cause) -> str:
    line = user_frame(cause.culprit.frames)
    went_on = f" and went on to {format_line(line)}" if line else ""
    return f"{rank_names(cause.ranks)} skipped {name_operation(cause.culprit)}{at_step(cause)}{went_on}"


def _around(cause: Cause) -> str:
    line = format_line(cause.expected.line) if cause.expected else ""
    what = f"around {line}" if line else "around this operation"
    return f"find the condition or the loop {what} that makes {rank_names(cause.ranks)} skip it"


def _lagging(cause: Cause) -> str:
    completed = f"{cause.completed} of its {cause.members} members {'has' if cause.completed == 1 else 'have'}"
    have = agree(cause.ranks, "has", "have")
    name = name_operation(cause.culprit)
    return f"{rank_names(cause.ranks)} {have} not completed {name}{at_step(cause)}, but {completed}"


def _for_lagging(cause: Cause) -> str:
    ranks = rank_names(cause.ranks)
    if cause.is_gloo:
        line = format_line(user_frame(cause.culprit.frames))
        what = f"what each rank passes to {line}" if line else "what each rank passes to this operation"
        return f"take dumps a second time, to see whether {ranks} went on; otherwise print {what}, shape and dtype"
    return f"check the device of {ranks} (`nvidia-smi`, `dmesg -T | grep -i xid`): an earlier kernel may hang there"


def _all_arrived(cause: Cause) -> str:
    have = agree(cause.ranks, "has", "have")
    joined = "all joined" if len(cause.ranks) > 1 else "joined, as the only member,"
    name = name_operation(cause.culprit)
    return f"{rank_names(cause.ranks)} {have} {joined} {name}{at_step(cause)}, and it does not complete"


def for_devices(cause: Cause) -> str:
    """Return what to do about an operation that all members have joined, but that does not complete."""
    devices = "the devices of these ranks (`dmesg -T | grep -i xid`) and the network between them"
    what = "the network between these ranks" if cause.is_gloo else devices
    return f"check {what}; take dumps a second time to see whether any rank went on"


def _slow(cause: Cause) -> str:
    moved = "went on after the dumps" if cause.reason is Reason.MOVED_ON else "made progress between two dumps"
    are = agree(cause.ranks, "is", "are")
    progress = f"{choose_pronoun(cause.ranks)} {moved}"
    return f"{rank_names(cause.ranks)} {are} slow, not stuck{at_step(cause)}{in_function(cause)}: {progress}"


def _no_dump(cause: Cause) -> str:
    they = agree(cause.ranks, "it is a culprit or a victim", "they are culprits or victims")
    if cause.reason is Reason.LOST_DUMP:
        return f"the dump of {rank_names(cause.ranks)} is missing or cannot be read, so nothing shows whether {they}"
    return f"{rank_names(cause.ranks)} left no dump, so nothing shows whether {they}"


_ELSEWHERE = "a branch ran only on some ranks, or a loop ended earlier on one of them"

ENTRIES = (
    HangFailure(
        id="hang.other_groups",
        kind=None,
        reasons=(Reason.OTHER_GROUPS,),
        what="Ranks created other process groups than the rest, or in another order.",
        title=_other_groups,
        why="every rank must create every process group, also those that it is not a member of. PyTorch numbers groups"
        " in the order of creation, and members find each other by that number",
        next=_on_all_ranks,
        keeps_next=True,
        knowledge="docs.pytorch.org, torch.distributed.new_group",
    ),
    HangFailure(
        id="hang.unbalanced",
        kind=HangClass.MISMATCH,
        reasons=(Reason.UNBALANCED,),
        what="In an all_to_all, ranks send another number of elements than the others expect to receive.",
        title=lambda cause: (
            f"{rank_names(cause.ranks)} send {cause.elements[0]} elements in total and receive"
            f" {cause.elements[1]} in {name_operation(cause.culprit)}{at_step(cause)}"
        ),
        why="members must receive in total what they send in total, so some of them wait for data that no rank sends",
        next=lambda cause: (
            f"compare input_split_sizes and output_split_sizes{_at_only_line(cause)}: each rank must"
            " receive what is sent to it"
        ),
        shown_by=_in_total,
        in_title=True,
    ),
    HangFailure(
        id="hang.other_model",
        kind=HangClass.MISMATCH,
        reasons=(Reason.OTHER_MODEL,),
        what="DDP found that the model of a rank has another number of parameters than those of the others.",
        title="{ranks} built a model with a different number of parameters than the other ranks{step}{place}",
        why="DDP gives each parameter of a rank to the same parameter of the others, so all must have the same ones",
        next="compare the model's configuration, and the versions of the code, on all ranks",
        shown_by="DDP's errors name the numbers of parameters",
        named=True,
    ),
    HangFailure(
        id="hang.left_alone",
        kind=HangClass.MISMATCH,
        reasons=(Reason.LEFT_ALONE,),
        what="A rank issued a collective when all others had ended.",
        title="{ranks} issued a collective when all other ranks had ended normally,{step}{place}",
        why="most ranks ended without this collective, so one branch ran only on some ranks, or the others left early",
        next="look for a collective that only this rank reaches: in `if rank == 0:`, in saving, logging or metrics",
        shown_by="all other ranks had ended normally",
        in_title=True,
    ),
    HangFailure(
        id="hang.aborted_elsewhere",
        kind=HangClass.MISMATCH,
        when=_called_elsewhere,
        what="gloo ended a rank that got more bytes than it expected: the ranks were in different collectives.",
        title=_aborted,
        why="gloo ends the rank that receives more bytes than its tensor holds. The ranks are at different lines:"
        f" {_ELSEWHERE}",
        next=_same_branch,
        shown_by=_received_bytes,
    ),
    HangFailure(
        id="hang.aborted",
        kind=HangClass.MISMATCH,
        reasons=(Reason.ABORTED,),
        what="gloo ended a rank that got more bytes than it expected: the tensors of the ranks differ in size.",
        title=lambda cause: (
            _aborted(cause) if cause.issued is None else (_called if _has_other_operation(cause) else _passed)(cause)
        ),
        why="gloo ends a rank that receives more bytes than its tensor holds; the other errors are consequences",
        next=lambda cause: (_same_branch if _has_other_operation(cause) else _print_shapes)(cause),
        shown_by=_received_bytes,
        knowledge="gloo, transport/tcp/pair.cc: `op.preamble.length <= op.nbytes`",
    ),
    HangFailure(
        id="hang.other_operation",
        kind=HangClass.MISMATCH,
        when=_has_other_operation,
        what="Ranks called different collectives where all must call the same one.",
        title=_called,
        why=f"the ranks called different operations, so none of them can complete. Probably {_ELSEWHERE}",
        next=_same_branch,
        shown_by={**ODD_ONE, Reason.DEVIATION: lambda cause: f"it issued {both_sides(cause)}"},
        in_title=(Reason.DEVIATION,),
        named=True,
    ),
    HangFailure(
        id="hang.size_rule",
        kind=HangClass.MISMATCH,
        reasons=(Reason.SIZE_RULE,),
        what="The sizes of the input and the output of a collective do not fit.",
        title=_passed,
        why="the operation never completes, because the members expect different numbers of elements",
        next=_print_shapes,
        shown_by=ODD_ONE,
        named=True,
    ),
    HangFailure(
        id="hang.other_tensor",
        kind=HangClass.MISMATCH,
        what="Ranks passed tensors of different shapes or types to one collective.",
        title=_passed,
        why="all members must pass the same shape and type. They did not, so the operation never completes",
        next=_print_shapes,
        shown_by={**ODD_ONE, Reason.DEVIATION: lambda cause: f"it issued {both_sides(cause)}"},
        in_title=(Reason.DEVIATION,),
        named=True,
    ),
    HangFailure(
        id="hang.closed_group",
        kind=HangClass.SKIPPED,
        reasons=(Reason.CLOSED_GROUP,),
        what="A rank closed a process group in which the others still wait.",
        title=_skipped,
        why="{operation} completes only when every member joins it, but {ranks} went on without it",
        next="call destroy_process_group() on {ranks} only after the last collective",
        shown_by="it had called destroy_process_group() before, while its process goes on",
        keeps_next=True,
    ),
    HangFailure(
        id="hang.skipped",
        kind=HangClass.SKIPPED,
        what="A rank left out a collective in which the others wait.",
        title=_skipped,
        why="{operation} completes only when every member joins it, but {ranks} went on without it",
        next=_around,
        shown_by={
            **ODD_ONE,
            Reason.DEVIATION: lambda cause: f"it issued {both_sides(cause)}",
            Reason.ISSUED_LATER_OPERATIONS: "it issued later operations without this one",
        },
    ),
    HangFailure(
        id="hang.order_cycle",
        kind=HangClass.ORDER_CYCLE,
        what="Ranks use their process groups in different orders, so each waits for another.",
        title=_order_cycle,
        why="each rank waits in an operation that another of them has not reached, so none can complete",
        next=_in_same_order,
        shown_by=lambda cause: list_waiting(cause.sides),
        in_title=True,
    ),
    HangFailure(
        id="hang.lagging",
        kind=HangClass.LAGGING,
        what="A rank has not completed an operation that other members have completed.",
        title=_lagging,
        why="other members have completed {operation}, which they could not without {ranks}. All later operations of"
        " the process group wait for {ranks}",
        next=_for_lagging,
        shown_by=lambda cause: f"{cause.completed} of {cause.members} members have completed it",
        in_title=True,
    ),
    HangFailure(
        id="hang.all_arrived",
        kind=HangClass.ALL_ARRIVED,
        reasons=tuple(reason for reason in Reason if reason is not Reason.BOTH_HALVES_ISSUED),
        what="All members have joined an operation, and it does not complete.",
        title=_all_arrived,
        why="every member has issued {operation}, so no line of the program is to blame: the network or a device is"
        " stuck",
        next=for_devices,
        shown_by="every member has joined it",
        in_title=True,
    ),
    HangFailure(
        id="hang.slow",
        kind=HangClass.SLOW,
        severity=Severity.WARNING,
        what="Ranks made progress between two dumps or after them, so the job was slow and did not hang.",
        title=_slow,
        why="{ranks} went on, so the others only waited longer than usual",
        next="run `workbench steps` and `workbench trace` to see where the slow rank's time goes",
        shown_by={
            Reason.MADE_PROGRESS: "all of them made progress between the two rounds of dumps",
            Reason.MOVED_ON: "all of them went on after the dumps were taken",
        },
        in_title=True,
    ),
    HangFailure(
        id="hang.unseen",
        kind=HangClass.UNKNOWN,
        severity=Severity.WARNING,
        what="Some ranks left no dump, and nothing else tells whether they are the cause.",
        title=_no_dump,
        why="a rank without a dump may have caused the hang, or may only wait like the others",
        next="collect the dumps of all ranks; if they are on several nodes, give the folders of all nodes to one"
        " `workbench hang` command",
        shown_by={
            Reason.NO_DUMP: "{they} left no dump",
            Reason.LOST_DUMP: "the dump of {ranks} is missing or cannot be read",
        },
        in_title=True,
    ),
)
