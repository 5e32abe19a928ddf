"""Write the findings that memory grows from step to step, or that it is freed steps after its last use."""

import re
from collections.abc import Sequence

from analyzers.memory.findings.evidence import FORWARD_ONLY, STEPS_INFERRED, fact, in_words, innermost, ranks_of
from analyzers.memory.model import Device, Growth, UnusualUse
from analyzers.report import Finding, Severity
from analyzers.words import quantity, size, size_change

_LEAK_CAUSES = (
    "Common causes are a list that is appended to, a loss summed up without .item() or .detach(), and a stored output"
    " that keeps its autograd graph."
)


_CACHE = re.compile(r"(?i)kv_?cache|cache_utils\.py|past_key_value|key_value_cache")
_GROWING_CACHE = (
    "This is a cache of keys and values, which grows with each token. Bound the length of a sequence (max_new_tokens)"
    ' or the number of sequences, or allocate the cache once: cache_implementation="static" in transformers.'
)


def leak_advice(growth: Growth, line: str) -> str:
    """Return what to do about growth; `line` names the line that allocates it."""
    if any(map(_CACHE.search, growth.frames)):
        return _GROWING_CACHE
    return f"Find what keeps the tensors of {line} alive. {_LEAK_CAUSES}"


def leak_finding(device: Device, growing: Sequence[Growth]) -> Finding:
    """Return the finding that the live bytes of some stacks grow; `growing` has the stack that grew most first."""
    worst = growing[0]
    where = innermost(worst.frames, "an unknown line")
    is_annotated = worst.first_step is not None
    since = f" from step {worst.first_step} on" if is_annotated else ""
    how = "" if is_annotated else f" {STEPS_INFERRED}"
    how += FORWARD_ONLY if worst.forward_only else ""
    together = sum(growth.total_bytes for growth in growing)
    all_lines = f" All lines in the evidence together left {size(together)}." if len(growing) > 1 else ""
    return Finding(
        id="memory.leak",
        severity=Severity.WARNING,
        title=f"Memory grows by {size(worst.bytes_per_step)} per step{since} in {where}",
        why=f"In each of the last {worst.steps} steps this line allocated memory that was not freed by the end of the"
        f" recording, {size(worst.total_bytes)} in total.{all_lines}{how}",
        next=leak_advice(worst, "this line"),
        ranks=ranks_of(device),
        step=worst.first_step,
        evidence=[
            fact(
                device,
                f"{size_change(growth.bytes_per_step)} per step in {quantity(growth.steps, 'step')}:"
                f" {in_words(growth.category)}",
                innermost(growth.frames),
            )
            for growth in growing
        ],
        confidence=min(0.95 if is_annotated else 0.8, 0.6 + 0.05 * worst.steps),
    )


def late_frees_finding(device: Device, use: UnusualUse) -> Finding:
    """Return the finding that tensors stay for several steps and are then freed together."""
    where = f" in {innermost(use.frames)}" if use.frames else ""
    return Finding(
        id="memory.late_frees",
        severity=Severity.INFO,
        title=f"Up to {size(use.bytes)} stays allocated for several steps{where}, and is then freed at once",
        why="Objects in a reference cycle stay until Python's garbage collector runs, and tensors that they refer to"
        " stay with them. A list that is emptied every few steps looks the same.",
        next="Break the reference cycle: it goes through what holds these tensors, such as an object that refers to"
        " itself, a closure or a stored exception. Its effect can be checked with gc.collect() after each step, after"
        f" which the peak is up to {size(use.bytes)} lower.",
        ranks=ranks_of(device),
        step=device.step,
        evidence=[fact(device, f"freed late and together: {size(use.bytes)}", innermost(use.frames))],
        confidence=0.85,
    )
