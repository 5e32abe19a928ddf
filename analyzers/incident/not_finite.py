"""Report the operation, module and tensor at which values first became NaN or infinite.

They are recorded in each rank's file `not_finite/rank_R.json`, which `recorders.check_finite` writes.
"""

from collections.abc import Sequence

import msgspec

from analyzers.files import read_json
from analyzers.report import Evidence, Finding, Severity
from analyzers.run import Artefact
from analyzers.words import rank_names

_FINDING = "values.not_finite"
_LARGE_PARAMETER = 1e6
"""The absolute value above which a parameter has diverged: trained weights stay below some hundreds."""
BACKWARD, INPUT = "backward", "input"
_NAMESPACE = "aten."
"""The prefix of the names of PyTorch's operations, such as `aten.div.Tensor`."""


class Source(msgspec.Struct, frozen=True):
    """A tensor that an operation read, and its largest absolute value (a text for `nan` and `inf`).

    `name` is the name of the parameter or buffer, or else of the operation that made the tensor.
    """

    name: str = ""
    kind: str = ""
    largest: float | str = 0.0


class Origin(msgspec.Struct, frozen=True):
    """The first operation whose result is not finite, or the first tensor that is not finite.

    `kind` is `forward`, `backward` or `input`; `input` means that `tensor` was not written by any operation of the
    step. `line` is the user's line, `inputs` are the tensors that the operation read.
    """

    kind: str
    operation: str = ""
    module: str = ""
    line: str = ""
    tensor: str = ""
    dtype: str = ""
    value: str = "nan"
    inputs: list[Source] = []


class LargestParameter(msgspec.Struct, frozen=True):
    """The parameter with the largest absolute value in the step; it is only recorded if all parameters were finite."""

    name: str
    value: float


class NotFinite(msgspec.Struct, frozen=True):
    """The content of one rank's file; `origin` is None if no operation of this rank produced the first bad value.

    A bad value is one that is not finite. `seen_in` says whether gradients or parameters were found to be not finite,
    and `seen_names` has some of their names.
    """

    rank: int
    step: int
    seen_in: str
    seen_names: list[str] = []
    origin: Origin | None = None
    largest_parameter: LargestParameter | None = None


def not_finite_findings(artefacts: Sequence[Artefact]) -> list[Finding]:
    """Return, in a list, the finding on the first operation with a result that is not finite; empty without a file.

    `artefacts` are the files of the ranks. Only the files with the earliest step count. Among these, ranks whose own
    operation produced the value are preferred to ranks that received it.
    """
    files = [(artefact, content) for artefact in artefacts if (content := read(artefact))]
    if not files:
        return []
    first = min(content.step for _, content in files)
    files = [(artefact, content) for artefact, content in files if content.step == first]
    made = [(artefact, content) for artefact, content in files if content.origin and not _came_from_outside(content)]
    return [finding(made or files)]


def read(artefact: Artefact) -> NotFinite | None:
    """Return the content of a rank's file; None if it is damaged."""
    try:
        return msgspec.convert(read_json(artefact.path), NotFinite, strict=False)
    except (OSError, ValueError, msgspec.ValidationError):
        return None


def _came_from_outside(content: NotFinite) -> bool:
    """Return whether the bad value came from a tensor without a name that no operation of the step wrote.

    Such a tensor is the batch, or was received from another rank.
    """
    return content.origin is not None and content.origin.kind == INPUT and not content.origin.tensor


def finding(files: Sequence[tuple[Artefact, NotFinite]]) -> Finding:
    """Return the finding on the ranks on which values first stopped being finite; `files` are the files of these."""
    _, content = files[0]
    ranks = sorted(content.rank for _, content in files)
    return Finding(
        id=_FINDING,
        severity=Severity.ERROR,
        title=what(content, f"on {rank_names(ranks)} at step {content.step}"),
        why=" ".join(reasons(content)),
        next=advice(content),
        ranks=ranks,
        step=content.step,
        evidence=[
            Evidence(text=fact(one), source=str(artefact.path), line=one.origin.line if one.origin else "")
            for artefact, one in files
        ],
        confidence=0.95 if content.origin else 0.6,
    )


def what(content: NotFinite, on_ranks: str) -> str:
    """Return a clause on which tensor or operation is not finite first; `on_ranks` names its ranks and the step."""
    origin = content.origin
    if origin is None:
        first = f"the {content.seen_in} of {first_name(content)} is not finite {on_ranks}"
        return f"{first}, and no operation that was checked there made it so"
    value = "NaN" if origin.value == "nan" else "infinite"
    if origin.kind == INPUT:
        name = f"parameter or buffer {origin.tensor}" if origin.tensor else "a tensor from outside of the model's step"
        return f"{name} is {value} {on_ranks}, where {_module_of(origin)} reads it"
    written = f" into {origin.tensor}" if origin.tensor else ""
    made = f"operation {operation_of(origin)}{written} returns the first {value} value"
    return f"{made} {on_ranks}, in {_module_of(origin)}"


def operation_of(origin: Origin) -> str:
    """Return the short name of an operation: `log`, or `div in the backward pass of Sqrt`."""
    name, _, node = origin.operation.partition(" in ")
    short = _short_name(name)
    return f"{short} in the backward pass of {node.rstrip('0123456789').removesuffix('Backward')}" if node else short


def _module_of(origin: Origin) -> str:
    """Return a phrase that names the module of an operation, or says that it is outside of the modules."""
    return f"module {origin.module}" if origin.module else "code outside of the modules (such as the loss)"


def first_name(content: NotFinite) -> str:
    """Return the name of the first tensor that was found to be not finite."""
    return content.seen_names[0] if content.seen_names else "a tensor"


def reasons(content: NotFinite) -> list[str]:
    """Return sentences on the tensors that the operation read, and on parameters that are too large."""
    origin, sentences = content.origin, []
    if origin and origin.inputs:
        parts = [f"{number(source.largest)} in {_name_of(source)}" for source in origin.inputs]
        sentences.append(
            f"The largest absolute value of what the operation read: {', '.join(parts)}. It computes in {origin.dtype}."
        )
    if origin is None:
        sentences.append("Either another rank sent the value, or a step before the check began made it.")
    largest = content.largest_parameter
    if largest and largest.value >= _LARGE_PARAMETER:
        sentences.append(f"The parameters have diverged: {largest.name} reaches {largest.value:.2g}.")
    sentences.append(f"The check first saw it in the {content.seen_in} of {first_name(content)}.")
    return sentences


def _name_of(source: Source) -> str:
    """Return a phrase for a tensor that an operation read: its name, or `the result of mm` if an operation made it."""
    if source.name.startswith(_NAMESPACE):
        return f"the result of {_short_name(source.name)}"
    return source.name or "a tensor"


def _short_name(operation: str) -> str:
    """Return the name of an operation without its namespace and overload: `div` for `aten.div.Tensor`."""
    return operation.removeprefix(_NAMESPACE).partition(".")[0]


def number(value: float | str) -> str:
    """Return a number as short text; a text (`nan`, `inf`) is returned unchanged."""
    return value if isinstance(value, str) else f"{value:.3g}"


def advice(content: NotFinite) -> str:
    """Return a sentence on what to do about the operation or tensor that was not finite first."""
    origin, largest = content.origin, content.largest_parameter
    if largest and largest.value >= _LARGE_PARAMETER:
        return (
            f"Lower the learning rate or clip the gradients, and resume from a checkpoint before step {content.step}."
        )
    if origin is None:
        return "Look at the files of the other ranks, and begin the check some steps earlier."
    if origin.kind == INPUT and not origin.tensor:
        return f"Check the batch of step {content.step}: a value in it is not finite."
    if origin.kind == INPUT:
        return f"Look at the update of {origin.tensor} before step {content.step}, and at the checkpoint it came from."
    if origin.dtype == "float16" and origin.value == "inf":
        return f"Compute {operation_of(origin)} in float32 or bfloat16, or scale its inputs: float16 ends at 65504."
    where = origin.line or _module_of(origin)
    return f"Keep the inputs of {operation_of(origin)} in its range, for example with an epsilon or a clamp ({where})."


def fact(content: NotFinite) -> str:
    """Return a phrase on the record of one rank: the first operation or tensor that was not finite, and the step."""
    origin = content.origin
    made = f"{operation_of(origin) or origin.tensor or 'an input'} ({origin.kind})" if origin else "no operation"
    return f"rank {content.rank}: {made} in step {content.step}"
