"""Write the phrases that occur in several sentences about hangs: operations, lines, and how ranks ended."""

from collections.abc import Sequence

from analyzers.hangs.classify.blocks import Block
from analyzers.hangs.classify.cause import Cause, Process, RanksInOp
from analyzers.hangs.classify.single_rank import NO_PHASES
from analyzers.hangs.graph.divergence import Location
from analyzers.hangs.model import Culprit, Frame, operation_text, user_frame
from analyzers.hangs.reading.exits import COLOURS, Ending, RankEnd
from analyzers.hangs.reading.side_formats import ExitFile
from analyzers.log_signs import first_error
from analyzers.words import agree, exit_reason, numbered, process_group, rank_names, source_line

_EXCEPTION_LENGTH = 200
"""The most characters of an exception's text that are shown.

Messages of NCCL take pages, and their first words name the error.
"""
_FROM_ROOT = ("broadcast", "scatter")
"""The operations in which the root sends; in other operations with a root, the root receives."""
_ENDINGS = {
    Ending.NO_ERROR: "its process ended without an error",
    Ending.PROCESS_EXITED: "its process exited without an error message",
    Ending.CONNECTION_REFUSED: "PyTorch's debug server in its process refuses connections",
}


def format_line(line: Frame | None) -> str:
    """Return a source line as `data/text.py:41`; empty if no line is known."""
    return source_line(line.filename, line.line) if line else ""


def format_function(frames: list[Frame]) -> str:
    """Return the user's innermost frame of a stack as `tokenize (data/text.py:41)`; empty if there is no stack."""
    line = user_frame(frames)
    return f"{line.name} ({format_line(line)})" if line else ""


def in_function(cause: Cause, otherwise: str = "") -> str:
    """Return the culprit's innermost user frame as ` in tokenize (data/text.py:41)`; `otherwise` if it has no stack."""
    where = format_function(cause.culprit.frames)
    return f" in {where}" if where else otherwise


def in_line(line: Frame | None) -> str:
    """Return a source line as ` in step (train.py:12)`; empty if no line is known."""
    return f" in {line.name} ({format_line(line)})" if line else ""


def name_operation(culprit: Culprit) -> str:
    """Return the operation in which the victims wait for a culprit, such as `all_reduce #412 of process group dp`.

    The text is empty if the operation is unknown.
    """
    if culprit.seq is None:
        return ""
    name = numbered(culprit.operation or "operation", None if is_message(culprit) else culprit.seq)
    return f"{name} of {process_group(culprit.group_desc)}"


def is_message(culprit: Culprit) -> bool:
    return (culprit.operation or "").startswith(("send ", "recv "))


def _issued_name(side: RanksInOp) -> str:
    return numbered(side.operation, None if side.p2p else side.seq)


def format_operation(side: RanksInOp, *, with_group: bool = False) -> str:
    """Return the operation that ranks issued, such as `all_reduce of 4x4 float32 (train.py:12)`.

    With `with_group`, the process group is named in place of the shape.
    """
    text = operation_text(side.operation, side.group) if with_group else format_call(side)
    return append_line(text, side.line)


def format_call(side: RanksInOp) -> str:
    """Return the operation that ranks issued with its shape and root: `broadcast of 8 float32 from rank 1`."""
    text = operation_text(side.operation, side.shape)
    if side.root is None:
        return text
    return f"{text} {'from' if side.operation in _FROM_ROOT else 'to'} rank {side.root}"


def size_rule(cause: Cause) -> str:
    """Return how the sizes of the input and output of a mismatched operation must fit, as a clause."""
    name = cause.issued.operation if cause.issued else ""
    if "all_gather" not in name and "reduce_scatter" not in name:
        return "input and output must have the same size"
    large, small = ("output", "input") if "all_gather" in name else ("input", "output")
    how_often = f"{cause.members} times" if cause.members else "for each member"
    return f"the {large} must have {how_often} as many elements as the {small}"


def format_block(block: Block) -> str:
    """Return a block of the user's source by its header and line: `if rank == 0` (train.py:40)."""
    header = one_line(block.header).rstrip(":").replace("`", "'")
    return f"`{header}` ({source_line(block.filename, block.line)})"


def append_line(text: str, line: Frame | None) -> str:
    """Return a text followed by its source line in parentheses; only the text if no line is known."""
    return f"{text} ({format_line(line)})" if line else text


def list_issued(sides: Sequence[RanksInOp]) -> str:
    return ", ".join(f"{rank_names(side.ranks)} issued {format_operation(side)}" for side in sides)


def list_waiting(sides: Sequence[RanksInOp]) -> str:
    """Return which ranks are in which operation: `rank 0 is in all_reduce #1 of process group tp (run.py:12), ...`."""
    return ", ".join(
        f"{rank_names(side.ranks)} {agree(side.ranks, 'is', 'are')} in "
        + append_line(f"{_issued_name(side)} of {process_group(side.group)}", side.line)
        for side in sides
    )


def format_exception(end: ExitFile) -> str:
    """Return an exception and its line: `ValueError: no tokens in load (me/data.py:3)`, or `out of memory in ...`."""
    own = one_line(first_error(end.message) or (f"{end.error}: {end.message}" if end.message.strip() else end.error))
    text = "out of memory" if end.out_of_memory else own[:_EXCEPTION_LENGTH]
    where = format_function(end.traceback)
    return f"{text} in {where}" if where else text


def one_line(text: str) -> str:
    """Return a text of an artefact as part of a sentence: without colours, and with a blank for each line end."""
    return " ".join(COLOURS.sub("", text).split())


def format_ending(end: RankEnd) -> str:
    if end.exit_file:
        return format_exception(end.exit_file)
    return exit_reason(end.exit_code) if end.ending is Ending.EXIT_CODE else _ENDINGS[end.ending]


def at_step(cause: Cause) -> str:
    return f" at step {cause.culprit.step}" if cause.culprit.step is not None else ""


def part_of_step(phase: str, step: int | None) -> str:
    """Return the part of the training loop from a rank's heartbeat, such as `, in the part 'fwd' of step 6`.

    `phase` is the name that the script gives to a part of a step; the text is empty outside of steps.
    """
    if not step:
        return ""
    return f", in step {step}" if phase in NO_PHASES else f", in the part '{phase}' of step {step}"


def choose_pronoun(ranks: Sequence[int]) -> str:
    return agree(ranks, "it", "they")


def format_location(ranks_there: Location) -> str:
    """Return ranks that are at one line as a phrase: `62 ranks in all_gather at job/model.py:212`."""
    ranks = ranks_there.ranks
    count = rank_names(ranks) if len(ranks) == 1 else f"{len(ranks)} ranks"
    return f"{count} in {ranks_there.name}" + (f" at {ranks_there.line}" if ranks_there.line else "")


def is_host_memory(cause: Cause) -> bool:
    """Return whether the exception that ended a rank says that an allocation of host memory failed."""
    exit_file = cause.end.exit_file if cause.end else None
    return any("CPUAllocator" in (text or "") for text in (cause.culprit.error, exit_file and exit_file.message))


def message_halves(cause: Cause) -> str:
    """Return a phrase on a send and its recv, with the ranks that issued them.

    For example `rank 2 issued send of 4x4 float32 (train.py:1), rank 5 issued recv of ...`.
    """
    halves = ((side, side.operation.partition(" ")[0]) for side in cause.sides)
    return ", ".join(
        f"{rank_names(side.ranks)} issued {append_line(operation_text(half, side.shape), side.line)}"
        for side, half in halves
    )


def py_spy(process: Process, options: str = "") -> str:
    return f"`py-spy dump{f' {options}' if options else ''} --pid {process.number}`{on_host(process)}"


def on_host(process: Process) -> str:
    """Return the end of a command's description, which names the process's host; empty if only the host is unknown."""
    if process.host:
        return f" on host {process.host}"
    return "" if process.pid else " on its host"
