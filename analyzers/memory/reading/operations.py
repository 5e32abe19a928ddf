"""Name the operation behind a stack from the names of its native functions, such as `softmax` or `NCCL collective`."""

import re
from collections.abc import Iterable, Sequence

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
    """Return whether a stack belongs to the backward of an operation, and not to a library or to a sum of gradients.

    `names` are the functions of the stack, as in `operation_of`.
    """
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
    """Return the names of the ATen operators that are called in a stack, the innermost first."""
    return [plain(match["dispatched"] or match["recorded"]) for name in names if (match := _CALL.search(name))]


def plain(operator: str) -> str:
    """Return an ATen operator's name without its overload and without the internal prefixes `_` and `native_`."""
    while _OVERLOAD.search(operator):
        operator = _OVERLOAD.sub("", operator)
    return operator.removeprefix("_").removeprefix("native_")
