"""Make the parts that several sentences of this package share: evidence, ranks, and the names of categories."""

from collections.abc import Mapping, Sequence

from analyzers.memory.answers.stacks import call_site
from analyzers.memory.model import Device
from analyzers.report import Evidence
from analyzers.words import rank_names

COMMON_POOL = "0.0"
STEPS_INFERRED = (
    "The snapshot does not say where a step begins: workbench derived the steps from call stacks that repeat."
)
_CATEGORY_WORDS = {
    "optimizer_state": "optimizer state",
    "temporary": "temporary tensors",
    "communication": "communication buffers",
    "workspace": "library workspaces",
    "unknown": "memory of unknown category",
}

FORWARD_ONLY = " No stack shows a backward pass, so they may be evaluation or inference."
"""The sentence about inferred steps in which nothing shows that they train."""


def in_words(category: str) -> str:
    """Return a category's name as a noun for a sentence: `optimizer state` for `optimizer_state`."""
    return _CATEGORY_WORDS.get(category, category)


def largest(categories: Mapping[str, int]) -> tuple[str, int]:
    """Return the category with the most bytes, and its bytes."""
    return max(categories.items(), key=lambda item: item[1])


def rank_subject(ranks: Sequence[int]) -> str:
    """Return the ranks as the subject of a sentence: `rank 3`, `ranks 0-2, 5`; `the process` if none is known."""
    return rank_names(ranks) if ranks else "the process"


def ranks_of(device: Device) -> list[int]:
    """Return the rank of a device in a list, the form in which findings have ranks; empty if it is not known."""
    return [] if device.rank is None else [device.rank]


def fact(device: Device, text: str, line: str = "") -> Evidence:
    """Return evidence that points to the snapshot of the device.

    `line` is the place in the user's code that the text is about, such as `train.py:41` (empty: none).
    """
    return Evidence(text=text, source=device.path, line=line)


def innermost(frames: Sequence[str], unknown: str = "") -> str:
    """Return the first, innermost frame as `function (file:line)`; `unknown` if there are no frames."""
    return call_site(frames[0]) if frames else unknown


def about(ratio: float) -> str:
    """Return a ratio rounded to two significant digits: `1.5`, `130`."""
    rounded = float(f"{ratio:.2g}")
    return f"{rounded:.0f}" if rounded >= 10 else f"{rounded:g}"


def pool_words(pool: str) -> str:
    """Return the name of a memory pool in words: `private pool (3, 0)` for `3.0`, and the default pool for `0.0`."""
    if pool == COMMON_POOL:
        return "default pool"
    first, separator, second = pool.partition(".")
    return f"private pool ({first}, {second})" if separator else "unknown pool"
