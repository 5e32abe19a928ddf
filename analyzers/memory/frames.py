"""Name the operation behind a stack from the names of its native functions, such as `softmax` or `NCCL collective`."""

import re
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property

import numpy as np

from analyzers.columns import Column, Mask
from analyzers.frames import Origin, Place, origin_of

# The first kind whose pattern occurs in any frame names the stack.
_LIBRARY_USES = (
    (re.compile(r"CUDABlasLt\w*Workspace|[cC]ublas[lL]t\w*Workspace"), "cuBLASLt workspace"),
    (re.compile(r"getNewWorkspace|[cC]ublas\w*Workspace|getCurrentCUDABlasHandle"), "cuBLAS workspace"),
    (re.compile(r"[cC]udnn\w*[wW]orkspace|[wW]orkspace\w*[cC]udnn"), "cuDNN workspace"),
    (re.compile(r"c10d::Reducer::"), "gradient bucket of DistributedDataParallel"),
    (re.compile(r"ProcessGroup(?P<library>NCCL|Gloo|XCCL|MPI)"), "{library} collective"),
    (re.compile(r"^(?P<library>nccl|gloo|xccl):(?P<name>\w+)"), "{library} {name}"),
)
_BACKWARD_NODE = re.compile(r"\b(?P<node>\w+?)Backward\d*(_apply_functional|::apply\b|\b(?!::))")
_ENGINE = re.compile(r"autograd::(python::Python)?[Ee]ngine")
NODES = (
    (re.compile(r"\bCopySlices\b"), "backward of an in-place change of a view"),
    (re.compile(r"\bPyNode::apply\b"), "backward of a custom autograd function"),
)
"""Patterns for nodes of the autograd graph that are not named after an operator, with a readable name for each."""
_ENGINE_USES = (
    (re.compile(r"\bAccumulateGrad\b"), "gradient of a parameter (AccumulateGrad)"),
    (re.compile(r"InputBuffer::"), "sum of gradients from several uses"),
    *NODES,
    (re.compile(r"\bRegisterPostBackwardFunction"), "FSDP after the backward pass of a module"),
)
_CALL = re.compile(r"^at::_ops::(?P<dispatched>\w+)::call\b|^aten::(?P<recorded>\w+)$")
# `at::_ops::sum_dim_IntList` is the overload `dim_IntList` of the operator `sum`.
_OVERLOAD = re.compile(
    r"_(Tensor|Scalar|Scalar\w+|Tensor_\w+|dim|dim_\w+|int|out|self|start|start_\w+|memory_format|dtype|dtype_layout"
    r"|device|other|ScalarOther|ScalarSelf|default|names\w*|correction|input|vec|IntList|Dimname\w*|generator\w*)$"
)
_WORD_START = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
_FILLS = {"empty", "empty_strided", "empty_like", "new_empty", "new_empty_strided", "resize_"}
"""The operators that only allocate memory; the operator that called one of them says more about the purpose."""


def operation_of(names: Sequence[str]) -> str:
    """Return the operation to which the native functions of a stack belong, in words; empty if they do not show it.

    `names` are the functions of the stack from the innermost outwards, up to the first frame in the user's code.

    Example:
        operation_of(["at::_ops::bmm::call(...)", "torch::autograd::generated::BmmBackward0::apply(...)"])
        # "backward of bmm"
    """
    return _library_use(names) or _backward_of(names) or _operator_of(names)


def _library_use(names: Iterable[str]) -> str:
    """Return the purpose of a library's allocation, such as `cuBLAS workspace`; empty if no library allocates."""
    for name in names:
        for pattern, words in _LIBRARY_USES:
            if match := pattern.search(name):
                parts = {key: text or "" for key, text in match.groupdict().items()}
                return words.format(**parts).replace("nccl ", "NCCL ")
    return ""


def _backward_of(names: Sequence[str]) -> str:
    """Return what the autograd engine runs in a stack, such as `backward of bmm`; empty if it runs nothing there.

    The result is `backward pass` if the stack shows the engine but not the operation.
    """
    for name in names:
        for pattern, words in _ENGINE_USES:
            if pattern.search(name):
                return words
        if node := _BACKWARD_NODE.search(name):
            return f"backward of {_operator_name(node['node'])}"
    return "backward pass" if any(map(_ENGINE.search, names)) else ""


def runs_backward_node(names: Sequence[str]) -> bool:
    """Return whether a stack belongs to the backward of an operation, and not to a library or to a sum of gradients."""
    patterns = [_BACKWARD_NODE, *(pattern for pattern, _ in NODES)]
    return any(pattern.search(name) for name in names for pattern in patterns) and not _library_use(names)


def _operator_name(node: str) -> str:
    """Return the operator of an autograd node: `nll_loss` for `NllLoss`.

    All variants of attention (`ScaledDotProduct...`) give `scaled_dot_product_attention`.
    """
    snake = _WORD_START.sub("_", node).lower()
    return "scaled_dot_product_attention" if "dot_product" in snake else plain(snake)


def _operator_of(names: Sequence[str]) -> str:
    """Return the outermost ATen operator in a stack, which the user's line calls; empty if there is none.

    An operator that only allocates (`_FILLS`) is returned only if there is no other.
    """
    called = called_operators(names)
    telling = [name for name in called if name not in _FILLS]
    return (telling or called or [""])[-1]


def called_operators(names: Iterable[str]) -> list[str]:
    return [plain(match["dispatched"] or match["recorded"]) for name in names if (match := _CALL.search(name))]


def plain(operator: str) -> str:
    while _OVERLOAD.search(operator):
        operator = _OVERLOAD.sub("", operator)
    return operator.removeprefix("_").removeprefix("native_")


# What captures the stack or hands memory out lies below the operation that asked for it: innermost where stacks="all".
_ALLOCATOR_FRAME = re.compile(r"torch::(unwind|CapturedTraceback|cuda)::|c10::|at::(detail::|TensorBase )")


def _is_internal(file: str) -> bool:
    """Return whether a file belongs to PyTorch, to Python or to native code, so that its frames are not the user's."""
    return origin_of(file) <= Origin.RUNTIME


class Frames:
    """Look-up tables for the texts, frames and stacks of a snapshot, which the snapshot's columns refer to by index.

    Text 0 is the empty text, and stack 0 is a stack without frames. `interning.InternTables` wrote the tables.
    """

    def __init__(self, columns: Mapping[str, Column]) -> None:
        # Plain views of memory-mapped columns are indexed ten times as fast as the memmap objects.
        self._text_end, self._text_bytes = (np.asarray(columns[name]) for name in ("text_end", "text_bytes"))
        self._stack_end, self._stack_frames = (np.asarray(columns[name]) for name in ("stack_end", "stack_frames"))
        self._name, self._file, self._line = (np.asarray(columns[f"frame_{key}"]) for key in ("name", "file", "line"))
        self._texts: dict[int, str] = {}
        self._frames: dict[int, Place] = {}
        self._operations: dict[int, str] = {}

    def text(self, number: int) -> str:
        """Return the text at this index of the snapshot's table of distinct texts; index 0 is the empty text."""
        if number not in self._texts:
            start = int(self._text_end[number - 1]) if number else 0
            content = self._text_bytes[start : int(self._text_end[number])].tobytes()
            self._texts[number] = content.decode("utf-8", "replace")
        return self._texts[number]

    def frame(self, number: int) -> Place:
        """Return the frame at this index of the snapshot's table of distinct frames."""
        if number not in self._frames:
            name, file = self.text(int(self._name[number])), self.text(int(self._file[number]))
            self._frames[number] = Place(name, file, int(self._line[number]))
        return self._frames[number]

    def user_stack(self, stack: int) -> list[Place]:
        """Return the frames of a stack that are in the user's code, innermost first.

        If there are none, return a made-up frame that names the operation, such as `backward of bmm` (left out if the
        operation is not known), and then the frames of the stack. The innermost frames, in which the allocator gets the
        memory and PyTorch captures the stack, are left out.
        """
        start, end = self._bounds(stack)
        numbers = self._stack_frames[start:end]
        user = numbers[self._is_user[numbers]]
        if len(user):
            return [self.frame(number) for number in user.tolist()]
        native = [self.frame(number) for number in numbers[self._allocator_frames(start, end) :].tolist()]
        operation = self.operation(stack)
        return [Place(operation, "", 0), *native] if operation else native

    def whole_stack(self, stack: int) -> list[Place]:
        start, end = self._bounds(stack)
        return [self.frame(number) for number in self._stack_frames[start:end].tolist()]

    def has_user_line(self, stack: int) -> bool:
        start, end = self._bounds(stack)
        return bool(self._is_user[self._stack_frames[start:end]].any())

    def operation(self, stack: int) -> str:
        """Return the operation that the user's innermost frame called in PyTorch or a library: `backward of bmm`.

        The result is an empty text if the function names in the stack do not show an operation.
        """
        if stack not in self._operations:
            self._operations[stack] = operation_of(self.native_names(stack))
        return self._operations[stack]

    def native_names(self, stack: int) -> list[str]:
        """Return the names of the functions that run inside the user's innermost frame, innermost first.

        If no frame of the stack is in the user's code, return the names of all its functions.
        """
        start, end = self._bounds(stack)
        first = self._first_user(start, end)
        return [self.frame(number).function for number in self._stack_frames[start:first].tolist()]

    def innermost(self, stack: int) -> Place | None:
        """Return the innermost frame of a stack that is in the user's code; None for a stack without frames.

        If no frame is in the user's code, return a made-up frame that names the operation, such as `backward of bmm`;
        if the operation is not known either, return the innermost frame outside of the allocator.
        """
        start, end = self._bounds(stack)
        if start == end:
            return None
        first = self._first_user(start, end)
        if first >= end and (operation := self.operation(stack)):
            return Place(operation, "", 0)
        first = first if first < end else start + self._allocator_frames(start, end)
        return self.frame(int(self._stack_frames[first]))

    def line(self, stack: int) -> str:
        """Return the result of `innermost` as `file:line function`; an empty text for a stack without frames."""
        frame = self.innermost(stack)
        return str(frame) if frame else ""

    def _bounds(self, stack: int) -> tuple[int, int]:
        return int(self._stack_end[stack - 1]) if stack else 0, int(self._stack_end[stack])

    def _allocator_frames(self, start: int, end: int) -> int:
        """Return how many of a stack's innermost frames belong to the allocator or to the code that captures stacks.

        If all frames do, the result is 0. The stack's frames are at the positions `start` to `end` of the column
        `stack_frames`.
        """
        names = (self.frame(number).function for number in self._stack_frames[start:end].tolist())
        return next((count for count, name in enumerate(names) if not _ALLOCATOR_FRAME.match(name)), 0)

    @cached_property
    def _is_user(self) -> Mask:
        """For each distinct frame, whether it is in the user's code.

        Each file is checked once, because there are fewer files than frames.
        """
        files, inverse = np.unique(self._file, return_inverse=True)
        return np.array([not _is_internal(self.text(file)) for file in files.tolist()], bool)[inverse]

    def _first_user(self, start: int, end: int) -> int:
        found = np.flatnonzero(self._is_user[self._stack_frames[start:end]])
        return start + int(found[0]) if len(found) else end
