"""Give each row of a table of stacks a distinct name: its source line, its operator and, if needed, a caller."""

from collections import defaultdict
from collections.abc import Sequence

import msgspec
import numpy as np

from analyzers.columns import Integers
from analyzers.frames import Place, last_parts
from analyzers.memory.categorise import Guess
from analyzers.memory.frames import Frames, called_operators, runs_backward_node
from analyzers.memory.lifetimes import BEFORE, Lifetimes
from analyzers.memory.model import TopStack
from analyzers.memory.snapshot import CATEGORIES, Snapshot

NO_STACK, _OLDER = "no stack recorded", "allocated before the recording began"
_CALLER_PARTS = 2
ALLOCATIONS = 3
"""The number of allocations after a block's own within which its tensor must be freed.

It is more than one, because one operation may need several blocks.
"""


def _base_name(frames: Frames, stack: int, label: str, *, older: bool) -> str:
    """Return the name of a stack in a table of stacks: the tensor's label if known, the source line, the operator.

    Other stacks may have the same name. `older`: all blocks of the stack were allocated before the trace began.
    """
    line = frames.line(stack)
    if not line:
        return label or (_OLDER if older else NO_STACK)
    operation = frames.operation(stack)
    named = f"{line}: {operation}" if operation and operation != line else line
    return f"{label}, {named}" if label else named


def _distinct_names(frames: Frames, stacks: Sequence[int], rows: Sequence[TopStack]) -> list[str]:
    """Return a distinct name for each row of a table of stacks; `stacks` has the index of each row's stack.

    If two rows of one category have the same name, a difference between their stacks is added to the names.
    """
    names = [row.name for row in rows]
    paths = {stack: _callers_and_operators(frames, stack) for stack in {*stacks}}
    while changed := _distinguish(names, [row.category for row in rows], [paths[stack] for stack in stacks]):
        names = changed
    for alike in _same_names(names, [row.category for row in rows]):
        for number, row in enumerate(alike, 1):
            names[row] += f" (stack {number} of {len(alike)})"
    return names


def _distinguish(names: Sequence[str], categories: Sequence[str], paths: Sequence[Sequence[str]]) -> list[str]:
    """Return new names for the rows of a table of stacks: a difference between the stacks is added to equal names.

    Only rows of the same category are distinguished. `paths` has for each row the phrases in which its stack may
    differ, such as its callers; the first differing phrase is added. The result is empty if no name changes.
    """
    changed = list(names)
    for alike in _same_names(names, categories):
        for row, difference in zip(alike, _first_differences([paths[row] for row in alike]), strict=True):
            changed[row] += f", {difference}" if difference and difference not in names[row] else ""
    return changed if changed != list(names) else []


def _same_names(names: Sequence[str], categories: Sequence[str]) -> list[list[int]]:
    groups: defaultdict[tuple[str, str], list[int]] = defaultdict(list)
    for row, key in enumerate(zip(names, categories, strict=True)):
        groups[key].append(row)
    return [rows for rows in groups.values() if len(rows) > 1]


def _callers_and_operators(frames: Frames, stack: int) -> list[str]:
    native = frames.native_names(stack)
    callers = [] if frames.operation(stack) == frames.line(stack) else frames.user_stack(stack)
    return [
        *(f"from {_short_line(frame)}" for frame in callers),
        *(f"in {name}" for name in reversed(called_operators(native))),
        *(f"in {_short_function(name)}" for name in native),
    ]


def _short_line(frame: Place) -> str:
    return str(frame._replace(file=last_parts(frame.file, _CALLER_PARTS)))


def _short_function(name: str) -> str:
    head = name.partition("(anonymous namespace)::")[2] or name
    return head.partition("(")[0].partition("<")[0].strip() or head


def _first_differences(stacks: Sequence[Sequence[str]]) -> list[str]:
    """Return the line of each stack at the first position at which the stacks differ; a stack is a list of lines.

    The line is empty for a stack that is too short, and for all stacks if they are equal. Example: [["a", "b"], ["a",
    "c"]] gives ["b", "c"].
    """
    for depth in range(max(map(len, stacks))):
        level = [lines[depth] if depth < len(lines) else "" for lines in stacks]
        if len({*level}) > 1:
            return level
    return [""] * len(stacks)


def _freed_next(snapshot: Snapshot, lives: Lifetimes, rows: Integers, stack: int) -> str:
    """Return a clause on the tensor that is freed next after a block of a backward operation, and on its module.

    The backward pass runs in a thread of its own, whose stacks have no line of the user's code. But after an operation
    of it has run, autograd frees the tensors that the forward pass saved for this operation. The stacks of these
    tensors have the line that made them: the operation itself, if it saves its result (exp, softmax), or the operation
    before it, whose result was its input. The search begins after the largest block of `stack` among the `rows` of
    `lives`. The text is empty if the stack has a line of its own or shows no backward operation, or if no tensor with a
    line is freed soon.
    """
    frames = snapshot.frames
    if frames.has_user_line(stack) or not runs_backward_node(frames.native_names(stack)):
        return ""
    own = rows[lives.allocating_stack[rows] == stack]
    born = int(lives.born[own[lives.size[own].argmax()]])
    later = lives.born[lives.born > born]
    if born == BEFORE or len(later) < ALLOCATIONS:
        return ""
    end = int(np.partition(later, ALLOCATIONS - 1)[ALLOCATIONS - 1])
    freed = np.flatnonzero((lives.died > born) & (lives.died < end))
    for row in freed[np.argsort(lives.died[freed], kind="stable")].tolist():
        saved = int(lives.allocating_stack[row])
        user_frames = frames.user_stack(saved)
        [innermost] = user_frames[:1] or [Place("", "", 0)]
        if innermost.file.endswith(".py"):
            line, made_by = _short_line(innermost), frames.operation(saved)
            result = f"{line}: {made_by}" if made_by else line
            module = snapshot.text(int(lives.label[row])) or _module_line(user_frames)
            return f"after which the result of {result} is freed" + (f", in {module}" if module else "")
    return ""


def _module_line(user_frames: Sequence[Place]) -> str:
    """Return the line of the innermost module that calls the first of these frames, which are innermost first.

    A module is recognised by its `forward`. The text is empty if the first frame itself is a `forward` that no other
    module calls, or if there is no module.
    """
    return next((_short_line(frame) for frame in user_frames[1:] if frame.function == "forward"), "")


_FRAMES_SHOWN = 12


def stack_lines(snapshot: Snapshot, stack: int) -> list[str]:
    """Return up to `_FRAMES_SHOWN` of the user's frames in a stack as `file:line function`, innermost first.

    If no frame is in the user's code, the lines are those of `Frames.user_stack`.
    """
    return [str(frame) for frame in snapshot.frames.user_stack(stack)[:_FRAMES_SHOWN]]


def call_site(line: str) -> str:
    """Return `function (file:line)` for a frame `file:line function`, with the last four parts of the file's path.

    A frame without a file, such as `aten::bmm` or `backward of bmm`, is returned as it is.
    """
    place = Place.read(line)
    return f"{place.function} ({last_parts(place.file, 4)}:{place.line})" if place.file else line


def stack_and_category(lives: Lifetimes, guess: Guess) -> Integers:
    """Return, for each row of `Lifetimes`, one number for its allocating stack and its category.

    `divmod` of this number by the number of categories gives (stack, category).
    """
    return lives.allocating_stack * len(CATEGORIES) + guess.category


def top_stacks(snapshot: Snapshot, lives: Lifetimes, guess: Guess, rows: Integers, limit: int = 20) -> list[TopStack]:
    """Return the (stack, category) pairs with the most bytes among some blocks, the largest first, at most `limit`.

    The blocks are given by their rows in `lives`; the stacks are those that allocated them.
    """
    keys, first, inverse, count = np.unique(
        stack_and_category(lives, guess)[rows], return_index=True, return_inverse=True, return_counts=True
    )
    total = np.bincount(inverse, weights=lives.size[rows], minlength=len(keys))
    recorded = np.bincount(inverse, weights=lives.born[rows] != BEFORE, minlength=len(keys))
    # By number where bytes are equal: the order must not depend on how np.unique sorts.
    largest = np.lexsort((keys, -total))[:limit].tolist()
    stacks = [int(keys[k]) // len(CATEGORIES) for k in largest]
    # Several blocks of one stack have different labels, so a label is only right for a single one.
    labels = [snapshot.text(int(lives.label[rows[first[k]]])) if count[k] == 1 else "" for k in largest]
    named = [
        TopStack(
            bytes=int(total[k]),
            count=int(count[k]),
            category=CATEGORIES[keys[k] % len(CATEGORIES)],
            label=label,
            frames=stack_lines(snapshot, stack),
            operation=snapshot.frames.operation(stack),
            name=_base_name(snapshot.frames, stack, label, older=not recorded[k]),
        )
        for k, stack, label in zip(largest, stacks, labels, strict=True)
    ]
    names = _distinct_names(snapshot.frames, stacks, named)
    freed = [_freed_next(snapshot, lives, rows, stack) for stack in stacks]
    return [
        msgspec.structs.replace(row, name=f"{name}, {clause}" if clause else name)
        for row, name, clause in zip(named, names, freed, strict=True)
    ]
